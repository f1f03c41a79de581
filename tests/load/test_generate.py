from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wastegate.load.generate import Made, Shape, fitted, make
from wastegate.load.rows import Row, Trace


def made(count: int = 20_000, **members: Any) -> list[Made]:
    return list(make(Shape(**members), count, seed=3))


def times(calls: list[Made]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([call.at for call in calls])


def cv(calls: list[Made]) -> float:
    gaps = np.diff(times(calls))
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize("pattern", ["poisson", "gamma", "diurnal", "bursts"])
def test_traffic_has_its_rate_and_its_order(pattern: str) -> None:
    calls = made(pattern=pattern, rate=5.0, cv=2.0, period=1000.0)
    at = times(calls)
    assert (np.diff(at) >= 0).all()
    assert len(at) / at[-1] == pytest.approx(5.0, rel=0.05)


def test_gaps_have_the_variation_that_was_asked_for() -> None:
    assert cv(made(pattern="poisson")) == pytest.approx(1.0, abs=0.05)
    assert cv(made(pattern="gamma", cv=3.0)) == pytest.approx(3.0, rel=0.1)
    assert cv(made(pattern="gamma", cv=0.3)) == pytest.approx(0.3, rel=0.1)


def test_a_day_has_its_busy_and_its_quiet_hours() -> None:
    at = times(made(12_000, pattern="diurnal", rate=12.0, period=1000.0, peak_to_trough=7.0))
    counts, _ = np.histogram(at % 1000.0, bins=20)
    assert counts[:1].mean() < counts.mean() / 3
    assert max(counts) / min(counts) == pytest.approx(7.0, rel=0.3)
    assert 8 <= int(np.argmax(counts)) <= 11, "it begins at the quietest hour"


def test_bursts_are_as_much_busier_as_they_should_be() -> None:
    at = times(made(12_000, pattern="bursts", rate=20.0, burst_every=100.0, burst_seconds=10.0, burst_factor=8.0))
    inside = (at % 100.0) >= 90.0
    assert (inside.sum() / 10.0) / ((~inside).sum() / 90.0) == pytest.approx(8.0, rel=0.15)


def test_lengths_have_their_mean_and_their_bound() -> None:
    calls = made(prompt=1000, prompt_cv=0.5, output=100, output_cv=0.0, longest=4000)
    prompts = [call.prompt for call in calls]
    assert np.mean(prompts) == pytest.approx(1000, rel=0.03)
    assert np.std(prompts) / np.mean(prompts) == pytest.approx(0.5, rel=0.1)
    assert (min(prompts) >= 1, max(prompts) <= 4000) == (True, True)
    assert {call.output for call in calls} == {100}


def test_the_same_seed_makes_the_same_traffic() -> None:
    assert made(100) == made(100)
    assert made(100) != list(make(Shape(), 100, seed=4))


def trace(calls: list[Made]) -> Trace:
    rows = [
        Row(line=n, at=call.at, input_tokens=call.prompt, output_tokens=call.output) for n, call in enumerate(calls)
    ]
    return Trace("made.csv", "azure", tuple(rows))


def test_a_trace_is_imitated() -> None:
    like = fitted(trace(made(pattern="gamma", rate=3.0, cv=2.5, prompt=700, output=90)))
    assert like.pattern == "gamma"
    assert like.rate == pytest.approx(3.0, rel=0.1)
    assert like.cv == pytest.approx(2.5, rel=0.1)
    assert like.prompt == pytest.approx(700, rel=0.05)
    assert like.output == pytest.approx(90, rel=0.05)
    assert fitted(trace(made(pattern="poisson"))).pattern == "poisson"


def test_azures_traffic_is_imitated() -> None:
    path = Path(__file__).parent.parent.parent.parent / "shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv"
    if not path.exists():
        pytest.skip("Azure's trace is not here")
    from wastegate.load.traces import read

    like = fitted(read(path))
    calls = list(make(like, 19_366))
    assert like.rate == pytest.approx(5.5, rel=0.05)
    assert like.cv == pytest.approx(1.09, abs=0.05)
    assert np.mean([call.prompt for call in calls]) == pytest.approx(1155, rel=0.06)
    assert np.mean([call.output for call in calls]) == pytest.approx(211, rel=0.06)


def test_what_cannot_be_imitated_is_named() -> None:
    with pytest.raises(ValueError, match="at least three rows with times"):
        fitted(Trace("made.csv", "azure", (Row(line=1, at=1.0),)))
    bare = tuple(Row(line=n, at=float(n)) for n in range(5))
    with pytest.raises(ValueError, match="needs lengths"):
        fitted(Trace("made.csv", "azure", bare))


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"rate": 0.0}, "rate is 0.0"),
        ({"peak_to_trough": 0.5}, "cannot be quieter"),
        ({"output_cv": -1.0}, "cannot be below 0"),
        ({"burst_seconds": 400.0}, "over before the next"),
    ],
)
def test_traffic_that_cannot_be_is_refused(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Shape(**members)
