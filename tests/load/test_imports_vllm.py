"""vLLM's metrics of single requests, and its log. Everything under ``recorded/`` was written by vLLM 0.32.0 (its CPU
build, level DEBUG), three calls that ended and one whose client left."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from wastegate.core.ledger import Entry
from wastegate.load import documents
from wastegate.load.documents import Unread
from wastegate.load.imports import Note, Options
from wastegate.load.imports_vllm import read

RECORDED = Path(__file__).parent / "recorded"
CREATED = 1_796_080_891
NOVEMBER = datetime(2026, 11, 30, 23, 21, 31).timestamp()


def taken(path: Path, options: Options = Options()) -> tuple[list[Entry], list[Unread], list[Note]]:  # noqa: B008
    rows = list(read(path, options))
    return (
        [row for row in rows if isinstance(row, Entry)],
        [row for row in rows if isinstance(row, Unread)],
        [row for row in rows if isinstance(row, Note)],
    )


def response(folder: Path, **changed: Any) -> Entry | Unread:
    body = json.loads((RECORDED / "vllm-0.32-responses.jsonl").read_text().splitlines()[0])
    path = folder / "x.jsonl"
    path.write_text(json.dumps({**body, **changed}) + "\n", encoding="utf-8")
    calls, faults, _ = taken(path)
    found: list[Entry | Unread] = [*calls, *faults]
    assert len(found) == 1
    return found[0]


# ---- responses


def test_responses_become_calls_with_their_queue_before_the_first_token() -> None:
    calls, faults, (note,) = taken(RECORDED / "vllm-0.32-responses.jsonl")
    chat, completion = calls
    (attempt,) = chat.attempts
    assert faults == []
    assert (chat.id, chat.model, chat.stream) == ("vllm-chatcmpl-b18803c92e17c214", "m", False)
    assert chat.path == "/v1/chat/completions"
    assert chat.arrived == CREATED
    assert attempt.first_token == pytest.approx(CREATED + 0.080282, abs=1e-6)
    assert chat.ended == pytest.approx(CREATED + 0.219792, abs=1e-6)
    assert (attempt.prompt_tokens, attempt.cached_tokens, attempt.output_tokens, attempt.usage) == (36, 0, 5, "engine")
    assert (completion.path, completion.attempts[0].cached_tokens) == ("/v1/completions", 0)
    assert "whole seconds" in note.text


def test_of_a_stream_the_last_chunk_counts_and_one_without_is_told() -> None:
    (call,), faults, notes = taken(RECORDED / "vllm-0.32-stream.txt", Options(replica="gpu", model="own"))
    (attempt,) = call.attempts
    assert (call.id, call.stream, call.model, attempt.replica) == ("vllm-chatcmpl-mine-1", True, "own", "gpu")
    assert attempt.output_tokens == 8
    assert {fault.reason for fault in faults} == {"no last chunk"}
    assert len(faults) == 12
    assert "1 streams of vllm-0.32-stream.txt have no last chunk" in notes[-1].text


def test_a_response_may_stand_within_a_record(tmp_path: Path) -> None:
    inner = response(tmp_path)
    assert isinstance(inner, Entry)
    body = json.loads((tmp_path / "x.jsonl").read_text())
    (tmp_path / "y.json").write_text(json.dumps([{"response": body}]), encoding="utf-8")
    assert taken(tmp_path / "y.json")[0] == [inner]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"metrics": None}, "no metrics"),
        ({"metrics": None, "usage": None}, "no last chunk"),
        ({"created": None}, "no time"),
        ({"metrics": {"generation_time_ms": 3.0}}, "no time"),
        ({"metrics": {"time_to_first_token_ms": "soon"}}, "bad number"),
        ({"metrics": {"time_to_first_token_ms": -5.0}}, "bad time"),
    ],
)
def test_responses_that_cannot_be_calls_say_why(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    found = response(tmp_path, **changed)
    assert isinstance(found, Unread)
    assert found.reason == reason


def test_a_response_without_an_id_gets_one(tmp_path: Path) -> None:
    found = response(tmp_path, id="")
    assert isinstance(found, Entry)
    assert found.id.startswith("vllm-")


def test_a_broken_chunk_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text('data: {"id": "a"}\ndata: {"id"\n\ndata: [DONE]\n', encoding="utf-8")
    _, faults, _ = taken(path)
    assert [(fault.reason, fault.where[-6:]) for fault in faults] == [("no metrics", "line 1"), ("not JSON", "line 2")]


# ---- the log


def test_requests_of_a_log_are_put_together() -> None:
    calls, (lost,), notes = taken(RECORDED / "vllm-0.32.log", Options(start=NOVEMBER))
    whole, stream, left = calls
    assert (whole.id, whole.finish_reason, whole.stream) == ("vllm-chatcmpl-b18803c92e17c214", "stop", False)
    assert (whole.arrived, whole.ended) == (NOVEMBER, NOVEMBER)
    assert (whole.attempts[0].prompt_tokens, whole.attempts[0].output_tokens) == (36, 5)
    assert whole.attempts[0].usage == "estimated"
    assert (stream.id, stream.finish_reason, stream.stream) == ("vllm-chatcmpl-mine-1", "length", True)
    assert stream.attempts[0].first_token == NOVEMBER + 1
    assert (left.outcome, left.reason, left.ended) == ("hung_up", "aborted", NOVEMBER + 3)
    assert left.attempts[0].output_tokens == 2  # of those in the excerpt
    assert (lost.reason, lost.where[-6:]) == ("no end", "line 7")
    assert "of chats only" in lost.detail
    assert len(notes) == 2


def test_no_text_of_a_prompt_or_an_answer_is_kept() -> None:
    calls, faults, _ = taken(RECORDED / "vllm-0.32.log")
    kept = repr((calls, faults))
    for text in ("Paris", "Hugging", "story", "38634"):
        assert text in (RECORDED / "vllm-0.32.log").read_text(encoding="utf-8")
        assert text not in kept


def log(folder: Path, *messages: str, day: str = "11-30") -> Path:
    path = folder / "v.log"
    text = (f"(APIServer pid=1) INFO {day} 10:00:0{n} [a.py:1] {message}\n" for n, message in enumerate(messages))
    path.write_text("".join(text), encoding="utf-8")
    return path


def test_an_end_without_a_beginning_is_told(tmp_path: Path) -> None:
    path = log(tmp_path, "Generated response chatcmpl-1: output: 'x', finish_reason: stop", "Request cmpl-2 aborted.")
    calls, faults, _ = taken(path)
    assert calls == []
    assert [fault.reason for fault in faults] == ["no beginning", "no beginning"]


def test_without_token_lists_there_are_no_counts(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        "\x1b[32mReceived request cmpl-1-0: params: SamplingParams(n=1), lora_request: None.\x1b[0m",
        "Generated response cmpl-9 details: output_token_ids: [1]",
        "Generated response cmpl-9 (streaming delta): output: 'x', finish_reason: None",
        "Generated response cmpl-1-0: output: 'finish_reason: length', finish_reason: stop",
    )
    (call,), faults, notes = taken(path)
    assert (call.path, call.finish_reason, call.ended - call.arrived) == ("/v1/completions", "stop", 3.0)
    assert (call.attempts[0].output_tokens, call.attempts[0].usage) == (None, "none")
    assert faults == []
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("day", "near", "year"),
    [
        ("12-31", datetime(2027, 1, 1), 2026),
        ("01-01", datetime(2026, 12, 31, 23), 2027),
        ("02-29", datetime(2028, 3, 1), 2028),
    ],
)
def test_the_year_is_the_one_that_comes_closest(tmp_path: Path, day: str, near: datetime, year: int) -> None:
    messages = ("Received request a: params", "Request a-0123abcd aborted.")
    (call,), _, _ = taken(log(tmp_path, *messages, day=day), Options(start=near.timestamp()))
    assert datetime.fromtimestamp(call.arrived).year == year


def test_a_date_that_never_was_is_told(tmp_path: Path) -> None:
    messages = ("Received request a: params", "Request a aborted.")
    calls, faults, _ = taken(log(tmp_path, *messages, day="13-41"))
    assert calls == []
    assert {fault.reason for fault in faults} == {"bad time"}


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_text("\n\n", encoding="utf-8")
    assert list(read(path, Options())) == []


@pytest.mark.parametrize("first", ['data: {"id": "a"}', "Starting vLLM"])
def test_lines_too_long_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    monkeypatch.setattr(documents, "MOST", 60)
    path = tmp_path / "x.txt"
    path.write_text(f"{first}\n{'x' * 100}\n", encoding="utf-8")
    assert [fault.where[-6:] for fault in taken(path)[1] if fault.reason == "too long"] == ["line 2"]
