"""What a step costs, found again from steps whose cost is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.stepcost import ENOUGH, KEPT, StepCost, StepTimes, least_squares_above_zero

TRUE = StepCost(prefill=0.002, decode=0.0015, kv=0.000001, fixed=0.008, samples=0)


def seen(count: int, *, noise: float = 0.0, spikes: float = 0.0, prompts: bool = True) -> StepTimes:
    random = np.random.default_rng(1)
    times = StepTimes()
    for _ in range(count):
        prefill = int(random.integers(1, 256)) if prompts and random.random() < 0.3 else 0
        decoding = int(random.integers(1, 32))
        kv = decoding * int(random.integers(50, 1000))
        seconds = 0.008 + 0.002 * prefill + 0.0015 * decoding + 0.000001 * kv
        seconds *= 1 + noise * random.standard_normal()
        if random.random() < spikes:
            seconds *= 8
        times.add(seconds, prefill, decoding, kv)
    return times


def close(cost: StepCost, rel: float) -> bool:
    pairs = [(cost.prefill, 0.002), (cost.decode, 0.0015), (cost.kv, 0.000001), (cost.fixed, 0.008)]
    return all(found is not None and abs(found - true) <= rel * true for found, true in pairs)


def test_exact_steps_give_the_exact_figures() -> None:
    cost = seen(300).cost()
    assert close(cost, 1e-6)
    assert cost.samples == 300


def test_noise_and_a_busy_machine_hardly_move_them() -> None:
    assert close(seen(KEPT, noise=0.05, spikes=0.03).cost(), 0.15)


def test_too_few_steps_say_nothing() -> None:
    assert seen(ENOUGH - 1).cost() == StepCost(None, None, None, None, ENOUGH - 1)


def test_steps_of_one_kind_say_nothing() -> None:
    cost = seen(500, prompts=False).cost()
    assert (cost.prefill, cost.samples) == (None, 500)


def test_a_step_of_no_time_says_nothing() -> None:
    times = seen(300)
    times.add(0.0, 1, 1, 1)
    assert times.cost().samples == 300


def test_old_steps_are_forgotten() -> None:
    times = StepTimes()
    for _ in range(KEPT):
        times.add(1.0, 3, 1, 50)
    for _ in range(KEPT):
        times.add(0.1, 3, 1, 50)
    assert times.cost().samples == KEPT


@given(st.integers(0, 2**32 - 1))
def test_the_fit_is_the_best_that_is_not_below_zero(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.standard_normal((12, 4)), random.standard_normal(12)
    found = least_squares_above_zero(matrix, target)
    assert (found >= 0).all()
    slope = matrix.T @ (target - matrix @ found)  # at the best, no step that is allowed leads further down
    assert slope == pytest.approx(np.minimum(slope, 0), abs=1e-6)
    assert slope[found > 0] == pytest.approx(0, abs=1e-6)
