"""The rate at an equal P95 is interpolated with an interval, and refused where the ladder does not enclose it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.core.conftest import at_most
from wastegate.core.intervals import Floats
from wastegate.load.ladder import Crossing, crossings

RATES = (1.0, 2.0, 4.0, 8.0)


def queue(capacity: float, chance: np.random.Generator | None = None, blocks: int = 8) -> list[Floats]:
    """P95 of a queue whose latency is 0.1 s idle and grows tenfold as the rate doubles beyond its capacity; blocks
    differ by 10 %."""
    noise = [chance.normal(0.0, 0.1, blocks) if chance else np.linspace(-0.1, 0.1, blocks) for _ in RATES]
    return [0.1 * (1 + (rate / capacity) ** 3) * np.exp(row) for rate, row in zip(RATES, noise, strict=True)]


def climb(latencies: dict[str, list[Floats]], limit: float = 0.5) -> dict[str, Crossing]:
    return {found.arm: found for found in crossings(RATES, latencies, limit, "e2e_p95")}


def test_a_crossing_is_straight_in_the_logarithm_between_rungs() -> None:
    rungs = [np.array([0.1, 0.1]), np.array([0.2, 0.2]), np.array([0.79, 0.81]), np.array([3.0, 3.0])]
    found = climb({"only": rungs}, 0.4)["only"]
    assert found.rate is not None
    assert found.rate.value == pytest.approx(2.0 + 2.0 * math.log(2.0) / math.log(math.sqrt(0.79 * 0.81) / 0.2))
    assert (found.ratio, found.why) == (None, "")


def test_twice_the_capacity_is_twice_the_rate() -> None:
    found = climb({"base": queue(1.5), "fast": queue(3.0)})
    ratio = found["fast"].ratio
    assert ratio is not None
    assert ratio.low < 2.0 < ratio.high
    assert ratio.high - ratio.low < 0.4
    assert found["base"].ratio is None


def test_the_ratio_is_covered() -> None:
    chance = np.random.default_rng(1)
    flat = crossings(RATES, {"base": smooth(1.5), "fast": smooth(3.0)}, 0.5, "e2e_p95")[1].ratio
    assert flat is not None
    rows, missed = 200, 0
    for _ in range(rows):
        ratio = climb({"base": queue(1.5, chance), "fast": queue(3.0, chance)})["fast"].ratio
        missed += ratio is None or not ratio.holds(flat.value)
    assert missed <= at_most(rows, 0.07)


def smooth(capacity: float) -> list[Floats]:
    """The same queue with almost no noise, for what an endless run would find."""
    return [np.exp(np.log(row).mean()) * np.array([1 - 1e-9, 1 + 1e-9]) for row in queue(capacity)]


def test_a_ladder_that_begins_too_high_or_ends_too_low_concludes_nothing() -> None:
    low = climb({"base": queue(1.5), "fast": queue(100.0)})
    assert (low["fast"].rate, low["fast"].ratio) == (None, None)
    assert low["fast"].why == "0.1 s at most, up to 8/s: the limit is not reached; go on higher"
    high = climb({"base": queue(0.2), "fast": queue(3.0)})
    assert high["base"].why == "12.6 s at 1/s is over the limit already: begin the ladder lower"
    assert high["fast"].rate is not None
    assert (high["fast"].ratio, high["fast"].why) == (None, "base has no such rate to compare with, or not surely")


def test_between_answers_and_none_there_is_no_rate() -> None:
    rungs = queue(3.0)
    rungs[3] = np.array([math.inf] * 8)
    assert climb({"base": rungs}, 0.5)["base"].why == "answers cease between 4 and 8/s: add rates between them"
    rungs[0] = rungs[3]
    assert (
        climb({"base": rungs}, 0.5)["base"].why == "no answer at 1/s is over the limit already: begin the ladder lower"
    )


def test_too_few_blocks_or_too_different_ones() -> None:
    assert climb({"base": queue(3.0, blocks=1)})["base"].why == "one block has no interval: run more"
    wild = [row * np.array([0.01, 100.0] * 4) for row in queue(3.0)]
    assert "does not surely enclose the limit" in climb({"base": wild})["base"].why
    empty = [*queue(3.0)[:3], np.array([])]
    found = climb({"base": empty, "fast": empty})
    assert {crossing.why for crossing in found.values()} == {"no block was kept at 8/s"}


def test_a_latency_that_falls_by_chance_is_no_second_crossing() -> None:
    rungs = [np.array([0.1, 0.11]), np.array([0.6, 0.61]), np.array([0.4, 0.41]), np.array([3.0, 3.1])]
    found = climb({"base": rungs})["base"]
    assert found.rate is not None
    assert 1.0 < found.rate.value < 2.0


def test_what_is_no_ladder() -> None:
    with pytest.raises(ValueError, match="two rates or more, rising, and has 1"):
        crossings((1.0,), {"base": [np.ones(2)]}, 0.5, "e2e_p95")
    with pytest.raises(ValueError, match="has 2, 1"):
        crossings((2.0, 1.0), {"base": [np.ones(2), np.ones(2)]}, 0.5, "e2e_p95")
    with pytest.raises(ValueError, match="fast has not the same rungs and blocks as base"):
        climb({"base": queue(1.5), "fast": queue(1.5, blocks=7)})
    with pytest.raises(ValueError, match="the limit is 0"):
        crossings((1.0, 2.0), {"base": [np.ones(2), np.ones(2)]}, 0.0, "e2e_p95")
