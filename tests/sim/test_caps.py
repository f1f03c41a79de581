from __future__ import annotations

from msgspec.structs import replace

from tests.sim.test_engine import START, arrival, machines
from wastegate.core.admission import CapConfig
from wastegate.core.effects import Closed
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.sim.caps import Caps
from wastegate.sim.engine import Simulation
from wastegate.sim.replica import Settings
from wastegate.sim.timing import Linear, Table

KNEE = Table(decode=((1, 0.01), (16, 0.012), (64, 0.2)), prefill=((1, 0.002), (100, 0.005)))
"""Up to 16 at once cost next to nothing; beyond that each is dear."""


def run(own: int | None, config: CapConfig, calls: int = 600) -> tuple[list[Closed], list[int]]:
    fleet = [replace(one, timing=KNEE, settings=Settings(kv_tokens=100_000)) for one in machines(1, own)]
    caps = Caps(config, start=4)
    closed: list[Closed] = []
    seen: list[int] = []

    def sink(one: Closed) -> None:
        closed.append(one)
        caps.ended(one)
        seen.append(simulation.world.states[0].replica.cap or 0)

    simulation = Simulation(fleet, World(Breaker(), RetryBudget()), sink=sink, line_bound=10_000)
    caps.start(simulation, START)
    simulation.arrive(arrival(number, 0.02 * number, output=60) for number in range(calls))
    simulation.run()
    return closed, seen


def test_a_cap_grows_while_many_wait_and_stays_within_its_bounds() -> None:
    closed, caps = run(None, CapConfig(min=2, max=32))
    assert {one.entry.outcome for one in closed} == {"finished"}
    assert caps[0] < max(caps) <= 32


def test_a_replicas_own_cap_is_the_most() -> None:
    _, caps = run(6, CapConfig(min=2, max=32))
    assert max(caps) <= 6


def test_ticks_end_with_the_traffic() -> None:
    closed, _ = run(None, CapConfig(), calls=3)
    assert len(closed) == 3, "and the simulation came to its end"


def test_another_timing_needs_another_cap() -> None:
    fleet = [replace(one, timing=Linear(step_seconds=0.01)) for one in machines(1)]
    caps = Caps(CapConfig(min=1, max=64), start=2)
    simulation = Simulation(fleet, World(Breaker(), RetryBudget()), sink=caps.ended, line_bound=10_000)
    caps.start(simulation, START)
    assert simulation.world.states[0].replica.cap == 2
    simulation.arrive(arrival(number, 0.01 * number, output=60) for number in range(800))
    simulation.run()
    assert (simulation.world.states[0].replica.cap or 0) > 16
