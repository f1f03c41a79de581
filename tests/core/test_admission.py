from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.core.admission import Admission, Limits


def test_limits_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="cap is 0: at least 1"):
        Limits(cap=0)
    with pytest.raises(ValueError, match="queue is -1"):
        Limits(queue=-1)
    assert Limits(cap=1, queue=0) == Limits(1, 0)


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
