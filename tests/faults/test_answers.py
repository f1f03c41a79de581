"""Whatever bytes a replica sends, the client gets the answer and the ledger gets the tokens.

Each test is a failure met in public (the number is its row in the list of failures), or a whole kind of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events
from tests.fake_replies import Send, plan
from tests.faults.bench import ASKS_USAGE, CHAT, chat, errors, gateway, payloads, text
from wastegate.core.ledger import Attempt


def sent(sse: Sse, usage: bool = False) -> bytes:
    """The body of the stream, with or without its usage event."""
    return b"".join(events(sse, usage=usage))


async def tokens_of(tmp_path: Path, reply: Reply, **members: Any) -> tuple[bytes, Attempt]:
    """(body that the client got, the attempt as written down) of one streamed call, which must have gone well."""
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True, **members)
        entry = await running.entry(answer)
        assert (answer.status, answer.complete) == (200, True)
        assert (entry.outcome, len(entry.attempts)) == ("finished", 1)
        return answer.body, entry.attempts[0]


def counts(attempt: Attempt) -> tuple[int | None, int | None, str]:
    return attempt.prompt_tokens, attempt.output_tokens, attempt.usage


@pytest.mark.parametrize(
    "sse",
    [
        pytest.param(Sse(field="data:"), id="no space after data (gateways 1)"),
        pytest.param(Sse(eol="\r\n"), id="CRLF"),
        pytest.param(Sse(eol="\r"), id="CR"),
        pytest.param(Sse(bom=True), id="byte-order mark"),
        pytest.param(Sse(ping=True), id="ping comments"),
        pytest.param(Sse(merge=3), id="several events in a read"),
        pytest.param(Sse(role=False), id="no role chunk"),
        pytest.param(Sse(empty_deltas=3), id="empty deltas first"),
        pytest.param(Sse(tokens=4), id="several tokens a chunk"),
        pytest.param(Sse(kind="reasoning_content"), id="reasoning deltas (costs 2)"),
        pytest.param(Sse(kind="tool_calls"), id="tool calls"),
        pytest.param(Sse(finish_reason="length"), id="cut at max_tokens (gateways 5)"),
        pytest.param(Sse(finish_reason="abort"), id="aborted by the engine (gateways 5)"),
        pytest.param(Sse(usage_place="each"), id="usage in every chunk"),
        pytest.param(Sse(usage_place="null"), id="null usage in every chunk"),
        pytest.param(Sse(usage_place="beside"), id="usage beside the last choice"),
        pytest.param(Sse(done=False), id="no [DONE]"),
    ],
)
async def test_every_form_of_a_stream_is_relayed_unchanged_and_counted(sse: Sse, tmp_path: Path) -> None:
    body, attempt = await tokens_of(tmp_path, Reply(body=sse), stream_options={"include_usage": True})
    assert body == sent(sse, usage=True)
    assert counts(attempt) == (7, sse.chunks * sse.tokens, "engine")
    assert attempt.first_token is not None
    assert attempt.sent is not None
    assert attempt.sent <= attempt.first_token <= attempt.ended


@pytest.mark.parametrize("sse", [Sse(), Sse(field="data:"), Sse(eol="\r\n"), Sse(ping=True), Sse(bom=True)])
async def test_usage_is_forced_upstream_and_hidden_again(sse: Sse, tmp_path: Path) -> None:
    """costs 8: engines omit usage unless asked; the client that did not ask must not see it."""
    body, attempt = await tokens_of(tmp_path, Reply(body=sse))
    assert body.replace(b": ping\n\n", b"") == sent(sse).replace(b": ping\n\n", b"")
    assert counts(attempt) == (7, 4, "engine")


@pytest.mark.parametrize("cuts", ["every", (1, 17, 240, 241, 500)])
@pytest.mark.parametrize("sse", [Sse(chunks=12), Sse(chunks=12, eol="\r\n"), Sse(chunks=12, eol="\r", field="data:")])
async def test_bytes_cut_anywhere(sse: Sse, cuts: tuple[int, ...] | Literal["every"], tmp_path: Path) -> None:
    """gateways 2: events, UTF-8 characters and chunk framing split over reads."""
    body, attempt = await tokens_of(
        tmp_path, Reply(body=sse, cuts=cuts, cut_pause=0 if cuts == "every" else 0.01), **ASKS_USAGE
    )
    assert body == sent(sse, usage=True)
    assert counts(attempt) == (7, 12, "engine")


async def test_each_event_is_relayed_as_it_comes(tmp_path: Path) -> None:
    """A stream is not gathered: the client has each event while the replica still holds the next one."""
    sse = Sse(chunks=3)
    reply = Reply(body=sse, fault=Fault("between_tokens"))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.ask(chat(stream=True))
        await client.until(b"Hello")
        assert b" there" not in client.seen
        replica.release()
        await client.until(b"[DONE]")


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (None, (4, "counted")),
        ({}, (4, "counted")),
        ({"prompt_tokens": 7}, (4, "counted")),
        ({"completion_tokens": 4}, (4, "counted")),
        ({"prompt_tokens": None, "completion_tokens": None}, (4, "counted")),
        ({"prompt_tokens": "7", "completion_tokens": "4"}, (4, "counted")),
        ({"prompt_tokens": -1, "completion_tokens": -5}, (4, "counted")),
        ({"prompt_tokens": 1e300, "completion_tokens": 0.5}, (4, "counted")),
        ({"prompt_tokens": True, "completion_tokens": [1]}, (4, "counted")),
        ({"prompt_tokens": 10**40, "completion_tokens": 10**40}, (4, "counted")),
        ({"prompt_tokens": 7, "completion_tokens": 0}, (0, "engine")),
        ({"prompt_tokens": 7, "completion_tokens": 4, "cost": 555_533, "total_cost": "x"}, (4, "engine")),
        ({"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": None}, (4, "engine")),
        ({"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": "no"}}, (4, "engine")),
    ],
)
async def test_odd_usage_never_breaks_a_stream(usage: Any, want: tuple[int, str], tmp_path: Path) -> None:
    """costs 8, 10, 11, 16: what is unreadable is unknown, not 0, and then counted; a provider's cost is not adopted."""
    sse = Sse(usage=usage)
    body, attempt = await tokens_of(tmp_path, Reply(body=sse), **ASKS_USAGE)
    assert body == sent(sse, usage=True)
    assert (attempt.output_tokens, attempt.usage) == want


