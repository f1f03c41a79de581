"""A replica's life in steps: each second of up time is billed once, at the price that held."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ledgers import HOURLY, span, spans
from wastegate.core.ledger import ReplicaSpan
from wastegate.core.timeline import HORIZON, PARTS, Timeline, nanoseconds, timeline

SECOND = 1_000_000_000
INFINITE = float("inf")


def line(*some: ReplicaSpan, start: float = -INFINITE, end: float = INFINITE) -> Timeline:
    return timeline(sorted(some, key=lambda s: (s.start, s.phase)), start, end)


def at(steps: np.ndarray, bounds: np.ndarray, when: float) -> int:
    """The level of a step function at one instant."""
    return int(steps[bounds <= when * SECOND].sum())


def test_times_are_whole_nanoseconds_and_infinity_is_the_horizon() -> None:
    assert nanoseconds(1.25) == 1_250_000_000
    assert nanoseconds(np.array([-INFINITE, INFINITE])).tolist() == [-HORIZON * 1e9, HORIZON * 1e9]


def test_the_bill_is_price_by_up_time() -> None:
    made = line(span(start=2.0, end=5.0))
    assert (made.bill, made.up_time, made.serving_time, made.unpriced_time) == (3 * SECOND, 3 * SECOND, 3 * SECOND, 0)


def test_a_window_cuts_spans() -> None:
    some = (span(start=2.0, end=5.0), span(start=7.0, end=9.0))
    assert line(*some, start=4.0, end=8.0).bill == 2 * SECOND
    assert line(*some, start=20.0).bill == 0
    assert line(*some, end=1.0).bill == 0


def test_a_span_without_an_end_lasts_until_it_was_last_seen() -> None:
    assert line(span(start=2.0, end=None, seen=6.0)).bill == 4 * SECOND
    assert line(span(start=2.0, end=None)).bill == 0, "never seen again"


def test_where_spans_overlap_the_later_start_holds() -> None:
    made = line(span(end=10.0, phase="loading"), span(start=4.0, end=6.0, price=2 * HOURLY))
    assert made.bill == 12 * SECOND
    assert made.serving_time == 2 * SECOND
    prices = [at(made.price, made.bounds, when) // HOURLY for when in (1.0, 5.0, 7.0, 11.0)]
    assert prices == [1, 2, 1, 0]


def test_time_at_no_price_is_counted_apart() -> None:
    made = line(span(end=3.0, price=0), span(start=3.0, end=10.0))
    assert (made.up_time, made.unpriced_time, made.bill) == (7 * SECOND, 3 * SECOND, 7 * SECOND)
    assert [at(made.up, made.bounds, when) for when in (1.0, 4.0)] == [0, 1]


def test_probes_are_a_share_of_serving_time_and_never_more_than_all() -> None:
    half = line(span(probe_seconds=5.0))
    assert at(half.probing, half.bounds, 1.0) == PARTS // 2
    all_of_it = line(span(probe_seconds=50.0))
    assert at(all_of_it.probing, all_of_it.bounds, 1.0) == PARTS
    loading = line(span(phase="loading", probe_seconds=5.0))
    assert at(loading.probing, loading.bounds, 1.0) == 0, "loading is overhead anyway"


def test_a_span_of_no_length_bills_nothing() -> None:
    assert line(span(start=3.0, end=3.0, probe_seconds=1.0)).bill == 0
    assert line(span(start=3.0, end=2.0)).bill == 0, "an end before the start"


def test_no_spans_no_bill() -> None:
    made = line()
    assert (made.bill, made.up_time, len(made.bounds)) == (0, 0, 0)


def test_the_bill_is_rounded_once() -> None:
    third = [span(start=number, end=number + 1 / 3, price=5) for number in range(3)]
    assert line(*third).bill == 0
    assert line(span(end=1800.0, price=1)).bill == 1, "half a nano-dollar rounds up"


@given(spans(), st.floats(0.0, 20.0))
def test_every_step_comes_back_to_nothing_and_halves_sum_to_the_whole(some: list[ReplicaSpan], cut: float) -> None:
    some = [one for one in some if one.replica == "a"]
    whole, before, after = line(*some), line(*some, end=cut), line(*some, start=cut)
    for made in (whole, before, after):
        for steps in (made.price, made.up, made.serving, made.probing):
            levels = np.cumsum(steps)
            assert (levels >= 0).all()
    assert abs(whole.bill - before.bill - after.bill) <= 1
    assert whole.up_time == before.up_time + after.up_time
    assert whole.serving_time == before.serving_time + after.serving_time
    assert whole.unpriced_time == before.unpriced_time + after.unpriced_time
