from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.core.admission import Admission, Limits, Line


def test_limits_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="cap is 0: at least 1"):
        Limits(cap=0)
    with pytest.raises(ValueError, match="queue is -1"):
        Limits(queue=-1)
    assert Limits(cap=1, queue=0) == Limits(1, 0)


# ---- the line


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
        line.join(ticket)
        line.leave(ticket)
    assert len(line) == 1
    assert len(line._heap) < 200


class PlainLine:
    """What a line means, written as slowly and plainly as can be."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.places: list[tuple[int, int, int]] = []
        self.arrivals = 0

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
        return self.places[0][2] if self.places else None

    def pop(self) -> int | None:
        return self.places.pop(0)[2] if self.places else None


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
    assert [line.pop() for _ in plain.places] == [ticket for _, _, ticket in plain.places]


# ---- the line and the cap


def test_runs_up_to_the_cap_then_waits_then_turns_away() -> None:
    admission: Admission[str] = Admission(Limits(cap=2, queue=1))
    assert [admission.arrive(ticket) for ticket in "abcd"] == ["run", "run", "wait", "full"]
    assert (admission.running, admission.waiting) == (2, 1)
    assert admission.finish() == ["c"]
    assert admission.finish() == []
    assert admission.finish() == []
    assert (admission.running, admission.waiting) == (0, 0)


def test_releasing_a_slot_twice_is_an_error() -> None:
    admission: Admission[str] = Admission(Limits(cap=1))
    admission.arrive("a")
    admission.finish()
    with pytest.raises(ValueError, match="released twice"):
        admission.finish()


def test_a_newcomer_does_not_overtake_the_line() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    admission.arrive("a")
    admission.arrive("b")
    assert admission.finish() == ["b"]
    admission.arrive("c")
    assert admission.arrive("d", priority=-1) == "wait"
    assert admission.finish() == ["d"]
    assert admission.finish() == ["c"]


def test_who_leaves_the_line_is_not_admitted() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    for ticket in "abc":
        admission.arrive(ticket)
    assert admission.leave("b")
    assert not admission.leave("a"), "a runs: it does not wait"
    assert admission.finish() == ["c"]


def test_a_raised_cap_admits_in_order() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    for ticket in "abcd":
        admission.arrive(ticket)
    assert admission.resize(Limits(cap=3, queue=5)) == ["b", "c"]
    assert admission.running == 3


def test_a_lowered_cap_lets_the_running_drain() -> None:
    admission: Admission[str] = Admission(Limits(cap=3, queue=5))
    for ticket in "abcd":
        admission.arrive(ticket)
    assert admission.resize(Limits(cap=1, queue=5)) == []
    assert [admission.finish() for _ in range(3)] == [[], [], ["d"]]


def test_a_shortened_queue_keeps_those_who_wait() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=3))
    for ticket in "abc":
        admission.arrive(ticket)
    admission.resize(Limits(cap=1, queue=1))
    assert admission.arrive("d") == "full"
    assert admission.waiting == 2
    assert admission.finish() == ["b"]


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(-1, 1)),
    st.tuples(st.just("finish"), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 40)),
    st.tuples(st.just("cap"), st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=200)
def test_nobody_is_lost_and_the_cap_holds(steps: list[tuple[str, int]]) -> None:
    """Every ticket that arrived runs, waits, was turned away, left or has finished: exactly one of these."""
    admission: Admission[int] = Admission(Limits(cap=2, queue=3))
    running: list[int] = []
    waiting: set[int] = set()
    cap = 2
    for number, (step, value) in enumerate(steps):
        admitted: list[int] = []
        if step == "arrive":
            verdict = admission.arrive(number, value)
            assert (verdict == "full") == (len(waiting) == 3 and verdict != "run")
            if verdict == "run":
                assert not waiting, "nobody may overtake those who wait"
                running.append(number)
            elif verdict == "wait":
                waiting.add(number)
        elif step == "finish" and running:
            running.pop(0)
            admitted = admission.finish()
        elif step == "leave":
            assert admission.leave(value) == (value in waiting)
            waiting.discard(value)
        elif step == "cap":
            cap = value
            admitted = admission.resize(Limits(cap=cap, queue=3))
        assert waiting.issuperset(admitted)
        waiting.difference_update(admitted)
        running += admitted
        assert (admission.running, admission.waiting) == (len(running), len(waiting))
        assert not admitted or len(running) <= cap
        assert not waiting or len(running) >= cap, "a free slot and somebody waiting do not go together"
