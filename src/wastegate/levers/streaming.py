"""The streaming lever: one upstream run for identical calls, a bound on what an answer may cost, and an account of what
prompts share. It decides on values; bytes, hashes and sockets never enter here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.effect import Effect
from wastegate.core.fleet import View
from wastegate.core.intervals import Estimate, ratio
from wastegate.core.ledger import Entry
from wastegate.core.plan import Plan
from wastegate.core.prefix_stability import RoutePrefixes, of_entries

_BOUNDED = "streaming: at most"
_SLOTS = 20
"""Slots of time for the interval of what was saved."""


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
        if self.one_flight and self.answers == "buffered":
            raise ValueError("one_flight does not go with buffered answers: each is for comparison with the other")

    @property
    def decides(self) -> bool:
        """Some plan may come out otherwise than it went in."""
        return self.one_flight or self.default_tokens > 0 or self.most_tokens > 0


def decide(plan: Plan, view: View, config: Config) -> Plan:
    """Let the call fly along with one that asks the same, or bound its answer."""
    call = plan.call
    if config.one_flight and call.twin and view.twin and plan.number == 1:
        joining = replace(plan, replica=None, wait=None, refusal=None, joins=view.twin)
        return joining.because(f"streaming: flies along with {view.twin}, which asks the same")
    most = _most_tokens(call, config)
    if most is None or plan.replica is None or (plan.most_tokens is not None and plan.most_tokens <= most):
        return plan
    asked = "names no max_tokens" if call.max_tokens is None else f"asked for {call.max_tokens}"
    return replace(plan, most_tokens=most).because(f"{_BOUNDED} {most} tokens: the call {asked}")


def _most_tokens(call: Call, config: Config) -> int | None:
    """The bound that its request must be given; None where it may stay as it is."""
    if not call.path.endswith("/completions"):
        return None
    bounds = [bound for bound in (config.default_tokens, config.most_tokens) if bound]
    if call.max_tokens is None:
        return min(bounds, default=None)
    return config.most_tokens if 0 < config.most_tokens < call.max_tokens else None


def measure(entries: Sequence[Entry], config: Config) -> Effect:
    """Which share of the calls' tokens did not have to be computed. ``config`` has no say in what was.

    Tokens are prompt and output, of answers that came. Cached ones are what the engine says; those of calls that flew
    along are their leader's. What cancelling saved, and what a bound did, cannot be seen from here: nobody knows how
    long those answers would have become. Harmed are calls whose answer ended at a bound that this lever had set.
    """
    done = [_Tokens.of(entry) for entry in entries if entry.outcome == "finished" and not entry.was_stored]
    total = sum(one.all for one in done)
    parts = {
        "prefix cache": sum(one.cached for one in done) / total if total else 0.0,
        "one flight": sum(one.flew for one in done) / total if total else 0.0,
    }
    cut = sum(_was_cut(entry) for entry in entries)
    return Effect(
        lever="streaming",
        unit="tokens",
        saved=sum(parts.values()) if total else None,
        harmed=cut / len(entries) if entries else None,
        n=len(entries),
        interval=_interval(done),
        parts=parts if total else {},
        notes=tuple(_said(route) for route in of_entries(entries)),
    )


class _Tokens(NamedTuple):
    """Of one answered call: all, and those of them that need not be computed."""

    arrived: float
    all: int
    cached: int
    flew: int

    @classmethod
    def of(cls, entry: Entry) -> _Tokens:
        if entry.flew is not None:
            flew = (entry.flew.prompt_tokens or 0) + (entry.flew.output_tokens or 0)
            return cls(entry.arrived, flew, 0, flew)
        last = entry.attempts[-1]  # what finished was sent
        return cls(entry.arrived, (last.prompt_tokens or 0) + (last.output_tokens or 0), last.cached_tokens or 0, 0)


def _was_cut(entry: Entry) -> bool:
    return entry.finish_reason == "length" and any(reason.startswith(_BOUNDED) for reason in entry.trail)


def _interval(done: Sequence[_Tokens]) -> Estimate | None:
    """By slots of time of equal length, since calls that follow each other share a cache."""
    if not done:
        return None
    start, end = min(one.arrived for one in done), max(one.arrived for one in done)
    width = (end - start) / _SLOTS or 1.0
    saved, every = [0.0] * _SLOTS, [0.0] * _SLOTS
    for one in done:
        slot = min(int((one.arrived - start) / width), _SLOTS - 1)
        saved[slot] += one.cached + one.flew
        every[slot] += one.all
    used = [slot for slot in range(_SLOTS) if every[slot]]
    return ratio([saved[slot] for slot in used], [every[slot] for slot in used]) if used else None


def _said(route: RoutePrefixes) -> str:
    was = f"{route.was:.0%} did" if route.was is not None else "no engine says how much did"
    dearest = next((place for place in route.places if place.lost_tokens), None)
    parted = f"; prompts part most dearly at byte {dearest.at} ({dearest.by})" if dearest is not None else ""
    return f"{route.route}: {route.could:.0%} of prompt tokens could have come from a cache, {was}{parted}"
