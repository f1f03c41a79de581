"""Rules as they are written down."""

from __future__ import annotations

import pytest

from wastegate.engines.signals import Metric, rule


def test_a_rule_in_short() -> None:
    made = rule("finished", "counter", "a_total{why=stop} + a_total{why=}", "b_info[size]", optional=True, beside="c")
    assert made.ways == (
        (Metric("a_total", "why", "stop"), Metric("a_total", "why", "")),
        (Metric("b_info", read="size"),),
    )
    assert (made.optional, made.beside) == (True, "c")
    assert made.names == {"a_total", "b_info"}


def test_a_histogram_looks_for_three_names() -> None:
    assert rule("queue", "histogram", "q").names == {"q_bucket", "q_sum", "q_count"}


@pytest.mark.parametrize("way", ["", "a b", "a{b}", "a{b=c", "a+b", "a[b"])
def test_a_way_that_cannot_be_read(way: str) -> None:
    with pytest.raises(ValueError, match="is not a metric"):
        rule("queue", "counter", way)


def test_a_signal_that_we_do_not_have() -> None:
    with pytest.raises(ValueError, match="no signal 'runing'"):
        rule("runing", "sum", "a")


@pytest.mark.parametrize(
    ("metric", "said"),
    [(Metric("a"), "a"), (Metric("a", "b", "c"), 'a{b="c"}'), (Metric("a", read="n"), "a[n]")],
)
def test_a_metric_as_it_is_said(metric: Metric, said: str) -> None:
    assert str(metric) == said
