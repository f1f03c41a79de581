"""One call's life, driven: through the real gateway, in front of replicas that do as the script says."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events, silent_port
from tests.fake_replies import Phase
from tests.gateway.running import CHAT, Answer, Running, Wire, chat, request, running
from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.gateway.request import Route

STREAM = chat(stream=True)
ASKED = chat(stream=True, stream_options={"include_usage": True})


# ---- the bytes


async def test_who_asked_for_usage_gets_the_stream_byte_for_byte(tmp_path: Path) -> None:
    sse = Sse(chunks=5, ping=True, kind="reasoning")
    async with FakeReplica(Reply(body=sse)) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(ASKED)
        assert answer.complete
        assert answer.body == b"".join(events(sse))
        (entry,) = await gateway.closed(1)
    assert entry.attempts[0].usage == "engine"
    assert replica.calls[0].body == ASKED


async def test_who_did_not_ask_gets_the_same_without_it(tmp_path: Path) -> None:
    sse = Sse(chunks=5)
    async with FakeReplica(Reply(body=sse)) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(STREAM)
        (entry,) = await gateway.closed(1)
    assert answer.body == b"".join(events(sse, usage=False))
    assert replica.calls[0].json()["stream_options"] == {"include_usage": True}
    attempt = entry.attempts[0]
    assert (attempt.prompt_tokens, attempt.output_tokens, attempt.usage) == (7, 5, "engine")


async def test_one_write_of_the_replica_is_one_chunk_of_ours(tmp_path: Path) -> None:
    sse = Sse(chunks=6, merge=2, ttft=0.03, gap=0.03)
    async with FakeReplica(Reply(body=sse)) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(ASKED)
    sent = events(sse)
    pairs = [b"".join(sent[at : at + 2]) for at in range(0, 6, 2)]
    assert answer.pieces[:3] == pairs


async def test_a_whole_answer_keeps_its_length_and_its_bytes(tmp_path: Path) -> None:
    text = "word " * 400_000
    async with FakeReplica(Reply(body=Json(text=text))) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(chat())
        (entry,) = await gateway.closed(1)
    assert answer.complete
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.json()["choices"][0]["message"]["content"] == text
    assert entry.attempts[0].output_tokens == 400_000


async def test_a_whole_answer_without_a_length_is_chunked(tmp_path: Path) -> None:
    async with FakeReplica(Reply(framing="chunked")) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(chat())
    assert answer.header("transfer-encoding") == "chunked"
    assert answer.complete
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there."


async def test_an_empty_answer_is_an_answer(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Json(body=b""))) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(chat())
        (entry,) = await gateway.closed(1)
    assert (answer.status, answer.header("content-length"), answer.complete) == (200, "0", True)
    assert (entry.outcome, entry.attempts[0].usage) == ("finished", "estimated")


async def test_a_stream_of_another_route_ends_as_it_ends_there(tmp_path: Path) -> None:
    """/v1/messages: no [DONE], and its usage stands in events that must not be hidden."""
    body = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"text":"x"},"usage":{"output_tokens":2}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    reply = Reply(body=Json(body=body, content_type="text/event-stream"), framing="chunked")
    async with FakeReplica(reply) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(STREAM, "/v1/messages")
        (entry,) = await gateway.closed(1)
    assert answer.complete
    assert answer.body == body
    assert replica.calls[0].body == STREAM
    assert (entry.outcome, entry.attempts[0].prompt_tokens, entry.attempts[0].output_tokens) == ("finished", 9, 2)


async def test_a_body_that_is_not_the_gzip_it_says_is_a_502(tmp_path: Path) -> None:
    reply = Reply(body=Json(body=b"not gzip at all"), headers=(("content-encoding", "gzip"),))
    async with FakeReplica(reply) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(chat())
        (entry,) = await gateway.closed(1)
    assert answer.status == 502
    assert "not the gzip that it says" in answer.error
    assert entry.outcome == "failed"


# ---- the client leaves


async def leave(
    gateway: Running, replica: FakeReplica, body: bytes, pieces: int, how: Literal["close", "reset"]
) -> None:
    """Start a call, see so many chunks of its answer, and go; the replica must notice within a second."""
    wire = await gateway.connect()
    wire.post(body)
    (call,) = await replica.wait_calls(1)
    if pieces:
        answer = await wire.head()
        for _ in range(pieces):
            await wire.piece(answer)
    else:
        await call.wait("body")
    left = time.monotonic()
    if how == "reset":
        wire.reset()
    else:
        wire.writer.close()
    assert await call.wait("closed") - left < 1.0
    assert call.closed_by == "peer"


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    ("phase", "stream", "pieces"),
    [
        ("before_first_byte", True, 0),
        ("before_first_token", True, 1),
        ("between_tokens", True, 3),
        ("before_first_byte", False, 0),
    ],
    ids=["before headers", "before first token", "mid-stream", "not streamed"],
)
async def test_a_client_that_leaves_frees_the_engine_at_once(
    tmp_path: Path, phase: Phase, stream: bool, pieces: int, how: Literal["close", "reset"]
) -> None:
    body = Sse(chunks=8, ttft=0.02, gap=0.02) if stream else Json()
    reply = Reply(body=body, fault=Fault(phase, "hang", tokens=2))
    async with FakeReplica(reply) as replica, running(tmp_path, replica) as gateway:
        await leave(gateway, replica, chat(stream=stream), pieces, how)
        (entry,) = await gateway.closed(1)
    attempt = entry.attempts[0]
    assert (entry.outcome, attempt.outcome, attempt.reason) == ("hung_up", "hung_up", "the client left")
    assert entry.status == (200 if pieces else 499)
    tokens = max(0, pieces - 1)  # the first piece only names the speaker
    assert (attempt.prompt_tokens, attempt.output_tokens) == (len(chat(stream=stream)) // 4, tokens)
    assert (attempt.usage == "counted") == bool(pieces)


async def test_a_client_that_leaves_while_the_replica_is_dialled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with silent_port() as port, FakeReplica() as probed:
        silent = Replica("silent", f"http://127.0.0.1:{port}", ("fake",))
        async with running(tmp_path, silent, ready=False) as gateway:
            gateway.world.set_state("silent", "ready")
            wire = await gateway.connect()
            wire.post(chat())
            await gateway.until(lambda: len(gateway.hub.flights) == 1, "one call in flight")
            wire.reset()
            (entry,) = await gateway.closed(1)
    assert (entry.outcome, entry.status, entry.attempts[0].sent) == ("hung_up", 499, None)
    assert probed.calls == []


async def test_a_client_that_left_is_not_tried_for_elsewhere(tmp_path: Path) -> None:
    reply = Reply(fault=Fault("before_first_byte"))
    async with FakeReplica(reply) as one, FakeReplica(reply) as other, running(tmp_path, one, other) as gateway:
        wire = await gateway.connect()
        wire.post(chat())
        await gateway.until(lambda: bool(one.calls or other.calls), "a call has arrived")
        wire.reset()
        (entry,) = await gateway.closed(1)
        await gateway.post(chat(model="none"))  # all that was to come has come
    assert len(one.calls) + len(other.calls) == 1
    assert len(entry.attempts) == 1


# ---- timers


async def test_two_silent_replicas_are_dialled_one_after_the_other_and_no_longer(tmp_path: Path) -> None:
    """The second dial has a timer of its own, which the end of the first must not take away."""
    async with silent_port() as one, silent_port() as other:
        fleet = [Replica(name, f"http://127.0.0.1:{port}", ("fake",)) for name, port in (("a", one), ("b", other))]
        async with running(tmp_path, *fleet, ready=False, timers=Timers(connect=0.2, total=4.0)) as gateway:
            for replica in fleet:
                gateway.world.set_state(replica.name, "ready")
            began = time.monotonic()
            answer = await gateway.post(chat())
            took = time.monotonic() - began
            (entry,) = await gateway.closed(1)
    assert (answer.status, answer.json()["error"]["code"]) == (504, "timeout_connect")
    assert "'connect' timer" in answer.error
    assert [attempt.reason for attempt in entry.attempts] == ["timeout: connect"] * 2
    assert {attempt.replica for attempt in entry.attempts} == {"a", "b"}
    assert took < 1.5


async def test_a_route_has_timers_of_its_own(tmp_path: Path) -> None:
    routes = (Route("quick", "/v1/completions", Timers(first_byte=0.2)),)
    async with (
        FakeReplica(Reply(body=Json(delay=0.6))) as replica,
        running(tmp_path, replica, routes=routes) as gateway,
    ):
        quick, slow = await asyncio.gather(gateway.post(chat(), "/v1/completions"), gateway.post(chat()))
        entries = {entry.path: entry for entry in await gateway.closed(2)}
    assert (quick.status, quick.json()["error"]["code"]) == (504, "timeout_first_byte")
    assert slow.status == 200
    assert (entries["/v1/completions"].route, entries[CHAT].route) == ("quick", CHAT)


async def test_the_total_counts_from_arrival_over_waits_and_tries(tmp_path: Path) -> None:
    """A stream that never pauses still ends."""
    reply = Reply(body=Sse(chunks=1000, gap=0.02))
    async with FakeReplica(reply) as replica, running(tmp_path, replica, timers=Timers(total=0.4)) as gateway:
        answer = await gateway.post(STREAM)
        (entry,) = await gateway.closed(1)
    assert not answer.complete
    assert b'"code":"timeout_total"' in answer.pieces[-1]
    assert entry.attempts[0].reason == "timeout: total"
    assert 0.4 <= entry.ended - entry.arrived < 1.5


# ---- a client that reads slowly


async def stall(gateway: Running, body: bytes) -> Wire:
    """A client with a small buffer that asks and then reads nothing."""
    wire = await gateway.connect(receive_buffer=4096)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.post(body)
    return wire


def flood(pieces: int = 400) -> Reply:
    """Some 25 MB: more than all socket buffers between the replica and a client that does not read."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % (b"x" * 65536)
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    return Reply(body=Json(body=event * pieces + end, content_type="text/event-stream"), framing="chunked")


