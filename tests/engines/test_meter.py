"""An engine's page looked at again and again: restarts, late series, other names, and quantiles of what is new."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.engines import meter
from wastegate.engines.exposition import Sample, parse
from wastegate.engines.meter import WINDOW, Meter, Reading, Rising
from wastegate.engines.signals import Spread, rule

RULES = (
    rule("running", "sum", "e_running", "old_running"),
    rule("kv_usage", "share", "e_kv"),
    rule("kv_capacity", "sum", "e_info[tokens]"),
    rule("output_tokens", "counter", "e_out_total"),
    rule("aborted", "counter", "e_done_total{why=abort}"),
    rule("finished", "counter", "e_done_total{why=stop} + e_done_total{why=length}", "e_done_total"),
    rule("queue", "histogram", "e_queue_seconds"),
    rule("drafts", "counter", "e_drafts_total", optional=True),
    rule("acceptance", "share", "e_rate", optional=True, beside="e_drafts_total"),
)


def look(meter: Meter, text: str, at: float) -> Reading:
    return meter.read(parse(text, meter.wanted), at)


def test_parts_add_up_and_the_fullest_counts() -> None:
    reading = look(Meter(RULES), 'e_running{r="0"} 3\ne_running{r="1"} 4\ne_kv{r="0"} 0.2\ne_kv{r="1"} 0.9\n', 1.0)
    assert (reading.signals.running, reading.signals.kv_usage, reading.signals.at) == (7.0, 0.9, 1.0)


def test_what_is_not_on_the_page_is_unknown_and_said_so() -> None:
    reading = look(Meter(RULES), "e_running 0\ne_kvv 1\n# TYPE e_out_total counter\n", 1.0)
    assert reading.signals.running == 0.0
    assert (reading.signals.kv_usage, reading.signals.output_tokens, reading.signals.queue) == (None, None, None)
    said = dict(sentence.split(" is unknown: ") for sentence in reading.absent)
    assert said["kv_usage"] == "e_kv is not there; the nearest name is e_kvv, which is not trusted"
    assert said["output_tokens"] == "e_out_total has no value yet"
    assert said["finished"] == 'e_done_total{why="stop"} + e_done_total{why="length"} is not there'
    assert not said.keys() & {"drafts", "acceptance", "running"}


def test_a_name_of_another_version_counts_and_is_reported() -> None:
    reading = look(Meter(RULES), "old_running 2\n", 1.0)
    assert reading.signals.running == 2.0
    assert reading.renamed == ("running comes from old_running: e_running is not there",)


def test_a_figure_in_a_label() -> None:
    assert look(Meter(RULES), 'e_info{tokens="900"} 1\n', 1.0).signals.kv_capacity == 900.0
    assert look(Meter(RULES), 'e_info{tokens="None"} 1\n', 1.0).signals.kv_capacity is None


def test_a_gauge_that_says_nothing_by_itself() -> None:
    assert look(Meter(RULES), "e_rate 0\n", 1.0).signals.acceptance is None
    assert look(Meter(RULES), "e_rate 0.4\ne_drafts_total 9\n", 1.0).signals.acceptance == 0.4


def test_not_a_number_is_unknown() -> None:
    reading = look(Meter(RULES), "e_running NaN\ne_out_total NaN\n", 1.0)
    assert reading.signals.running is reading.signals.output_tokens is None


# ---- counters


def test_counters_count_from_the_first_look_and_over_restarts() -> None:
    meter = Meter(RULES)
    values = [look(meter, f"e_out_total {value}\n", float(at)) for at, value in enumerate((100, 130, 20, 25))]
    assert [reading.signals.output_tokens for reading in values] == [0.0, 30.0, 50.0, 55.0]
    assert [reading.restarts for reading in values] == [0, 0, 1, 1]


def test_one_part_that_restarts_leaves_the_others_alone() -> None:
    meter = Meter(RULES)
    look(meter, 'e_out_total{r="0"} 100\ne_out_total{r="1"} 100\n', 0.0)
    after = look(meter, 'e_out_total{r="0"} 110\ne_out_total{r="1"} 5\n', 1.0)
    assert after.signals.output_tokens == 15.0


def test_a_restart_that_has_overtaken_the_old_count_is_seen_by_the_time_of_birth() -> None:
    meter = Meter(RULES)
    look(meter, "process_start_time_seconds 50\ne_out_total 100\n", 0.0)
    after = look(meter, "process_start_time_seconds 90\ne_out_total 120\n", 1.0)
    assert (after.signals.output_tokens, after.restarts) == (120.0, 1)


def test_a_series_that_comes_later_counts_whole_and_one_that_goes_is_kept() -> None:
    meter = Meter(RULES)
    look(meter, 'e_done_total{why="stop"} 4\ne_done_total{why="length"} 1\n', 0.0)
    both = look(meter, 'e_done_total{why="stop"} 6\ne_done_total{why="length"} 1\ne_done_total{why="abort"} 3\n', 1.0)
    assert (both.signals.finished, both.signals.aborted) == (2.0, 3.0)
    anew = look(meter, 'e_done_total{why="stop"} 1\ne_done_total{why="length"} 0\n', 2.0)
    assert (anew.signals.finished, anew.signals.aborted) == (3.0, None)
    again = look(meter, 'e_done_total{why="stop"} 1\ne_done_total{why="length"} 0\ne_done_total{why="abort"} 1\n', 3.0)
    assert again.signals.aborted == 4.0


def test_labels_that_never_repeat_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "SERIES", 3)
    meter_ = Meter(RULES)
    look(meter_, "e_out_total 0\n", 0.0)
    for at in range(1, 10):
        reading = look(meter_, f'e_out_total{{id="{at}"}} 1\n', float(at))
    assert reading.signals.output_tokens == 2.0


@given(st.lists(st.integers(0, 50), min_size=1), st.sets(st.integers(0, 30)))
def test_nothing_is_lost_or_counted_twice(steps: list[int], restarts: set[int]) -> None:
    """However often it restarts: what happened after the first look is counted, but for what fell between the last look
    and a restart that a look could not see (none here: it restarts right after a look)."""
    rising = Rising()
    shown = 1000.0
    rising.look([Sample("c", (), shown)])
    for number, step in enumerate(steps):
        if number in restarts:
            shown = 0.0
        shown += step
        rising.look([Sample("c", (), shown)], born=float(len([r for r in restarts if r <= number])))
    (metric,) = rule("output_tokens", "counter", "c").ways[0]
    assert sum(total for _, total in rising.series(metric)) == sum(steps)


# ---- histograms and rates


def page(at_01: int, at_1: int, whole: int, total: float) -> str:
    return (
        f'e_queue_seconds_bucket{{le="0.1"}} {at_01}\ne_queue_seconds_bucket{{le="1"}} {at_1}\n'
        f'e_queue_seconds_bucket{{le="+Inf"}} {whole}\ne_queue_seconds_sum {total}\ne_queue_seconds_count {whole}\n'
    )


def test_a_spread_is_of_what_is_new() -> None:
    meter = Meter(RULES)
    assert look(meter, page(900, 1000, 1000, 60.0), 0.0).signals.queue == Spread(0)
    spread = look(meter, page(900, 1080, 1100, 160.0), 5.0).signals.queue
    assert spread is not None
    assert (spread.count, spread.mean) == (100, 1.0)
    assert spread.p50 == pytest.approx(0.1 + 0.9 * 50 / 80)
    assert spread.p95 == 1.0, "it lies beyond the last bound, so it is at least that"


def test_a_spread_forgets_what_is_older_than_its_window() -> None:
    meter = Meter(RULES)
    for at in range(20):
        reading = look(meter, page(10 if at else 0, 10 if at else 0, 10 if at else 0, 0.5 if at else 0.0), at * 5.0)
    assert reading.signals.queue == Spread(0)
    assert WINDOW < 20 * 5.0


def test_rates_are_over_the_window() -> None:
    meter = Meter(RULES)
    assert look(meter, "e_out_total 0\n", 0.0).signals.output_rate is None
    assert look(meter, "e_out_total 50\n", 10.0).signals.output_rate == 5.0
    assert look(meter, "e_out_total 50\n", 10.0).signals.output_rate == 5.0


def test_a_restart_makes_no_negative_spread() -> None:
    meter = Meter(RULES)
    look(meter, page(5, 10, 10, 4.0), 0.0)
    spread = look(meter, page(1, 2, 2, 1.0), 5.0).signals.queue
    assert spread is not None
    assert (spread.count, spread.mean) == (2, 0.5)


def test_buckets_without_a_bound_are_the_last() -> None:
    meter = Meter(RULES)
    strange = (
        'e_queue_seconds_bucket{le="x"} %d\ne_queue_seconds_bucket %d\ne_queue_seconds_sum 1\ne_queue_seconds_count 2\n'
    )
    look(meter, strange % (0, 0), 0.0)
    spread = look(meter, strange % (1, 1), 1.0).signals.queue
    assert spread is not None
    assert spread.count == 2
    assert spread.p50 == 0.0
    assert not math.isnan(spread.p95 or 0.0)
