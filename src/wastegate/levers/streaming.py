"""The streaming lever: one upstream run for identical calls, a bound on what an answer may cost, and an account of what
prompts share. It decides on values; bytes, hashes and sockets never enter here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from wastegate.core.effect import Effect
from wastegate.core.fleet import View
from wastegate.core.ledger import Entry
from wastegate.core.plan import Plan


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """``[levers.streaming]``. Off as it stands."""

    one_flight: bool = False
    """Calls that ask the same, and must be answered the same (temperature 0 or a seed, no tools), share one upstream
    run while it lasts. Each has its own stream and its own entry."""
    default_tokens: int = 0
    """``max_tokens`` for a call that names none; 0 leaves it unbounded."""
    most_tokens: int = 0
    """No call may ask for more ``max_tokens`` than this; 0 allows any."""
    watch_prefixes: bool = False
    """Compare each prompt with the one before it on its route: where they part, and by what kind of thing (a time, a
    counter, …), goes into the ledger, never what it says."""
    answers: Literal["relayed", "buffered"] = "relayed"
    """"buffered" is what many stacks do, for comparison only: an answer goes out whole at its end, and a replica works
    on for a client that has left."""

    def __post_init__(self) -> None:
        for name in ("default_tokens", "most_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: a bound in tokens, or 0 for none")

    @property
    def decides(self) -> bool:
        """Some plan may come out otherwise than it went in."""
        return self.one_flight or self.default_tokens > 0 or self.most_tokens > 0


def decide(plan: Plan, view: View, config: Config) -> Plan:
    """Bound the answer."""
    return plan


def measure(entries: Sequence[Entry], config: Config) -> Effect:
    """To be counted."""
    return Effect(lever="streaming", unit="tokens", saved=None, harmed=None, n=len(entries))