async def test_a_slow_client_slows_its_replica_and_is_not_the_replicas_fault(tmp_path: Path) -> None:
    """The replica is held, not idle: no timer of its own may fire meanwhile."""
    async with (
        FakeReplica(script=[flood()]) as replica,
        running(tmp_path, replica, timers=Timers(idle=0.3, total=20.0)) as gateway,
    ):
        wire = await stall(gateway, STREAM)
        (call,) = await replica.wait_calls(1)
        await call.wait("first_byte")
        await asyncio.sleep(0.8)  # longer than the idle timer: what is tested is that nothing happens
        assert gateway.entries == []
        unsent = max(connection.transport.get_write_buffer_size() for connection in replica.open)
        assert unsent > 1 << 20, "the replica could send all of it: nothing held it back"
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await wire.answer()
        assert answer.complete
        assert len(answer.body) > 400 * 65536
        (entry,) = await gateway.closed(1)
        assert entry.outcome == "finished"
        wire.writer.close()
        assert (await gateway.post(chat())).status == 200
    assert replica.calls[0].connection == replica.calls[1].connection


# ---- trying elsewhere, and going on elsewhere


async def pair(
    stack: AsyncExitStack, data: Path, script: list[Reply], **members: Any
) -> tuple[Running, list[FakeReplica]]:
    """Two replicas of which the first to be asked answers with the first of the script."""
    one = await stack.enter_async_context(FakeReplica(Reply(body=Sse(chunks=4))))
    other = await stack.enter_async_context(FakeReplica(Reply(body=Sse(chunks=4))))
    one.script = other.script = deque(script)
    return await stack.enter_async_context(running(data, one, other, **members)), [one, other]


