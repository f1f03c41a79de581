"""A simulation recorded and replayed; tests/test_parity.py does the same with a real gateway."""

from __future__ import annotations

import pytest

from tests.sim.test_engine import machines, traffic
from wastegate.core.effects import Closed
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.sim import engine
from wastegate.sim.engine import Simulation
from wastegate.sim.replayed import Recorder, Replayed, Told
from wastegate.sim.replica import Faults


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, list[Closed]]:
    fleet = machines(2, 3, Faults(0.15, 0.05, 0.15))
    world, timers = World(Breaker(), RetryBudget(share=1.0)), Timers(first_byte=1.0, total=4.0)
    simulation = Simulation(fleet, world, timers=timers, rules=Rules(hold=1.0), line_bound=10)
    recorder = Recorder(lambda: simulation.heap.now)
    monkeypatch.setattr(engine, "lifecycle", recorder.lifecycle)
    simulation.arrive(traffic(120, seed=4, rate=24.0))
    return recorder, simulation.run()


def replay(recorder: Recorder, told: list[Told]) -> Replayed:
    fleet = [machine.replica for machine in machines(2, 3)]
    return Replayed(fleet, World(Breaker(), RetryBudget(share=1.0)), recorder.started, told, 10)


def test_a_recording_ends_as_it_did(recorded: tuple[Recorder, list[Closed]]) -> None:
    recorder, closed = recorded
    again = replay(recorder, recorder.told)
    assert again.run() == closed, "and in the same order"
    assert again.differences == []
    assert len({one.entry.outcome for one in closed}) >= 3


def test_a_missing_event_shows(recorded: tuple[Recorder, list[Closed]]) -> None:
    recorder, _ = recorded
    lost = next(place for place, told in enumerate(recorder.told) if type(told.event).__name__ == "View")
    with pytest.raises(AssertionError):
        replay(recorder, recorder.told[:lost] + recorder.told[lost + 1 :]).run()
