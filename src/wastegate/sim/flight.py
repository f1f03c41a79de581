"""A call on its way through the simulator, the machine that it is on, and whom it flies along with. Nothing is decided
or planned here."""

from __future__ import annotations

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.effects import Closed, Joined, Reply
from wastegate.core.ledger import Attempt, Outcome
from wastegate.core.lifecycle import Life
from wastegate.core.plan import Plan
from wastegate.sim.batch import BatchedReplica
from wastegate.sim.replica import Machine


class Arrival(Struct, frozen=True):
    """A call, and what policy must not know of it: how long its answer is and when its client gives up."""

    call: Call
    output_tokens: int
    leaves: float | None = None


class Flight:
    """One call on its way. ``serial`` changes whenever its situation does, so that an old timer finds itself void."""

    __slots__ = ("along", "arrival", "cached", "cut", "first_token", "life", "plan", "sent", "serial", "waiting")

    def __init__(self, arrival: Arrival, life: Life) -> None:
        self.arrival = arrival
        self.life = life
        self.serial = 0
        self.waiting = False
        self.plan: Plan | None = None
        self.sent = 0.0
        self.first_token: float | None = None
        self.cached: int | None = None
        self.cut = False
        self.along: Flight | None = None
        """The flight whose answer it waits for."""

    @property
    def call(self) -> Call:
        return self.arrival.call

    @property
    def output(self) -> int:
        """Tokens until the answer ends, or is cut."""
        most = self.plan.most_tokens if self.plan is not None else None
        whole = self.arrival.output_tokens if most is None else min(self.arrival.output_tokens, most)
        return whole // 2 if self.cut else whole


class Server:
    """A machine at work. ``plan`` numbers what is planned for it, so that an outdated plan finds itself void."""

    __slots__ = ("alive", "flights", "machine", "plan", "work")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.work = BatchedReplica(machine.settings, machine.timing)
        self.flights: dict[str, Flight] = {}
        self.alive = True
        self.plan = 0


class Twins:
    """Which flights may be joined by calls that ask the same, and who has joined them."""

    def __init__(self) -> None:
        self._first: dict[bytes, Flight] = {}
        self._joined: dict[str, list[Flight]] = {}

    def leads(self, flight: Flight) -> None:
        """It was sent to a replica: from now on others may join it, if none of its kind is in flight already."""
        if flight.call.twin:
            self._first.setdefault(flight.call.twin, flight)

    def of(self, call: Call) -> str:
        """The id of a flight that the call could join; empty if there is none."""
        first = self._first.get(call.twin) if call.twin else None
        return first.call.id if first is not None and first.call.id != call.id else ""

    def join(self, flight: Flight, leader: str) -> bool:
        """False where the leader has landed meanwhile."""
        first = self._first.get(flight.call.twin)
        if first is None or first.call.id != leader:
            return False
        flight.along = first
        self._joined.setdefault(leader, []).append(flight)
        return True

    def leave(self, flight: Flight) -> None:
        """It gives up waiting for the other's answer."""
        if flight.along is not None:
            self._joined[flight.along.call.id].remove(flight)
            flight.along = None

    def landed(self, flight: Flight) -> list[Flight]:
        """It has ended: those who flew along, in the order in which they had joined."""
        if self._first.get(flight.call.twin) is not flight:
            return []
        del self._first[flight.call.twin]
        others = self._joined.pop(flight.call.id, [])
        for other in others:
            other.along = None
        return others


def shared(closed: Closed, at: float) -> Joined:
    """What a flight's end means for those who flew along: its whole answer, or none."""
    entry = closed.entry
    if entry.outcome != "finished":
        return Joined(at, None)
    last = entry.attempts[-1]
    return Joined(at, "finished", entry.status, "", entry.finish_reason, last.prompt_tokens, last.output_tokens)


def replied(flight: Flight, now: float, outcome: Outcome, reason: str, status: int | None, output: int) -> Reply:
    """How the flight's attempt ends now, as the gateway would tell it. ``output``: tokens that it got."""
    plan = flight.plan
    assert plan is not None
    assert plan.replica is not None
    started = flight.call.stream and flight.first_token is not None
    whole = outcome == "finished"
    attempt = Attempt(
        number=plan.number,
        replica=plan.replica.name,
        claimed=flight.sent,
        ended=now,
        outcome=outcome,
        sent=flight.sent,
        first_byte=flight.first_token if started else (now if whole else None),
        first_token=flight.first_token if started else None,
        status=200 if started else status,
        reason=reason,
        prompt_tokens=plan.call.prompt_tokens if whole or started else None,
        cached_tokens=flight.cached if whole or started else None,
        output_tokens=output if whole or started else None,
        usage="engine" if whole else "counted" if started else "none",
    )
    return Reply(attempt, started, finish_reason="stop" if whole else "")