async def test_no_usage_at_all_is_counted_and_says_so(tmp_path: Path) -> None:
    _, attempt = await tokens_of(tmp_path, Reply(body=Sse(usage_when="never")))
    assert (attempt.output_tokens, attempt.usage) == (4, "counted")


async def test_a_streamed_call_is_written_down_like_one_that_is_not(tmp_path: Path) -> None:
    """gateways 6, costs 9: the same tokens, from the same source."""
    usage = {"prompt_tokens": 41, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 32}}
    seen = []
    for body in (Json(usage=usage), Sse(usage=usage)):
        data = tmp_path / type(body).__name__
        async with FakeReplica(Reply(body=body)) as replica, gateway(data, replica) as running:
            entry = await running.entry(await running.ask(stream=isinstance(body, Sse)))
        attempt = entry.attempts[0]
        seen.append((counts(attempt), attempt.cached_tokens, entry.outcome, entry.finish_reason, entry.length_class))
    assert seen[0] == seen[1] == ((41, 4, "engine"), 32, "finished", "stop", "short")


@pytest.mark.parametrize(
    "body", [b"", b"<html>hello</html>", b"{", b'"text"', b"[]", b'{"usage":{"prompt_tokens":"x"}}', b'{"usage":3}']
)
async def test_an_odd_json_answer_is_relayed_and_its_tokens_estimated(body: bytes, tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Json(body=body))) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask()
        attempt = (await running.entry(answer)).attempts[0]
    assert (answer.status, answer.body, answer.complete) == (200, body, True)
    assert attempt.usage == "estimated"


# ---- framing


