"""One request, sent once: what is noted of an answer, and how each way to fail is named."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Literal

import aiohttp
import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, silent_port
from wastegate.load.client import Answer, Shot, shoot
from wastegate.load.rows import HangUp

BODY = b'{"stream":true,"stream_options":{"include_usage":true}}'
CHAT = "/v1/chat/completions"


async def ask(
    replica: FakeReplica | str, *, patience: float = 5.0, hang_up: HangUp | None = None, path: str = CHAT
) -> Answer:
    answer = Answer()
    base = replica if isinstance(replica, str) else replica.url
    async with aiohttp.ClientSession() as session:
        await shoot(session, base, Shot(path, BODY, (("x-mark", "1"),), patience, hang_up), answer, perf_counter)
    return answer


async def test_a_stream_is_read_to_its_end() -> None:
    reply = Reply(body=Sse(chunks=3, ttft=0.05, gap=0.02), headers=(("x-request-id", "abc"),))
    async with FakeReplica(reply) as replica:
        answer = await ask(replica)
        assert replica.calls[0].headers["x-mark"] == "1"
    assert (answer.outcome, answer.reason, answer.status) == ("ok", "", 200)
    assert (answer.request_id, answer.finish_reason, answer.pieces) == ("abc", "stop", 3)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (7, 3)
    assert answer.sent is not None
    assert answer.first is not None
    assert answer.ended is not None
    assert answer.first - answer.sent >= 0.05
    assert answer.ended - answer.first >= 0.04


@pytest.mark.parametrize("kind", ["content", "reasoning", "reasoning_content", "tool_calls"])
async def test_the_first_token_is_the_first_that_says_something(kind: Literal["content", "reasoning"]) -> None:
    async with FakeReplica(Reply(body=Sse(chunks=2, kind=kind, empty_deltas=3, ttft=0.05))) as replica:
        answer = await ask(replica)
    assert answer.pieces == 2
    assert answer.first is not None
    assert answer.sent is not None
    assert answer.first - answer.sent >= 0.05


@pytest.mark.parametrize("sse", [Sse(chunks=2), Sse(chunks=2, eol="\r\n", ping=True, bom=True, field="data:")])
async def test_bytes_may_come_one_by_one(sse: Sse) -> None:
    async with FakeReplica(Reply(body=sse, cuts="every")) as replica:
        answer = await ask(replica)
    assert (answer.outcome, answer.pieces, answer.finish_reason) == ("ok", 2, "stop")


async def test_a_text_completion_and_a_whole_answer() -> None:
    async with FakeReplica(script=[Reply(body=Sse()), Reply(body=Json())]) as replica:
        streamed, whole = await ask(replica, path="/v1/completions"), await ask(replica)
    assert streamed.outcome == whole.outcome == "ok"
    assert whole.first is None
    assert whole.usage is not None
    assert whole.usage.output_tokens == 2


async def test_a_stream_without_done_is_whole_if_it_said_why_it_ended() -> None:
    async with FakeReplica(Reply(body=Sse(done=False))) as replica:
        assert (await ask(replica)).outcome == "ok"


async def test_connections_are_kept() -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, aiohttp.ClientSession() as session:
        for _ in range(3):
            await shoot(session, replica.url, Shot(CHAT, BODY), Answer(), perf_counter)
        assert replica.connections == 1


FAILURES = [
    (Reply(body=Json(status=503, body=b'{"error": {"message": "full"}}')), "status 503", "full"),
    (Reply(body=Json(status=429, body=b'{"error": "slow down"}')), "status 429", "slow down"),
    (Reply(body=Json(status=500, body=b"<oops>")), "status 500", "<oops>"),
    (Reply(body=Json(body=b'{"hello": 1}')), "malformed", "neither"),
    (Reply(body=Sse(error=b'{"error": {"message": "lost"}}')), "error in the stream", "lost"),
    (Reply(body=Sse(done=False, finish_reason=None)), "cut", "without a finish reason"),
    (Reply(body=Sse(), fault=Fault(at="between_tokens", do="fin")), "cut", ""),
    (Reply(body=Sse(), fault=Fault(at="between_tokens", do="reset")), "cut", ""),
    (Reply(body=Sse(), fault=Fault(at="headers_read", do="reset")), "connection closed", ""),
    (Reply(body=Sse(), fault=Fault(at="before_first_byte", do="fin")), "connection closed", ""),
    (Reply(body=Sse(), fault=Fault(at="before_first_byte")), "timeout: first byte", "no end within 0.3 s"),
    (Reply(body=Sse(), fault=Fault(at="before_first_token")), "timeout: first token", ""),
    (Reply(body=Sse(), fault=Fault(at="between_tokens")), "timeout: end of stream", ""),
]


@pytest.mark.parametrize(("reply", "reason", "detail"), FAILURES)
async def test_each_failure_has_its_name_and_is_sent_once(reply: Reply, reason: str, detail: str) -> None:
    async with FakeReplica(reply) as replica:
        answer = await ask(replica, patience=0.3)
        assert len(replica.calls) == 1
    assert (answer.outcome, answer.reason) == ("failed", reason)
    assert detail in answer.detail
    assert answer.ended is not None


async def test_nobody_listens() -> None:
    async with FakeReplica() as replica:
        url = replica.url
    assert (await ask(url)).reason == "connect"
    async with silent_port() as port:
        assert (await ask(f"http://127.0.0.1:{port}", patience=0.2)).reason == "timeout: first byte"


async def test_a_client_leaves_after_some_tokens() -> None:
    async with FakeReplica(Reply(body=Sse(chunks=1000, gap=0.005))) as replica:
        answer = await ask(replica, hang_up=HangUp(tokens=3))
        await replica.calls[0].wait("closed")
        assert replica.calls[0].abandoned
    assert (answer.outcome, answer.reason) == ("hung_up", "")
    assert 3 <= answer.pieces < 100


@pytest.mark.parametrize("at", ["before_first_byte", "between_tokens"])
async def test_a_client_leaves_after_some_seconds(at: Literal["before_first_byte", "between_tokens"]) -> None:
    async with FakeReplica(Reply(body=Sse(), fault=Fault(at=at))) as replica:
        answer = await ask(replica, hang_up=HangUp(seconds=0.1))
        await replica.calls[0].wait("closed")
    assert answer.outcome == "hung_up"


async def test_a_client_that_would_have_left_later_is_answered() -> None:
    async with FakeReplica(Reply(body=Sse(chunks=2))) as replica:
        assert (await ask(replica, hang_up=HangUp(tokens=9))).outcome == "ok"
        assert (await ask(replica, hang_up=HangUp(seconds=4.0))).outcome == "ok"
        assert (await ask(replica, patience=0.2, hang_up=HangUp(seconds=4.0))).outcome == "ok"


async def test_an_aborted_request_tells_how_far_it_came() -> None:
    async with (
        FakeReplica(Reply(body=Sse(), fault=Fault(at="between_tokens"))) as replica,
        aiohttp.ClientSession() as session,
    ):
        answer = Answer()
        flight = asyncio.create_task(shoot(session, replica.url, Shot(CHAT, BODY), answer, perf_counter))
        (call,) = await replica.wait_calls(1)
        await call.wait("first_byte")
        await asyncio.wait((flight,), timeout=0.1)
        flight.cancel()
        await asyncio.wait((flight,))
        assert flight.cancelled()
        await replica.calls[0].wait("closed")
    assert (answer.outcome, answer.reason, answer.status) == ("failed", "aborted", 200)
    assert answer.first is not None
    assert answer.ended is not None
