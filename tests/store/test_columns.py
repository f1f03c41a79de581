"""The ledger's rows as columns say what single entries say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from tests.ledgers import attempt, calls, entry, span, spans
from wastegate.core.attribution import attribute
from wastegate.core.facts import Attempts, Facts, gather
from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.store import columns
from wastegate.store.entries import Ledger


def read(entries: list[Entry], life: list[ReplicaSpan], start: float = -math.inf, end: float = math.inf) -> Facts:
    with Ledger(Path(":memory:")) as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
        return ledger.facts(start, end)


@given(calls(), spans())
def test_from_the_ledger_or_from_entries_the_facts_are_the_same(entries: list[Entry], life: list[ReplicaSpan]) -> None:
    stored, gathered = read(entries, life), gather(entries, life)
    for name in set(Attempts.__struct_fields__) - {"replica"}:
        np.testing.assert_array_equal(getattr(stored.attempts, name), getattr(gathered.attempts, name), name)
    for name in ("arrived", "ended", "outcome", "stream"):
        np.testing.assert_array_equal(getattr(stored.calls, name), getattr(gathered.calls, name), name)
    for name in ("route", "model", "tenant", "length_class"):
        texts = [[facts.names[int(code)] for code in getattr(facts.calls, name)] for facts in (stored, gathered)]
        assert texts[0] == texts[1]
    names = [[facts.replicas[place] for place in facts.attempts.replica] for facts in (stored, gathered)]
    assert names[0] == names[1]
    assert sorted(map(repr, stored.spans)) == sorted(map(repr, gathered.spans))
    one, other = attribute(stored), attribute(gathered)
    assert one.amount.tolist() == other.amount.tolist()
    assert one.replicas == other.replicas


def test_types_are_lean() -> None:
    facts = read([entry("x", attempt())], [])
    assert facts.attempts.replica.dtype == facts.calls.tenant.dtype == np.int32
    assert facts.attempts.outcome.dtype == facts.attempts.usage.dtype == facts.calls.outcome.dtype == np.int8


def test_a_window_takes_what_touches_it_whole_and_all_spans() -> None:
    entries = [
        entry("before", attempt(begin=0.0, end=1.0)),
        entry("into", attempt(begin=0.0, end=2.0, outcome="failed"), attempt("b", 2.0, 6.0, number=2)),
        entry("within", attempt(begin=5.5, end=6.0), tags=(("team", "x"), ("job", "y"))),
        entry("out of", attempt(begin=7.0, end=30.0)),
        entry("after", attempt(begin=10.0, end=12.0), tags=(("team", "z"),)),
        entry("outlived by its attempt", attempt(begin=0.0, end=5.5), ended=4.0),
        entry("ends as it opens", attempt(begin=0.0, end=5.0)),
        entry("ends just before", attempt(begin=0.0, end=4.9)),
    ]
    life = [span(end=1.0), span(start=50.0, end=60.0)]
    facts = read(entries, life, 5.0, 10.0)
    assert facts.calls.arrived.tolist() == [0.0, 5.5, 7.0, 0.0, 0.0]
    assert facts.attempts.call.tolist() == [0, 0, 1, 2, 3, 4]
    assert facts.attempts.number.tolist() == [1, 2, 1, 1, 1, 1]
    assert facts.tags.call.tolist() == [1, 1]
    assert [facts.names[int(key)] for key in facts.tags.key] == ["team", "job"]
    assert len(facts.spans) == 2


def test_nothing_gives_empty_columns() -> None:
    facts = read([], [])
    assert (len(facts.calls.key), len(facts.attempts.call), len(facts.tags.call), facts.names) == (0, 0, 0, {})


def test_rows_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROWS", 7)
    entries = [entry(f"{n:03}", attempt(begin=float(n), end=n + 1.0, prompt_tokens=n)) for n in range(50)]
    facts = read(entries, [])
    assert facts.calls.arrived.tolist() == facts.attempts.claimed.tolist() == list(range(50))
    assert facts.attempts.prompt.tolist() == list(range(50))
