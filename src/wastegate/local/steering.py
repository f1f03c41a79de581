"""The loop's own cap, as it follows the load: what steps tell, gathered and handed to the policy. No socket, no clock;
what the policy decides stands in ``core.admission``."""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from wastegate.core.admission import CapConfig, CapState, Signals, decide
from wastegate.local.batch import Outcome

_LOOKS = 4
"""Decisions in a dwell: a cap may change as soon as the dwell allows."""
_OFTEN = 0.05
"""Seconds between two decisions at least."""


class Steering:
    """One loop's cap. Times in seconds on one clock."""

    def __init__(self, config: CapConfig, cap: int, kv_tokens: int) -> None:
        """``kv_tokens``: what the cache holds."""
        self.config = config
        self.state = CapState(cap)
        self._kv_tokens = kv_tokens
        self._decided = 0.0
        self._clear()

    def _clear(self) -> None:
        self._samples: list[tuple[int, float]] = []
        self._waited: list[float] = []
        self._busy = 0.0
        self._starved = 0
        self._kv = 0

    @property
    def steers(self) -> bool:
        return self.config.policy != "fixed"

    def begin(self, cap: int) -> None:
        """Somebody has set the cap by hand: go on from there."""
        self.state = replace(self.state, cap=cap, why="set by hand", recent=())

    def stepped(self, outcome: Outcome) -> None:
        """What a step did. Only one that did nothing but decode says what a token takes."""
        self._busy += outcome.seconds
        self._starved += len(outcome.starved)
        self._kv = outcome.kv_tokens
        if outcome.clean and not outcome.prefill and outcome.decoding == outcome.sequences:
            self._samples.append((outcome.decoding, outcome.seconds))

    def admitted(self, waited: float) -> None:
        self._waited.append(waited)

    def decide(self, now: float, running: int, waiting: int) -> bool:
        """Whether the cap has changed."""
        since = now - self._decided
        if since < max(self.config.dwell / _LOOKS, _OFTEN):
            return False
        signals = Signals(
            now,
            running,
            waiting,
            tuple(self._samples),
            self._starved,
            self._kv / self._kv_tokens,
            median(self._waited) if self._waited else None,
            min(1.0, self._busy / since),
        )
        before, self.state = self.state, decide(signals, self.state, self.config)
        self._decided = now
        self._clear()
        return self.state.cap != before.cap