async def test_every_try_has_an_id_of_its_own_and_the_client_one_for_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [Reply(body=Json(status=500, body=b"{}"))])
        answer = await gateway.post(STREAM, headers={"x-request-id": "mine", "traceparent": "00-ab-cd-01"})
        (entry,) = await gateway.closed(1)
    assert answer.header("x-request-id") == entry.id
    assert (entry.client_id, entry.traceparent) == ("mine", "00-ab-cd-01")
    calls = sorted((call for replica in replicas for call in replica.calls), key=lambda call: call.head_at)
    assert [call.headers["x-request-id"] for call in calls] == [f"{entry.id}.1", f"{entry.id}.2"]
    assert [call.headers["traceparent"] for call in calls] == ["00-ab-cd-01"] * 2
    assert [attempt.outcome for attempt in entry.attempts] == ["failed", "finished"]


def broken(tokens: int) -> Reply:
    return Reply(body=Sse(chunks=9, gap=0.01), fault=Fault("between_tokens", "reset", tokens=tokens))


def text(answer: Answer) -> str:
    events = [line for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [msgspec.json.decode(event[6:]).get("choices") for event in events]
    return "".join(choice["delta"].get("content", "") for (choice,) in (c for c in choices if c))


async def test_a_deterministic_stream_that_breaks_goes_on_elsewhere(tmp_path: Path) -> None:
    asked = chat(stream=True, temperature=0, max_tokens=50, stream_options={"include_usage": True})
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [broken(3)])
        answer = await gateway.post(asked)
        (entry,) = await gateway.closed(1)
    assert answer.complete
    assert text(answer) == "Hello there," + "Hello there, this"
    assert answer.body.count(b'"role"') == 1
    assert answer.body.endswith(b"data: [DONE]\n\n")
    second = max((call for replica in replicas for call in replica.calls), key=lambda call: call.head_at).json()
    assert second["messages"][-1] == {"role": "assistant", "content": "Hello there,"}  # type: ignore[index]
    assert (second["continue_final_message"], second["max_tokens"]) == (True, 47)
    assert [(a.outcome, a.output_tokens, a.usage) for a in entry.attempts] == [
        ("failed", 3, "counted"),
        ("finished", 4, "engine"),
    ]
    assert entry.outcome == "finished"
    usage = msgspec.json.decode(answer.body.split(b"\n\n")[-3][6:])["usage"]
    assert usage["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("members", "failover"),
    [
        ({"temperature": 0.7}, "deterministic"),
        ({"temperature": 0, "tools": [{"type": "function"}]}, "always"),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, "always"),
        ({"temperature": 0, "n": 2}, "always"),
        ({"temperature": 0}, "never"),
    ],
)
async def test_what_cannot_go_on_ends_with_a_terminal_event(
    tmp_path: Path, members: dict[str, Any], failover: Literal["deterministic", "always", "never"]
) -> None:
    routes = (Route("all", "/v1/*", failover=failover),)
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [broken(2)], routes=routes)
        answer = await gateway.post(chat(stream=True, **members))
        (entry,) = await gateway.closed(1)
    assert not answer.complete
    assert b'"code":"upstream_failed"' in answer.pieces[-1]
    assert [attempt.outcome for attempt in entry.attempts] == ["failed"]
    assert sum(len(replica.calls) for replica in replicas) == 1


