from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from wastegate.core.effects import Closed
from wastegate.core.ledger import Attempt, Entry
from wastegate.sim.tally import Figures, Quantiles, Series, Tally, means

ATTEMPT = Attempt(
    1, "r0", 10.5, 12.0, "finished", sent=10.5, first_token=11.0, prompt_tokens=100, cached_tokens=40,
    output_tokens=11, usage="engine",
)  # fmt: skip
ENTRY = Entry(
    "c", 10.0, 12.0, "chat", "/v1/chat/completions", "m", "default", "short", True, "finished", 200,
    attempts=(ATTEMPT,), trail=("waits: every replica is at its cap", "baseline: r0"),
)  # fmt: skip


def test_quantiles_are_met_within_a_hundredth() -> None:
    chance, quantiles = random.Random(1), Quantiles()
    values = sorted(chance.lognormvariate(0, 2) for _ in range(5000))
    for value in values:
        quantiles.add(value)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert quantiles.at(share) == pytest.approx(values[int(share * 5000) - 1], rel=0.011)
    assert quantiles.mean == pytest.approx(sum(values) / 5000)
    assert Figures.of(Quantiles()) == Figures(None, None, None, None, None)


def test_a_quantile_takes_memory_by_ratios_not_by_calls() -> None:
    quantiles = Quantiles()
    for number in range(100_000):
        quantiles.add(0.001 * (1 + number % 1000))
    assert len(quantiles._buckets) < 400


def test_a_series_keeps_its_amounts_and_its_size() -> None:
    series = Series()
    for at in range(5000):
        series.add(100.0 + at, 1.0)
    assert sum(series.columns) == 5000
    assert 60 <= len(series.columns) <= 120
    assert series.width == 64
    series.add(99.0, 1.0)  # a call that ended later had come first
    assert series.columns[0] == 65


def test_a_call_is_added_up() -> None:
    tally = Tally(slo_ttft=1.5, slo_tpot=0.2)
    tally.add(Closed(ENTRY))
    assert (tally.prompt, tally.cached, tally.output, tally.waited, tally.retried) == (100, 40, 11, 1, 0)
    assert [one.mean for one in (tally.ttft, tally.tpot, tally.e2e, tally.queue)] == [1.0, 0.1, 2.0, 0.5]
    assert (tally.first, tally.last, tally.good) == (10.0, 12.0, 1)
    tally.add(Closed(replace(ENTRY, outcome="refused", attempts=())))
    assert (tally.calls, tally.outcomes, tally.e2e.count) == (2, {"finished": 1, "refused": 1}, 1)


def test_what_misses_its_goal_is_no_good() -> None:
    for slo in ({"slo_ttft": 0.9}, {"slo_tpot": 0.09}):
        tally = Tally(**slo)
        tally.add(Closed(ENTRY))
        assert tally.good == 0


def test_an_answer_that_was_not_streamed_has_one_time_only() -> None:
    tally = Tally()
    tally.add(Closed(replace(ENTRY, attempts=(replace(ATTEMPT, first_token=None),))))
    assert (tally.ttft.mean, tally.tpot.count) == (2.0, 0)


def test_means_by_column() -> None:
    assert means([2.0, 0.0, 9.0], [1.0, 0.0, 3.0]) == [2.0, 0.0, 3.0]
