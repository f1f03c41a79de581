"""The decision for one call, with its trail of reasons, and the baseline that every lever starts from."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.fleet import Replica, ReplicaState, View
from wastegate.core.ledger import Attempt


class Timers(Struct, frozen=True, forbid_unknown_fields=True):
    """How long each wait may last, in seconds. The one that fires is named in the 504."""

    connect: float = 2.0
    first_byte: float = 120.0
    """From the request's last byte to the answer's first."""
    first_token: float = 120.0
    """From the request's last byte to the first non-empty delta of a stream."""
    idle: float = 60.0
    """Between two pieces of an answer."""
    total: float = 600.0
    """From arrival to the end, all attempts and waits together."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: a timer must be above 0 seconds")


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """What the lifecycle may do when something goes wrong."""

    max_attempts: int = 3
    retry_statuses: tuple[int, ...] = (500, 502, 503, 504)
    """Answers that another replica may better. Never a 4xx: the request itself is at fault."""
    hold: float = 10.0
    """Seconds that a call waits for a replica that is being started or replaced before its 503."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}: at least 1 attempt must be allowed")
        client_errors = [status for status in self.retry_statuses if not 500 <= status <= 599]
        if client_errors:
            raise ValueError(f"retry_statuses holds {client_errors[0]}: only 5xx may be retried")


class Refusal(Struct, frozen=True, gc=False):
    """An answer that the gateway gives by itself."""

    status: int
    message: str
    code: str
    retry_after: float | None = None
    """Seconds."""


class Wait(Struct, frozen=True, gc=False):
    """A place in the line, held until a slot frees, a replica comes up, or ``until`` (epoch seconds)."""

    until: float
    why: str


class Plan(Struct, frozen=True, gc=False):
    """Exactly one of ``replica``, ``wait``, ``refusal`` and ``joins`` is set."""

    call: Call
    number: int
    """The attempt that this plan is for, from 1."""
    timers: Timers
    replica: Replica | None = None
    wait: Wait | None = None
    refusal: Refusal | None = None
    trail: tuple[str, ...] = ()
    open: tuple[int, ...] = ()
    """Places in ``View.replicas`` of those that can take the call now: what a lever may choose among."""
    joins: str = ""
    """Another call, in flight, whose answer is this one's too."""
    most_tokens: int | None = None
    """The answer is to be no longer than this, whatever the client wrote; None leaves the request as it is."""
    reduced: str = ""
    """What the call gets less of, for a header that replica and client are sent; empty: nothing."""

    def because(self, reason: str) -> Plan:
        """The same plan with one more reason."""
        return replace(self, trail=(*self.trail, reason))


def baseline(call: Call, view: View, tried: tuple[Attempt, ...], timers: Timers, rules: Rules) -> Plan:
    """The less loaded of two random replicas that can take the call; else a wait or a refusal.

    This is what "off" means for every lever: two choices, timers, a bounded line.
    """
    number = len(tried) + 1
    deadline = call.arrived + timers.total
    if not view.replicas:
        return Plan(call, number, timers, refusal=_not_served(call, view))
    if view.now >= deadline:
        refusal = Refusal(504, f"the call's {timers.total:g} s in total ran out before it was sent", "timeout_total")
        return Plan(call, number, timers, refusal=refusal)
    if view.ahead:
        return Plan(call, number, timers, wait=Wait(deadline, "others are ahead in line"))
    failed = {attempt.replica for attempt in tried}
    states, now = view.replicas, view.now
    places = tuple(
        [at for at, state in enumerate(states) if state.open_to_calls(now) and state.replica.name not in failed]
    )
    if places:
        chosen, reason = _two_choices(states, places, view.draw)
        return Plan(call, number, timers, replica=chosen.replica, trail=(reason,), open=places)
    return _hold_or_refuse(call, view, failed, number, timers, rules)


def _two_choices(states: Sequence[ReplicaState], places: Sequence[int], draw: float) -> tuple[ReplicaState, str]:
    count = len(places)
    if count == 1:
        only = states[places[0]]
        return only, f"baseline: {only.replica.name}, the only one open ({only.in_flight} in flight)"
    pair = int(draw * count * (count - 1))
    first, second = divmod(pair, count - 1)
    second += second >= first  # two different ones from a single draw
    one, other = states[places[first]], states[places[second]]
    if other.in_flight < one.in_flight:
        one, other = other, one
    return one, (
        f"baseline: {one.replica.name} ({one.in_flight} in flight) before {other.replica.name} ({other.in_flight})"
    )


def _not_served(call: Call, view: View) -> Refusal:
    if not view.known_models:
        return Refusal(503, "no replica has said yet which models it serves; try again shortly", "no_replica", 1.0)
    served = ", ".join(view.known_models)
    return Refusal(404, f"model {call.model!r} is not served here; served: {served}", "model_not_found")


def _hold_or_refuse(call: Call, view: View, failed: set[str], number: int, timers: Timers, rules: Rules) -> Plan:
    """No replica can take the call now: hold it where that can change soon, else say why not."""
    hopeful = [state for state in view.replicas if state.replica.name not in failed]
    if any(state.fit(view.now) for state in hopeful):
        return Plan(call, number, timers, wait=Wait(call.arrived + timers.total, "every replica is at its cap"))
    until = call.arrived + rules.hold
    resting = [state.resting_until for state in hopeful if state.state == "ready" and state.resting_until > view.now]
    if resting and len(resting) == len(hopeful) and min(resting) >= until:
        rest = min(resting) - view.now
        refusal = Refusal(503, f"every replica asked for a rest; try again in {rest:.0f} s", "resting", rest)
        return Plan(call, number, timers, refusal=refusal)
    if hopeful and view.now < until:
        why = "every replica rests" if resting else "no replica is ready; held while one comes up"
        return Plan(call, number, timers, wait=Wait(until, why))
    states = ", ".join(f"{s.replica.name} {_describe(s, view.now, failed)}" for s in view.replicas)
    refusal = Refusal(503, f"no replica can take the call ({states}); try again shortly", "no_replica", 2.0)
    return Plan(call, number, timers, refusal=refusal)


def _describe(state: ReplicaState, now: float, failed: set[str]) -> str:
    if state.replica.name in failed:
        return "failed this call"
    if state.breaker == "open":
        return "is set aside after repeated failures"
    if state.resting_until > now:
        return f"asked for {state.resting_until - now:.1f} s of rest"
    return f"is {state.state}"
