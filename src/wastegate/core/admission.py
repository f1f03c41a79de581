"""The cap and what keeps to it: who runs now, who waits, who is turned away, and how the cap follows the load. One
policy for the gateway, the local engine, the vLLM plugin and the simulator; no clock and no I/O may enter."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from statistics import median
from typing import Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.line import Line
from wastegate.core.widths import ENOUGH, Point, knee, learn

Ticket = TypeVar("Ticket", bound=Hashable)
Verdict = Literal["run", "wait", "full"]
Policy = Literal["fixed", "cost_aware", "article", "gradient"]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How many run at once (``cap``) and how many may wait for a place (``queue``)."""

    cap: int = 32
    queue: int = 256

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ValueError(f"cap is {self.cap}: at least 1 call must be able to run")
        if self.queue < 0:
            raise ValueError(f"queue is {self.queue}: it counts waiting calls, so it cannot be below 0")


# ---- the cap and the load


class CapConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How a cap on running sequences follows the load. Factors and bounds are the source article's."""

    policy: Policy = "cost_aware"
    """"fixed": it does not. "cost_aware": grows while calls wait and more of them at once bring more tokens a second,
    shrinks only when running calls are hurt. "gradient": goes to where a token costs least within the SLO. "article":
    the literal rule on utilisation and waits, for comparison; it can spiral down under load."""
    min: int = 2
    max: int = 64
    grow: float = 1.5
    """Rounded up."""
    shrink: float = 1.3
    """Rounded down."""
    tpot_slo: float = 0.2
    """Seconds a token, after the first, that a running call may take. 5 tokens a second is about as fast as people read
    (Brysbaert 2019: 238 words a minute)."""
    kv_high: float = 0.95
    """Share of the KV cache in live use from which running calls are about to be preempted."""
    kv_room: float = 0.85
    """Share below which there is room for more."""
    dwell: float = 1.0
    """Seconds between two changes: what the last one did must be seen first."""
    memory: float = 30.0
    """Seconds for which a cap that hurt is not tried again; twice as long each time that it hurts anew."""

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}: 1 <= min <= max is needed")
        if self.grow <= 1 or self.shrink <= 1:
            raise ValueError(f"grow is {self.grow:g} and shrink {self.shrink:g}: both are factors above 1")
        if self.tpot_slo <= 0 or self.dwell < 0 or self.memory < 0:
            raise ValueError("tpot_slo must be above 0 seconds, dwell and memory not below")
        if not 0 < self.kv_room <= self.kv_high <= 1:
            raise ValueError("0 < kv_room <= kv_high <= 1 is needed: they are shares of the KV cache")

    def bounded(self, cap: int) -> int:
        return max(self.min, min(self.max, cap))

    def within(self, most: int | None) -> CapConfig:
        """The same for a replica with a cap of its own: that is the most that it ever gets."""
        if most is None or most >= self.max:
            return self
        return replace(self, min=min(self.min, most), max=most)


class Signals(Struct, frozen=True):
    """What an engine, or a replica as its gateway sees it, did since the last decision. None: nobody can tell."""

    now: float
    """Seconds, on any clock that does not go back."""
    running: int
    waiting: int
    samples: tuple[tuple[int, float], ...] = ()
    """Sequences in a step that only decoded, and its seconds. From outside: calls in flight, and the TPOT of one that
    ended. Steps with prompt tokens and idle gaps do not belong here: they say nothing of what a token takes."""
    preemptions: int = 0
    kv_use: float | None = None
    """Share of the KV cache that live sequences hold, 0 to 1. Blocks kept only for reuse do not count."""
    waited: float | None = None
    """Seconds that those who left the line had waited, at the median. Only "article" looks."""
    utilisation: float | None = None
    """Share of time in which the engine ran anything at all, as GPU monitors report it. Only "article" looks."""


class CapState(Struct, frozen=True):
    """A cap, and all that its next change depends on. Begin with ``CapState(cap)``."""

    cap: int
    changed: float = -math.inf
    why: str = "as configured"
    """The reason of its last change."""
    points: tuple[Point, ...] = ()
    """By width, ascending: learnt from the steps."""
    recent: tuple[tuple[int, float], ...] = ()
    """The newest samples since the last change: what it has done."""
    preempted: int = 0
    """Preemptions that no decision has looked at yet."""
    ceiling: int = 0
    """A cap that hurt; 0 for none."""
    ceiling_until: float = -math.inf
    strikes: int = 0
    """How often in a row caps have hurt that were tried anew."""


