"""LiteLLM's spend logs become calls. The rows were made by LiteLLM 1.108.7's own ``get_logging_payload``, shortened to
the members that are read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from wastegate.core.ledger import Entry
from wastegate.load import documents
from wastegate.load.documents import Unread
from wastegate.load.imports import Note, Options
from wastegate.load.imports_litellm import MOST_TAGS, read

PLAIN: dict[str, Any] = {
    "request_id": "chatcmpl-82b9a34a",
    "call_type": "acompletion",
    "api_key": "",
    "cache_hit": "None",
    "startTime": "2026-11-30 23:16:40.249822+00:00",
    "endTime": "2026-11-30 23:16:40.283296+00:00",
    "completionStartTime": "2026-11-30 23:16:40.283296+00:00",
    "model": "m",
    "user": "",
    "team_id": "",
    "metadata": '{"status": null, "error_information": null, "usage_object": {"completion_tokens": 20, '
    '"prompt_tokens": 10, "total_tokens": 30, "prompt_tokens_details": null}}',
    "spend": None,
    "total_tokens": 30,
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "request_tags": '["team:red", "User-Agent: curl/8", "plain"]',
    "end_user": "",
    "api_base": "",
    "model_group": "",
    "model_id": "",
    "custom_llm_provider": "openai",
    "messages": "{}",
    "status": "success",
}
STREAM: dict[str, Any] = {
    **PLAIN,
    "request_id": "chatcmpl-cf52943f",
    "startTime": "2026-11-30 23:16:40.309424+00:00",
    "endTime": "2026-11-30 23:16:48.369281+00:00",
    "completionStartTime": "2026-11-30 23:16:48.222377+00:00",
}


def rows(folder: Path, *some: dict[str, Any], options: Options = Options()) -> list[Entry | Unread | Note]:  # noqa: B008
    path = folder / "spend.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    return list(read(path, options))


def entry(folder: Path, row: dict[str, Any], options: Options = Options()) -> Entry:  # noqa: B008
    (found,) = [one for one in rows(folder, row, options=options) if not isinstance(one, Note)]
    assert isinstance(found, Entry), found
    return found


def fault(folder: Path, row: dict[str, Any]) -> Unread:
    (found,) = rows(folder, row)
    assert isinstance(found, Unread), found
    return found


def test_a_row_becomes_a_call(tmp_path: Path) -> None:
    call = entry(tmp_path, {**PLAIN, "team_id": "red", "model_group": "big", "api_base": "http://10.0.0.1:8000/v1"})
    (attempt,) = call.attempts
    assert (call.id, call.model, call.tenant, call.tags) == (
        "litellm-chatcmpl-82b9a34a",
        "big",
        "red",
        (("team", "red"),),
    )
    assert (call.stream, attempt.first_token) == (False, None)
    assert call.ended - call.arrived == pytest.approx(0.033474, abs=1e-6)
    assert (attempt.replica, attempt.prompt_tokens, attempt.output_tokens) == ("http://10.0.0.1:8000/v1", 10, 20)
    assert (attempt.usage, attempt.cached_tokens, call.path) == ("engine", None, "/v1/chat/completions")


def test_a_stream_has_its_first_token(tmp_path: Path) -> None:
    call = entry(tmp_path, STREAM)
    assert call.stream
    assert call.attempts[0].first_token == pytest.approx(call.arrived + 7.912953, abs=1e-6)


def test_what_the_command_says_stands_over_the_file(tmp_path: Path) -> None:
    call = entry(tmp_path, PLAIN, Options(replica="gpu-1", model="own"))
    assert (call.attempts[0].replica, call.model) == ("gpu-1", "own")
    assert entry(tmp_path, PLAIN).attempts[0].replica == "openai"


def test_cached_prompt_tokens_are_read_from_the_usage(tmp_path: Path) -> None:
    metadata = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 8}}}
    assert entry(tmp_path, {**PLAIN, "metadata": json.dumps(metadata)}).attempts[0].cached_tokens == 8
    assert entry(tmp_path, {**PLAIN, "metadata": metadata}).attempts[0].cached_tokens == 8
    assert entry(tmp_path, {**PLAIN, "metadata": "{no"}).attempts[0].cached_tokens is None


def test_a_failure_has_no_tokens_that_nobody_counted(tmp_path: Path) -> None:
    metadata = json.dumps({"status": "failure", "error_information": {"error_class": "Timeout"}})
    failed = {**PLAIN, "status": "failure", "total_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0}
    call = entry(tmp_path, {**failed, "metadata": metadata})
    assert (call.outcome, call.reason) == ("failed", "Timeout")
    assert (call.attempts[0].prompt_tokens, call.attempts[0].usage) == (None, "none")
    assert entry(tmp_path, {**failed, "status": "failure"}).reason == "failure"


def test_an_answer_from_litellms_cache_ran_nowhere(tmp_path: Path) -> None:
    assert entry(tmp_path, {**PLAIN, "cache_hit": "True"}).attempts == ()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"call_type": "aembedding"}, "not a completion"),
        ({"call_type": None}, "not a completion"),
        ({"startTime": None}, "no time"),
        ({"endTime": "yesterday"}, "bad time"),
        ({"endTime": "2026-11-30 23:16:39+00:00"}, "bad time"),
        ({"prompt_tokens": -1}, "bad number"),
    ],
)
def test_rows_that_cannot_be_calls_say_why(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    found = fault(tmp_path, {**PLAIN, **changed})
    assert found.reason == reason
    assert found.where.endswith("spend.jsonl, line 1")


def test_a_row_without_an_id_gets_the_same_one_each_time(tmp_path: Path) -> None:
    one = entry(tmp_path, {**PLAIN, "request_id": ""})
    assert one.id.startswith("litellm-")
    assert entry(tmp_path, {**PLAIN, "request_id": ""}).id == one.id
    assert entry(tmp_path, {**STREAM, "request_id": ""}).id != one.id


def test_tags_are_bounded(tmp_path: Path) -> None:
    tags = [*(f"k{n}=v{n}" for n in range(20)), 7]
    found = entry(tmp_path, {**PLAIN, "request_tags": tags}).tags
    assert found[0] == ("k0", "v0")
    assert len(found) == MOST_TAGS
    assert entry(tmp_path, {**PLAIN, "request_tags": "no list"}).tags == ()


def test_what_litellms_prices_say_is_told_as_a_tariff(tmp_path: Path) -> None:
    found = rows(tmp_path, {**PLAIN, "spend": 0.25}, {**STREAM, "spend": "0.5"}, {**STREAM, "spend": "much"})
    (note,) = [row for row in found if isinstance(row, Note)]
    assert "these 2 calls of spend.jsonl at $0.75: a tariff" in note.text


def test_a_dump_of_the_table_as_csv(tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(PLAIN))
    writer.writeheader()
    writer.writerow(PLAIN)
    writer.writerow({**STREAM, "messages": "two\nlines"})
    path = tmp_path / "spend.csv"
    path.write_text(text.getvalue() + "only,three,cells\n", encoding="utf-8")
    first, second, broken = read(path, Options())
    assert isinstance(first, Entry)
    assert isinstance(second, Entry)
    assert isinstance(broken, Unread)
    assert (first.attempts[0].prompt_tokens, first.tags) == (10, (("team", "red"),))
    assert second.stream
    assert (broken.reason, broken.where) == ("not CSV", f"{path}, line 5")


def test_a_csv_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    path = tmp_path / "spend.csv"
    path.write_text("a,b\n" + "x" * 200_000 + ",1\n", encoding="utf-8")
    (found,) = read(path, Options())
    assert isinstance(found, Unread)
    assert found.reason == "not CSV"


def test_a_line_too_long_is_told_in_a_csv_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST", 60)
    path = tmp_path / "spend.csv"
    path.write_text("call_type,user\naembedding,a\n" + "x" * 90 + ",b\naembedding,c\n", encoding="utf-8")
    found = [row for row in read(path, Options()) if isinstance(row, Unread)]
    assert [row.reason for row in found] == ["not a completion", "too long", "not a completion"]
