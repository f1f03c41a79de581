"""inference-perf's record of requests becomes calls, with its dateless clock moved to where it is said to begin."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from wastegate.core.ledger import Entry
from wastegate.load.documents import Unread
from wastegate.load.imports import Note, Options
from wastegate.load.imports_inference_perf import RECORD, read, records

T = 1_790_000_000.0


def row(start: float = 100.0, end: float = 102.0, **other: Any) -> dict[str, Any]:
    """As inference-perf wrote it in 2025: counts in ``info``."""
    info = {"input_tokens": 200, "output_tokens": 64, "output_token_times": [start + 0.5, end]}
    return {
        "start_time": start,
        "end_time": end,
        "request": "{}",
        "response": "x",
        "info": info,
        "error": None,
        **other,
    }


def newer(start: float = 100.0, end: float = 102.0, **usage: Any) -> dict[str, Any]:
    """As in 2026: what came back stands in ``response_metrics``, with the server's own counts if it gave any."""
    answer = {"output_tokens": 60, "output_token_times": [start + 0.5], "server_usage": usage or None}
    return row(start, end, info={"input_tokens": 199, "response_metrics": answer}, stage_id=2)


def taken(folder: Path, *rows: object, options: Options = Options(start=T)) -> list[Any]:  # noqa: B008 - frozen
    path = folder / RECORD
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    os.utime(path, (T + 500, T + 500))
    return list(read(path, options))


def test_a_request_becomes_a_call_from_when_the_run_began(tmp_path: Path) -> None:
    first, second = taken(tmp_path, row(130.0, 131.0), row(100.0, 102.0))
    assert isinstance(first, Entry)
    assert (first.arrived, second.arrived, second.ended) == (T + 30, T, T + 2)
    (attempt,) = second.attempts
    assert (attempt.first_token, attempt.prompt_tokens, attempt.output_tokens) == (T + 0.5, 200, 64)
    assert (attempt.replica, attempt.usage, second.stream) == ("server", "counted", True)


def test_the_servers_own_counts_stand_over_the_clients(tmp_path: Path) -> None:
    (one,) = taken(
        tmp_path, newer(prompt_tokens=210, completion_tokens=64, prompt_tokens_details={"cached_tokens": 128})
    )
    (attempt,) = one.attempts
    assert (attempt.prompt_tokens, attempt.cached_tokens, attempt.output_tokens) == (210, 128, 64)
    assert (attempt.usage, one.tags) == ("engine", (("stage", "2"),))
    (bare,) = taken(tmp_path, newer())
    assert (bare.attempts[0].prompt_tokens, bare.attempts[0].output_tokens, bare.attempts[0].usage) == (
        199,
        60,
        "counted",
    )


def test_without_a_beginning_the_file_says_when_it_ended(tmp_path: Path) -> None:
    note, one, _ = taken(tmp_path, row(100, 101), row(100, 110), options=Options())
    assert isinstance(note, Note)
    assert "has no date" in note.text
    assert one.arrived == T + 490


def test_a_clock_with_a_date_is_taken_as_it_is(tmp_path: Path) -> None:
    (one,) = taken(tmp_path, row(T, T + 1), options=Options())
    assert one.arrived == T


def test_failures_and_whole_answers(tmp_path: Path) -> None:
    failed = row(error={"error_type": "TimeoutError", "error_msg": "…"}, info={"input_tokens": 5})
    (one,) = taken(tmp_path, failed)
    assert (one.outcome, one.reason, one.stream) == ("failed", "TimeoutError", False)
    assert (one.attempts[0].first_token, one.attempts[0].output_tokens) == (None, None)


def test_broken_rows_say_why(tmp_path: Path) -> None:
    found = taken(tmp_path, {**row(), "start_time": None}, {**row(), "end_time": "soon"}, row(102, 100), [1], row())
    assert [one.reason if isinstance(one, Unread) else "call" for one in found] == [
        "no time",
        "bad number",
        "bad time",
        "no object",
        "call",
    ]


def test_nothing_readable_is_nothing(tmp_path: Path) -> None:
    assert taken(tmp_path, options=Options()) == []


def test_ids_are_the_same_each_time(tmp_path: Path) -> None:
    assert [one.id for one in taken(tmp_path, row(), row(3, 4))] == [
        one.id for one in taken(tmp_path, row(), row(3, 4))
    ]


def test_records_are_found_in_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / RECORD).write_text("[]", encoding="utf-8")
    assert records(tmp_path) == [tmp_path / "a" / RECORD]
    assert records(tmp_path / "a" / RECORD) == [tmp_path / "a" / RECORD]
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="per_request"):
        records(tmp_path / "b")
