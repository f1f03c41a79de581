"""Answers that are kept: through the real gateway, and their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import chat, running
from wastegate.core.ledger import ANSWERED
from wastegate.gateway import answer_cache
from wastegate.gateway.answer_cache import Answers, Kept
from wastegate.gateway.request import Route
from wastegate.levers import Config as Levers
from wastegate.levers import batching, routing, streaming

CACHED = (Route("chat", "/v1/chat/*", answer_seconds=60.0),)


def kept(size: int, until: float = 100.0) -> Kept:
    return Kept("c-1", 0.0, until, 200, [], b"x" * size, "stop", 10, 5)


def test_the_answer_used_longest_ago_goes_first() -> None:
    answers = Answers(most_bytes=5_000)
    for key in (b"a", b"b", b"c"):
        answers.put(key, kept(1_000))
    assert answers.get(b"a", 1.0) is not None
    answers.put(b"d", kept(1_000))
    assert answers.get(b"b", 1.0) is None
    assert [answers.get(key, 1.0) is not None for key in (b"a", b"c", b"d")] == [True] * 3
    assert answers.bytes <= 5_000
    answers.put(b"a", kept(10))
    assert len(answers) == 3
    assert answers.bytes == 2 * 1_512 + 522


def test_an_answer_has_its_time_and_its_size() -> None:
    answers = Answers()
    answers.put(b"a", kept(10, until=5.0))
    assert answers.get(b"a", 4.9) is not None
    assert answers.get(b"a", 5.0) is None
    answers.put(b"b", kept(answer_cache.MOST_ANSWER + 1))
    assert len(answers) == answers.bytes == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("one_flight", [True, False])
async def test_the_same_question_is_answered_once(tmp_path: Path, stream: bool, one_flight: bool) -> None:
    levers = Levers(streaming=streaming.Config(one_flight=one_flight))
    routes = (Route("chat", "/v1/chat/*", answer_seconds=60.0, levers=levers),)
    body = chat("Hello", stream=stream, temperature=0)
    async with FakeReplica() as replica, running(tmp_path, replica, routes=routes) as gateway:
        first = await gateway.post(body)
        again = await gateway.post(body)
        other = await gateway.post(chat("Hello!", stream=stream, temperature=0))
        entries = {entry.id: entry for entry in await gateway.closed(3)}
    assert first.body == again.body
    assert again.complete
    assert again.header("content-type") == first.header("content-type")
    assert other.status == 200
    assert len(replica.calls) == 2
    (stored,) = [entry for entry in entries.values() if entry.was_stored]
    assert (stored.outcome, stored.status, stored.attempts) == ("finished", 200, ())
    assert stored.flew is not None
    made = entries[stored.flew.call].attempts[-1]
    assert (stored.flew.prompt_tokens, stored.flew.output_tokens) == (made.prompt_tokens, made.output_tokens)
    assert stored.finish_reason == entries[stored.flew.call].finish_reason
    (line,) = stored.trail
    assert line.startswith(f"{ANSWERED} as {stored.flew.call} was ")
    assert "saves its" in line
    effect = routing.measure(list(entries.values()), routing.Config())
    assert effect.parts["answer cache"] > 0
    assert streaming.measure(list(entries.values()), streaming.Config()).n == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"headers": {"x-wastegate-tenant": "a"}}, {"headers": {"x-wastegate-tenant": "b"}}),
        ({"headers": {"authorization": "Bearer a"}}, {"headers": {"authorization": "Bearer b"}}),
        ({"body": {"stream": True}}, {"body": {"stream": False}}),
        ({"body": {"model": "fake"}}, {"body": {"model": "other"}}),
        ({"body": {"temperature": 1}}, {"body": {"temperature": 1}}),
        ({"body": {"temperature": 1, "seed": 3}}, {"body": {"temperature": 1, "seed": 3}}),
        ({"body": {"tools": [{"type": "function"}]}}, {"body": {"tools": [{"type": "function"}]}}),
    ],
)
async def test_what_differs_or_is_drawn_is_asked_anew(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    async with (
        FakeReplica(models=("fake", "other")) as replica,
        running(tmp_path, replica, routes=CACHED) as gateway,
    ):
        for asked in (first, second):
            body = chat("Hello", **{"temperature": 0, **asked.get("body", {})})
            answer = await gateway.post(body, headers=asked.get("headers", {}))
            assert answer.status == 200
        await gateway.closed(2)
    assert len(replica.calls) == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=Json(status=400, body=b'{"error": {}}')),
        Reply(body=Sse(chunks=4), fault=Fault("between_tokens", do="reset", tokens=2)),
        Reply(body=Json(body=b"[" + b"1," * (1 << 20) + b"1]")),
    ],
)
async def test_what_is_an_error_or_incomplete_or_too_long_is_not_kept(tmp_path: Path, reply: Reply) -> None:
    routes = (Route("chat", "/v1/chat/*", answer_seconds=60.0, failover="never"),)
    async with FakeReplica(reply) as replica, running(tmp_path, replica, routes=routes) as gateway:
        for _ in range(2):
            await gateway.post(chat("Hello", stream=True, temperature=0))
        entries = await gateway.closed(2)
    assert len(replica.calls) >= 2
    assert not any(entry.was_stored for entry in entries)


async def test_what_was_reduced_is_not_kept(tmp_path: Path) -> None:
    always = batching.Degrade(night="00:00-24:00", max_tokens=5)
    levers = Levers(batching=batching.Config(on=True, degrade=always))
    routes = (Route("chat", "/v1/chat/*", answer_seconds=60.0, levers=levers),)
    async with FakeReplica() as replica, running(tmp_path, replica, routes=routes) as gateway:
        first = await gateway.post(chat("Hello", temperature=0))
        assert first.header("x-wastegate-reduced") == "max_tokens=5"
        await gateway.post(chat("Hello", temperature=0))
        await gateway.closed(2)
    assert len(replica.calls) == 2


async def test_a_route_that_does_not_ask_for_it_keeps_nothing(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway:
        for _ in range(2):
            await gateway.post(chat("Hello", temperature=0))
        await gateway.closed(2)
    assert len(replica.calls) == 2
