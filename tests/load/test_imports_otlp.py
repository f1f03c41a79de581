"""Spans of model calls become calls, once each; other spans are left out and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wastegate.core.ledger import Entry
from wastegate.load.documents import Unread
from wastegate.load.imports import Options
from wastegate.load.imports_otlp import read

TRACE = "5b8efff798038103d269b633813fc60c"
START = 1_790_000_000_000_000_000


def attributes(**values: Any) -> list[dict[str, Any]]:
    """As OTLP's JSON has them: whole numbers are texts."""
    kinds = {str: "stringValue", bool: "boolValue", float: "doubleValue", int: "intValue"}
    made = []
    for name, value in values.items():
        kind = kinds[type(value)]
        made.append({"key": name.replace("__", "."), "value": {kind: str(value) if kind == "intValue" else value}})
    return made


CHAT: dict[str, Any] = {
    "gen_ai__operation__name": "chat",
    "gen_ai__request__model": "llama",
    "gen_ai__usage__input_tokens": 120,
    "gen_ai__usage__output_tokens": 30,
    "server__address": "10.0.0.1",
    "server__port": 8000,
}


def span(id: str = "eee19b7ec3c1b174", parent: str = "", length: float = 2.0, **given: Any) -> dict[str, Any]:
    """A span with the attributes ``given``; ``name``, ``status`` and times may be given as ``_name`` and so on."""
    own = {name[1:]: given.pop(name) for name in list(given) if name.startswith("_")}
    return {
        "traceId": TRACE,
        "spanId": id,
        "parentSpanId": parent,
        "name": "chat llama",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + int(length * 1e9)),
        "attributes": attributes(**given),
        **own,
    }


def request(*spans: dict[str, Any], **resource: Any) -> dict[str, Any]:
    group = {"resource": {"attributes": attributes(**resource)}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}
    return {"resourceSpans": [group]}


def rows(folder: Path, *requests: object, options: Options = Options()) -> list[Any]:  # noqa: B008 - frozen
    path = folder / "traces.json"
    path.write_text("".join(json.dumps(one) + "\n" for one in requests), encoding="utf-8")
    return list(read(path, options))


def entry(folder: Path, one: dict[str, Any], **resource: Any) -> Entry:
    (found,) = rows(folder, request(one, **resource))
    assert isinstance(found, Entry), found
    return found


def test_a_span_of_the_conventions_becomes_a_call(tmp_path: Path) -> None:
    call = entry(tmp_path, span(**CHAT, gen_ai__usage__cache_read__input_tokens=100, enduser__id="acme"))
    (attempt,) = call.attempts
    assert call.id == f"otlp-{TRACE}-eee19b7ec3c1b174"
    assert (call.arrived, call.ended) == (1_790_000_000.0, 1_790_000_002.0)
    assert (call.model, call.tenant, call.path) == ("llama", "acme", "/v1/chat/completions")
    assert (attempt.replica, attempt.prompt_tokens, attempt.cached_tokens, attempt.output_tokens) == (
        *("10.0.0.1:8000", 120, 100),
        30,
    )
    assert call.traceparent == f"00-{TRACE}-eee19b7ec3c1b174-01"
    assert not call.stream


def test_a_span_of_vllms_own_becomes_a_call(tmp_path: Path) -> None:
    one = span(
        _name="llm_request",
        gen_ai__latency__time_to_first_token=0.5,
        gen_ai__latency__e2e=2.0,
        gen_ai__usage__prompt_tokens=7,
        gen_ai__usage__completion_tokens=3,
        gen_ai__request__id="chatcmpl-1",
    )
    call = entry(tmp_path, one, service__name="vllm-server")
    (attempt,) = call.attempts
    assert (attempt.replica, attempt.prompt_tokens, attempt.output_tokens) == ("vllm-server", 7, 3)
    assert attempt.first_token == 1_790_000_000.5
    assert call.stream


def test_a_first_token_a_little_after_the_end_is_the_end(tmp_path: Path) -> None:
    call = entry(tmp_path, span(length=1.0, **CHAT, gen_ai__latency__time_to_first_token=1.001))
    assert call.attempts[0].first_token == call.ended


@pytest.mark.parametrize("failed", [{"error__type": "timeout"}, {"_status": {"code": 2}}])
def test_an_error_is_a_failure(tmp_path: Path, failed: dict[str, Any]) -> None:
    call = entry(tmp_path, span(**CHAT, **failed))
    assert call.outcome == "failed"
    assert call.reason == failed.get("error__type", "error")