async def test_a_route_may_let_every_stream_go_on(tmp_path: Path) -> None:
    routes = (Route("all", "/v1/*", failover="always"),)
    async with AsyncExitStack() as stack:
        gateway, _ = await pair(stack, tmp_path, [broken(2)], routes=routes)
        answer = await gateway.post(chat(stream=True, temperature=0.7))
    assert answer.complete
    assert text(answer) == "Hello there" + "Hello there, this"


async def test_an_answer_of_another_kind_is_no_continuation(tmp_path: Path) -> None:
    """The second replica does not stream: its JSON must not end up among the events."""
    async with AsyncExitStack() as stack:
        gateway, _ = await pair(stack, tmp_path, [broken(2), Reply(body=Json())])
        answer = await gateway.post(chat(stream=True, temperature=0))
        (entry,) = await gateway.closed(1)
    assert not answer.complete
    assert b'chat.completion"' not in answer.body
    assert b'"error"' in answer.pieces[-1]
    assert entry.outcome == "failed"


async def test_a_stream_that_breaks_after_its_last_token_is_not_asked_for_again(tmp_path: Path) -> None:
    """All that may be said has been said: only the end is missing, and no replica can be asked for that."""
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [broken(3)])
        answer = await gateway.post(chat(stream=True, temperature=0, max_tokens=3))
        (entry,) = await gateway.closed(1)
    assert not answer.complete
    assert text(answer) == "Hello there,"
    assert b"nothing of the answer was left" in answer.pieces[-1]
    assert sum(len(replica.calls) for replica in replicas) == 1
    assert [attempt.sent is not None for attempt in entry.attempts] == [True, False]