@pytest.mark.parametrize("body", [Json(), Sse()])
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(Reply(version="1.0"), id="HTTP/1.0, ended by closing"),
        pytest.param(Reply(framing="close"), id="no length, ended by closing"),
        pytest.param(Reply(framing="length"), id="Content-Length (gateways 3)"),
        pytest.param(Reply(framing="chunked"), id="chunks"),
        pytest.param(Reply(framing="chunked", chunk_extension=";a=b"), id="chunk extensions"),
        pytest.param(Reply(framing="chunked", trailers=(("x-sum", "1"),)), id="trailers"),
        pytest.param(Reply(gzip=True), id="gzip (gateways 3)"),
        pytest.param(Reply(gzip=True, cuts="every"), id="gzip, byte by byte"),
        pytest.param(Reply(interim=(100,)), id="100 Continue"),
        pytest.param(Reply(interim=(103, 103)), id="103 Early Hints"),
        pytest.param(Reply(headers=(("x-big", "b" * 30_000),)), id="a large header"),
        pytest.param(Reply(headers=(("connection", "close"),), after="close_idle"), id="Connection: close"),
        pytest.param(Reply(early=True), id="answer before the body was read"),
    ],
)
async def test_every_framing_carries_the_same_answer(how: Reply, body: Json | Sse, tmp_path: Path) -> None:
    members = {"stream": True, **ASKS_USAGE} if isinstance(body, Sse) else {}
    async with FakeReplica(Reply(body=body)) as replica, gateway(tmp_path, replica) as running:
        want = await running.ask(chat(**members))
        replica.default = _with_body(how, body)
        for _ in range(2):  # twice: what is left on the connection must not spoil the next call
            answer = await running.ask(chat(**members))
            attempt = (await running.entry(answer)).attempts[0]
            assert (answer.status, answer.complete, attempt.outcome) == (200, True, "finished")
            if how.early and isinstance(body, Sse):
                assert text(answer) == text(want)  # it had not read that usage was wanted
            else:
                assert answer.body == want.body
                assert attempt.usage == "engine"
            assert answer.header("content-encoding") == ""
        await running.settled()


def _with_body(how: Reply, body: Json | Sse) -> Reply:
    return Reply(**{name: getattr(how, name) for name in how.__struct_fields__} | {"body": body})


async def test_stream_head_has_no_length_of_the_replicas(tmp_path: Path) -> None:
    """gateways 3: a stream whose usage is hidden is shorter than its replica said."""
    async with FakeReplica(Reply(body=Sse(), framing="length")) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
    assert answer.header("content-length") == ""
    assert payloads(answer)[-1] == "[DONE]"


async def test_content_length_too_long_is_a_cut(tmp_path: Path) -> None:
    reply = Reply(length_error=10, fault=Fault("after_end", "fin"))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask()
        entry = await running.entry(answer)
        assert (entry.outcome, entry.attempts[-1].reason[:3]) == ("failed", "cut")
        assert not (answer.status == 200 and answer.complete)
        await running.settled()


async def test_content_length_too_short_does_not_reach_the_next_call(tmp_path: Path) -> None:
    """What a replica sends too much must never be taken for the next caller's answer."""
    async with FakeReplica(Reply()) as replica, gateway(tmp_path, replica) as running:
        right = await running.ask()
        replica.script.append(Reply(length_error=-10))
        short = await running.ask()
        assert (short.status, len(short.body)) == (200, len(right.body) - 10)
        for _ in range(3):
            assert (await running.ask()).body == right.body
        await running.settled()


async def test_what_comes_after_the_answer_ends_the_connection(tmp_path: Path) -> None:
    """Bytes that nobody asked for, on a connection that is already kept for the next call."""
    size = sum(len(step.data) for step in plan(Reply(), CHAT, b"") if isinstance(step, Send))
    late = Reply(length_error=-10, cuts=(size - 10,), cut_pause=0.05)
    async with FakeReplica(script=[late]) as replica, gateway(tmp_path, replica) as running:
        assert (await running.ask()).status == 200
        await replica.calls[0].wait("closed")
        assert replica.calls[0].closed_by == "peer"
        assert (await running.ask()).json()["object"] == "chat.completion"


