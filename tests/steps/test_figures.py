"""Sums and quantiles by hand: each call counted once, each dollar in its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.ledgers import PLAIN, attempt, entry, span
from wastegate.core.attribution import Charges, attribute
from wastegate.core.facts import Facts, gather
from wastegate.core.ledger import NANO, Entry
from wastegate.core.stats import Summary
from wastegate.steps import figures
from wastegate.steps.figures import Row


def known(*entries: Entry, start: float = -math.inf, end: float = math.inf) -> tuple[Facts, Charges]:
    """On one replica at a dollar a second, for 100 seconds."""
    facts = gather(entries, [span(end=100.0, work=PLAIN)], start, end)
    return facts, attribute(facts)


def alone(name: str, begin: float, length: float, **other: Any) -> Entry:
    """A call that nobody shares its replica with: it costs a dollar a second."""
    facts = {
        key: other.pop(key)
        for key in ("outcome", "usage", "prompt_tokens", "output_tokens", "first_token")
        if key in other
    }
    return entry(name, attempt(begin=begin, end=begin + length, **facts), **other)


def by(facts: Facts, charges: Charges, label: str) -> figures.Split:
    return figures.split(facts, charges, label, getattr(facts.calls, label), lambda _: facts.names)


def test_a_split_has_the_dearest_first_and_sums_to_the_requests() -> None:
    facts, charges = known(
        alone("x", 0, 1, tenant="small"),
        alone("y", 2, 5, tenant="big"),
        alone("z", 8, 2, tenant="big"),
        entry("r", tenant="none"),
    )
    split = by(facts, charges, "tenant")
    assert split.rows == (Row("big", 2, 7.0, 0.875, 0), Row("small", 1, 1.0, 0.125, 0), Row("none", 1, 0.0, 0.0, 0))
    assert (split.by, split.more) == ("tenant", 0)


def test_what_is_beyond_the_top_is_summed_up() -> None:
    facts, charges = known(*(alone(f"{n:02}", 2 * n, 1 + n / 100, tenant=f"t{n:02}") for n in range(25)))
    split = by(facts, charges, "tenant")
    assert len(split.rows) == figures.TOP + 1
    assert (split.more, split.rows[-1].name, split.rows[-1].calls) == (5, "5 more", 5)
    assert sum(row.dollars for row in split.rows) == pytest.approx(charges.requests / NANO)


def test_without_cost_shares_are_zero_and_not_nan() -> None:
    facts, charges = known(entry("x"))
    assert by(facts, charges, "route").rows == (Row("chat", 1, 0.0, 0.0, 0),)


def test_a_split_says_how_many_calls_have_no_price() -> None:
    half = entry("x", attempt("b", 0.0, 1.0, outcome="failed"), attempt("a", 1.0, 2.0, number=2), tenant="half")
    facts, charges = known(half, entry("y", attempt("b", 0.0, 9.0), tenant="wholly"), alone("z", 5, 3, tenant="not"))
    rows = by(facts, charges, "tenant").rows
    assert [(row.name, row.dollars, row.unpriced) for row in rows] == [
        ("not", 3.0, 0),
        ("half", 1.0, 1),
        ("wholly", 0.0, 1),
    ]


def test_each_tag_key_is_a_split_of_the_calls_that_have_it() -> None:
    facts, charges = known(
        alone("x", 0, 1, tags=(("team", "red"), ("job", "night"))),
        alone("y", 2, 3, tags=(("team", "blue"),)),
        alone("z", 6, 1),
    )

    def name(codes: np.ndarray) -> Mapping[int, str]:
        return {int(code): facts.names[int(code)] for code in codes}

    job, team = figures.tag_splits(facts, charges, name)
    assert (job.by, [(row.name, row.calls, row.dollars) for row in job.rows]) == ("tag job", [("night", 1, 1.0)])
    assert [(row.name, row.dollars, row.share) for row in team.rows] == [("blue", 3.0, 0.6), ("red", 1.0, 0.2)]


def test_a_call_counts_where_it_ends_and_costs_where_it_ran() -> None:
    entries = (alone("x", 0, 10), alone("y", 12, 2))
    facts, charges = known(*entries, start=5.0, end=13.0)
    assert figures.ended_inside(facts).tolist() == [True, False]
    (row,) = by(facts, charges, "route").rows
    assert (row.calls, row.dollars) == (1, 6.0)
    assert figures.per_call(facts, charges).cost is None, "neither lies whole in the window"


def test_cost_per_call_is_of_priced_calls_that_reached_a_replica() -> None:
    facts, charges = known(
        alone("x", 0, 1),
        alone("y", 2, 3, outcome="hung_up"),
        entry("refused"),
        entry("unpriced", attempt("b", 0.0, 9.0)),
        entry("retried", attempt("b", 0.0, 1.0, outcome="failed"), attempt("a", 10.0, 11.0, number=2)),
    )
    assert figures.per_call(facts, charges).cost == Summary(2, 2.0, 2.0, 2.9, 2.98)


def test_the_whole_bill_was_for_what_finished_at_a_known_price() -> None:
    facts, charges = known(
        alone("x", 0, 1),
        alone("y", 2, 3, outcome="failed"),
        entry("z", attempt("b", 0.0, 9.0)),
        alone("late", 30, 1),
        end=20.0,
    )
    assert figures.answered(facts, charges) == 1


def test_the_dearest_share() -> None:
    facts, charges = known(*(alone(f"{n}", 9 * n, 1 if n < 9 else 9) for n in range(10)))
    (tenth, half), (fifth, more) = figures.per_call(facts, charges).dearest
    assert (tenth, half, fifth, more) == pytest.approx((0.10, 0.5, 0.20, 10 / 18))


def test_tokens_in_are_paid_by_prefill_and_tokens_out_by_the_rest() -> None:
    done = {"prompt_tokens": 1000, "output_tokens": 500, "first_token": 2.0}
    facts, charges = known(
        alone("x", 0, 10, **done),
        alone("left", 20, 5, outcome="hung_up", prompt_tokens=10, output_tokens=10),
        alone("uncounted", 30, 5, prompt_tokens=10),
    )
    costs = figures.per_call(facts, charges)
    assert (costs.tokens_in, costs.tokens_out) == (1000, 500)
    assert costs.million_in == pytest.approx(2.0 / 1000 * 1e6)
    assert costs.million_out == pytest.approx(8.0 / 500 * 1e6)


def test_without_counts_there_is_no_price_a_token() -> None:
    costs = figures.per_call(*known(alone("x", 0, 1)))
    assert (costs.million_in, costs.million_out) == (None, None)


def test_latency_is_of_finished_calls_from_their_arrival() -> None:
    facts, _ = known(
        alone("x", 1, 10, first_token=3.0, output_tokens=5, arrived=0.5),
        alone("one token", 20, 4, first_token=24.0, output_tokens=1),
        alone("no count", 25, 4, first_token=26.0),
        alone("whole", 30, 3, stream=False, first_token=31.0, output_tokens=9),
        alone("left", 40, 50, outcome="hung_up", first_token=41.0),
        entry("finished nowhere", outcome="finished"),
    )
    found = figures.latency(facts)
    assert found.ttft is not None
    assert found.ttft.count == 3
    assert found.ttft.mean == pytest.approx((2.5 + 4.0 + 1.0) / 3)
    assert found.tpot == Summary(1, 2.0, 2.0, 2.0, 2.0)
    assert found.e2e is not None
    assert found.e2e.count == 4
    assert found.e2e.mean == pytest.approx((10.5 + 4 + 4 + 3) / 4)


def test_a_retried_call_has_the_first_token_of_its_last_attempt() -> None:
    failed = attempt(begin=0.0, end=2.0, outcome="failed", first_token=1.0)
    facts, _ = known(entry("x", failed, attempt(begin=2.0, end=9.0, number=2, first_token=4.0)))
    found = figures.latency(facts).ttft
    assert found is not None
    assert found.mean == 4.0


def test_nothing_finished_nothing_measured() -> None:
    found = figures.latency(known()[0])
    assert (found.ttft, found.tpot, found.e2e) == (None, None, None)


def test_outcomes_and_sources_count_what_ended_in_the_window() -> None:
    facts, _ = known(
        alone("x", 0, 1, prompt_tokens=3, output_tokens=4),
        alone("y", 0, 1, outcome="lost", usage="estimated", prompt_tokens=9),
        alone("late", 50, 1),
        entry("r"),
        end=10.0,
    )
    assert figures.outcomes(facts) == {"finished": 1, "refused": 1, "lost": 1}
    assert [(row.source, row.attempts, row.tokens) for row in figures.usage(facts)] == [
        ("engine", 1, 7),
        ("estimated", 1, 9),
    ]


def test_waste_by_kind() -> None:
    retried = entry("x", attempt(begin=0.0, end=2.0, outcome="failed"), attempt(begin=2.0, end=3.0, number=2))
    _, charges = known(retried, alone("y", 5, 4, outcome="hung_up"), alone("z", 20, 1))
    assert figures.waste(charges) == {"superseded": 2.0, "hung_up": 4.0}
