"""Every row is accounted for; a second import changes nothing; what cannot be a call is told where and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.load import imports
from wastegate.load.documents import Unread
from wastegate.load.imports import Import, Note, Options, Read, price_of, run
from wastegate.load.imports_rows import (
    call,
)
from wastegate.steps.foreign import READERS
from wastegate.store.entries import Ledger

T = 1_790_000_000.0


def made(id: str, at: float = T, replica: str = "a") -> Entry:
    return call(id=id, arrived=at, ended=at + 2, replica=replica, model="m", prompt=10, output=5, first_token=at + 1)


def taken(folder: Path, *rows: Entry | Unread | Note, options: Options = Options()) -> Import:  # noqa: B008 - frozen
    def reader(path: Path, given: Options) -> Read:
        assert given is options
        yield from rows

    return run("made", reader, [folder / "x"], folder / "l.db", options)


def test_counts_reconcile(tmp_path: Path) -> None:
    bad = [Unread(f"x, line {n}", "not JSON", "no") for n in range(7)]
    done = taken(tmp_path, made("1"), *bad, made("2", T + 5, "b"), made("1"), Unread("x, line 9", "no time"))
    assert (done.read, done.imported, done.known) == (11, 2, 1)
    assert done.skipped["not JSON"].count == 7
    assert len(done.skipped["not JSON"].first) == imports.SHOWN
    assert done.skipped["no time"].first == ("x, line 9",)
    assert done.reconciles
    assert (done.start, done.end, done.replicas) == (T, T + 7, ("a", "b"))


def test_a_second_import_changes_nothing(tmp_path: Path) -> None:
    taken(tmp_path, made("1"), made("2"))
    again = taken(tmp_path, made("1"), made("2"))
    assert (again.read, again.imported, again.known) == (2, 0, 2)
    with Ledger(tmp_path / "l.db") as ledger:
        assert ledger.count() == 2


def test_large_files_go_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "BATCH", 3)
    done = taken(tmp_path, *(made(str(n)) for n in range(8)))
    assert (done.imported, done.reconciles) == (8, True)


def test_up_time_is_from_the_first_call_to_the_end_of_the_last(tmp_path: Path) -> None:
    options = Options(price=price_of(3.6))
    done = taken(tmp_path, made("1"), made("2", T + 5), options=options)
    with Ledger(tmp_path / "l.db") as ledger:
        (span,) = ledger.spans()
    assert span == ReplicaSpan("a", "serving", T, T + 7, 3_600_000_000, seen=T + 7, engine="imported: made")
    assert any("up time is taken to last" in note for note in done.notes)
    assert not any("No price" in note for note in done.notes)


def test_without_a_price_that_is_said(tmp_path: Path) -> None:
    done = taken(tmp_path, made("1"), Note("of the file"), Note("of the file"))
    assert done.notes[0] == "of the file"
    assert sum("of the file" in note for note in done.notes) == 1
    assert "--price-per-hour" in done.notes[-1]


def test_nothing_imported_has_no_times_and_no_notes(tmp_path: Path) -> None:
    done = taken(tmp_path, Unread("x", "not JSON"))
    assert (done.start, done.end, done.replicas, done.notes) == (None, None, (), ())


@pytest.mark.parametrize("dollars", [0.0, -1.0, 1e7, float("nan")])
def test_a_price_that_cannot_be_is_refused(dollars: float) -> None:
    with pytest.raises(ValueError, match="price-per-hour"):
        price_of(dollars)


def test_a_price_in_nano_dollars() -> None:
    assert (price_of(None), price_of(2.5)) == (0, 2_500_000_000)


# ---- whatever a file holds, no reader breaks, and every row is accounted for

_NAMES = """
    request_id call_type startTime endTime completionStartTime api_base metadata request_tags spend total_tokens
    prompt_tokens completion_tokens cache_hit status usage_object error_information user
    resourceSpans scopeSpans spans resource attributes key value stringValue intValue traceId spanId parentSpanId
    startTimeUnixNano endTimeUnixNano name
    id object created model usage metrics time_to_first_token_ms generation_time_ms queue_time_ms response choices
    prompt_tokens_details cached_tokens
    start_time end_time info input_tokens output_tokens output_token_times response_metrics server_usage error stage_id
"""
NAMES = _NAMES.split()
_WORDS = """
    acompletion chat.completion chat.completion.chunk 2026-11-30T10:00:00Z llm_request gen_ai.operation.name chat
    gen_ai.usage.input_tokens True failure 5b8efff798038103d269b633813fc60c
"""
WORDS = _WORDS.split()
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2_000_000_000)
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=9),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(READERS)), st.lists(junk, max_size=5), st.sampled_from(["lines", "list", "object"]))
def test_no_json_breaks_a_reader(tmp_path: Path, kind: str, rows: list[object], shape: str) -> None:
    path = tmp_path / "x.json"
    if shape == "lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        body = rows if shape == "list" else {"resourceSpans": [{"scopeSpans": [{"spans": rows}]}]}
        path.write_text(json.dumps(body, indent=1), encoding="utf-8")
    done = run(kind, READERS[kind], [path], Path(":memory:"), Options())
    assert done.reconciles


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300), st.sampled_from(["x.json", "x.csv", "x.log"]))
def test_no_bytes_break_a_reader(tmp_path: Path, kind: str, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert run(kind, READERS[kind], [path], Path(":memory:"), Options()).reconciles


@pytest.mark.parametrize("kind", sorted(READERS))
@pytest.mark.parametrize("text", ["9" * 5000, '{"created": ' + "9" * 5000 + "}", "[" + "9" * 5000 + "]", "[[" * 90_000])
def test_no_size_breaks_a_reader(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text + "\n", encoding="utf-8")
    assert run(kind, READERS[kind], [path], Path(":memory:"), Options()).reconciles