async def test_more_than_one_answer_to_one_request(tmp_path: Path) -> None:
    """A second answer in the same read belongs to nobody."""
    twice = Json(body=b'{"a":1}HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"b":"2"}')
    size = len(twice.body or b"") - len(b'{"a":1}')
    async with FakeReplica(Reply()) as replica, gateway(tmp_path, replica) as running:
        replica.script.append(Reply(body=twice, length_error=-size))
        assert (await running.ask()).body == b'{"a":1}'
        assert b"chatcmpl" in (await running.ask()).body


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(headers=(("x-huge", "h" * 100_000),)), id="headers too large"),
        pytest.param(Reply(headers=(("content-length", "3"), ("content-length", "5"))), id="two lengths"),
        pytest.param(Reply(headers=(("bad name", "x"),)), id="not a header"),
    ],
)
async def test_an_answer_that_is_not_http_is_a_502_that_says_so(reply: Reply, tmp_path: Path) -> None:
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask()
        entry = await running.entry(answer)
        assert (answer.status, answer.complete, entry.outcome) == (502, True, "failed")
        assert "r1" in answer.error
        await running.settled()
        replica.default = Reply()
        assert (await running.ask()).status == 200


async def test_the_last_event_waits_until_the_call_is_written_down(tmp_path: Path) -> None:
    """A client never holds a complete answer that the ledger lacks."""
    async with FakeReplica(Reply(body=Sse())) as replica, gateway(tmp_path, replica) as running:
        for _ in range(5):
            client = await running.connect()
            client.ask(chat(stream=True))
            await client.until(b"[DONE]")
            head = client.seen.partition(b"\r\n\r\n")[0]
            call = head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0]
            journal = b"".join(file.read_bytes() for file in (tmp_path / "journal").glob("*"))
            assert b'E{"id":"%b"' % call in journal


# ---- errors that the replica reports

ERROR = b'{"error":{"message":"out of memory","type":"server_error","code":500}}'


@pytest.mark.parametrize("done", [True, False])
async def test_an_error_event_is_relayed_once_and_the_call_has_failed(done: bool, tmp_path: Path) -> None:
    """gateways 5: the tokens up to it are charged."""
    sse = Sse(error=ERROR, error_after=2, done=done)
    async with FakeReplica(Reply(body=sse)) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
        entry = await running.entry(answer)
    assert [error["message"] for error in errors(answer)] == ["out of memory"]
    assert (entry.outcome, entry.attempts[0].output_tokens) == ("failed", 2)
    assert "out of memory" in entry.reason


async def test_an_error_event_before_a_cut(tmp_path: Path) -> None:
    sse = Sse(error=ERROR, error_after=2)
    reply = Reply(body=sse, fault=Fault("before_terminator", "reset"))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
        entry = await running.entry(answer)
    assert [error["message"] for error in errors(answer)] == ["out of memory"]
    assert entry.outcome == "failed"


@pytest.mark.parametrize(
    "body",
    [
        Json(status=400, body=b'{"error":{"message":"bad"}}'),
        Json(status=404, body=b"nothing", content_type="text/plain"),
        Json(status=422, body=b""),
        Json(status=500, body=b"<html>oops</html>", content_type="text/html"),
        Json(status=418, body=b"tea", content_type="text/plain"),
    ],
)
async def test_an_error_answer_reaches_the_client_as_it_was(body: Json, tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=body)) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
        entry = await running.entry(answer)
    assert (answer.status, answer.body, answer.complete) == (body.status, body.body, True)
    assert answer.header("content-type") == body.content_type
    assert (entry.outcome, entry.status, len(replica.calls)) == ("failed", body.status, 1)
    assert entry.attempts[0].output_tokens is None


async def test_others_are_served_while_one_stream_is_cut_byte_by_byte(tmp_path: Path) -> None:
    slow = Reply(body=Sse(chunks=6), cuts="every")
    async with FakeReplica(Reply(), [slow]) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.ask(chat(stream=True))
        answers = await asyncio.gather(client.answer(), *(running.ask() for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 21
