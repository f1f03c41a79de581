"""Slices of a window are cut at round times and together are the whole bill."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledgers import attempt, entry, span, spans, told_calls
from wastegate.core.attribution import attribute
from wastegate.core.facts import gather
from wastegate.core.ledger import NANO, EngineRecord, Entry, ReplicaSpan
from wastegate.steps.series import MOST, edges, slices


def test_edges_are_round_and_begin_and_end_with_the_window() -> None:
    assert edges(3590.0, 3600.0 * 3 + 1) == (3590.0, *(300.0 * n for n in range(12, 37)), 10801.0)


def test_days_are_cut_at_local_midnight() -> None:
    two_hours = 7200.0
    cuts = edges(0.0, 40 * 86400.0, offset=two_hours)
    assert cuts[1] == 86400.0 - two_hours
    assert {later - earlier for earlier, later in pairwise(cuts[1:-1])} == {86400.0}


def test_a_window_without_length_has_no_edges() -> None:
    assert edges(5.0, 5.0) == ()


@settings(deadline=None)
@given(st.floats(0, 2e9), st.floats(1e-3, 1e12))
def test_there_are_never_too_many_slices_and_never_one_out_of_order(start: float, length: float) -> None:
    cuts = edges(start, start + length)
    assert cuts[0] == start
    assert cuts[-1] == start + length
    assert len(cuts) <= MOST + 1
    assert list(cuts) == sorted(set(cuts))


def test_each_slice_holds_its_own_time() -> None:
    facts = gather(
        [
            entry("x", attempt("a", 0, 4)),
            entry("y", attempt("a", 5, 6, outcome="failed"), attempt("a", 12, 13, number=2)),
        ],
        [span("a", 0, 20)],
        0.0,
        20.0,
    )
    first, second = slices(facts, (0.0, 10.0, 20.0))
    # The failed attempt is waste although what came after it lies in the next slice.
    assert (first.useful, first.waste, first.idle, first.calls) == (4.0, 1.0, 5.0, 1)
    assert (second.useful, second.waste, second.idle, second.calls) == (1.0, 0.0, 9.0, 1)
    assert first.total == second.total == 10.0


@settings(max_examples=60, deadline=None)
@given(told_calls(), spans(), st.lists(st.floats(0.1, 39.9), max_size=5))
def test_the_slices_are_the_whole_bill(
    told: tuple[list[Entry], list[EngineRecord]], life: list[ReplicaSpan], inner: list[float]
) -> None:
    cuts = (0.0, *sorted(set(inner)), 40.0)
    facts = gather(told[0], life, 0.0, 40.0, told[1])
    whole, parts = attribute(facts), slices(facts, cuts)
    # Each replica's bill is rounded once in each slice.
    slack = 2 * len(cuts) / NANO
    assert sum(part.total for part in parts) == pytest.approx(whole.bill / NANO, abs=slack, rel=1e-9)
    assert sum(part.idle for part in parts) == pytest.approx(whole.idle / NANO, abs=slack + 1e-6, rel=1e-6)
    assert sum(part.useful + part.waste for part in parts) == pytest.approx(whole.requests / NANO, abs=1e-6, rel=1e-6)
