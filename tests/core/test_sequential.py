"""Looked at after every block, the whole sequence holds the truth as often as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import at_most, mirrored_p95, resembling
from wastegate.core.comparison import compare
from wastegate.core.distributions import student_quantile
from wastegate.core.intervals import Floats
from wastegate.core.sequential import blocks_until_shown, bounded_sequence, compare_so_far, mean_sequence


def ever_missed(lows: Floats, highs: Floats, truth: float) -> bool:
    return bool(((lows > truth) | (highs < truth)).any())


def test_the_mixture_reaches_its_bar_exactly_at_the_ends() -> None:
    """The Bayes factor of t with a normal prior on the effect size, integrated numerically over that prior."""
    row = np.random.default_rng(1).normal(2.0, 3.0, 12)
    lows, _ = mean_sequence(row, 0.95, best_at=20)
    prior = (-2 * math.log(0.05) + math.log1p(-2 * math.log(0.05))) / 20
    shifted = row - lows[-1]
    effects = np.linspace(-8, 8, 4001) * math.sqrt(prior)
    sigmas = np.exp(np.linspace(-3.0, 5.0, 2001))  # the right Haar prior: dσ/σ

    def evidence(effect: Floats) -> Floats:
        ends = shifted[None, :] - (effect[:, None] * sigmas[None, :])[:, :, None] * 1.0
        squares = (ends**2).sum(axis=2)
        return np.asarray((sigmas**-12.0 * np.exp(-squares / (2 * sigmas**2))).sum(axis=1))

    weights = np.exp(-(effects**2) / (2 * prior))
    mixed = sum(float(weights[i : i + 100] @ evidence(effects[i : i + 100])) for i in range(0, 4001, 100))
    factor = mixed / weights.sum() / float(evidence(np.zeros(1))[0])
    assert factor == pytest.approx(20.0, rel=1e-3)


def test_normal_blocks_at_every_look() -> None:
    chance = np.random.default_rng(2)
    rows = 600
    missed = sum(ever_missed(*mean_sequence(chance.normal(5.0, 2.0, 200)), 5.0) for _ in range(rows))
    assert missed <= at_most(rows, 0.05)


def test_a_a_in_a_noisy_place_at_every_look() -> None:
    rows = 500
    base, other = mirrored_p95(np.random.default_rng(3), rows, 60)
    missed = sum(ever_missed(*mean_sequence(row), 0.0) for row in np.log(other / base))
    assert missed <= at_most(rows, 0.05)


def test_students_interval_looked_at_each_time_is_not_to_be_trusted() -> None:
    """What the sequence is for: the interval for one look, looked at after each of 60 blocks, finds something in A/A
    several times as often as it should."""
    rows = 200
    base, other = mirrored_p95(np.random.default_rng(4), rows, 60)
    n = np.arange(1, 61)
    t = np.array([math.inf] + [student_quantile(0.975, count - 1) for count in n[1:]])
    missed = 0
    for row in np.log(other / base):
        means = np.cumsum(row) / n
        deviations = np.array([math.inf] + [row[:count].std(ddof=1) for count in n[1:]])
        missed += ever_missed(means - t * deviations / np.sqrt(n), means + t * deviations / np.sqrt(n), 0.0)
    assert missed > 0.2 * rows


def test_nothing_is_said_of_too_little() -> None:
    for row in ([], [1.0], [3.0, 3.0, 3.0], [1.0, 2.0]):
        lows, highs = mean_sequence(row)
        assert np.isneginf(lows).all()
        assert np.isposinf(highs).all()
        assert len(lows) == len(highs) == len(row)
    with pytest.raises(ValueError, match="not known before 2 blocks"):
        mean_sequence([1.0, 2.0], best_at=1)
    with pytest.raises(ValueError, match="are not numbers"):
        mean_sequence([1.0, math.nan])


def test_a_spread_that_shows_late() -> None:
    lows, _ = mean_sequence([1.0] * 5 + [2.0, 1.0, 1.5, 1.2, 1.8, 1.1, 1.3, 1.4, 1.6, 1.7])
    assert np.isneginf(lows[:5]).all()
    assert math.isfinite(lows[-1])


@given(st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=30), st.floats(-50.0, 50.0), st.floats(0.5, 4.0))
def test_it_moves_with_the_data(row: list[float], shift: float, stretch: float) -> None:
    plain, moved = mean_sequence(row), mean_sequence(shift + stretch * np.array(row))
    for ends, other in zip(plain, moved, strict=True):
        known = np.isfinite(ends) & np.isfinite(other)
        assert other[known] == pytest.approx(shift + stretch * ends[known], abs=1e-3)


def test_bounded_values_that_are_neither_normal_nor_independent() -> None:
    """Whether calls fail (2 %), and scores whose size comes in runs: only their expectation, given the past, counts."""
    chance = np.random.default_rng(5)
    rows = 300
    failing = (chance.random((rows, 400)) < 0.02).astype(np.float64)
    assert sum(ever_missed(*bounded_sequence(row), 0.02) for row in failing) <= at_most(rows, 0.05)
    swings = np.sign(chance.normal(size=(rows, 400))) * np.minimum(np.abs(resembling(chance, rows, 400, 0.95)), 2.0)
    missed = sum(ever_missed(*bounded_sequence(row, -2.0, 2.0), 0.0) for row in swings)
    assert missed <= at_most(rows, 0.05)


def test_bounded_ends() -> None:
    lows, highs = bounded_sequence(np.zeros(500))
    assert (lows[0], highs[0]) == (0.0, 1.0)
    assert lows[-1] == 0.0
    assert highs[-1] < 0.03
    assert bounded_sequence([])[0].size == 0
    for row, low, high in (([2.0], 0.0, 1.0), ([-1.0], 0.0, 1.0), ([1.0], 1.0, 1.0)):
        with pytest.raises(ValueError, match="must lie between low"):
            bounded_sequence(row, low, high)


def test_a_comparison_so_far() -> None:
    base, other = mirrored_p95(np.random.default_rng(6), 1, 30, effect=math.log(0.5))
    found = compare_so_far(base[0], other[0])
    once = compare(base[0], other[0])
    assert found is not None
    assert once is not None
    assert (found.anytime, once.anytime) == (True, False)
    assert found.value == once.value
    assert found.low < once.low < once.high < found.high < 1.0
    difference = compare_so_far(base[0], other[0], "difference")
    assert difference is not None
    assert difference.high < 0.0
    assert compare_so_far([], []) is None
    assert compare_so_far([1.0, 2.0], [2.0, 3.0]) is None


def test_blocks_until_shown() -> None:
    wanted = blocks_until_shown(0.1, 0.05)
    assert wanted is not None
    row = np.resize([0.1, -0.1], wanted)
    row *= 0.1 / row.std(ddof=1)
    lows, highs = mean_sequence(row)
    assert highs[-1] - row.mean() == pytest.approx(0.05, rel=0.05)
    assert row.mean() - lows[-1] == pytest.approx(0.05, rel=0.05)
    assert blocks_until_shown(0.1, 0.0) is None
    assert blocks_until_shown(1000.0, 0.05) is None
