"""The simulator's driver: an event heap that runs the lifecycle that ships, in made-up time. Nothing here decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from wastegate.core.effects import (
    Claim,
    Claimed,
    Closed,
    Command,
    Event,
    Join,
    Joined,
    Look,
    Prepare,
    Queue,
    Reply,
    Send,
    Woken,
)
from wastegate.core.ledger import Outcome
from wastegate.core.lifecycle import Lever, lifecycle
from wastegate.core.lines import Lines
from wastegate.core.plan import Plan, Rules, Timers
from wastegate.core.rationing import Rationing
from wastegate.core.world import World
from wastegate.sim.batch import BatchedReplica
from wastegate.sim.flight import Arrival, Flight, Server, Twins, replied, shared
from wastegate.sim.heap import Heap
from wastegate.sim.replica import Machine, Spent, Work
from wastegate.sim.waiting import Waiting

Note = Callable[[str, Event], None]
"""Told each event that a call's lifecycle is sent, with the call's id: the log that parity is checked on."""

Sink = Callable[[Closed], None]
"""Told each call that has ended, in the order of their ends."""

_SWEEP_SECONDS = 0.1
"""The gateway lets the heads of its lines look again this often, since a rest or a breaker may have run out."""


class Simulation:
    """Runs every arrival through its lifecycle. The same arguments give the same entries.

    Not modelled: connecting takes no time, so that of the timers "first byte" and "total" can fire; a refused
    connection and a 503 are known at once.
    """

    def __init__(
        self,
        machines: Iterable[Machine],
        world: World,
        *,
        timers: Timers | None = None,
        rules: Rules | None = None,
        levers: Sequence[Lever] = (),
        seed: int = 0,
        line_bound: int = 256,
        note: Note | None = None,
        sink: Sink | None = None,
        rationing: Rationing | None = None,
    ) -> None:
        """``sink`` takes each call's end in place of :attr:`closed`, so that a long run needs no more memory than a
        short one."""
        self.heap = Heap()
        self.world = world
        self._waiting = Waiting(line_bound, rationing)
        self.closed: list[Closed] = []
        self._close = sink if sink is not None else self.closed.append
        self._timers = timers if timers is not None else Timers()
        self._rules = rules if rules is not None else Rules()
        self._levers = levers
        self._seed = seed
        self._draws = random.Random(seed)
        self._note = note
        self._servers = {machine.replica.name: Server(machine) for machine in machines}
        self._twins = Twins()
        self._coming = False
        """Further calls will come."""
        self._wake_planned = self._sweep_planned = False
        world.set_fleet(server.machine.replica for server in self._servers.values())
        for name in self._servers:
            world.set_state(name, "ready")

    @property
    def lines(self) -> Lines[Flight]:
        """Who waits."""
        return self._waiting.lines

    @property
    def busy(self) -> int:
        """Calls that the machines hold, whatever the world's load counts say."""
        return sum(len(server.flights) for server in self._servers.values())

    @property
    def spent(self) -> dict[str, Spent]:
        """What each machine has done, by its replica's name."""
        return {name: server.work.spent for name, server in self._servers.items()}

    def machine(self, name: str) -> tuple[Machine, BatchedReplica]:
        """A machine, and its work as it stands."""
        server = self._servers[name]
        return server.machine, server.work

    # ---- what is to happen

    def arrive(self, arrivals: Iterable[Arrival]) -> None:
        """Calls in the order of their arrival; each is fetched when the one before it has come."""
        self._fetch(iter(arrivals))

    def _fetch(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        self._coming = arrival is not None
        if arrival is not None:
            self.heap.at(arrival.call.arrived, lambda: self._arrives(arrival, arrivals))

    def _arrives(self, arrival: Arrival, others: Iterator[Arrival]) -> None:
        self._fetch(others)
        self._begin(arrival)

    def dies(self, name: str, at: float, back: float | None = None, noticed: float = 1.0) -> None:
        """The machine stops at ``at`` and is up again at ``back``; the probe sees it ``noticed`` seconds after."""
        self.heap.at(at, lambda: self._die(name))
        self.heap.at(at + noticed, lambda: self._probe(name))
        if back is not None:
            self.heap.at(back, lambda: self._come_back(name))

    def every(self, seconds: float, at: float, action: Callable[[float], None]) -> None:
        """An action from ``at`` on, as long as calls are on their way or still to come."""

        def tick() -> None:
            action(self.heap.now)
            if self._coming or self.busy or self.lines:
                self.heap.at(self.heap.now + seconds, tick)

        self.heap.at(at, tick)

    def run(self) -> list[Closed]:
        """Until every call has its entry; in the order in which they ended."""
        self.heap.run()
        return self.closed

    # ---- the driver: commands in, events out

    def _begin(self, arrival: Arrival) -> None:
        flight = Flight(arrival, lifecycle(arrival.call, self._levers, self._timers, self._rules))
        if arrival.leaves is not None:
            self.heap.at(arrival.leaves, lambda: self._hang_up(flight))
        self._advance(flight, None)

    def _advance(self, flight: Flight, event: Event | None) -> None:
        """Run the lifecycle until it must wait for something, or ends."""
        flight.serial += 1
        try:
            command = next(flight.life) if event is None else self._tell(flight, event)
            while (answer := self._answer(flight, command)) is not None:
                command = self._tell(flight, answer)
        except StopIteration as stop:
            flight.serial += 1
            self._leave_line(flight)
            self._close(stop.value)
            for other in self._twins.landed(flight):
                self._advance(other, shared(stop.value, self.heap.now))

    def _tell(self, flight: Flight, event: Event) -> Command:
        if self._note is not None:
            self._note(flight.call.id, event)
        return flight.life.send(event)

    def _answer(self, flight: Flight, command: Command) -> Event | None:
        """What the command leads to, if that is known at once."""
        now = self.heap.now
        match command:
            case Prepare(call):
                return call
            case Look(call):
                view = self.world.view(call, now, self._draws.random(), self._waiting.ahead(flight, call))
                view = self._waiting.rationed(view, flight, call)
                twin = self._twins.of(call)
                return replace(view, twin=twin) if twin else view
            case Claim(plan):
                granted = self.world.claim(plan, now)
                if granted:
                    self._leave_line(flight, served=True)
                    self._waiting.took(flight)
                    if self.world.reuse is not None and plan.replica is not None:
                        self.world.reuse.sent(flight.call, plan.replica.name, now)
                return Claimed(granted, now)
            case Join(plan):
                return None if self._twins.join(flight, plan.joins) else Joined(now, None)
            case Send(plan):
                self._twins.leads(flight)
                return self._send(flight, plan)
            case Queue(call, wait):
                joined, frees = self._waiting.join(flight, call, wait.until)
                if frees:
                    self.changed()
                if not joined:
                    return Woken("full", now)
                flight.waiting = True
                self._later(wait.until, flight, lambda: self._advance(flight, Woken("deadline", self.heap.now)))
                self._plan_sweep()
                return None

    # ---- waiting

    def _later(self, time: float, flight: Flight, action: Callable[[], None]) -> None:
        """An action that is void once the call's situation has changed."""
        serial = flight.serial
        self.heap.at(time, lambda: action() if flight.serial == serial else None)

    def _leave_line(self, flight: Flight, served: bool = False) -> None:
        flight.waiting = False
        if self._waiting.leave(flight, served, self.heap.now):
            self.changed()

    def changed(self) -> None:
        """A slot, a replica or the head of a line has changed: let the heads look again, once."""
        if self.lines and not self._wake_planned:
            self._wake_planned = True
            self.heap.at(self.heap.now, self._wake)

    def _wake(self) -> None:
        self._wake_planned = False
        for flight in self._waiting.heads():
            self._advance(flight, Woken("turn", self.heap.now))

    def _plan_sweep(self) -> None:
        if self.lines and not self._sweep_planned:
            self._sweep_planned = True
            self.heap.at(self.heap.now + _SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_planned = False
        self.changed()
        self._plan_sweep()

    def _hang_up(self, flight: Flight) -> None:
        if flight.waiting:
            self._advance(flight, Woken("hung_up", self.heap.now))
        elif flight.along is not None:
            self._twins.leave(flight)
            self._advance(flight, Joined(self.heap.now, "hung_up", 499, "client left"))
        elif flight.plan is not None:
            self._stop_work(flight, "hung_up", "client left")

    # ---- one attempt

    def _send(self, flight: Flight, plan: Plan) -> Reply | None:
        assert plan.replica is not None, "only a plan with a replica is claimed and sent"
        server = self._servers[plan.replica.name]
        now = self.heap.now
        flight.plan, flight.sent, flight.first_token, flight.cached = plan, now, None, None
        if not server.alive:
            return self._reply(flight, "failed", "connect")
        # Drawn for this attempt alone, so that a change of policy elsewhere leaves its luck as it was.
        luck = random.Random(f"{self._seed} {plan.replica.name} {flight.call.id}.{plan.number}").random()
        fault = server.machine.faults.at(luck)
        if fault == "refuse":
            return self._reply(flight, "failed", "status 503", status=503)
        flight.cut = fault == "cut"
        front = server.machine.front
        if fault != "hang" and not front and (refused := self._compute(server, flight, plan)) is not None:
            return refused
        server.flights[flight.call.id] = flight
        if fault != "hang" and front:
            self._later(now + front, flight, lambda: self._reach(server, flight, plan))
        total = flight.call.arrived + plan.timers.total
        self._later(total, flight, lambda: self._stop_work(flight, "failed", "timeout: total"))
        serial = flight.serial
        self.heap.at(now + plan.timers.first_byte, lambda: self._first_byte_due(flight, serial))
        return None

    def _reach(self, server: Server, flight: Flight, plan: Plan) -> None:
        """The request has come to its engine."""
        if (refused := self._compute(server, flight, plan)) is not None:
            del server.flights[flight.call.id]
            self._advance(flight, refused)

    def _compute(self, server: Server, flight: Flight, plan: Plan) -> Reply | None:
        """Hand the call to the machine's engine; the reply, where it is refused."""
        work = Work(plan.call.prompt_tokens, flight.output, plan.call.blocks, plan.call.scope, plan.call.priority)
        verdict = server.work.add(flight.call.id, work, self.heap.now)
        self._plan_work(server)
        if verdict == "full":
            return self._reply(flight, "failed", "status 503", status=503)
        return self._reply(flight, "failed", "status 400", status=400) if verdict == "too long" else None

    def _first_byte_due(self, flight: Flight, serial: int) -> None:
        if flight.serial == serial and not (flight.call.stream and flight.first_token is not None):
            self._stop_work(flight, "failed", "timeout: first byte")

    def _plan_work(self, server: Server) -> None:
        server.plan += 1
        due, plan = server.work.next_change(), server.plan
        if due is not None:
            self.heap.at(due, lambda: self._work(server) if server.plan == plan else None)

    def _work(self, server: Server) -> None:
        for milestone in server.work.advance(self.heap.now):
            flight = server.flights[milestone.key]
            if milestone.what == "first_token":
                flight.first_token, flight.cached = milestone.at, milestone.cached
                if self.world.reuse is not None and flight.call.stream:
                    self.world.reuse.began(flight.call.id)
                continue
            del server.flights[milestone.key]
            if flight.cut:
                self._advance(flight, self._reply(flight, "failed", "cut", output=flight.output))
            else:
                self._advance(flight, self._reply(flight, "finished", status=200, output=flight.output))
        self._plan_work(server)

    def _stop_work(self, flight: Flight, outcome: Outcome, reason: str) -> None:
        """The attempt ends before its time; what it had made until now counts as made."""
        assert flight.plan is not None
        assert flight.plan.replica is not None
        server = self._servers[flight.plan.replica.name]
        del server.flights[flight.call.id]
        output = 0
        if flight.call.id in server.work:
            output = server.work.drop(flight.call.id, self.heap.now)
            self._plan_work(server)
        self._advance(flight, self._reply(flight, outcome, reason, output=output))

    def _reply(
        self, flight: Flight, outcome: Outcome, reason: str = "", *, status: int | None = None, output: int = 0
    ) -> Reply:
        """The attempt has ended: give its slot back."""
        now = self.heap.now
        reply = replied(flight, now, outcome, reason, status, output)
        flight.plan = None
        if self.world.reuse is not None:
            self.world.reuse.ended(flight.call.id, reply.attempt, now)
        self._waiting.gave(flight)
        self.world.released(reply, now)
        self.changed()
        return reply

    # ---- machines that stop

    def _die(self, name: str) -> None:
        server = self._servers[name]
        server.alive = False
        for flight in list(server.flights.values()):
            self._stop_work(flight, "failed", "cut")
        spent = server.work.spent
        server.work = BatchedReplica(server.machine.settings, server.machine.timing)  # what it kept of prompts is gone
        server.work.spent = spent
        server.plan += 1

    def _probe(self, name: str) -> None:
        if not self._servers[name].alive:
            self.world.set_state(name, "down")

    def _come_back(self, name: str) -> None:
        self._servers[name].alive = True
        self.world.set_state(name, "ready")
        self.changed()