_AT_KNEE = 0.95
"""Share of the knee's tokens a second above which a wider batch is no use."""
_WINDOW = 4 * ENOUGH
"""Samples that a decision looks at."""
_PATIENCE = 4
"""Dwells that slow steps are waited for."""
_MOST_STRIKES = 6
_NEAR_BEST = 1.05
"""A token may cost so much more than at the cheapest width, if that makes the batch narrower."""


def decide(signals: Signals, state: CapState, config: CapConfig) -> CapState:
    """The cap from now on. Called every fraction of a second; between two calls the cap stays as it is."""
    within = [sample for sample in signals.samples if sample[0] <= state.cap]  # others ran under the cap before
    state = replace(
        state,
        points=learn(state.points, signals.samples),
        recent=(*state.recent, *within)[-_WINDOW:],
        preempted=state.preempted + signals.preemptions,
    )
    if config.policy == "fixed":
        return state
    if (bounded := config.bounded(state.cap)) != state.cap:
        return _changed(signals, state, bounded, f"within {config.min} and {config.max}")
    if signals.now - state.changed < config.dwell:
        return state
    return replace(_POLICIES[config.policy](signals, state, config), preempted=0)


def _cost_aware(signals: Signals, state: CapState, config: CapConfig) -> CapState:
    if pain := _pain(signals, state, config):
        return _shrink(signals, state, config, pain)
    if not _pressed(signals, state):
        return state
    best, rate = knee(state.points), _rate(state)
    if best is not None and rate is not None and rate >= _AT_KNEE * best.rate:
        return state  # a wider batch would only slow those that run
    use = f"; {rate / best.rate:.0%} of the tokens/s at the knee" if best is not None and rate is not None else ""
    return _grow(signals, state, config, f"{signals.waiting} wait and there is room{use}")


def _gradient(signals: Signals, state: CapState, config: CapConfig) -> CapState:
    """As long as one more sequence adds less time than a token takes by now, it makes every token cheaper."""
    if pain := _pain(signals, state, config):
        return _shrink(signals, state, config, pain)
    known = [point for point in state.points if point.seen >= ENOUGH]
    within = [point for point in known if point.seconds <= config.tpot_slo]
    if not within:
        return _grow(signals, state, config, "nothing measured yet") if _pressed(signals, state) else state
    least = min(1 / point.rate for point in within)
    target = next(point for point in within if 1 / point.rate <= least * _NEAR_BEST)
    why = f"the engine's time for a token is least, {1000 / target.rate:.2f} ms, about {target.batch:.0f} at once"
    if target.batch * config.shrink <= state.cap <= known[-1].batch * config.shrink:  # it is known what so many bring
        cap = config.bounded(max(math.floor(state.cap / config.shrink), math.ceil(target.batch)))
        return _lower(signals, state, config, cap, state.cap, why)
    wanted = target is known[-1] or state.cap < target.batch  # wider ones than were seen may be cheaper still
    return _grow(signals, state, config, why) if wanted and _pressed(signals, state) else state


def _article(signals: Signals, state: CapState, config: CapConfig) -> CapState:
    """Utilisation below 40 % with a queue: more. Above 85 % with waits over 200 ms: less. It feeds on itself: fewer at
    once wait longer, and longer waits make it fewer."""
    use, waited = signals.utilisation, signals.waited or 0.0
    if use is None:
        return state
    if use < 0.40 and signals.waiting:
        cap = config.bounded(math.ceil(state.cap * config.grow))
        why = f"utilisation {use:.0%} and {signals.waiting} wait"
    elif use > 0.85 and waited > 0.2:
        cap = config.bounded(math.floor(state.cap / config.shrink))
        why = f"utilisation {use:.0%} and waits of {waited * 1000:.0f} ms"
    else:
        return state
    return _changed(signals, state, cap, why) if cap != state.cap else state


_POLICIES: dict[str, Callable[[Signals, CapState, CapConfig], CapState]] = {
    "cost_aware": _cost_aware,
    "gradient": _gradient,
    "article": _article,
}


