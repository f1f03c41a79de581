"""A knee and a crossing are found where they were put, within their intervals as often as promised, and refused where
the data cannot show them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.core.conftest import at_most
from wastegate.core.curve import Crossing, Side, _passes, _says, dollars, figure, knee, meet, unbounded
from wastegate.core.intervals import Estimate, Floats

LEVELS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
NAMES = ("small", "large")


def saturating(
    half: float, most: float, noise: float = 0.0, blocks: int = 6, seed: int = 0
) -> tuple[list[Floats], list[Floats]]:
    """Requests per second and seconds of a closed loop whose rate is ``most`` × N/(N + ``half``). By Little's law the
    wait is N over the rate, so power is the rate squared over N: greatest at N = ``half``."""
    chance = np.random.default_rng(seed)
    rates = [most * n / (n + half) * np.exp(noise * chance.normal(size=blocks)) for n in LEVELS]
    return rates, [n / rate for n, rate in zip(LEVELS, rates, strict=True)]


def flat(*values: float, blocks: int = 4) -> list[Floats]:
    return [np.full(blocks, value) for value in values]


def jittered(values: Sequence[float], spread: float, seed: int, blocks: int = 6) -> list[Floats]:
    chance = np.random.default_rng(seed)
    return [value * np.exp(spread * chance.normal(size=blocks)) for value in values]


# ---- figures


def test_a_figure_has_students_interval_of_its_logarithm() -> None:
    found = figure(np.array([1.0, 2.0, 4.0]))
    assert found is not None
    reach = math.exp(4.3027 * math.log(2.0) / math.sqrt(3.0))
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0 / reach, 2.0 * reach), rel=1e-3)


def test_a_share_that_may_be_0_has_the_plain_mean() -> None:
    found = figure(np.array([0.0, 0.5, 1.0]))
    assert found is not None
    assert (found.value, found.low) == pytest.approx((0.5, 0.5 - 4.3027 * 0.5 / math.sqrt(3.0)), rel=1e-3)
    none = figure(np.zeros(3))
    assert none is not None
    assert (none.value, none.bounded) == (0.0, False)


def test_an_end_beyond_all_numbers_is_infinite() -> None:
    found = figure(np.array([1e-300, 1e300]))
    assert found is not None
    assert (found.low, found.high) == (0.0, math.inf)


@pytest.mark.parametrize("blocks", [[2.0], [2.0, 2.0]])
def test_what_shows_no_spread_has_no_interval(blocks: list[float]) -> None:
    found = figure(np.array(blocks))
    assert found is not None
    assert (found.value, found.bounded) == (2.0, False)


def test_what_is_missing_stays_missing_and_never_is_never() -> None:
    assert figure(np.array([])) is None
    assert figure(np.array([1.0, math.nan])) is None
    never = figure(np.array([1.0, math.inf]))
    assert never is not None
    assert (never.value, never.low, never.high) == (math.inf, -math.inf, math.inf)


def test_dollars_by_hand() -> None:
    rate = Estimate(value=10.0, low=5.0, high=20.0, level=0.95, blocks=6, method="made up")
    found = dollars(3.6, rate, 1000.0)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.05, 0.2))


def test_dollars_where_nothing_is_known_or_nothing_answered() -> None:
    found = dollars(3.6, unbounded(10.0, 0.95, 1), 1000.0)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.0, math.inf))
    assert dollars(3.6, unbounded(0.0, 0.95, 1), 1000.0).value == math.inf


# ---- the knee


def test_the_knee_is_where_power_is_greatest() -> None:
    found = knee(LEVELS, *saturating(8.0, 20.0, noise=0.01))
    assert found.level is not None
    assert found.rate is not None
    assert found.level.value == pytest.approx(8.0, rel=0.05)
    assert found.rate.value == pytest.approx(10.0, rel=0.05)
    assert found.level.holds(8.0)
    assert found.why == ""


def test_a_knee_between_levels_is_placed_between_them() -> None:
    found = knee(LEVELS, *saturating(11.0, 20.0, noise=0.005))
    assert found.level is not None
    assert found.level.value == pytest.approx(11.0, rel=0.05)


def test_its_interval_holds_the_knee_as_often_as_promised() -> None:
    missed = 0
    for seed in range(100):
        found = knee(LEVELS, *saturating(8.0, 20.0, noise=0.05, seed=seed), chance=seed)
        missed += found.level is not None and not found.level.holds(8.0)
    assert missed <= at_most(100, 0.05)


@pytest.mark.parametrize(("half", "advice"), [(500.0, "go on higher"), (0.2, "begin lower")])
def test_no_knee_at_an_end(half: float, advice: str) -> None:
    found = knee(LEVELS, *saturating(half, 20.0, noise=0.01))
    assert found.level is None
    assert found.rate is None
    assert advice in found.why


def test_no_knee_where_it_may_be_at_an_end() -> None:
    rates, waits = saturating(2.0, 20.0)
    shaken = np.array([0.5, 1.0, 2.0])
    rates = [rate[:3] * shaken for rate in rates]
    found = knee(LEVELS, rates, [wait[:3] for wait in waits])
    assert found.level is None
    assert "not at an end" in found.why


def test_no_knee_from_too_little() -> None:
    rates, waits = saturating(8.0, 20.0, blocks=1)
    assert "one block has no interval" in knee(LEVELS, rates, waits).why
    assert "three levels" in knee((1.0, 2.0), rates[:2], waits[:2]).why
    rates[3] = waits[3] = np.array([])
    assert knee(LEVELS, rates, waits).why == "no block was kept at 8"


def test_a_level_that_answers_nothing_is_no_knee_and_no_hindrance() -> None:
    rates, waits = saturating(8.0, 20.0, noise=0.01)
    rates[-1], waits[-1] = np.zeros(6), np.full(6, math.inf)
    found = knee(LEVELS, rates, waits)
    assert found.level is not None
    assert found.level.holds(8.0)
    rates[4], waits[4] = rates[-1], waits[-1]
    beside = knee(LEVELS, rates, waits)
    assert beside.level is None or beside.level.value == pytest.approx(8.0), "no parabola through nothing"


# ---- crossings


def test_a_crossing_is_placed_where_the_curves_meet() -> None:
    """1 / level and 1 / 8 meet at 8, in logarithms as well."""
    falling = jittered([1.0 / level for level in LEVELS], 0.01, 1)
    level = jittered([1.0 / 8.0] * 7, 0.01, 2)
    found = meet(NAMES, LEVELS, falling, level)
    (crossing,) = found.crossings
    assert (crossing.below, crossing.above) == ("large", "small")
    assert crossing.last < 8.0 < crossing.first
    assert crossing.level is not None
    assert crossing.level.holds(8.0)
    assert crossing.level.value == pytest.approx(8.0, rel=0.05)
    assert "large is lower up to 4, small from 16 on; they meet at" in found.says
    assert "at 8 they cannot be told apart" in found.says


def test_curves_may_cross_twice() -> None:
    one = jittered([1.0, 2.0, 4.0, 4.0, 4.0, 2.0, 1.0], 0.01, 1)
    found = meet(NAMES, LEVELS, one, jittered([3.0] * 7, 0.01, 2))
    assert [(crossing.below, crossing.above) for crossing in found.crossings] == [
        ("small", "large"),
        ("large", "small"),
    ]


def test_one_that_is_always_lower_crosses_nothing() -> None:
    found = meet(NAMES, LEVELS, jittered([1.0] * 7, 0.01, 1), jittered([2.0] * 7, 0.01, 2))
    assert found.crossings == ()
    assert {side.lower for side in found.sides} == {"small"}
    assert found.says == "small is lower on every level: they do not cross between 1 and 64"


def test_no_crossing_is_concluded_where_they_overlap() -> None:
    one = jittered([1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5], 0.3, 1, blocks=3)
    other = jittered([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.3, 2, blocks=3)
    found = meet(NAMES, LEVELS, one, other)
    assert found.crossings == ()
    assert found.says.startswith("small is lower at 1; at 2, 4, 8, 16, 32, 64 they cannot be told apart")
    alike = meet(NAMES, LEVELS, one[1:2] * 7, jittered([1.0] * 7, 0.3, 3, blocks=3))
    assert alike.says == "small and large cannot be told apart on any level: nothing is concluded"


def test_curves_that_are_alike_are_seldom_told_apart() -> None:
    """On any level of a whole sweep, no more often than one level alone may."""
    wrong = 0
    for seed in range(200):
        one, other = (jittered([1.0] * 7, 0.1, 2 * seed + half) for half in (0, 1))
        wrong += any(side.lower for side in meet(NAMES, LEVELS, one, other, seed).sides)
    assert wrong <= at_most(200, 0.05)


def test_what_cannot_be_compared_is_not() -> None:
    """One block, blocks that do not differ, a level without answers: no ratio, and the others still count."""
    one, other = jittered([1.0] * 7, 0.01, 1), jittered([2.0] * 7, 0.01, 2)
    one[0] = other[0] = np.array([1.0])
    one[1], other[1] = flat(1.0, 2.0, blocks=6)
    other[2] = np.full(6, math.inf)
    one[3] = np.zeros(6)
    one[4] = other[4] = np.array([])
    found = meet(NAMES, LEVELS, one, other)
    assert [side.lower for side in found.sides] == ["", "", "", "", "", "small", "small"]


def test_a_level_in_between_that_answers_nothing_is_passed_over() -> None:
    low, high = np.array([1.0, 1.01, 1.02]), np.array([9.0, 9.1, 9.3])
    other = np.array([4.0, 4.1, 4.2])
    found = meet(NAMES, (1.0, 2.0, 64.0), [low, np.full(3, math.inf), high], [other, other, other])
    (crossing,) = found.crossings
    assert crossing.level is not None
    assert 1.0 < crossing.level.low < crossing.level.value < crossing.level.high < 64.0


def test_a_crossing_without_a_place_is_told_as_one() -> None:
    assert math.isnan(_passes(np.array([0.0, 1.0]), np.array([1.0, 2.0]))), "a draw that does not cross has none"
    crossing = Crossing(below="a", above="b", last=4.0, first=8.0, level=None)
    sides = [Side(level=4.0, ratio=None, lower="a"), Side(level=8.0, ratio=None, lower="b")]
    assert (
        _says(("a", "b"), sides, [crossing]) == "a is lower up to 4, b from 8 on; they meet somewhere between 4 and 8"
    )


@pytest.mark.parametrize("levels", [(), (0.0, 1.0), (2.0, 1.0)])
def test_levels_rise_from_above_0(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="levels must rise"):
        meet(NAMES, levels, [], [])


def test_curves_have_the_same_levels_and_blocks() -> None:
    one = jittered([1.0] * 7, 0.1, 1)
    with pytest.raises(ValueError, match="the same levels"):
        meet(NAMES, LEVELS, one, one[1:])
    with pytest.raises(ValueError, match="the same blocks"):
        meet(NAMES, LEVELS, one, [*one[1:], one[0][:2]])
