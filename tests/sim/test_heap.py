from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wastegate.sim.heap import Heap


@given(st.lists(st.floats(0, 10), max_size=30))
def test_actions_run_by_time_and_then_by_planning(times: list[float]) -> None:
    heap = Heap()
    ran: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        heap.at(time, lambda number=number: ran.append((heap.now, number)))  # type: ignore[misc]
    heap.run()
    assert ran == sorted((time, number) for number, time in enumerate(times))


def test_an_action_may_plan_another() -> None:
    heap = Heap(start=100.0)
    seen: list[float] = []
    heap.at(101.0, lambda: heap.at(103.0, lambda: seen.append(heap.now)))
    heap.at(102.0, lambda: seen.append(heap.now))
    heap.run()
    assert seen == [102.0, 103.0]


def test_time_does_not_go_back() -> None:
    heap = Heap(start=100.0)
    seen: list[float] = []
    heap.at(101.0, lambda: heap.at(50.0, lambda: seen.append(heap.now)))
    heap.run()
    assert seen == [101.0]
