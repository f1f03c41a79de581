"""Intervals hold the truth as often as they say, also where calls depend on each other; what cannot be said is None."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.core.conftest import at_most, resembling
from wastegate.core.intervals import (
    Estimate,
    batches,
    check_level,
    mean,
    numbers,
    quantile,
    quantile_over_blocks,
    ratio,
    ratio_residuals,
    varies,
)

ROWS = 600


def test_a_mean_by_hand() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    reach = 2.7764 * math.sqrt(2.5 / 5)  # Student's t, 4 degrees of freedom
    assert (found.value, found.blocks, found.anytime) == (3.0, 5, False)
    assert (found.low, found.high) == pytest.approx((3 - reach, 3 + reach), abs=1e-4)
    assert found.holds(3.0)
    assert not found.holds(6.0)
    assert found.bounded


@pytest.mark.parametrize("blocks", [[], [1.0], [0.1, 0.1, 0.1]])
def test_too_little_for_a_mean(blocks: list[float]) -> None:
    assert mean(blocks) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, math.nan], r"values\[1\] is nan: 1 of 2 are not numbers"),
        ([math.inf], r"values\[0\] is inf"),
        ([[1.0]], "one row of numbers"),
    ],
)
def test_what_is_no_number_is_refused(values: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        numbers(values)


def test_bad_levels_and_quantiles() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        check_level(95.0)
    with pytest.raises(ValueError, match=r"such as 0\.95"):
        quantile([1.0], 95.0)


def test_rounding_is_no_spread() -> None:
    assert not varies(np.array([]))
    assert not varies(np.array([0.1 + 0.2, 0.3]))
    assert varies(np.array([0.3, 0.3 + 1e-9]))
    assert ratio([0.1 * n for n in range(1, 9)], range(1, 9)) is None


def test_a_ratio_is_of_sums() -> None:
    found = ratio([1.0, 9.0, 2.0], [1.0, 1.0, 4.0])
    assert found is not None
    assert found.value == 2.0  # and not the mean of the ratios 1, 9 and 0.5
    _, residuals = ratio_residuals([1.0, 9.0, 2.0], [1.0, 1.0, 4.0])
    assert residuals.tolist() == [-0.5, 3.5, -3.0]


def test_ratios_that_are_none() -> None:
    assert ratio([1.0], [2.0]) is None
    assert ratio([1.0, 2.0], [0.0, 0.0]) is None
    with pytest.raises(ValueError, match="3 numerators do not go with 2"):
        ratio([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="a denominator is negative"):
        ratio([1.0, 2.0], [1.0, -2.0])


def test_order_statistics_by_the_table() -> None:
    """David & Nagaraja: of 10 values the 2nd and the 9th enclose the median with 97.9 %, of 20 the 6th and 15th."""
    ten, twenty = quantile(np.arange(1.0, 11.0), 0.5), quantile(np.arange(1.0, 21.0), 0.5)
    assert ten is not None
    assert twenty is not None
    assert (ten.low, ten.high, ten.value) == (2.0, 9.0, 5.5)
    assert (twenty.low, twenty.high) == (6.0, 15.0)


def test_a_p95_needs_72_values_for_an_upper_end() -> None:
    few, enough = quantile(np.arange(71.0), 0.95), quantile(np.arange(72.0), 0.95)
    assert few is not None
    assert enough is not None
    assert (few.high, few.bounded) == (math.inf, False)
    assert enough.high == 71.0
    lowest = quantile([1.0, 2.0], 0.5)
    assert lowest is not None
    assert (lowest.low, lowest.high) == (-math.inf, math.inf)
    assert quantile([], 0.5) is None


def test_quantiles_of_a_distribution_without_a_mean_are_covered() -> None:
    chance = np.random.default_rng(1)
    truth = math.tan(math.pi * 0.4)  # Cauchy, P90
    found = [quantile(chance.standard_cauchy(80), 0.9) for _ in range(ROWS)]
    assert missed(found, truth) <= at_most(ROWS, 0.05)


def test_means_and_ratios_are_covered() -> None:
    chance = np.random.default_rng(2)
    assert missed([mean(chance.normal(3.0, 1.0, 6)) for _ in range(ROWS)], 3.0) <= at_most(ROWS, 0.05)
    found: list[Estimate | None] = []
    for _ in range(ROWS):  # dollars follow the answers, with a wobble; the ratio of expectations is 2
        answers = chance.poisson(50, 12).astype(np.float64) + 1.0
        found.append(ratio(answers * chance.normal(2.0, 0.3, 12), answers))
    assert missed(found, 2.0) <= at_most(ROWS, 0.05)


def test_p95_of_calls_that_share_a_block_is_covered_and_calls_taken_alone_are_not() -> None:
    """Blocks differ by 15 %: an interval that takes calls for independent misses far too often."""
    chance = np.random.default_rng(3)
    truth = float(np.quantile(np.exp(0.3 * chance.normal(size=400_000) + 0.4 * chance.normal(size=400_000)), 0.95))
    blocks, calls = 12, 60
    block_of = np.repeat(np.arange(blocks), calls)
    over, alone = [], []
    for _ in range(ROWS):
        values = np.exp(0.3 * chance.normal(size=blocks)[block_of] + 0.4 * chance.normal(size=blocks * calls))
        over.append(quantile_over_blocks(values, block_of, 0.95))
        alone.append(quantile(values, 0.95))
    assert missed(over, truth) <= at_most(ROWS, 0.075)  # 12 blocks: 93 % where 95 % is promised, or better
    assert missed(alone, truth) > 0.25 * ROWS


def test_batches_of_a_series_that_resembles_itself_are_covered() -> None:
    chance = np.random.default_rng(4)
    series = np.exp(0.3 * resembling(chance, 300, 2000, 0.9))
    truth = float(np.quantile(np.exp(0.3 * chance.normal(size=400_000)), 0.95))
    batch = batches(2000, 10)  # 200 values each; resemblance is gone after about 20
    found = [quantile_over_blocks(row, batch, 0.95) for row in series]
    assert missed(found, truth) <= at_most(300, 0.075)
    means = [mean(np.bincount(batch, row) / np.bincount(batch)) for row in series]
    assert missed(means, math.exp(0.045)) <= at_most(300, 0.075)


def test_a_quantile_over_blocks_that_cannot_be_said() -> None:
    assert quantile_over_blocks([], np.array([], np.int64), 0.5) is None
    assert quantile_over_blocks([1.0, 2.0], np.array([7, 7]), 0.5) is None
    assert quantile_over_blocks([1.0, 2.0, 1.0, 2.0], np.array([0, 0, 1, 1]), 0.5) is None
    with pytest.raises(ValueError, match="2 values do not go with 1 block numbers"):
        quantile_over_blocks([1.0, 2.0], np.array([1]), 0.5)


def test_a_quantile_near_an_end_is_open_there() -> None:
    values, block_of = np.arange(40.0), np.repeat([0, 1], 20)
    high, low = quantile_over_blocks(values, block_of, 0.9), quantile_over_blocks(values, block_of, 0.1)
    assert high is not None
    assert low is not None
    assert high.high == math.inf
    assert low.low == -math.inf


def test_batches() -> None:
    assert batches(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="3 values cannot make 4 batches"):
        batches(3, 4)


def missed(found: list[Estimate | None], truth: float) -> int:
    """How many do not hold the truth; one that could not be made counts as a miss."""
    return sum(one is None or not one.holds(truth) for one in found)
