"""What engines tell, in the ledger: late or early, twice or once, and only of attempts that were made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.ledgers import attempt, entry, record, run, span, told_calls
from wastegate.core.facts import gather
from wastegate.core.ledger import EngineRecord, Entry, RecordGap
from wastegate.core.records import Cursor, Heard
from wastegate.store.entries import Ledger

INFINITE = float("inf")


def heard(*records: EngineRecord, replica: str = "a", boot: str = "one", gap: RecordGap | None = None) -> Heard:
    numbered = tuple(
        EngineRecord(**{**{name: getattr(one, name) for name in EngineRecord.__struct_fields__}, "sequence": number})
        for number, one in enumerate(records, start=1)
    )
    return Heard(replica, Cursor(boot, len(numbered), 5.0), numbered, gap)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


RUNS = (run(0.25, 0.5, 1, prefill=7, kv=1.5), run(0.5, 1.0, 9, decode=9, draft=3, kv=2.25))


def test_a_record_comes_back_whole(ledger: Ledger) -> None:
    told = record("call.1", *RUNS, cached=3, preemptions=2, finish="length", measured="times")
    ledger.save_records([heard(told)])
    assert ledger.records("call") == [(1, told)]
    assert ledger.records("cal") == []


def test_it_joins_its_call_whether_it_comes_before_or_after(ledger: Ledger) -> None:
    ledger.save_records([heard(record("early.1", *RUNS))])
    ledger.add([entry("early", attempt()), entry("late", attempt())])
    assert ledger.facts(-INFINITE, INFINITE).records.attempt.tolist() == [0]
    ledger.save_records([heard(record("early.1", *RUNS), record("late.1", *RUNS, prompt=50, cached=4, output=6))])
    records = ledger.facts(-INFINITE, INFINITE).records
    assert records.attempt.tolist() == [0, 1]
    assert (records.prompt[1], records.cached[1], records.output[1]) == (50, 4, 6)
    assert records.record.tolist() == [0, 0, 1, 1]
    assert records.runs[1].tolist() == [0.5, 1.0, 9, 0, 9, 3, 2.25]


def test_what_is_told_twice_is_kept_once_and_each_choice_by_itself(ledger: Ledger) -> None:
    ledger.add([entry("call", attempt())])
    for _ in range(2):
        ledger.save_records([heard(record("call.1", *RUNS), record("call.1", *RUNS))])
    assert ledger.facts(-INFINITE, INFINITE).records.attempt.tolist() == [0, 0]
    ledger.save_records([heard(record("call.1", *RUNS), boot="two")])
    assert len(ledger.records("call")) == 3, "the same number in another life is another record"


def test_only_the_replica_that_an_attempt_ran_on_can_tell_of_it(ledger: Ledger) -> None:
    ledger.add([entry("call", attempt("a"), attempt("b", 1.0, 2.0, number=2))])
    told = record("call.1", *RUNS), record("call.2", *RUNS), record("call.3", *RUNS)
    ledger.save_records([heard(*told, replica="b")])
    assert ledger.facts(-INFINITE, INFINITE).records.attempt.tolist() == [1]


def test_requests_that_no_gateway_sent_only_move_the_cursor(ledger: Ledger) -> None:
    stranger = record("x", *RUNS)
    ledger.save_records([heard(stranger)])
    assert ledger.cursors() == {"a": Cursor("one", 1, 5.0)}
    assert not ledger.facts(-INFINITE, INFINITE).records.attempt.size


def test_a_window_has_the_records_of_its_calls(ledger: Ledger) -> None:
    ledger.add([entry("old", attempt(begin=0.0, end=1.0)), entry("new", attempt(begin=10.0, end=11.0))])
    ledger.save_records([heard(record("old.1", *RUNS), record("new.1", *RUNS))])
    facts = ledger.facts(9.0, 20.0)
    assert facts.records.attempt.tolist() == [0]
    assert ledger.facts(50.0, 60.0).records.attempt.size == 0


def test_gaps_are_facts(ledger: Ledger) -> None:
    one, two = RecordGap("a", 1.0, 2.0, 7), RecordGap("b", 1.0, 2.0, None)
    ledger.save_records([heard(gap=one), heard(replica="b", gap=two)])
    assert ledger.facts(-INFINITE, INFINITE).gaps == (one, two)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told_calls())
def test_a_ledger_gives_the_facts_that_the_entries_give(
    tmp_path: Path, told: tuple[list[Entry], list[EngineRecord]]
) -> None:
    path = tmp_path / "drawn.db"
    path.unlink(missing_ok=True)
    entries, records = told
    by_replica = {name: [] for name in "abc"}  # type: dict[str, list[EngineRecord]]
    ran = {f"{one.id}.{attempt.number}": attempt.replica for one in entries for attempt in one.attempts}
    for one in records:
        by_replica[ran[one.id.removeprefix("chatcmpl-").rpartition("-")[0]]].append(one)
    with Ledger(path) as ledger:
        ledger.add(sorted(entries, key=lambda one: one.id))
        ledger.save_records([heard(*some, replica=name) for name, some in by_replica.items()])
        found = ledger.facts(-INFINITE, INFINITE).records
    expected = gather(entries, [span()], records=records).records
    for name in ("attempt", "prompt", "cached", "output", "whole", "runs", "record"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
