"""Calls are told to a real collector after they have ended; one that is slow, gone or angry costs spans, no answer."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

import wastegate.gateway
from tests.collector import LIMIT, Collector, values
from tests.fake_replica import FakeReplica
from tests.gateway.running import chat, running
from tests.gateway_process import GatewayProcess
from wastegate.core.ledger import Attempt, Entry
from wastegate.core.spans import Span
from wastegate.gateway.config import StartError
from wastegate.gateway.telemetry import Config, Telemetry, TelemetryError, headers_of, open_telemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
QUICK = Config(every=0.02, timeout=2.0)


def entry(number: int = 1, traceparent: str = "") -> Entry:
    attempt = Attempt(1, "r1", 100.0, 101.0, "finished", sent=100.0, status=200, prompt_tokens=5, output_tokens=7)
    return Entry(
        f"c-{number}", 100.0, 101.0, "chat", "/v1/chat/completions", "m", "t", "short", False, "finished", 200,
        attempts=(attempt,), traceparent=traceparent,
    )  # fmt: skip


class Slow:
    """A sender that is scripted: each answer stands in for a collector's, and ``gate`` holds it back."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.counted: list[str] = []
        self.rounds = 0
        self.gate = threading.Event()
        self.gate.set()
        self.closed = threading.Event()

    def count(self, entry: Entry) -> None:
        self.counted.append(entry.id)

    def send_spans(self, some: Sequence[Span]) -> bool:
        self.calls += [str(span.attributes["wastegate.call.id"]) for span in some if span.kind == "server"]
        while not self.gate.wait(0.01) and not self.closed.is_set():
            pass
        answer = self.answers.pop(0) if self.answers else True
        if self.closed.is_set():
            return False
        return answer

    def send_metrics(self) -> bool:
        self.rounds += 1
        return True

    def close(self) -> None:
        self.closed.set()


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.005)


# ---- a whole gateway


async def test_a_call_through_the_gateway_is_a_span_in_its_clients_trace(tmp_path: Path) -> None:
    async with Collector() as collector, FakeReplica() as replica:
        config = replace(QUICK, endpoint=collector.url, headers={"x-scope": "mine"})
        async with running(tmp_path, replica, telemetry=config) as gateway:
            answer = await gateway.post(
                chat("A secret prompt", stream=True), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
            )
            assert answer.status == 200
            (ended,) = await gateway.closed(1)
            call, attempt = await collector.spans(2)
            # Before the end, which blocks the loop that this collector runs in.
            duration = "gen_ai.client.inference.duration"
            await gateway.until(lambda: bool(collector.totals) and duration in collector.metrics(), "metrics came too")
            (point,) = collector.metrics()[duration].histogram.data_points
        told = values(call.attributes)
        assert (call.trace_id.hex(), call.parent_span_id.hex(), call.name) == (TRACE, PARENT, "chat fake")
        assert attempt.parent_span_id == call.span_id
        assert told["wastegate.call.id"] == ended.id
        assert told["gen_ai.usage.input_tokens"] == ended.attempts[0].prompt_tokens
        assert told["gen_ai.usage.output_tokens"] == ended.attempts[0].output_tokens
        assert call.start_time_unix_nano == pytest.approx(ended.arrived * 1e9, abs=1000)
        assert call.end_time_unix_nano == pytest.approx(ended.ended * 1e9, abs=1000)
        assert all("secret prompt" not in str(request) for request in (*collector.traces, *collector.totals))
        assert "wastegate.tenant" not in told
        assert {headers["x-scope"] for headers in collector.headers} == {"mine"}
        assert point.count == 1


async def test_a_collector_that_does_not_answer_delays_no_call_and_the_end_only_by_its_timer(tmp_path: Path) -> None:
    async with Collector() as collector, FakeReplica() as replica:
        collector.hold.clear()
        config = replace(QUICK, endpoint=collector.url, timeout=0.5)
        async with running(tmp_path, replica, telemetry=config) as gateway:
            await gateway.post(chat("first"))
            async with asyncio.timeout(LIMIT):
                await collector.asked.wait()
            for number in range(5):
                assert (await gateway.post(chat(f"{number}"))).status == 200
            await gateway.until(lambda: gateway.hub.recorder.untold > 0, "what was not taken in time is counted")
            _, page = await gateway.admin("/metrics")
            assert b"wastegate_telemetry_dropped_calls_total 0\n" not in page
        assert collector.taken == []


async def test_workers_each_tell_their_own_calls_as_the_user_starts_them(tmp_path: Path) -> None:
    async with Collector() as collector, FakeReplica() as replica:
        toml = f'[telemetry]\nendpoint = "{collector.url}"\nevery = 0.1\nheaders_env = "SAID"\n'
        gateway = GatewayProcess(tmp_path, replica, workers=2, toml=toml, environ={"SAID": "X-Key=secret"})
        async with gateway, aiohttp.ClientSession() as session:
            for number in range(6):
                url = f"{gateway.url}/v1/chat/completions"
                async with session.post(url, data=chat(f"{number}"), headers={"connection": "close"}) as answer:
                    await answer.read()
                    assert answer.status in (200, 503)
        calls = [span for span in collector.taken if not span.name.startswith("attempt")]
        assert len(calls) == 6, "the end sends what waits"
        assert {headers["x-key"] for headers in collector.headers} == {"secret"}
        instances = {
            values(request.resource_metrics[0].resource.attributes)["service.instance.id"]
            for request in collector.totals
            if request.resource_metrics
        }
        assert len(instances) >= 1
        assert "secret" not in gateway.said


