"""Clients that leave, dawdle, flood or cheat: what they held is freed, what they used is charged, nobody else suffers.

Each test is a failure met in public (the number is its row in the list of failures), or a whole kind of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Literal

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.fake_replies import Phase
from tests.faults.bench import ASKS_USAGE, CHAT, Bench, chat, gateway, payloads, request, text, usages
from wastegate.core.plan import Rules, Timers
from wastegate.gateway import recorder
from wastegate.gateway.serve import Limits

# ---- a client that leaves

LEAVES: list[tuple[Phase, bool, int]] = [
    ("before_first_byte", True, 0),
    ("after_headers", True, 0),
    ("before_first_token", True, 0),
    ("between_tokens", True, 2),
    ("before_end", True, 4),
    ("before_first_byte", False, 0),
    ("between_tokens", False, 0),
]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(("phase", "stream", "tokens"), LEAVES)
async def test_a_client_that_leaves_frees_the_replica_within_a_second(
    phase: Phase, stream: bool, tokens: int, how: Literal["close", "reset"], tmp_path: Path
) -> None:
    """gateways 8, 9; costs 10: the engine stops, the slot is free, what was made is counted and not 0 for unknown."""
    reply = Reply(body=Sse() if stream else Json(text="word " * 2000), fault=Fault(phase, tokens=2 if stream else 1))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.ask(chat(stream=stream))
        (call,) = await replica.wait_calls(1)
        await call.wait("body")
        if tokens:
            await client.until({2: b" there", 4: b" this"}[tokens])
        elif phase != "before_first_byte":
            await call.wait("first_byte")
        assert running.replica().in_flight == 1
        left = time.monotonic()
        (client.close if how == "close" else client.reset)()
        assert await call.wait("closed") - left < 1
        assert call.abandoned
        await running.settled()
        (entry,) = await running.entries(1)
        assert entry.outcome == "hung_up"
        attempt = entry.attempts[0]
        assert attempt.outcome == "hung_up"
        if stream:
            assert attempt.output_tokens == tokens
            assert attempt.usage == ("counted" if phase != "before_first_byte" else "estimated")
        assert attempt.prompt_tokens is not None


async def test_a_client_that_leaves_while_the_replica_is_dialled(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, gateway(tmp_path, replica) as running:
        for _ in range(10):
            client = await running.connect()
            client.ask(chat(stream=True))
            client.reset()
        assert (await running.ask(stream=True)).complete
        await running.settled()


async def test_load_is_released_exactly_once_whenever_clients_leave(tmp_path: Path) -> None:
    """gateways 12: cancellation at any moment leaks no load and loses no call."""
    calls, draw = 80, random.Random(4)
    reply = Reply(body=Sse(chunks=5, delay=0.02, ttft=0.02, gap=0.01))
    async with FakeReplica(reply) as one, FakeReplica(reply) as two, gateway(tmp_path, one, two) as running:

        async def call(patience: float) -> None:
            client = await running.connect()
            client.ask(chat(stream=True))
            await client.closed_within(patience)
            client.close()

        await asyncio.gather(*(call(draw.uniform(0, 0.4)) for _ in range(calls)))
        await running.settled()
        entries = running.running.entries
        assert len({entry.id for entry in entries}) == len(entries)
        assert {entry.outcome for entry in entries} == {"finished", "hung_up"}
        async with asyncio.timeout(1):
            while one.in_flight or two.in_flight:  # noqa: ASYNC110 - the replicas see it a moment later
                await asyncio.sleep(0.01)


async def test_failures_and_timeouts_release_load_exactly_once(tmp_path: Path) -> None:
    """gateways 12, 24: no slot leaks, however an attempt ends."""
    draw = random.Random(5)
    phases: list[Phase] = ["before_first_byte", "in_head", "after_headers", "before_first_token", "between_tokens"]
    faults = [Fault(phase, do) for phase in phases for do in ("hang", "fin", "reset")]
    timers = Timers(first_byte=0.2, first_token=0.2, idle=0.2)
    rules = Rules(hold=2)
    fine = Reply(body=Sse())
    async with (
        FakeReplica(fine) as one,
        FakeReplica(fine) as two,
        gateway(tmp_path, one, two, timers=timers, rules=rules) as running,
    ):
        for replica in (one, two):
            replica.script.extend(Reply(body=Sse(), fault=draw.choice(faults)) for _ in range(30))
        answers = await asyncio.gather(*(running.ask(stream=True) for _ in range(60)))
        await running.settled()
        entries = await running.entries(60)
        assert {entry.id for entry in entries} == {answer.header("x-request-id") for answer in answers}


# ---- load


async def test_load_counts_from_the_claim(tmp_path: Path) -> None:
    """gateways 16: long prefills must not look like idleness."""
    hang = Reply(fault=Fault("before_first_byte"))
    async with FakeReplica(hang) as one, FakeReplica(hang) as two, gateway(tmp_path, one, two) as running:
        for _ in range(10):
            (await running.connect()).ask(chat())
        async with asyncio.timeout(5):
            while len(one.calls) + len(two.calls) < 10:  # noqa: ASYNC110 - two replicas, either may be next
                await asyncio.sleep(0.01)
        assert abs(len(one.calls) - len(two.calls)) <= 2
        assert [running.replica(n).in_flight for n in (1, 2)] == [len(one.calls), len(two.calls)]


async def test_probes_never_touch_load(tmp_path: Path) -> None:
    """gateways 13."""
    hang = Reply(fault=Fault("before_first_byte"))
    async with FakeReplica(hang) as replica, gateway(tmp_path, replica, probe_seconds=0.02) as running:
        client = await running.connect()
        client.ask(chat())
        await replica.wait_calls(1)
        probed = len(replica.probes)
        async with asyncio.timeout(5):
            while len(replica.probes) < probed + 5:
                assert running.replica().in_flight == 1
                await asyncio.sleep(0.01)
        client.close()
        await running.settled()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/rerank", "/tokenize", "/v1/responses"])
async def test_every_route_goes_through_the_same_accounting(path: str, tmp_path: Path) -> None:
    """gateways 15: a route that is only passed through is load, too."""
    hang = Reply(body=Json(body=b'{"data":[]}'), fault=Fault("before_first_byte"))
    async with FakeReplica(hang) as replica, gateway(tmp_path, replica) as running:
        replica.pages.pop(path, None)
        client = await running.connect()
        client.ask(b'{"model":"fake","input":"hi"}', path)
        await replica.wait_calls(1)
        assert replica.calls[0].path == path
        assert running.replica().in_flight == 1
        replica.release()
        answer = await client.answer()
        entry = await running.entry(answer)
        assert (answer.status, entry.outcome, entry.path, len(entry.attempts)) == (200, "finished", path, 1)
        await running.settled()


# ---- a client that dawdles


async def test_a_slow_reader_holds_the_replica_back_not_the_gateways_memory(tmp_path: Path) -> None:
    big = b"x" * (48 << 20)
    async with FakeReplica(Reply(body=Json(body=big))) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.hold()
        client.ask(chat())
        await replica.wait_calls(1)
        (connection,) = [each for each in replica.open if each.latest is replica.calls[0]]
        await asyncio.sleep(0.5)  # nothing happens now: that is the point
        assert connection.transport.get_write_buffer_size() > len(big) // 2
        client.read_on()
        answer = await client.answer()
        assert (answer.complete, len(answer.body)) == (True, len(big))


async def test_a_slow_reader_is_not_taken_for_an_idle_replica(tmp_path: Path) -> None:
    big = b"x" * (24 << 20)
    timers = Timers(idle=0.4)
    async with FakeReplica(Reply(body=Json(body=big))) as replica, gateway(tmp_path, replica, timers=timers) as running:
        client = await running.connect()
        client.hold()
        client.ask(chat())
        await replica.wait_calls(1)
        await asyncio.sleep(0.8)
        client.read_on()
        answer = await client.answer()
        assert (answer.complete, len(answer.body)) == (True, len(big))


@pytest.mark.parametrize(
    "data", [b"POST /v1/chat/completions HT", request(b"{}")[:-4], b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc"]
)
async def test_an_unfinished_request_is_ended(data: bytes, tmp_path: Path) -> None:
    limits = Limits(header_seconds=0.3, body_seconds=0.3)
    async with FakeReplica() as replica, gateway(tmp_path, replica, limits=limits) as running:
        client = await running.connect()
        client.send(data)
        assert await client.closed_within(4)
        assert client.seen.startswith(b"HTTP/1.1 408 ")
        assert replica.calls == []


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, limits=Limits(idle_seconds=0.3)) as running:
        client = await running.connect()
        client.ask(chat())
        assert (await client.answer()).status == 200
        assert await client.closed_within(4)


# ---- bounds


async def test_headers_beyond_the_limit(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, limits=Limits(header_bytes=4096)) as running:
        client = await running.connect()
        client.ask(chat(), headers={"x-big": "b" * 5000})
        assert (await client.answer()).status == 431
        assert await client.closed_within(2)
        assert replica.calls == []
        assert (await running.ask()).status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_the_limit(chunked: bool, tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, limits=Limits(body_bytes=10_000)) as running:
        client = await running.connect()
        if chunked:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(11):
                client.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        else:
            client.ask(b"x" * 11_000)
        assert (await client.answer()).status == 413
        assert await client.closed_within(2)
        assert replica.calls == []


async def test_connections_beyond_the_limit(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, limits=Limits(connections=3)) as running:
        held = [await running.connect() for _ in range(3)]
        for client in held:
            client.ask(chat())
            assert (await client.answer()).status == 200
        fourth = await running.connect()
        assert await fourth.closed_within(2)
        assert fourth.seen.startswith(b"HTTP/1.1 503 ")
        held[0].close()
        async with asyncio.timeout(5):
            while True:
                client = await running.connect()
                client.ask(chat())
                if (await client.answer()).status == 200:
                    break
                await asyncio.sleep(0.01)


async def test_a_request_in_pieces_and_in_chunks(tmp_path: Path) -> None:
    whole = request(chat())
    body = whole.partition(b"\r\n\r\n")[2]
    chunked = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    chunked += b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-trailer: 1\r\n\r\n"
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        for data in (whole, chunked):
            client = await running.connect()
            for at in range(len(data)):
                client.send(data[at : at + 1])
                await asyncio.sleep(0)
            assert (await client.answer()).status == 200
        assert [call.body for call in replica.calls] == [body, body]
        assert all(call.headers["content-length"] == str(len(body)) for call in replica.calls)
        assert all("transfer-encoding" not in call.headers for call in replica.calls)


async def test_requests_sent_ahead_are_answered_in_order(tmp_path: Path) -> None:
    script = [Reply(body=Json(text=f"number {n}", delay=0.05 * (3 - n))) for n in range(3)]
    async with FakeReplica(script=script) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.send(request(chat()) * 3)
        texts = [(await client.answer()).json()["choices"][0]["message"]["content"] for _ in range(3)]
        assert texts == ["number 0", "number 1", "number 2"]


async def test_expect_100_continue(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        head, _, body = request(chat(), headers={"expect": "100-continue"}).partition(b"\r\n\r\n")
        client = await running.connect()
        client.send(head + b"\r\n\r\n")
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(body)
        assert (await client.answer()).status == 200
        assert "expect" not in replica.calls[0].headers


async def test_http_1_0_client_gets_a_stream_that_ends_by_closing(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.send(request(chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.answer()
        assert answer.header("transfer-encoding") == ""
        assert (text(answer), payloads(answer)[-1]) == ("Hello there, this", "[DONE]")


# ---- request smuggling

_INNER = b"POST /v1/chat/completions HTTP/1.1\r\nhost: evil\r\ncontent-length: 2\r\n\r\n{}"
_START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
_BODY = request(chat()).partition(b"\r\n\r\n")[2]
_LENGTH = b"content-length: %d\r\n" % len(_BODY)

SMUGGLES = [
    pytest.param(_START + _LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + _INNER, id="CL and TE"),
    pytest.param(_START + b"transfer-encoding: chunked\r\n" + _LENGTH + b"\r\n0\r\n\r\n" + _INNER, id="TE and CL"),
    pytest.param(_START + _LENGTH + b"content-length: 0\r\n\r\n" + _BODY + _INNER, id="two lengths"),
    pytest.param(_START + b"content-length: %d, 0\r\n\r\n" % len(_BODY) + _BODY + _INNER, id="a list of lengths"),
    pytest.param(_START + b"content-length: +%d\r\n\r\n" % len(_BODY) + _BODY + _INNER, id="a signed length"),
    pytest.param(_START + b"content-length: -1\r\n\r\n" + _BODY + _INNER, id="a negative length"),
    pytest.param(_START + b"content-length: 0x10\r\n\r\n" + _BODY + _INNER, id="a hexadecimal length"),
    pytest.param(_START + b"content-length: 99999999999999999999999\r\n\r\n" + _BODY + _INNER, id="an endless length"),
    pytest.param(_START + b"content-length : %d\r\n\r\n" % len(_BODY) + _BODY + _INNER, id="space before the colon"),
    pytest.param(_START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + _INNER, id="an unknown encoding"),
    pytest.param(_START + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n" + _INNER, id="chunked not last"),
    pytest.param(_START + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + _INNER, id="a hidden encoding"),
    pytest.param(_START + b"x: y\r\n z: folded\r\n" + _LENGTH + b"\r\n" + _BODY, id="a folded header"),
    pytest.param(_START + b"x: a\x00b\r\n" + _LENGTH + b"\r\n" + _BODY, id="NUL in a header"),
    pytest.param(_START + b"x: a\rb\r\n" + _LENGTH + b"\r\n" + _BODY, id="bare CR in a header"),
    pytest.param(_START + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", id="an endless chunk"),
    pytest.param(_START + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", id="a negative chunk"),
    pytest.param(_START + b"transfer-encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n" + _INNER, id="a chunk too long"),
    pytest.param(b"GET / HTTP/1.1 HTTP/1.1\r\n\r\n", id="a bad request line"),
    pytest.param(b"POST /v1/chat/completions HTTP/9.9\r\nhost: x\r\n\r\n", id="an unknown version"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 without asking"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS on a plain port"),
]


@pytest.mark.parametrize("data", SMUGGLES)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(data: bytes, tmp_path: Path) -> None:
    """No byte after it on that connection is taken for a request, and no replica sees any of it."""
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.send(data)
        assert await client.closed_within(3)
        assert client.seen.count(b"HTTP/1.1 ") <= 1
        if client.seen:
            assert client.seen.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.1 501 "))
        assert replica.calls == []
        assert (await running.ask()).status == 200


async def test_headers_of_one_connection_do_not_travel(tmp_path: Path) -> None:
    headers = {
        "connection": "keep-alive, x-private",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "upgrade": "h2c",
        "proxy-authorization": "secret",
        "x-request-id": "mine",
        "x-wastegate-tenant": "acme",
        "x-other": "kept",
        "authorization": "Bearer kept",
    }
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.ask(chat(), headers=headers)
        answer = await client.answer()
        entry = await running.entry(answer)
        got = replica.calls[0].headers
    assert {"x-private", "keep-alive", "te", "upgrade", "proxy-authorization", "x-wastegate-tenant"}.isdisjoint(got)
    assert (got["x-other"], got["authorization"]) == ("kept", "Bearer kept")
    assert got["x-request-id"] == f"{entry.id}.1"
    assert (entry.client_id, entry.tenant) == ("mine", "acme")


async def test_a_clients_id_is_never_trusted_as_unique(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        answers = [await running.ask(headers={"x-request-id": "same"}) for _ in range(3)]
        entries = [await running.entry(answer) for answer in answers]
    assert len({entry.id for entry in entries}) == 3
    assert {entry.client_id for entry in entries} == {"same"}
    assert len({call.headers["x-request-id"] for call in replica.calls}) == 3


# ---- bodies


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"model":3}', b'{"stream":"yes"}', b'{"n":1e99}', b"{}" * 2],
)
async def test_a_body_that_cannot_be_read_is_a_400_and_reaches_nobody(body: bytes, tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        client = await running.connect()
        client.ask(body)
        answer = await client.answer()
        assert answer.status == 400
        assert len(answer.error) > 10
        assert replica.calls == []
        client.ask(chat())  # the connection is still good
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b' \n{"model":"fake","stream":true,"messages":[]}',
        b'\xef\xbb\xbf{"model":"fake","stream":true,"messages":[]}',
        b'{"stream":true,"stream_options":null,"model":"fake"}',
        b'{"stream":true,"stream_options":{},"model":"fake"}',
        b'{"stream":true,"stream_options":{"include_usage":false,"other":1},"model":"fake"}',
        b'{"stream":true,"model":"fake","messages":[{"role":"user","content":"\\"stream_options\\": say it"}]}',
        b'{"stream":true,"model":"fake","stream":true}',
    ],
)
async def test_usage_is_forced_into_any_shape_of_body(body: bytes, tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(body)
        if answer.status == 400 and body.startswith(b"\xef"):
            return  # RFC 8259 lets a reader refuse a byte-order mark
        entry = await running.entry(answer)
        options = replica.calls[0].json()["stream_options"]
        assert options["include_usage"] is True  # type: ignore[index]
        assert entry.attempts[0].usage == "engine"
        assert usages(answer) == []


async def test_usage_that_was_asked_for_is_shown(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, gateway(tmp_path, replica) as running:
        assert len(usages(await running.ask(stream=True, **ASKS_USAGE))) == 1
        assert replica.calls[0].json()["stream_options"] == ASKS_USAGE["stream_options"]


# ---- shutdown


async def test_at_shutdown_streams_finish_and_new_calls_are_refused(tmp_path: Path) -> None:
    reply = Reply(body=Sse(), fault=Fault("between_tokens"))
    async with FakeReplica(Reply(), [reply]) as replica, gateway(tmp_path, replica) as running:
        idle, streaming = await running.connect(), await running.connect()
        streaming.ask(chat(stream=True))
        await streaming.until(b"Hello")
        running.stop()
        assert await idle.closed_within(2)
        with pytest.raises(ConnectionRefusedError):
            await running.connect()
        replica.release()
        await streaming.until(b"[DONE]")
        assert await streaming.closed_within(2)
        assert [entry.outcome for entry in await running.entries(1)] == ["finished"]


async def test_at_the_deadline_a_stream_gets_a_terminal_event(tmp_path: Path) -> None:
    hang = [Reply(body=Sse(), fault=Fault("between_tokens")), Reply(fault=Fault("before_first_byte"))]
    limits = Limits(drain_seconds=0.3)
    async with FakeReplica(script=hang) as replica, gateway(tmp_path, replica, limits=limits) as running:
        streaming, waiting = await running.connect(), await running.connect()
        streaming.ask(chat(stream=True))
        await streaming.until(b"Hello")
        waiting.ask(chat())
        await replica.wait_calls(2)
        running.stop()
        assert b'"error"' in await streaming.until(b"shutdown")
        assert await streaming.closed_within(2)
        assert b"[DONE]" not in streaming.seen
        assert (await waiting.answer()).status in (503, 504)
        for call in replica.calls:
            await call.wait("closed")
        assert [entry.outcome for entry in await running.entries(2)] == ["failed", "failed"]


async def test_shutdown_does_not_wait_for_clients_that_read_nothing(tmp_path: Path) -> None:
    big = Reply(body=Json(body=b"x" * (32 << 20)))
    async with FakeReplica(big) as replica, gateway(tmp_path, replica, limits=Limits(drain_seconds=0.3)) as running:
        client = await running.connect()
        client.hold()
        client.ask(chat())
        await replica.wait_calls(1)
        start = time.monotonic()
    assert time.monotonic() - start < 4


# ---- the disk


class FullDisk:
    """Makes every write to the gateway's open journal fail as on a full disk, and undoes it."""

    def __init__(self, running: Bench) -> None:
        self._file = running.running.hub.recorder._journal._file
        self._saved = os.dup(self._file)

    def __enter__(self) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, self._file)
        os.close(full)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, self._file)
        os.close(self._saved)


async def test_on_a_full_disk_new_calls_are_refused_until_there_is_room(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica) as running:
        assert (await running.ask()).status == 200
        with FullDisk(running):
            await running.ask()  # the one that finds out
            before = len(replica.calls)
            for _ in range(3):
                answer = await running.ask()
                assert (answer.status, int(answer.header("retry-after")) >= 1) == (503, True)
                assert "No space left" in answer.error
            assert len(replica.calls) == before
        async with asyncio.timeout(4):
            while (await running.ask()).status != 200:  # noqa: ASYNC110 - it is asked as a client would
                await asyncio.sleep(0.05)
        assert (await running.ask()).status == 200


async def test_on_a_full_disk_calls_are_served_and_counted_if_so_configured(tmp_path: Path) -> None:
    ledger = recorder.Config(when_full="serve")
    async with FakeReplica() as replica, gateway(tmp_path, replica, ledger=ledger) as running:
        with FullDisk(running):
            assert {(await running.ask()).status for _ in range(4)} == {200}
            assert running.running.hub.recorder.unrecorded == 4
            status, metrics = await running.running.admin("/metrics")
            assert (status, b"wastegate_unrecorded_calls_total 4" in metrics) == (200, True)
        assert len(replica.calls) == 4
