from __future__ import annotations

from msgspec.structs import replace

from tests.sim.test_engine import arrival
from wastegate.core.fleet import View
from wastegate.core.lifecycle import lifecycle
from wastegate.core.plan import Rules, Timers
from wastegate.core.rationing import Rationing
from wastegate.core.shares import Share
from wastegate.sim.flight import Flight
from wastegate.sim.waiting import Waiting


def flight(number: int, route: str = "chat") -> Flight:
    one = arrival(number, route=route)
    return Flight(one, lifecycle(one.call, (), Timers(), Rules()))


def test_without_rations_it_is_a_line() -> None:
    waiting = Waiting(2, None)
    one, two, three = (flight(number) for number in range(3))
    assert [waiting.join(each, each.call, 9.0) for each in (one, two, three)] == [
        (True, False),
        (True, False),
        (False, False),
    ]
    assert (waiting.ahead(one, one.call), waiting.ahead(two, two.call)) == (0, 1)
    view = View(1.0, (), 0.5)
    assert waiting.rationed(view, one, one.call) is view
    assert waiting.heads() == [one]
    assert (waiting.leave(one, True, 2.0), waiting.leave(one, True, 2.0)) == (True, False)


def test_a_route_that_is_full_is_passed_by() -> None:
    rationing = Rationing(Share())
    rationing.set({"behavior": 1}, 0)
    waiting = Waiting(10, rationing)
    running, held, free = flight(0, "behavior"), flight(1, "behavior"), flight(2)
    waiting.took(running)
    assert waiting.join(held, held.call, 9.0) == (True, True)
    waiting.join(free, free.call, 9.0)
    assert waiting.heads() == [free]
    seen = waiting.rationed(View(1.0, (), 0.5), held, held.call)
    assert seen.rations is not None
    assert (seen.rations.waiting, seen.rations.running) == (2, 1)
    waiting.leave(free, True, 2.0)
    assert waiting.heads() == []
    waiting.gave(running)
    assert waiting.heads() == [held]
    assert replace(seen, rations=None) == View(1.0, (), 0.5)