async def test_reasoning_cannot_go_on_from_its_text(tmp_path: Path) -> None:
    reply = Reply(body=Sse(chunks=9, gap=0.01, kind="reasoning"), fault=Fault("between_tokens", "reset", tokens=3))
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [reply])
        answer = await gateway.post(chat(stream=True, temperature=0))
    assert not answer.complete
    assert b'"error"' in answer.pieces[-1]
    assert sum(len(replica.calls) for replica in replicas) == 1


async def test_a_stream_that_fails_while_it_goes_on_ends_with_a_terminal_event(tmp_path: Path) -> None:
    refusal = Reply(body=Json(status=503, body=b'{"error":{"message":"full"}}'))
    async with AsyncExitStack() as stack:
        gateway, _ = await pair(stack, tmp_path, [broken(2), refusal])
        answer = await gateway.post(chat(stream=True, temperature=0))
        (entry,) = await gateway.closed(1)
    assert answer.status == 200
    assert not answer.complete
    assert text(answer) == "Hello there"
    assert b"the answer is incomplete: status 503" in answer.pieces[-1]
    assert [attempt.status for attempt in entry.attempts] == [200, 503]


async def test_the_tries_are_bounded(tmp_path: Path) -> None:
    """Every replica breaks every stream: the client gets a terminal event after the last try."""
    async with AsyncExitStack() as stack:
        gateway, replicas = await pair(stack, tmp_path, [broken(1)] * 9, rules=Rules(max_attempts=2))
        answer = await gateway.post(chat(stream=True, temperature=0))
        (entry,) = await gateway.closed(1)
    assert not answer.complete
    assert text(answer) == "HelloHello"
    assert len(entry.attempts) == 2
    assert sum(len(replica.calls) for replica in replicas) == 2


# ---- many at once


async def test_two_hundred_calls_at_once_all_end_once(tmp_path: Path) -> None:
    """Mixed endings, one load count: whatever happens to one call touches no other."""
    replies = [
        Reply(body=Sse(chunks=3)),
        Reply(body=Json()),
        Reply(body=Json(status=400, body=b'{"error":{"message":"no"}}')),
        Reply(body=Sse(chunks=3), fault=Fault("between_tokens", "reset")),
        Reply(body=Json(status=500, body=b"{}")),
    ]
    async with AsyncExitStack() as stack:
        gateway, _ = await pair(stack, tmp_path, replies * 60)
        answers = await asyncio.gather(*(gateway.post(STREAM) for _ in range(200)))
        entries = await gateway.closed(200)
    assert {entry.id for entry in entries} == {answer.header("x-request-id") for answer in answers}
    by_id = {answer.header("x-request-id"): answer for answer in answers}
    for entry in entries:
        assert (entry.outcome == "finished") == (by_id[entry.id].status == 200 and by_id[entry.id].complete)


async def test_calls_on_one_connection_follow_one_another(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse(chunks=2))) as replica, running(tmp_path, replica) as gateway:
        async with await gateway.connect() as wire:
            for _ in range(20):
                wire.send(request(STREAM))
                answer = await wire.answer()
                assert answer.complete
        assert len(await gateway.closed(20)) == 20
    assert len({call.connection for call in replica.calls}) == 1
