"""The simulator's driver: an event heap that runs the lifecycle that ships, in made-up time. Nothing here decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.effects import Claim, Claimed, Closed, Command, Event, Look, Prepare, Queue, Reply, Send, Woken
from wastegate.core.ledger import Attempt, Outcome
from wastegate.core.lifecycle import Lever, Life, lifecycle
from wastegate.core.lines import Lines
from wastegate.core.plan import Plan, Rules, Timers
from wastegate.core.world import World
from wastegate.sim.heap import Heap
from wastegate.sim.replica import Machine, SharedReplica

Note = Callable[[str, Event], None]
"""Told each event that a call's lifecycle is sent, with the call's id: the log that parity is checked on."""

_SWEEP_SECONDS = 0.1
"""The gateway lets the heads of its lines look again this often, since a rest or a breaker may have run out."""


class Arrival(Struct, frozen=True):
    """A call, and what policy must not know of it: how long its answer is and when its client gives up."""

    call: Call
    output_tokens: int
    leaves: float | None = None


class _Flight:
    """One call on its way. ``serial`` changes whenever its situation does, so that an old timer finds itself void."""

    __slots__ = ("arrival", "cut", "first_token", "life", "plan", "sent", "serial", "waiting")

    def __init__(self, arrival: Arrival, life: Life) -> None:
        self.arrival = arrival
        self.life = life
        self.serial = 0
        self.waiting = False
        self.plan: Plan | None = None
        self.sent = 0.0
        self.first_token: float | None = None
        self.cut = False

    @property
    def call(self) -> Call:
        return self.arrival.call

    @property
    def output(self) -> int:
        """Tokens until the answer ends, or is cut."""
        return self.arrival.output_tokens // 2 if self.cut else self.arrival.output_tokens


class _Server:
    """A machine at work. ``plan`` numbers what is planned for it, so that an outdated plan finds itself void."""

    __slots__ = ("alive", "flights", "machine", "plan", "work")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.work = SharedReplica(machine.rates)
        self.flights: dict[str, _Flight] = {}
        self.alive = True
        self.plan = 0


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
    ) -> None:
        self.heap = Heap()
        self.world = world
        self.lines: Lines[_Flight] = Lines(line_bound)
        self.closed: list[Closed] = []
        self._timers = timers if timers is not None else Timers()
        self._rules = rules if rules is not None else Rules()
        self._levers = levers
        self._seed = seed
        self._draws = random.Random(seed)
        self._note = note
        self._servers = {machine.replica.name: _Server(machine) for machine in machines}
        self._wake_planned = self._sweep_planned = False
        world.set_fleet(server.machine.replica for server in self._servers.values())
        for name in self._servers:
            world.set_state(name, "ready")

    @property
    def busy(self) -> int:
        """Calls that the machines hold, whatever the world's load counts say."""
        return sum(len(server.flights) for server in self._servers.values())

    # ---- what is to happen

    def arrive(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self.heap.at(arrival.call.arrived, partial(self._begin, arrival))

    def dies(self, name: str, at: float, back: float | None = None, noticed: float = 1.0) -> None:
        """The machine stops at ``at`` and is up again at ``back``; the probe sees it ``noticed`` seconds after."""
        self.heap.at(at, lambda: self._die(name))
        self.heap.at(at + noticed, lambda: self._probe(name))
        if back is not None:
            self.heap.at(back, lambda: self._come_back(name))

    def run(self) -> list[Closed]:
        """Until every call has its entry; in the order in which they ended."""
        self.heap.run()
        return self.closed

    # ---- the driver: commands in, events out

    def _begin(self, arrival: Arrival) -> None:
        flight = _Flight(arrival, lifecycle(arrival.call, self._levers, self._timers, self._rules))
        if arrival.leaves is not None:
            self.heap.at(arrival.leaves, lambda: self._hang_up(flight))
        self._advance(flight, None)

    def _advance(self, flight: _Flight, event: Event | None) -> None:
        """Run the lifecycle until it must wait for something, or ends."""
        flight.serial += 1
        try:
            command = next(flight.life) if event is None else self._tell(flight, event)
            while (answer := self._answer(flight, command)) is not None:
                command = self._tell(flight, answer)
        except StopIteration as stop:
            flight.serial += 1
            self._leave_line(flight)
            self.closed.append(stop.value)

    def _tell(self, flight: _Flight, event: Event) -> Command:
        if self._note is not None:
            self._note(flight.call.id, event)
        return flight.life.send(event)

    def _answer(self, flight: _Flight, command: Command) -> Event | None:
        """What the command leads to, if that is known at once."""
        now = self.heap.now
        match command:
            case Prepare(call):
                return call
            case Look(call):
                return self.world.view(call, now, self._draws.random(), self.lines.ahead(call.model, flight))
            case Claim(plan):
                granted = self.world.claim(plan, now)
                if granted:
                    self._leave_line(flight)
                return Claimed(granted, now)
            case Send(plan):
                return self._send(flight, plan)
            case Queue(call, wait):
                if not self.lines.join(call.model, flight, call.priority):
                    return Woken("full", now)
                flight.waiting = True
                self._later(wait.until, flight, lambda: self._advance(flight, Woken("deadline", self.heap.now)))
                self._plan_sweep()
                return None

    # ---- waiting

    def _later(self, time: float, flight: _Flight, action: Callable[[], None]) -> None:
        """An action that is void once the call's situation has changed."""
        serial = flight.serial
        self.heap.at(time, lambda: action() if flight.serial == serial else None)

    def _leave_line(self, flight: _Flight) -> None:
        flight.waiting = False
        if self.lines.leave(flight.call.model, flight):
            self._changed()

    def _changed(self) -> None:
        """A slot, a replica or the head of a line has changed: let the heads look again, once."""
        if self.lines and not self._wake_planned:
            self._wake_planned = True
            self.heap.at(self.heap.now, self._wake)

    def _wake(self) -> None:
        self._wake_planned = False
        for flight in self.lines.heads():
            self._advance(flight, Woken("turn", self.heap.now))

    def _plan_sweep(self) -> None:
        if self.lines and not self._sweep_planned:
            self._sweep_planned = True
            self.heap.at(self.heap.now + _SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_planned = False
        self._changed()
        self._plan_sweep()

    def _hang_up(self, flight: _Flight) -> None:
        if flight.waiting:
            self._advance(flight, Woken("hung_up", self.heap.now))
        elif flight.plan is not None:
            self._stop_work(flight, "hung_up", "client left")

    # ---- one attempt

    def _send(self, flight: _Flight, plan: Plan) -> Reply | None:
        assert plan.replica is not None, "only a plan with a replica is claimed and sent"
        server = self._servers[plan.replica.name]
        now = self.heap.now
        flight.plan, flight.sent, flight.first_token = plan, now, None
        if not server.alive:
            return self._reply(flight, "failed", "connect")
        # Drawn for this attempt alone, so that a change of policy elsewhere leaves its luck as it was.
        luck = random.Random(f"{self._seed} {plan.replica.name} {flight.call.id}.{plan.number}").random()
        fault = server.machine.faults.at(luck)
        if fault == "refuse":
            return self._reply(flight, "failed", "status 503", status=503)
        server.flights[flight.call.id] = flight
        flight.cut = fault == "cut"
        if fault != "hang":
            server.work.add(flight.call.id, plan.call.prompt_tokens, flight.output, now)
            self._plan_work(server)
        total = flight.call.arrived + plan.timers.total
        self._later(total, flight, lambda: self._stop_work(flight, "failed", "timeout: total"))
        serial = flight.serial
        self.heap.at(now + plan.timers.first_byte, lambda: self._first_byte_due(flight, serial))
        return None

    def _first_byte_due(self, flight: _Flight, serial: int) -> None:
        if flight.serial == serial and not (flight.call.stream and flight.first_token is not None):
            self._stop_work(flight, "failed", "timeout: first byte")

    def _plan_work(self, server: _Server) -> None:
        server.plan += 1
        due, plan = server.work.next_change(), server.plan
        if due is not None:
            self.heap.at(due, lambda: self._work(server) if server.plan == plan else None)

    def _work(self, server: _Server) -> None:
        for milestone in server.work.advance(self.heap.now):
            flight = server.flights[milestone.key]
            if milestone.what == "first_token":
                flight.first_token = milestone.at
                continue
            del server.flights[milestone.key]
            if flight.cut:
                self._advance(flight, self._reply(flight, "failed", "cut", output=flight.output))
            else:
                self._advance(flight, self._reply(flight, "finished", status=200, output=flight.output))
        self._plan_work(server)

    def _stop_work(self, flight: _Flight, outcome: Outcome, reason: str) -> None:
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
        self, flight: _Flight, outcome: Outcome, reason: str = "", *, status: int | None = None, output: int = 0
    ) -> Reply:
        """The attempt has ended: give its slot back."""
        plan, now = flight.plan, self.heap.now
        assert plan is not None
        assert plan.replica is not None
        flight.plan = None
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
            output_tokens=output if whole or started else None,
            usage="engine" if whole else "counted" if started else "none",
        )
        reply = Reply(attempt, started, finish_reason="stop" if whole else "")
        self.world.released(reply, now)
        self._changed()
        return reply

    # ---- machines that stop

    def _die(self, name: str) -> None:
        server = self._servers[name]
        server.alive = False
        for flight in list(server.flights.values()):
            self._stop_work(flight, "failed", "cut")

    def _probe(self, name: str) -> None:
        if not self._servers[name].alive:
            self.world.set_state(name, "down")

    def _come_back(self, name: str) -> None:
        self._servers[name].alive = True
        self.world.set_state(name, "ready")
        self._changed()
