"""The simulator's driver, told what another driver was told: each event at its recorded instant, in the recorded
order. What comes out must be what came out there. Nothing is made up here: no machine, no chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.effects import Claim, Claimed, Closed, Command, Event, Joined, Queue, Reply, Woken
from wastegate.core.fleet import Replica, View
from wastegate.core.lifecycle import Lever, Life, lifecycle
from wastegate.core.plan import Rules, Timers
from wastegate.core.rationing import Rationing
from wastegate.core.world import World
from wastegate.sim.engine import Simulation
from wastegate.sim.flight import Arrival, Flight


class Started(Struct, frozen=True):
    """A call as its lifecycle was begun."""

    call: Call
    levers: tuple[Lever, ...]
    timers: Timers
    rules: Rules


class Told(Struct, frozen=True):
    """One event that a call's lifecycle was sent. ``at``: when, in seconds of the recording's clock."""

    call: str
    event: Event
    at: float


class Difference(Struct, frozen=True):
    """Where the simulator's world did not show what the recorded one did."""

    call: str
    what: str
    recorded: object
    simulated: object


class Replayed(Simulation):
    """Runs recorded lifecycles over recorded events. Its world and its lines are kept by the same events, so that what
    it would have shown can be compared with what was seen: :attr:`differences`."""

    def __init__(
        self,
        fleet: Sequence[Replica],
        world: World,
        started: Sequence[Started],
        told: Sequence[Told],
        line_bound: int,
        rationing: Rationing | None = None,
    ) -> None:
        super().__init__((), world, line_bound=line_bound, rationing=rationing)
        world.set_fleet(fleet)
        for replica in fleet:
            world.set_state(replica.name, "ready")
        self.differences: list[Difference] = []
        self._started = {one.call.id: one for one in started}
        self._flights: dict[str, Flight] = {}
        self._pending: dict[str, Command] = {}
        for one in told:  # planned in the order of the recording, which decides where instants are equal
            self.heap.at(one.at, lambda one=one: self._deliver(one))  # type: ignore[misc]

    def _deliver(self, told: Told) -> None:
        flight = self._flights.get(told.call)
        if flight is None:
            began = self._started[told.call]
            life = lifecycle(began.call, began.levers, began.timers, began.rules)
            flight = self._flights[told.call] = Flight(Arrival(began.call, 0), life)
            self._advance(flight, None)
        self._follow(flight, told.event)
        self._advance(flight, told.event)

    def _answer(self, flight: Flight, command: Command) -> Event | None:
        """Whatever it asks, the recording answers."""
        self._pending[flight.call.id] = command
        if isinstance(command, Queue):
            flight.waiting, _ = self._waiting.join(flight, command.call, command.wait.until)
        return None

    def changed(self) -> None:
        """Who is woken, and when, is recorded as well."""

    def _follow(self, flight: Flight, event: Event) -> None:
        """Keep the world as the recorded one was kept, and see whether it shows the same."""
        command = self._pending[flight.call.id]
        match event:
            case View():
                self._compare(flight, event)
            case Claimed():
                assert isinstance(command, Claim)
                granted = self.world.claim(command.plan, event.at)
                self._expect(flight, "granted", event.granted, granted)
                if granted:
                    self._leave_line(flight, served=True)
                    self._waiting.took(flight)
            case Reply():
                self._waiting.gave(flight)
                self.world.released(event, event.attempt.ended)

    def _compare(self, flight: Flight, seen: View) -> None:
        shown = self.world.view(flight.call, seen.now, seen.draw, self._waiting.ahead(flight, flight.call))
        shown = self._waiting.rationed(shown, flight, flight.call)
        for name in ("replicas", "ahead", "retry_allowed", "known_models"):
            self._expect(flight, name, getattr(seen, name), getattr(shown, name))
        # Not the line's pace: it hangs on the microseconds at which places were left, which no event tells.
        for name in ("waiting", "running"):
            self._expect(flight, name, getattr(seen.rations, name, None), getattr(shown.rations, name, None))

    def _expect(self, flight: Flight, what: str, recorded: object, simulated: object) -> None:
        if recorded != simulated:
            self.differences.append(Difference(flight.call.id, what, recorded, simulated))


class Recorder:
    """Stands where a driver begins lifecycles, and notes what each is sent: give :meth:`lifecycle` in its place."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.started: list[Started] = []
        self.told: list[Told] = []
        self._now = now

    def lifecycle(self, call: Call, levers: Sequence[Lever], timers: Timers, rules: Rules) -> Life:
        """The lifecycle itself, with somebody listening."""
        self.started.append(Started(call, tuple(levers), timers, rules))
        life = lifecycle(call, levers, timers, rules)
        command = next(life)
        while True:
            event = yield command
            self.told.append(Told(call.id, event, _instant(event, self._now())))
            try:
                command = life.send(event)
            except StopIteration as stop:
                closed: Closed = stop.value
                return closed


def _instant(event: Event, now: float) -> float:
    """The event's own, where it has one."""
    match event:
        case View():
            return event.now
        case Claimed() | Woken() | Joined():
            return event.at
        case Reply():
            return event.attempt.ended
    return now
