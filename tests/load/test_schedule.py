"""Selection, stretching and scaling: the times and lengths that a run will have."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.load.rows import BLOCK_TOKENS, HangUp, Row, Trace
from wastegate.load.schedule import (
    EMPTY,
    NO_LENGTH,
    NO_OUTPUT,
    TOO_LONG,
    Pace,
    Planned,
    fit,
    schedule,
)


def trace(*rows: Row) -> Trace:
    return Trace("t", "azure", rows)


def row(at: float | None = 0.0, into: int | None = 100, out: int | None = 10, **more: Any) -> Row:
    return Row(line=1, at=at, input_tokens=into, output_tokens=out, **more)


def times(rows: Trace, **pace: Any) -> list[float]:
    return [planned.at for planned in schedule(rows, Pace(**pace))]


EVERY_SECOND = trace(*(row(at=50.0 + second) for second in range(11)))


def test_times_begin_with_the_first_row() -> None:
    assert times(EVERY_SECOND) == [float(second) for second in range(11)]


def test_speed_divides_time() -> None:
    assert times(EVERY_SECOND, speed=4.0)[-1] == 2.5


def test_rate_sets_the_mean() -> None:
    stretched = times(EVERY_SECOND, rate=0.5)
    assert stretched[1] == 2.0
    assert (len(stretched) - 1) / stretched[-1] == pytest.approx(0.5)


def test_rate_keeps_bursts() -> None:
    bursty = trace(row(0.0), row(0.0), row(0.0), row(9.0))
    assert times(bursty, rate=1.0) == [0.0, 0.0, 0.0, 3.0]


def test_a_rate_cannot_stretch_one_instant() -> None:
    assert times(trace(row(3.0), row(3.0)), rate=1.0) == [0.0, 0.0]


def test_limit_and_duration_cut() -> None:
    assert len(times(EVERY_SECOND, limit=4)) == 4
    assert times(EVERY_SECOND, duration=3.0) == [0.0, 1.0, 2.0, 3.0]
    assert times(EVERY_SECOND, duration=2.0, speed=2.0) == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_rate_and_duration_together_hold_both() -> None:
    uneven = trace(*(row(at=second**2) for second in range(100)))
    run = times(uneven, rate=2.0, duration=10.0)
    assert len(run) == 20
    assert 19 / run[-1] == pytest.approx(2.0)


def test_rows_are_sent_in_order_of_time() -> None:
    plan = schedule(trace(row(5.0, into=1), row(3.0, into=2), row(3.0, into=3)), Pace())
    assert [planned.input_tokens for planned in plan] == [2, 3, 1]
    assert [planned.number for planned in plan] == [1, 2, 3]


def test_without_timestamps_rows_arrive_at_random_and_again_the_same() -> None:
    bare = trace(*(row(at=None) for _ in range(2000)))
    one = times(bare, rate=5.0, seed=1)
    assert one == times(bare, rate=5.0, seed=1) != times(bare, rate=5.0, seed=2)
    assert one[0] == 0.0
    assert 1999 / one[-1] == pytest.approx(5.0, rel=0.1)
    with pytest.raises(ValueError, match="no timestamps: give --rate"):
        times(bare)


@pytest.mark.parametrize(
    "pace",
    [{"speed": 0}, {"rate": -1.0}, {"limit": 0}, {"duration": float("inf")}, {"token_scale": Fraction(0)}],
)
def test_a_pace_that_makes_no_sense_is_refused(pace: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Pace(**pace)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="both set the pace"):
        Pace(speed=1.0, rate=1.0)
    with pytest.raises(ValueError, match="less than a token of a block"):
        Pace(token_scale=Fraction(1, 1000))
    with pytest.raises(ValueError, match="bring their own text"):
        schedule(trace(row(messages=({"role": "user", "content": "x"},))), Pace(token_scale=Fraction(1, 2)))


def test_rows_that_cannot_be_sent_say_why() -> None:
    rows = (row(into=None), row(into=0), row(out=0), row(into=None, prompt=""), row(into=None, prompt="x", out=0))
    assert [planned.skip for planned in schedule(trace(*rows), Pace())] == [
        NO_LENGTH,
        EMPTY,
        NO_OUTPUT,
        EMPTY,
        NO_OUTPUT,
    ]


def test_who_hung_up_may_have_waited_for_as_much_as_others_got() -> None:
    rows = (row(out=30), row(out=50), row(out=2, hang_up=HangUp(seconds=1.0)), row(out=None), row(out=40))
    assert [planned.output_tokens for planned in schedule(trace(*rows), Pace())] == [30, 50, 40, 40, 40]
    assert schedule(trace(row(out=None)), Pace())[0].output_tokens == 256


SCALES = st.fractions(Fraction(1, BLOCK_TOKENS), Fraction(2), max_denominator=512)


@given(length=st.integers(1, 200_000), scale=SCALES)
def test_a_scaled_row_keeps_its_blocks(length: int, scale: Fraction) -> None:
    count = -(-length // BLOCK_TOKENS)
    (planned,) = schedule(trace(row(into=length, blocks=tuple(range(count)))), Pace(token_scale=scale))
    assert planned.input_tokens is not None
    assert all(later > earlier for earlier, later in pairwise((0, *planned.edges)))
    before = planned.edges[-2] if count > 1 else 0
    assert before < planned.input_tokens <= planned.edges[-1]
    assert abs(planned.input_tokens - length * scale) <= 1.5


@given(scale=SCALES, shared=st.integers(1, 40), one=st.integers(0, 20), two=st.integers(0, 20))
def test_what_two_rows_share_ends_at_the_same_place(scale: Fraction, shared: int, one: int, two: int) -> None:
    rows = (
        row(into=(shared + one) * BLOCK_TOKENS, blocks=tuple(range(shared + one))),
        row(into=(shared + two) * BLOCK_TOKENS, blocks=(*range(shared), *range(1000, 1000 + two))),
    )
    left, right = schedule(trace(*rows), Pace(token_scale=scale))
    assert left.edges[:shared] == right.edges[:shared]
    assert abs(left.edges[shared - 1] - shared * BLOCK_TOKENS * scale) <= 0.5


def planned(into: int | None, out: int) -> Planned:
    return Planned(number=1, row=row(), at=0.0, input_tokens=into, output_tokens=out)


@pytest.mark.parametrize(
    ("into", "out", "clipped"),
    [(80, 20, (80, 20)), (200, 20, (80, 20)), (30, 200, (30, 70)), (200, 200, (50, 50)), (99, 99, (50, 50))],
)
def test_a_row_is_clipped_where_it_is_too_long(into: int, out: int, clipped: tuple[int, int]) -> None:
    fitted = fit(planned(into, out), 100, "clip")
    assert (fitted.input_tokens, fitted.output_tokens) == clipped
    assert fitted.clipped is ((into, out) != clipped)


def test_a_misfit_may_be_skipped_instead() -> None:
    assert fit(planned(90, 20), 100, "skip").skip == TOO_LONG
    assert fit(planned(5, 5), 1, "clip").skip == TOO_LONG
    assert fit(planned(80, 20), 100, "skip").skip == ""
    assert fit(planned(None, 200), 100, "skip").skip == ""
