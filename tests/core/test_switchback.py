"""Slots alternate by chance within pairs; what ran during wash-out does not count; carry-over does not mislead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import at_most, resembling
from wastegate.core.comparison import compare
from wastegate.core.intervals import Estimate
from wastegate.core.switchback import Slots, draw_slots, paired, slot_means

PLAN = Slots(seconds=10.0, washout=2.0, candidate=(False, True, True, False))


@given(st.integers(1, 50), st.integers(0, 2**32))
def test_a_drawn_plan_is_balanced_in_each_pair(pairs: int, seed: int) -> None:
    plan = draw_slots(pairs, 60.0, 5.0, seed)
    assert len(plan.candidate) == 2 * pairs
    assert plan == draw_slots(pairs, 60.0, 5.0, np.random.default_rng(seed))
    assert all(sum(plan.candidate[place : place + 2]) == 1 for place in range(0, 2 * pairs, 2))


def test_either_arm_begins() -> None:
    firsts = sum(draw_slots(400, 60.0, 5.0, 1).candidate[::2])
    assert 150 < firsts < 250


def test_moments_find_their_slot() -> None:
    moments = [-0.1, 0.0, 1.9, 2.0, 9.99, 10.0, 12.0, 39.9, 40.0]
    assert PLAN.slot_of(moments).tolist() == [-1, -1, -1, 0, 0, -1, 1, 3, -1]
    assert [PLAN.is_candidate(moment) for moment in (-1.0, 0.5, 10.5, 39.0, 40.0)] == [None, False, True, False, None]


@pytest.mark.parametrize(
    ("seconds", "washout", "candidate", "said"),
    [
        (0.0, 0.0, (True, False), "0 <= wash-out < slot"),
        (10.0, 10.0, (True, False), "0 <= wash-out < slot"),
        (10.0, -1.0, (True, False), "0 <= wash-out < slot"),
        (math.nan, 1.0, (True, False), "0 <= wash-out < slot"),
        (10.0, 1.0, (True, False, True), "come in pairs"),
        (10.0, 1.0, (True, True), "come in pairs"),
    ],
)
def test_plans_that_cannot_be(seconds: float, washout: float, candidate: tuple[bool, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Slots(seconds=seconds, washout=washout, candidate=candidate)


def test_a_plan_needs_pairs() -> None:
    with pytest.raises(ValueError, match="0 pairs of slots"):
        draw_slots(0, 10.0, 1.0, 0)


def test_means_of_slots() -> None:
    moments, values = [1.0, 3.0, 5.0, 13.0, 25.0, 99.0], [100.0, 2.0, 4.0, 7.0, 9.0, 100.0]
    means = slot_means(PLAN, moments, values)
    assert means[:3].tolist() == [3.0, 7.0, 9.0]
    assert math.isnan(means[3])
    base, other = paired(PLAN, means)
    assert base[0] == 3.0
    assert other.tolist() == [7.0, 9.0]
    assert math.isnan(base[1]), "a slot without calls stays missing"
    with pytest.raises(ValueError, match="1 values do not go with 2 moments"):
        slot_means(PLAN, [1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="do not go with 4 slots"):
        paired(PLAN, means[:2])


def run(chance: np.random.Generator, times: int, washout: float, effect: float) -> list[Estimate | None]:
    """So many trials of 20 pairs of one minute, a call each second. The fleet drifts and resembles itself; the effect
    builds up, and the arm before lingers, over a few seconds."""
    elapsed = np.arange(0.0, 2400.0)
    noise = 5.0 + 0.0003 * elapsed + resembling(chance, times, len(elapsed), 0.9)
    lingering = np.exp(-np.arange(20) / 4.0)
    found: list[Estimate | None] = []
    for row in noise:
        plan = draw_slots(20, 60.0, washout, chance)
        on = np.repeat(np.array(plan.candidate, dtype=np.float64), 60)
        felt = np.convolve(on, lingering / lingering.sum())[: len(on)]
        found.append(compare(*paired(plan, slot_means(plan, elapsed, row + effect * felt)), "difference"))
    return found


def test_a_a_of_slots_is_called_different_as_often_as_promised() -> None:
    found = run(np.random.default_rng(2), 300, 10.0, 0.0)
    assert sum(one is None or not one.holds(0.0) for one in found) <= at_most(300, 0.05)


def test_wash_out_takes_the_carry_over_away() -> None:
    """An effect of -1 is found whole after a wash-out, and diluted by what lingers without one."""
    chance = np.random.default_rng(3)
    washed, raw = run(chance, 100, 20.0, -1.0), run(chance, 100, 0.0, -1.0)
    assert sum(one is None or not one.holds(-1.0) for one in washed) <= at_most(100, 0.05)
    assert np.mean([one.value for one in washed if one]) == pytest.approx(-1.0, abs=0.03)
    assert np.mean([one.value for one in raw if one]) > -0.95
