"""Arms that are alike are told apart no more often than promised, whatever the noise; arms that differ are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import at_most, mirrored_p95
from wastegate.core.comparison import (
    Scale,
    Sums,
    blocks_needed,
    compare,
    compare_sums,
    differences,
    equal,
    is_broken,
    is_shown,
    least_blocks,
    margin_bound,
    natural,
    non_inferior,
    sum_errors,
)
from wastegate.core.intervals import Estimate

LOW, HIGH = 0.5, 20.0
values = st.lists(st.tuples(st.floats(LOW, HIGH), st.floats(LOW, HIGH)), min_size=6, max_size=9)


def estimate(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, level=0.95, blocks=9, method="made up")


def test_the_interval_is_what_the_sign_change_test_does_not_reject() -> None:
    """Every shift is tried by hand: all 2^7 sign changes of the shifted differences, two-sided."""
    base, other = np.array([1.0, 2.0, 1.5, 3.0, 2.5, 1.0, 2.0]), np.array([1.4, 2.1, 2.2, 3.1, 3.9, 1.3, 1.9])
    found = compare(base, other, "difference")
    assert found is not None
    d = other - base
    signs = np.array(list(itertools.product((1, -1), repeat=7)))
    for shift in np.linspace(-0.5, 1.5, 401):
        sums = signs @ (d - shift)
        actual = (d - shift).sum()
        p_low, p_high = (sums >= actual - 1e-12).mean(), (sums <= actual + 1e-12).mean()
        rejected = min(p_low, p_high) <= 0.025
        assert rejected == (not found.low - 1e-9 <= shift <= found.high + 1e-9), shift


@given(values)
def test_swapping_the_arms_turns_the_interval_round(rows: list[tuple[float, float]]) -> None:
    base, other = [row[0] for row in rows], [row[1] for row in rows]
    there, back = compare(base, other), compare(other, base)
    assert there is not None
    assert back is not None
    assert there.low <= there.value * (1 + 1e-12)
    assert there.value <= there.high * (1 + 1e-12)
    assert (there.low, there.value, there.high) == pytest.approx((1 / back.high, 1 / back.value, 1 / back.low))


@given(values, st.floats(0.1, 10.0))
def test_units_do_not_matter(rows: list[tuple[float, float]], unit: float) -> None:
    base, other = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    plain, scaled = compare(base, other), compare(base * unit, other * unit)
    assert plain is not None
    assert scaled is not None
    assert (plain.low, plain.high) == pytest.approx((scaled.low, scaled.high))


@pytest.mark.parametrize("blocks", [6, 8, 12, 20])
def test_a_a_in_a_noisy_place_is_called_different_as_often_as_promised(blocks: int) -> None:
    """Neighbours alike, drift, tails without a mean: 5 % and no more are called different, half of them better."""
    rows = 600
    base, other = mirrored_p95(np.random.default_rng(blocks), rows, blocks)
    found = [compare(*pair, chance=number) for number, pair in enumerate(zip(base, other, strict=True))]
    better = sum(one is not None and is_shown(one, 1.0, "lower") for one in found)
    worse = sum(one is not None and is_broken(one, 1.0, "lower") for one in found)
    assert better + worse <= at_most(rows, 0.05)
    assert better <= at_most(rows, 0.025)
    assert all(one is not None for one in found)


def test_a_difference_is_found_and_covered() -> None:
    rows = 300
    base, other = mirrored_p95(np.random.default_rng(5), rows, 16, effect=math.log(0.7))
    found = [compare(*pair) for pair in zip(base, other, strict=True)]
    assert sum(one is None or not one.holds(0.7) for one in found) <= at_most(rows, 0.05)
    assert sum(one is not None and is_shown(one, 1.0, "lower") for one in found) > 0.95 * rows


def test_pairing_beats_two_heaps() -> None:
    """Blocks that differ tenfold: what both arms share cancels."""
    host = np.array([1.0, 10.0, 2.0, 7.0, 1.0, 4.0, 9.0, 3.0])
    wobble = np.array([1.01, 0.99, 1.0, 1.02, 0.98, 1.01, 0.99, 1.0])
    found = compare(host, 0.8 * host * wobble)
    assert found is not None
    assert 0.78 < found.low < 0.8 < found.high < 0.82


def test_too_few_blocks_are_none() -> None:
    assert [least_blocks(level) for level in (0.9, 0.95, 0.99)] == [5, 6, 8]
    assert compare([1.0] * 5, [2.0] * 5) is None
    assert compare([], []) is None
    assert compare([1.0] * 16, [2.0] * 16, level=0.9999) is None, "more subsets than are drawn"


def test_blocks_that_are_all_the_same() -> None:
    found = compare([2.0] * 6, [1.0] * 6)
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("base", "other", "scale", "said"),
    [
        ([1.0], [1.0, 2.0], "ratio", "1 blocks of the baseline do not pair with 2"),
        ([0.0], [1.0], "ratio", 'compare on the scale "difference"'),
        ([1.0], [-1.0], "ratio", "not above 0"),
        ([math.nan], [1.0], "difference", r"baseline\[0\] is nan"),
    ],
)
def test_what_does_not_compare(base: list[float], other: list[float], scale: Scale, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        differences(base, other, scale)


def test_scales() -> None:
    assert (equal("ratio"), equal("difference")) == (1.0, 0.0)
    assert natural(math.log(3.0), "ratio") == pytest.approx(3.0)
    assert natural(3.0, "difference") == 3.0
    assert natural(1000.0, "ratio") == math.inf


def sums(above: list[float], below: list[float]) -> Sums:
    return Sums(numerators=np.array(above), denominators=np.array(below))


def test_the_ratio_of_ratios_by_hand() -> None:
    base, other = sums([10.0, 12.0, 8.0], [5.0, 6.0, 4.0]), sums([6.0, 5.0, 4.0], [6.0, 5.0, 4.0])
    value, errors = sum_errors(base, other)
    assert value == 0.5
    assert errors.tolist() == [0.0, 0.0, 0.0]
    assert compare_sums(base, other) is None, "blocks that do not differ"
    found = compare_sums(base, sums([6.0, 5.5, 3.5], [6.0, 5.0, 4.0]))
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.low < 0.5 < found.high


def test_sums_that_have_no_ratio() -> None:
    some, none = sums([1.0, 2.0], [1.0, 1.0]), sums([0.0, 0.0], [1.0, 1.0])
    assert compare_sums(some, none) is None
    assert compare_sums(some, sums([1.0, 1.0], [0.0, 0.0])) is None
    assert compare_sums(sums([1.0], [1.0]), sums([2.0], [1.0])) is None
    with pytest.raises(ValueError, match="2 blocks of the baseline do not pair with 1"):
        compare_sums(some, sums([1.0], [1.0]))


def test_cost_per_answer_is_covered_while_the_load_swings() -> None:
    """Both arms see the same busy and quiet blocks; the candidate costs 0.6 of the baseline for each answer."""
    chance = np.random.default_rng(6)
    rows, missed, narrow = 500, 0, 0
    for _ in range(rows):
        load = chance.lognormal(3.0, 0.5, 12)
        hour = chance.normal(1.0, 0.2, 12)
        answers = [np.round(load * chance.normal(1.0, 0.05, 12)) + 1.0 for _ in range(2)]
        dollars = [
            answers[0] * hour * chance.normal(1.0, 0.05, 12),
            0.6 * answers[1] * hour * chance.normal(1, 0.05, 12),
        ]
        base, other = (Sums(numerators=a, denominators=b) for a, b in zip(dollars, answers, strict=True))
        found = compare_sums(base, other)
        assert found is not None
        missed += not found.holds(0.6)
        narrow += found.high - found.low < 0.1  # the hours' 20 % would make it wider, did they not cancel
    assert missed <= at_most(rows, 0.06)
    assert narrow > 0.95 * rows


def test_bounds() -> None:
    assert is_shown(estimate(0.4, 0.49), 0.5, "lower")
    assert not is_shown(estimate(0.4, 0.5), 0.5, "lower")
    assert is_shown(estimate(1.1, 1.2), 1.0, "higher")
    assert is_broken(estimate(1.1, 1.2), 1.0, "lower")
    assert not is_broken(estimate(0.9, 1.2), 1.0, "lower")
    assert is_broken(estimate(0.4, 0.49), 0.5, "higher")


def test_non_inferiority() -> None:
    assert non_inferior(estimate(0.9, 1.09), 0.1, "lower")
    assert not non_inferior(estimate(0.9, 1.11), 0.1, "lower")
    assert non_inferior(estimate(0.92, 1.1), 0.1, "higher")
    assert not non_inferior(estimate(0.90, 1.1), 0.1, "higher")
    assert non_inferior(estimate(-0.01, 0.01), 0.02, "higher", "difference")
    assert not non_inferior(estimate(-0.01, 0.03), 0.02, "lower", "difference")
    with pytest.raises(ValueError, match="how much worse would still be accepted"):
        margin_bound(0.0, "lower")


def test_non_inferiority_is_not_granted_to_what_is_at_the_margin() -> None:
    rows = 500
    base, other = mirrored_p95(np.random.default_rng(7), rows, 12, effect=math.log(1.1))
    found = [compare(*pair) for pair in zip(base, other, strict=True)]
    assert sum(one is not None and non_inferior(one, 0.1, "lower") for one in found) <= at_most(rows, 0.025)


def test_blocks_needed_by_the_book() -> None:
    """Chow, Shao & Wang: a one-sample t test, effect of half a deviation, 80 % power at 5 %: 34."""
    assert blocks_needed(1.0, 0.5) == 34
    assert blocks_needed(1.0, 100.0) == 6
    assert blocks_needed(1.0, 0.0) is None
    assert blocks_needed(0.0, 1.0) == 6


def test_with_the_blocks_needed_the_effect_is_shown_as_often_as_asked() -> None:
    chance = np.random.default_rng(8)
    blocks = blocks_needed(0.1, 0.08, power=0.8)
    assert blocks is not None
    rows = 400
    found = [compare(np.ones(blocks), np.exp(chance.normal(-0.08, 0.1, blocks))) for _ in range(rows)]
    shown = sum(one is not None and is_shown(one, 1.0, "lower") for one in found)
    assert 0.7 * rows < shown < 0.92 * rows
