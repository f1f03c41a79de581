from __future__ import annotations

import math
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.core.line import QUANTUM, Line


def test_a_line_keeps_order_of_arrival_within_a_priority() -> None:
    line: Line[str] = Line(10)
    for ticket, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        assert line.join(ticket, priority)
    assert line.head() == "urgent"
    assert [line.pop() for _ in range(5)] == ["urgent", "first", "second", "late", None]
    assert line.head() is None


def test_a_full_line_turns_away_and_holds_nobody_by_mistake() -> None:
    line: Line[str] = Line(1)
    assert line.join("a")
    assert not line.join("b")
    assert "a" in line
    assert "b" not in line
    assert line.leave("a")
    assert line.join("b")


def test_leaving_twice_is_told_apart() -> None:
    line: Line[str] = Line(2)
    line.join("a")
    assert line.leave("a")
    assert not line.leave("a")
    assert not line.leave("never here")


def test_who_comes_back_stands_at_the_end() -> None:
    line: Line[str] = Line(10)
    for ticket in "abc":
        line.join(ticket)
    line.leave("a")
    line.join("a")
    assert [line.pop() for _ in range(3)] == ["b", "c", "a"]


def test_who_comes_back_has_the_priority_of_the_second_time() -> None:
    line: Line[str] = Line(10)
    line.join("a", priority=0)
    line.join("b", priority=1)
    line.leave("a")
    line.join("a", priority=2)
    assert line.head() == "b"


def test_places_left_behind_do_not_pile_up() -> None:
    line: Line[int] = Line(10)
    line.join(-1, priority=-1)  # it stays at the head, so that nothing behind it is ever popped
    for ticket in range(10_000):
        line.join(ticket, priority=ticket % 2 - 1)
        line.leave(ticket)
    assert len(line) == 1
    assert sum(len(heap) for round_ in line._classes.values() for heap in round_._flows.values()) < 200
    assert all(len(round_._gone) < 200 for round_ in line._classes.values())


