from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.widths import ENOUGH, Point, knee, learn


def curve(*rates: tuple[float, float]) -> tuple[Point, ...]:
    """Points by width and tokens a second, all well known."""
    return tuple(Point(batch, batch / rate, ENOUGH) for batch, rate in rates)


def test_a_width_is_its_median_so_that_one_odd_step_counts_for_little() -> None:
    (point,) = learn((), [(8, 0.02), (8, 0.02), (8, 5.0)])
    assert point == Point(8.0, 0.02, 3)
    assert point.rate == 400.0


def test_later_steps_move_a_width_by_their_number() -> None:
    (point,) = learn(learn((), [(8, 0.02)] * 3), [(8, 0.04)])
    assert point.seconds == pytest.approx(0.025)
    assert point.seen == 4


def test_old_steps_are_forgotten_in_the_end() -> None:
    points = learn((), [(8, 0.02)] * 10_000)
    for _ in range(100):
        points = learn(points, [(8, 0.04)] * 32)
    assert points[0].seconds == pytest.approx(0.04, rel=0.01)


def test_nearby_widths_share_a_point_and_points_are_ascending() -> None:
    points = learn((), [(30, 0.07), (32, 0.07), (1, 0.025), (8, 0.024)])
    assert [round(point.batch) for point in points] == [1, 8, 31]


def test_what_is_no_step_is_passed_over() -> None:
    assert learn((), [(0, 0.1), (4, 0.0)]) == ()


def test_the_knee_is_where_wider_brings_hardly_more() -> None:
    """The local engine's tokens a second at 1 to 32 streams, and 64 that bring nothing."""
    found = knee(curve((1, 39), (2, 112), (4, 212), (8, 330), (16, 375), (32, 473), (64, 480)))
    assert found is not None
    assert found.batch == 32


def test_there_is_no_knee_while_all_that_is_known_rises() -> None:
    assert knee(()) is None
    assert knee(curve((8, 330))) is None
    assert knee(curve((8, 330), (16, 500), (32, 700))) is None


def test_a_width_that_was_hardly_seen_makes_no_knee() -> None:
    assert knee((*curve((8, 330)), Point(16, 16 / 330, ENOUGH - 1))) is None


def test_one_slow_width_between_faster_ones_makes_no_knee() -> None:
    assert knee(curve((8, 330), (16, 320), (32, 700))) is None


@given(st.lists(st.tuples(st.integers(-1, 300), st.floats(-1, 10, allow_nan=False)), max_size=50), st.integers(1, 5))
def test_points_stay_few_ascending_and_positive(samples: list[tuple[int, float]], times: int) -> None:
    points: tuple[Point, ...] = ()
    for _ in range(times):
        points = learn(points, samples)
    assert len(points) <= 18
    assert [p.batch for p in points] == sorted(p.batch for p in points)
    assert all(p.batch > 0 and p.seconds > 0 and 0 < p.seen <= 256 for p in points)
