"""Each replica's cap as it follows the load: what the fleet and its engines tell is gathered here, and handed to the
policy. What a cap becomes is decided in ``core.admission``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from wastegate.core.admission import CapState, Signals, decide
from wastegate.core.widths import ENOUGH
from wastegate.core.world import World
from wastegate.engines.readback import Seen
from wastegate.gateway.tally import Paced, Report
from wastegate.levers.batching import Config

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_LIVE_KV = ("vllm", "sglang")
"""Engines whose KV usage counts what running sequences hold, and not what is only kept for reuse."""


class _Replica:
    """What is remembered of one."""

    def __init__(self, cap: int) -> None:
        self.state = CapState(cap)
        self.paced = Paced()
        self.preemptions: float | None = None
        self.told_at = 0.0


class Caps:
    """The live caps of one gateway. A configuration that is off gives replicas their own caps back."""

    def __init__(
        self,
        world: World,
        seen: Callable[[str], Seen],
        report: Callable[[], Report],
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._world = world
        self._seen = seen
        self._report = report
        self._now = now
        self._changed = changed
        """Called when a cap is not what it was."""
        self._config = Config()
        self._known: dict[str, _Replica] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def _on(self) -> bool:
        return self._config.on and self._config.caps.policy != "fixed"

    def set(self, config: Config) -> None:
        """Go by another configuration from now on. What was learnt stays, unless it is off."""
        was, self._config = self._on, config
        if was and not self._on:
            for name in self._known:
                self._world.set_cap(name, None)
            self._known.clear()
            self._changed()

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def state(self, name: str) -> CapState | None:
        """A replica's cap and how it came to be; None where it follows nothing."""
        known = self._known.get(name)
        return known.state if known is not None else None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if not self._on:
                continue
            try:
                self.tick()
            except Exception:  # whatever it is, caps must follow the load again at the next look
                log.exception("caps cannot follow the load")

    def tick(self) -> None:
        """Let every replica's cap follow what has happened since the last time."""
        report, now = self._report(), self._now()
        present = {state.replica.name: state.replica.engine for state in self._world.states}
        for name in self._known.keys() - present.keys():
            del self._known[name]
        moved = False
        for name, engine in present.items():
            most = self._world.own_cap(name)
            config = self._config.caps.within(most)
            known = self._known.get(name)
            if known is None:
                known = _Replica(config.bounded(self._config.start))
                known.paced = report.tally.pace(name)
                self._world.set_cap(name, known.state.cap)
                self._known[name] = known
                moved = True
            before = known.state.cap
            known.state = decide(self._signals(name, engine, known, report, now), known.state, config)
            if known.state.cap != before:
                log.info("%s: cap %d → %d: %s", name, before, known.state.cap, known.state.why)
                self._world.set_cap(name, known.state.cap)
                moved = True
        if moved:
            self._changed()

    def _signals(self, name: str, engine: str, known: _Replica, report: Report, now: float) -> Signals:
        running = self._world.load(name)
        paced = report.tally.pace(name)
        calls, tokens = paced.calls - known.paced.calls, paced.tokens - known.paced.tokens
        seconds = paced.seconds - known.paced.seconds
        known.paced = paced
        samples: tuple[tuple[int, float], ...] = ()
        if calls > 0 and tokens > 0:
            samples = ((max(running, 1), seconds / tokens),) * min(calls, ENOUGH)
        told = self._seen(name).signals
        if told is not None and told.at > known.told_at:
            known.told_at = told.at
            if not samples and running and told.inter_token is not None and told.inter_token.p50:
                samples = ((running, told.inter_token.p50),) * ENOUGH  # no stream has ended: the engine's word for it
        preempted = told.preemptions if told is not None else None
        more = preempted - known.preemptions if preempted is not None and known.preemptions is not None else 0.0
        known.preemptions = preempted
        kv = told.kv_usage if told is not None and engine in _LIVE_KV else None
        return Signals(now, running, report.waiting, samples, max(0, round(more)), kv)