def _pain(signals: Signals, state: CapState, config: CapConfig) -> str:
    """How running calls are hurt; empty when they are not. That others wait is no pain of theirs."""
    if state.preempted:
        return f"running calls were preempted {state.preempted} times"
    if signals.kv_use is not None and signals.kv_use >= config.kv_high:
        return f"{signals.kv_use:.0%} of the KV cache are in use"
    if len(state.recent) >= ENOUGH:
        tpot = median(seconds for _, seconds in state.recent)
        if tpot > config.tpot_slo:
            return f"a token takes {tpot * 1000:.0f} ms, over {config.tpot_slo * 1000:.0f}"
    return ""


def _pressed(signals: Signals, state: CapState) -> bool:
    """It is the cap that keeps calls waiting. Where more run than it allows, those above the last one still drain."""
    return signals.waiting > 0 and signals.running == state.cap


def _rate(state: CapState) -> float | None:
    """Tokens a second while only decoding."""
    rates = [batch / seconds for batch, seconds in state.recent if seconds > 0]
    return median(rates) if rates else None


def _changed(signals: Signals, state: CapState, cap: int, why: str) -> CapState:
    return replace(state, cap=cap, changed=signals.now, why=why, recent=())


def _grow(signals: Signals, state: CapState, config: CapConfig, why: str) -> CapState:
    if signals.kv_use is not None and signals.kv_use > config.kv_room:
        return state
    if 0 < len(state.recent) < ENOUGH and signals.now - state.changed < _PATIENCE * config.dwell:
        return state  # too few steps yet to say what the last change has done
    cap = config.bounded(math.ceil(state.cap * config.grow))
    if state.cap < state.ceiling:  # by halves towards what hurt, and to that itself only after a while
        near = (state.cap + state.ceiling) // 2
        cap = min(cap, near if signals.now < state.ceiling_until else state.ceiling)
    return _changed(signals, state, cap, why) if cap > state.cap else state


def _shrink(signals: Signals, state: CapState, config: CapConfig, why: str) -> CapState:
    if signals.running > state.cap:
        return state  # those above the last cap still drain: what it does is not seen yet
    width = min(state.cap, max([signals.running, *(batch for batch, _ in state.recent)]))
    return _lower(signals, state, config, config.bounded(math.floor(width / config.shrink)), width, why)


def _lower(signals: Signals, state: CapState, config: CapConfig, cap: int, width: int, why: str) -> CapState:
    """``width``: what was too much. It is left alone for a while, and each time for longer."""
    if cap >= state.cap:
        return state
    strikes = min(state.strikes + 1, _MOST_STRIKES) if signals.now < state.ceiling_until + config.memory else 0
    until = signals.now + config.memory * 2**strikes
    ceiling = max(width, cap + 1)
    return replace(_changed(signals, state, cap, why), ceiling=ceiling, ceiling_until=until, strikes=strikes)


# ---- the cap and the line


class Admission(Generic[Ticket]):
    """Holds at most ``cap`` running and ``queue`` waiting tickets.

    Every ticket that was told "run" or came out of :meth:`finish` or :meth:`resize` must be finished exactly once.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running = 0
        self._line: Line[Ticket] = Line(limits.queue)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def arrive(self, ticket: Ticket, priority: int = 0) -> Verdict:
        """Admit, queue or refuse a new ticket."""
        if self.running < self.limits.cap and not self._line:
            self.running += 1
            return "run"
        return "wait" if self._line.join(ticket, priority) else "full"

    def leave(self, ticket: Ticket) -> bool:
        """A waiting ticket gives up. False if it was not waiting (it runs, or is unknown)."""
        return self._line.leave(ticket)

    def finish(self) -> list[Ticket]:
        """A running ticket has ended; the tickets that may run now, in order."""
        if self.running < 1:
            raise ValueError("finish() without a running ticket: a slot was released twice")
        self.running -= 1
        return self._admit()

    def resize(self, limits: Limits) -> list[Ticket]:
        """New limits. Running tickets above a lowered cap are not stopped, nor waiting ones sent away: they drain."""
        self.limits = limits
        self._line.bound = limits.queue
        return self._admit()

    def _admit(self) -> list[Ticket]:
        admitted: list[Ticket] = []
        while self._line and self.running < self.limits.cap:
            ticket = self._line.pop()
            assert ticket is not None, "a line that is not empty has a head"
            self.running += 1
            admitted.append(ticket)
        return admitted
