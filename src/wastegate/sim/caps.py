"""Replicas' caps that follow the load in made-up time, by what the gateway would be told. What a cap becomes is decided
in ``core.admission``."""

from __future__ import annotations

from wastegate.core.admission import CapConfig, CapState, Signals, decide
from wastegate.core.effects import Closed
from wastegate.core.widths import ENOUGH
from wastegate.sim.engine import Simulation
from wastegate.sim.replica import UNBOUNDED

TICK_SECONDS = 0.25
"""As often as the gateway lets caps follow."""


class _Replica:
    """What is remembered of one: its cap, and the streams that ended since the last tick."""

    def __init__(self, cap: int) -> None:
        self.state = CapState(cap)
        self.calls = self.tokens = self.preempted = 0
        self.seconds = 0.0


class Caps:
    """Beside a simulation: tell it what ends with :meth:`ended`, and begin with :meth:`start`."""

    def __init__(self, config: CapConfig, start: int) -> None:
        self._config = config
        self._start = start
        self._known: dict[str, _Replica] = {}

    def start(self, simulation: Simulation, at: float) -> None:
        """Caps begin as configured, and tick from ``at`` on as long as anything is to happen."""
        for state in simulation.world.states:
            config = self._config.within(state.replica.cap)
            known = self._known[state.replica.name] = _Replica(config.bounded(self._start))
            simulation.world.set_cap(state.replica.name, known.state.cap)
        simulation.every(TICK_SECONDS, at, lambda now: self._tick(simulation, now))

    def ended(self, closed: Closed) -> None:
        for attempt in closed.entry.attempts:
            tokens = (attempt.output_tokens or 0) - 1
            known = self._known.get(attempt.replica)
            if known is not None and attempt.outcome == "finished" and attempt.first_token is not None and tokens > 0:
                known.calls += 1
                known.tokens += tokens
                known.seconds += attempt.ended - attempt.first_token

    def _tick(self, simulation: Simulation, now: float) -> None:
        waiting, moved = len(simulation.lines), False
        for name, known in self._known.items():
            config = self._config.within(simulation.world.own_cap(name))
            before = known.state.cap
            known.state = decide(self._signals(simulation, name, known, waiting, now), known.state, config)
            if known.state.cap != before:
                simulation.world.set_cap(name, known.state.cap)
                moved = True
        if moved:
            simulation.changed()

    def _signals(self, simulation: Simulation, name: str, known: _Replica, waiting: int, now: float) -> Signals:
        running = simulation.world.load(name)
        samples: tuple[tuple[int, float], ...] = ()
        if known.calls and known.tokens:
            samples = ((max(running, 1), known.seconds / known.tokens),) * min(known.calls, ENOUGH)
        known.calls = known.tokens = 0
        known.seconds = 0.0
        machine, work = simulation.machine(name)
        preempted, known.preempted = work.spent.preempted - known.preempted, work.spent.preempted
        bound = machine.settings.kv_tokens
        kv = min(1.0, work.held / bound) if bound < UNBOUNDED else None
        return Signals(now, running, waiting, samples, max(0, preempted), kv)