def test_a_call_that_two_spans_saw_counts_once(tmp_path: Path) -> None:
    engine = span("c" * 16, parent="b" * 16, _name="llm_request", gen_ai__usage__prompt_tokens=7)
    http = span("b" * 16, parent="a" * 16, _name="POST /v1/chat/completions")
    client = span("a" * 16, **CHAT)
    found = rows(tmp_path, request(engine, http), request(client))
    assert [getattr(row, "reason", "") if isinstance(row, Unread) else "call" for row in found] == [
        "part of another call",
        "not a model call",
        "call",
    ]


def test_what_only_the_engine_knows_is_taken_over(tmp_path: Path) -> None:
    def engine(id: str, **more: Any) -> dict[str, Any]:
        first: dict[str, Any] = {"gen_ai__latency__time_to_first_token": 0.5, "gen_ai__usage__prompt_tokens": 121}
        begin: dict[str, Any] = {"_startTimeUnixNano": str(START + 250_000_000)}
        return span(id, parent="b" * 16, _name="llm_request", **begin, **first, **more)

    http = span("b" * 16, parent="a" * 16, _name="POST")
    client = span("a" * 16, **CHAT)
    *_, call = rows(tmp_path, request(engine("c" * 16, gen_ai__usage__cached_tokens=64), http, client))
    (attempt,) = call.attempts
    assert attempt.first_token == pytest.approx(1_790_000_000.75, abs=1e-5)
    assert call.stream
    assert (attempt.prompt_tokens, attempt.cached_tokens) == (120, 64)
    # Two within one: a client that tried again. Nobody knows which was the answer.
    *_, call = rows(tmp_path, request(engine("c" * 16), engine("d" * 16), http, client))
    assert call.attempts[0].first_token is None
    broken = engine("c" * 16, gen_ai__usage__cached_tokens="many")
    inner, _, call = rows(tmp_path, request(broken, http, client))
    assert inner.reason == "part of another call"
    assert call.attempts[0].first_token is None


def test_the_same_span_id_in_another_trace_is_another_span(tmp_path: Path) -> None:
    other = {**span("c" * 16, parent="a" * 16, **CHAT), "traceId": "f" * 32}
    found = rows(tmp_path, request(span("a" * 16, **CHAT), other))
    assert all(isinstance(row, Entry) for row in found)


def test_spans_in_a_circle_end(tmp_path: Path) -> None:
    found = rows(
        tmp_path,
        request(
            span("a" * 16, parent="b" * 16, **CHAT), span("b" * 16, parent="b" * 16), span("c" * 16, parent="c" * 16)
        ),
    )
    assert isinstance(found[0], Entry)


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (span(_name="GET /"), "not a model call"),
        (span(**{**CHAT, "gen_ai__operation__name": "embeddings"}), "not a model call"),
        (span(**CHAT, _startTimeUnixNano="0"), "no time"),
        (span(**CHAT, _endTimeUnixNano=str(START - 1_000_000_000)), "bad time"),
        (span(**{**CHAT, "gen_ai__usage__input_tokens": "many"}), "bad number"),
        ({}, "not a model call"),
    ],
)
def test_other_spans_say_why_and_where(tmp_path: Path, one: dict[str, Any], reason: str) -> None:
    (found,) = rows(tmp_path, request(one))
    assert isinstance(found, Unread)
    assert found.reason == reason
    assert found.where.endswith("traces.json, line 1, span 1")


def test_what_is_no_request_is_told(tmp_path: Path) -> None:
    found = rows(tmp_path, {"resourceMetrics": []}, [1], {"resourceSpans": [7, {"scopeSpans": [{"spans": None}]}]})
    assert [row.reason for row in found] == ["no spans", "no object"]


def test_a_file_of_one_request_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(request(span(**CHAT)), indent=2), encoding="utf-8")
    (found,) = read(path, Options(replica="gpu", model="own"))
    assert isinstance(found, Entry)
    assert (found.attempts[0].replica, found.model) == ("gpu", "own")


def test_a_span_without_ids_gets_one(tmp_path: Path) -> None:
    call = entry(tmp_path, {**span(**CHAT), "spanId": "", "traceId": ""}, host__name="box")
    assert call.id.startswith("otlp-")
    assert call.traceparent == ""
