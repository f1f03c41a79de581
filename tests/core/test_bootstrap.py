"""Resamples are of blocks, as many as there were; their intervals hold the truth nearly as often as formulas do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import at_most, resembling
from wastegate.core.bootstrap import bootstrap, moving_blocks, quantile_of, ratio_of_sums, whole_blocks
from wastegate.core.intervals import Estimate, Floats, ratio


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 2**32))
def test_whole_blocks_are_as_many_as_there_were(blocks: int, draws: int, seed: int) -> None:
    weights = whole_blocks(blocks, draws, seed)
    assert weights.shape == (draws, blocks)
    assert (weights.sum(axis=1) == blocks).all()
    assert (weights == whole_blocks(blocks, draws, np.random.default_rng(seed))).all()


@given(st.integers(1, 40), st.data(), st.integers(0, 2**32))
def test_moving_blocks_are_runs_as_long_as_the_series(length: int, data: st.DataObject, seed: int) -> None:
    block = data.draw(st.integers(1, length))
    weights = moving_blocks(length, block, 10, seed)
    assert weights.shape == (10, length)
    assert (weights.sum(axis=1) == length).all()
    changes = (weights != np.roll(weights, 1, axis=1)).sum(axis=1)
    assert (changes <= 2 * math.ceil(length / block)).all(), "a run begins and ends once"


@pytest.mark.parametrize(("length", "block", "draws"), [(0, 1, 1), (5, 6, 1), (5, 0, 1), (5, 2, 0)])
def test_resamples_that_cannot_be(length: int, block: int, draws: int) -> None:
    with pytest.raises(ValueError, match="is needed"):
        moving_blocks(length, block, draws, 0)
    with pytest.raises(ValueError, match="both must be at least 1"):
        whole_blocks(min(length, draws, block), 0, 0)


def test_weighted_quantiles_by_hand() -> None:
    statistic = quantile_of([5.0, 1.0, 3.0, 9.0], np.array([0, 0, 1, 1]), 0.5)
    weights = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert statistic(weights[:3]).tolist() == [3.0, 1.0, 3.0]
    assert math.isnan(statistic(weights[3:])[0])
    with pytest.raises(ValueError, match="at least one"):
        quantile_of([], np.array([], np.int64), 0.5)


def test_many_values_are_taken_in_parts() -> None:
    values = np.random.default_rng(1).normal(size=1_500_000)
    statistic = quantile_of(values, np.arange(len(values)) % 3, 0.25)
    assert statistic(np.ones((4, 3))) == pytest.approx(float(np.quantile(values, 0.25)), abs=1e-5)


def test_it_agrees_with_the_formula() -> None:
    chance = np.random.default_rng(2)
    answers = chance.poisson(50, 40).astype(np.float64)
    dollars = answers * chance.normal(2.0, 0.3, 40)
    formula = ratio(dollars, answers)
    found = bootstrap(ratio_of_sums(dollars, answers), whole_blocks(40, 4000, 3), 40)
    assert formula is not None
    assert found is not None
    assert found.value == pytest.approx(formula.value)
    assert found.high - found.low == pytest.approx(formula.high - formula.low, rel=0.15)


def test_what_has_no_interval() -> None:
    weights = whole_blocks(6, 50, 0)
    assert bootstrap(ratio_of_sums([1.0] * 6, [2.0] * 6), weights, 6) is None, "nothing differs"
    assert bootstrap(ratio_of_sums([1.0] * 6, [0.0] * 6), weights, 6) is None, "there is no ratio"
    assert bootstrap(ratio_of_sums([1.0], [2.0]), whole_blocks(1, 50, 0), 1) is None, "one block"


def test_draws_without_a_figure_open_the_interval() -> None:
    """One block of six has all that stands below the line: a third of the draws lack it and have no ratio."""
    statistic = ratio_of_sums([3.0, 1.0, 0.0, 1.0, 0.0, 1.0], [2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    found = bootstrap(statistic, whole_blocks(6, 500, 0), 6)
    assert found is not None
    assert (found.low, found.high, found.bounded) == (-math.inf, math.inf, False)


def coverage(found: list[Estimate | None], truth: float) -> int:
    return sum(one is None or not one.holds(truth) for one in found)


def test_a_p95_of_blocks_is_covered() -> None:
    chance = np.random.default_rng(4)
    truth = float(np.quantile(np.exp(math.hypot(0.15, 0.4) * chance.normal(size=400_000)), 0.95))
    block_of = np.repeat(np.arange(30), 40)
    found: list[Estimate | None] = []
    for _ in range(300):
        values = np.exp(0.15 * chance.normal(size=30)[block_of] + 0.4 * chance.normal(size=1200))
        found.append(bootstrap(quantile_of(values, block_of, 0.95), whole_blocks(30, 400, chance), 30))
    assert coverage(found, truth) <= at_most(300, 0.075)  # 30 blocks: 93 % where 95 % is promised


def test_a_series_that_resembles_itself_is_covered_by_runs_and_not_by_single_values() -> None:
    chance = np.random.default_rng(5)
    series = resembling(chance, 200, 1000, 0.9)
    runs, singles = moving_blocks(1000, 100, 400, 6), moving_blocks(1000, 1, 400, 6)

    def mean_of(row: Floats) -> tuple[Estimate | None, Estimate | None]:
        def statistic(weights: Floats) -> Floats:
            return np.asarray(weights @ row / weights.sum(axis=1))

        return bootstrap(statistic, runs, 10), bootstrap(statistic, singles, 1000)

    found = [mean_of(row) for row in series]
    assert coverage([by_runs for by_runs, _ in found], 0.0) <= at_most(200, 0.09)  # 10 runs: 91 % or better
    assert coverage([alone for _, alone in found], 0.0) > 0.4 * 200
