from __future__ import annotations

from msgspec.structs import replace

from tests.sim.test_engine import START, TIMING, arrival
from wastegate.core.effects import Closed
from wastegate.core.fleet import Replica, View
from wastegate.core.plan import Plan
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.sim.engine import Simulation
from wastegate.sim.flight import Arrival
from wastegate.sim.replica import Faults, Machine


def along(plan: Plan, view: View) -> Plan:
    """A made-up lever: who may fly along does."""
    return replace(plan, joins=view.twin, replica=None) if view.twin and plan.replica else plan


def fly(arrivals: list[Arrival], faults: Faults | None = None) -> dict[str, Closed]:
    machine = Machine(Replica("r0", "http://r0:8000", ("m",)), TIMING, faults=faults or Faults())
    simulation = Simulation([machine], World(Breaker(), RetryBudget()), levers=[along])
    simulation.arrive(arrivals)
    return {one.entry.id: one for one in simulation.run()}


def test_calls_that_ask_the_same_share_one_run() -> None:
    closed = fly([arrival(number, 0.05 * number, twin=b"same") for number in range(3)] + [arrival(9, 0.15)])
    assert [len(closed[f"c-{number}"].entry.attempts) for number in (0, 1, 2, 9)] == [1, 0, 0, 1]
    ends = {closed[f"c-{number}"].entry.ended for number in range(3)}
    assert len(ends) == 1
    flew = closed["c-1"].entry.flew
    assert flew is not None
    assert (flew.call, flew.output_tokens) == ("c-0", 11)


def test_one_that_comes_later_flies_by_itself() -> None:
    closed = fly([arrival(0, twin=b"same"), arrival(1, 5.0, twin=b"same"), arrival(2, 5.0, twin=b"other")])
    assert [len(one.entry.attempts) for one in closed.values()] == [1, 1, 1]


def test_who_leaves_does_not_end_the_others_run() -> None:
    closed = fly([arrival(0, twin=b"same"), arrival(1, 0.01, twin=b"same", leaves=0.1)])
    assert (closed["c-1"].entry.outcome, closed["c-1"].entry.ended) == ("hung_up", START + 0.1)
    assert closed["c-0"].entry.outcome == "finished"


def test_without_an_answer_to_share_each_goes_alone() -> None:
    closed = fly([arrival(0, twin=b"same", leaves=0.12), arrival(1, 0.01, twin=b"same")])
    assert closed["c-0"].entry.outcome == "hung_up"
    assert (closed["c-1"].entry.outcome, len(closed["c-1"].entry.attempts)) == ("finished", 1)