def test_without_an_endpoint_there_is_nothing() -> None:
    before = threading.active_count()
    assert open_telemetry(Config(), "gateway") is None
    assert threading.active_count() == before


async def test_without_its_packages_the_start_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wastegate.gateway.otlp", raising=False)
    monkeypatch.delattr(wastegate.gateway, "otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TelemetryError, match=r"pip install 'wastegate\[otel\]'"):
        open_telemetry(replace(QUICK, endpoint="http://127.0.0.1:9"), "gateway")
    with pytest.raises(StartError, match=r"wastegate\[otel\]"):
        async with running(tmp_path, telemetry=replace(QUICK, endpoint="http://127.0.0.1:9")):
            pass


# ---- the thread


def test_a_full_queue_drops_and_counts() -> None:
    sender = Slow()
    sender.gate.clear()
    telemetry = Telemetry(replace(QUICK, queue=3), sender)
    telemetry.put([entry(0)])
    until(lambda: sender.calls == ["c-0"], "it sends")
    telemetry.put([entry(number) for number in range(1, 6)])
    assert telemetry.dropped == 2
    sender.gate.set()
    telemetry.close()
    assert sender.calls == ["c-0", "c-1", "c-2", "c-3"]
    assert telemetry.dropped == 2


def test_the_end_sends_what_waits_and_ends_at_its_timer(caplog: pytest.LogCaptureFixture) -> None:
    sender = Slow()
    telemetry = Telemetry(replace(QUICK, every=3600.0), sender)
    telemetry.put([entry(number) for number in range(3)])
    telemetry.close()
    assert sender.calls == sender.counted == ["c-0", "c-1", "c-2"]
    assert (telemetry.dropped, sender.rounds) == (0, 1)
    assert caplog.text == ""
    stuck = Slow()
    stuck.gate.clear()
    telemetry = Telemetry(replace(QUICK, every=3600.0, timeout=0.1), stuck)
    telemetry.put([entry(number) for number in range(600)])
    began = time.monotonic()
    telemetry.close()
    assert time.monotonic() - began < 3.0
    assert not telemetry._thread.is_alive()
    assert "600 calls were not told" in caplog.text


def test_trouble_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    sender = Slow(False, False, True)
    telemetry = Telemetry(replace(QUICK, endpoint="http://user:secret@collector:4318"), sender)
    for number in range(3):
        telemetry.put([entry(number)])
        until(lambda number=number: len(sender.calls) > number, "it was sent")  # type: ignore[misc]
    telemetry.close()
    assert telemetry.dropped == 2
    assert caplog.text.count("does not take spans") == 1
    assert caplog.text.count("takes spans again") == 1
    assert "secret" not in caplog.text


def test_a_fault_of_ours_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    sender = Slow()
    fault: list[Exception] = [RuntimeError("odd")]
    count = sender.count

    def counting(entry: Entry) -> None:
        if fault:
            raise fault.pop()
        count(entry)

    sender.count = counting  # type: ignore[method-assign]
    telemetry = Telemetry(QUICK, sender)
    telemetry.put([entry(1)])
    until(lambda: telemetry.dropped == 1, "the first is lost")
    telemetry.put([entry(2)])
    telemetry.close()
    assert sender.calls == ["c-2"]
    assert "a fault while sending" in caplog.text


def test_sampled_calls_are_sent_and_all_are_counted() -> None:
    sender = Slow()
    telemetry = Telemetry(replace(QUICK, sample=0.0), sender)
    telemetry.put([entry(1), entry(2, f"00-{TRACE}-{PARENT}-01"), entry(3, f"00-{TRACE}-{PARENT}-00")])
    telemetry.close()
    assert sender.calls == ["c-2"]
    assert sender.counted == ["c-1", "c-2", "c-3"]
    assert telemetry.dropped == 0


def test_metrics_can_be_left_out() -> None:
    sender = Slow()
    telemetry = Telemetry(replace(QUICK, metrics=False), sender)
    telemetry.put([entry(1)])
    telemetry.close()
    assert (sender.calls, sender.rounds) == (["c-1"], 0)


# ---- its configuration


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"endpoint": "collector:4318"}, "write the collector's address"),
        ({"endpoint": "grpc://collector"}, "write the collector's address"),
        ({"sample": 1.5}, "a share from 0 to 1"),
        ({"every": 0.0}, "above 0 seconds"),
        ({"timeout": -1.0}, "above 0 seconds"),
        ({"queue": 0}, "at least 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**members)


def test_headers_are_read_and_a_wrong_one_is_not_repeated() -> None:
    assert headers_of("") == {}
    assert headers_of("Authorization=Bearer a=b , X-Scope=1,") == {"authorization": "Bearer a=b", "x-scope": "1"}
    with pytest.raises(ValueError, match="name=value") as told:
        headers_of("secret")
    assert "secret" not in str(told.value)