class PlainLine:
    """What a line means, written as slowly and plainly as can be."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.places: list[tuple[int, int, int]] = []
        self.arrivals = 0
        self.turns = 0

    def join(self, ticket: int, priority: int) -> bool:
        if len(self.places) >= self.bound:
            return False
        self.arrivals += 1
        self.places.append((priority, self.arrivals, ticket))
        self.places.sort()
        return True

    def leave(self, ticket: int) -> bool:
        before = len(self.places)
        self.places = [place for place in self.places if place[2] != ticket]
        return len(self.places) < before

    def head(self) -> int | None:
        if not self.places:
            return None
        oldest = min(self.places, key=lambda place: place[1])
        return oldest[2] if self.turns % 8 == 7 else self.places[0][2]

    def pop(self) -> int | None:
        ticket = self.head()
        if ticket is not None:
            self.leave(ticket)
            self.turns += 1
        return ticket


TICKETS = st.integers(0, 2)
MOVES = st.one_of(
    st.tuples(st.just("join"), TICKETS, st.integers(-1, 1)),
    st.tuples(st.just("leave"), TICKETS, st.just(0)),
    st.tuples(st.sampled_from(["pop", "head"]), st.just(0), st.just(0)),
)


@given(st.integers(0, 4), st.lists(MOVES, max_size=30))
@settings(max_examples=500)
def test_a_line_does_what_a_plain_list_does(bound: int, moves: list[tuple[str, int, int]]) -> None:
    line: Line[int] = Line(bound)
    plain = PlainLine(bound)
    for move, ticket, priority in moves:
        if move == "join" and ticket not in line:
            assert line.join(ticket, priority) == plain.join(ticket, priority)
        elif move == "leave":
            assert line.leave(ticket) == plain.leave(ticket)
        elif move == "pop":
            assert line.pop() == plain.pop()
        elif move == "head":
            assert line.head() == plain.head()
        assert len(line) == len(plain.places)
    for _ in range(len(line) + 1):
        assert line.pop() == plain.pop()


# ---- flows, deadlines, groups


def drained(line: Line[str]) -> list[str | None]:
    return [line.pop() for _ in range(len(line))]


def test_tenants_take_turns_however_many_calls_one_has() -> None:
    line: Line[str] = Line(100)
    for number in range(6):
        line.join(f"busy {number}", tenant="busy")
    line.join("calm 0", tenant="calm")
    line.join("calm 1", tenant="calm")
    assert drained(line)[:4] == ["busy 0", "calm 0", "busy 1", "calm 1"]


def test_turns_are_shared_by_cost_not_by_number() -> None:
    line: Line[str] = Line(100)
    for number in range(4):
        line.join(f"dear {number}", tenant="dear", cost=4 * QUANTUM)
        for part in range(4):
            line.join(f"cheap {number}.{part}", tenant="cheap", cost=QUANTUM)
    first = [str(ticket).split()[0] for ticket in (line.pop() for _ in range(10))]
    assert first.count("dear") == 2
    assert first.count("cheap") == 8


def test_within_a_flow_the_earliest_deadline_goes_first_and_equal_ones_keep_their_order() -> None:
    line: Line[str] = Line(10)
    line.join("whenever")
    line.join("at nine", deadline=9.0)
    line.join("at five", deadline=5.0)
    line.join("at nine too", deadline=9.0)
    assert drained(line) == ["at five", "at nine", "at nine too", "whenever"]


def test_a_closed_group_lets_others_pass_and_keeps_its_places() -> None:
    line: Line[str] = Line(10)
    line.join("a", group="behavior")
    line.join("b", group="behavior")
    line.join("c")
    assert line.head(closed={"behavior"}) == "c"
    assert line.head(closed={"behavior", ""}) is None
    line.leave("c", served=True)
    assert line.head(closed={"behavior"}) is None
    assert drained(line) == ["a", "b"]


def test_dear_tickets_of_many_flows_are_found_without_going_round_for_each_of_their_quanta() -> None:
    line: Line[int] = Line(2000)
    for number in range(900):
        line.join(number, tenant=str(number), cost=1e9)
    line.join(900, tenant="closed", group="closed", cost=1e9)
    line.join(901, tenant="cheap", cost=1.0)
    (round_,) = line._classes.values()
    rotations = 0

    class Counted(deque[tuple[str, str]]):
        def rotate(self, by: int = 1) -> None:
            nonlocal rotations
            rotations += 1
            super().rotate(by)

    round_._rotation = Counted(round_._rotation)
    assert line.head(closed={"closed"}) == 901
    line.leave(901, served=True)
    assert line.head(closed={"closed"}) == 0
    assert rotations < 4 * 902


def test_the_turn_of_the_oldest_passes_over_a_closed_group() -> None:
    line: Line[str] = Line(20)
    line.join("old", priority=9, group="closed")
    line.join("next", priority=8)
    for number in range(7):
        line.join(str(number), priority=0)
        assert line.pop() == str(number)
    line.join("new", priority=0)
    assert line.head(closed={"closed"}) == "next"
    assert line.head(closed={"closed", ""}) is None
    assert line.head() == "old"


def test_the_wait_is_known_once_the_line_has_moved_for_a_while() -> None:
    line: Line[int] = Line(100)
    for ticket in range(20):
        line.join(ticket)
    waits = []
    for turn in range(8):
        waits.append(line.wait(9))
        line.pop(now=turn * 0.5)
    assert waits[:4] == [None] * 4
    assert waits[7] == 5.0
    assert line.leave(19, served=True), "a turn at a time that nobody tells counts for no pace"
    line.pop(now=100.0)
    assert line.wait(9) == 5.0


def test_the_time_in_which_nobody_waited_is_no_pace() -> None:
    line: Line[int] = Line(10)
    for busy in (0.0, 1000.0):
        for ticket in range(6):
            line.join(ticket)
        for turn in range(6):
            line.pop(now=busy + turn)
    assert line.wait(0) == 1.0


TICKET = st.tuples(
    st.integers(-1, 2),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([0.5, 10.0, math.inf]),
    st.sampled_from([1.0, QUANTUM, 1e9]),
)


@given(st.lists(TICKET, min_size=1, max_size=60), st.lists(st.integers(0, 59), max_size=30))
def test_nobody_is_lost_or_served_twice_and_all_are_served(
    joining: list[tuple[int, str, float, float]], leaving: list[int]
) -> None:
    line: Line[int] = Line(60)
    for ticket, (priority, tenant, deadline, cost) in enumerate(joining):
        assert line.join(ticket, priority, tenant=tenant, deadline=deadline, cost=cost)
    left = {ticket for ticket in leaving if line.leave(ticket)}
    served = [line.pop() for _ in range(len(line))]
    assert sorted(ticket for ticket in served if ticket is not None) == sorted(set(range(len(joining))) - left)
    assert line.pop() is None
    assert not line._classes


@given(st.integers(1, 5), st.integers(1, 20), st.data())
def test_nobody_starves_under_a_flood_of_higher_priority(flood: int, stand: int, data: st.DataObject) -> None:
    """One of low priority among others that wait; every turn brings as many new ones of a higher priority."""
    line: Line[str] = Line(10_000)
    for number in range(stand):
        line.join(f"before {number}", priority=data.draw(st.integers(0, 3)))
    line.join("low", priority=9, deadline=math.inf)
    turns = 0
    while "low" in line:
        for number in range(flood):
            line.join(f"{turns}.{number}", priority=0, deadline=float(turns))
        line.pop()
        turns += 1
        assert turns <= 8 * (stand + 1), "one turn in eight is the oldest one's"


@given(st.lists(st.sampled_from([16.0, 100.0, QUANTUM, 5000.0]), min_size=2, max_size=2), st.integers(1, 300))
def test_two_busy_tenants_get_the_same_share_of_work(costs: list[float], turns: int) -> None:
    line: Line[tuple[str, int]] = Line(10_000)
    for number in range(400):
        for tenant, cost in zip("ab", costs, strict=True):
            line.join((tenant, number), tenant=tenant, cost=cost)
    work = {"a": 0.0, "b": 0.0}
    for _ in range(turns):
        ticket = line.pop()
        assert ticket is not None
        work[ticket[0]] += costs["ab".index(ticket[0])]
    assert abs(work["a"] - work["b"]) <= 2 * (max(costs) + QUANTUM)


def test_within_a_flow_deadlines_do_not_keep_one_waiting_for_ever() -> None:
    line: Line[str] = Line(1000)
    line.join("whenever")
    for number in range(20):
        line.join(f"soon {number}", deadline=float(number))
    assert "whenever" in [line.pop() for _ in range(8)]
