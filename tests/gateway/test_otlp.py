"""What a collector gets, bit by bit: decoded by the protocol's own messages, not by what sent it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.collector import Collector, values
from wastegate.core.ledger import Attempt, Entry
from wastegate.core.spans import spans
from wastegate.gateway.otlp import Sender
from wastegate.load.documents import Unread
from wastegate.load.imports import Options
from wastegate.load.imports_otlp import read

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LOST = Attempt(1, "a", 1000.1, 1000.4, "failed", sent=1000.2, status=503, reason="status 503")
WON = Attempt(
    2, "b", 1000.5, 1002.0, "finished", sent=1000.5, first_byte=1000.7, first_token=1000.75, status=200,
    prompt_tokens=30, cached_tokens=16, output_tokens=7, usage="engine",
)  # fmt: skip
ENTRY = Entry(
    "c-1", 1000.0, 1002.0, "chat", "/v1/chat/completions", "small", "acme", "short", True, "finished", 200,
    finish_reason="stop", attempts=(LOST, WON), trail=("first", "second"), traceparent=f"00-{TRACE}-{PARENT}-01",
)  # fmt: skip


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as collector:
        yield collector


def sender(collector: Collector, timeout: float = 5.0) -> Sender:
    return Sender(collector.url + "/", {"X-Scope": "mine"}, timeout, {"service.name": "gate"})


async def test_spans_arrive_as_the_protocol_has_them(collector: Collector) -> None:
    sending = sender(collector)
    assert await asyncio.to_thread(sending.send_spans, spans(ENTRY))
    await asyncio.to_thread(sending.close)
    call, first, second = collector.taken
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, PARENT)
    assert first.parent_span_id == second.parent_span_id == call.span_id
    assert (call.kind, first.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert (call.start_time_unix_nano, call.end_time_unix_nano) == (1000_000_000_000, 1002_000_000_000)
    assert (call.status.code, first.status.code, first.status.message) == (
        Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR, "status 503",
    )  # fmt: skip
    assert [event.name for event in second.events] == ["sent", "first byte", "first token"]
    assert second.events[2].time_unix_nano == pytest.approx(1000.75e9, abs=1000)
    told = values(call.attributes)
    assert told["gen_ai.usage.output_tokens"] == 7
    assert told["gen_ai.request.stream"] is True
    assert told["wastegate.trail"] == ("first", "second")
    assert values(collector.traces[0].resource_spans[0].resource.attributes) == {"service.name": "gate"}
    assert collector.headers[0]["x-scope"] == "mine"


async def test_metrics_are_the_calls_added_up(collector: Collector) -> None:
    sending = sender(collector)
    for number in range(3):
        sending.count(replace(ENTRY, id=f"c-{number}"))
    sending.count(Entry("r", 1000.0, 1000.0, "chat", "/v1/completions", "x", "t", "", False, "refused", 429))
    assert await asyncio.to_thread(sending.send_metrics)
    await asyncio.to_thread(sending.close)
    metrics = collector.metrics()
    points = {values(p.attributes)["wastegate.outcome"]: p for p in
              metrics["gen_ai.client.inference.duration"].histogram.data_points}  # fmt: skip
    assert {outcome: (p.count, p.sum) for outcome, p in points.items()} == {"finished": (3, 6.0), "refused": (1, 0.0)}
    assert list(points["finished"].explicit_bounds)[:3] == [0.01, 0.02, 0.04]
    assert values(points["refused"].attributes)["error.type"] == "refused"
    (first,) = metrics["gen_ai.client.inference.time_to_first_chunk"].histogram.data_points
    assert (first.count, first.sum) == (3, pytest.approx(2.25))
    usage = "gen_ai.client.inference.usage."
    tokens = {name.removeprefix(usage): metric.sum.data_points for name, metric in metrics.items() if usage in name}
    assert {name: point.as_int for name, (point,) in tokens.items()} == {
        "input_tokens": 90, "cache_read.input_tokens": 48, "output_tokens": 21,
    }  # fmt: skip
    assert all(metrics[usage + name].sum.is_monotonic for name in tokens)


async def test_what_the_collector_does_not_take_is_told(collector: Collector) -> None:
    collector.status = {"/v1/traces": 400, "/v1/metrics": 404}
    sending = sender(collector)
    sending.count(ENTRY)
    assert not await asyncio.to_thread(sending.send_spans, spans(ENTRY))
    assert not await asyncio.to_thread(sending.send_metrics)
    await asyncio.to_thread(sending.close)


async def test_our_own_import_reads_what_we_sent(collector: Collector, tmp_path: Path) -> None:
    """A collector's file exporter writes these same messages as JSON."""
    sending = sender(collector)
    assert await asyncio.to_thread(sending.send_spans, spans(ENTRY, tenant=True))
    await asyncio.to_thread(sending.close)
    said = MessageToDict(collector.traces[0])
    for span, sent in zip(said["resourceSpans"][0]["scopeSpans"][0]["spans"], collector.taken, strict=True):
        # OTLP's JSON has ids in hex, where protobuf's own has base64.
        span.update(traceId=sent.trace_id.hex(), spanId=sent.span_id.hex(), parentSpanId=sent.parent_span_id.hex())
    (file := tmp_path / "spans.jsonl").write_text(json.dumps(said) + "\n")
    rows = list(read(file, Options()))
    (entry,) = [row for row in rows if isinstance(row, Entry)]
    assert [row.reason for row in rows if isinstance(row, Unread)] == ["not a model call"] * 2, "its attempts"
    assert (entry.model, entry.tenant, entry.path, entry.stream) == ("small", "acme", "/v1/chat/completions", True)
    assert (entry.arrived, entry.ended, entry.outcome) == (1000.0, 1002.0, "finished")
    (attempt,) = entry.attempts
    assert (attempt.prompt_tokens, attempt.cached_tokens, attempt.output_tokens) == (30, 16, 7)
    assert attempt.first_token == pytest.approx(1000.75)
