"""The clients' side of HTTP: raw sockets, because a well-behaved client cannot send what must be refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import CHAT, Answer, Running, Wire, chat, request, running
from wastegate.gateway.request import Incoming
from wastegate.gateway.serve import Limits

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode()
BODY = chat()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are looked at so often that short limits can be told apart."""
    monkeypatch.setattr("wastegate.gateway.front._SWEEP_SECONDS", 0.05)


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as one:
        yield one


@pytest.fixture
async def gateway(tmp_path: Path, replica: FakeReplica) -> AsyncIterator[Running]:
    async with running(tmp_path, replica) as here:
        yield here


def sized(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"content-length: %d\r\n\r\n" % len(body) + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def chunked(*chunks: bytes, more: bytes = b"") -> bytes:
    frames = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return HEAD + more + b"transfer-encoding: chunked\r\n\r\n" + frames


async def one(gateway: Running, data: bytes) -> Answer:
    """The answer to so many bytes on a connection of their own."""
    async with await gateway.connect() as wire:
        wire.send(data)
        return await wire.answer()


# ---- requests are read as HTTP wants it


async def test_a_chunked_request_is_one_body_upstream(gateway: Running, replica: FakeReplica) -> None:
    answer = await one(gateway, chunked(BODY[:5], BODY[5:30], BODY[30:]))
    assert answer.status == 200
    assert replica.calls[0].body == BODY
    assert replica.calls[0].headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in replica.calls[0].headers


async def test_a_request_may_be_cut_anywhere(gateway: Running, replica: FakeReplica) -> None:
    data = chunked(BODY[:20], BODY[20:], more=b"x-wastegate-tenant: t\r\n")
    async with await gateway.connect() as wire:
        for at in range(len(data)):
            wire.send(data[at : at + 1])
            if at % 16 == 0:
                await asyncio.sleep(0)
        assert (await wire.answer()).status == 200
    assert replica.calls[0].body == BODY


async def test_requests_sent_ahead_are_answered_in_order(gateway: Running, replica: FakeReplica) -> None:
    bodies = [chat(f"question {number}") for number in range(10)]
    async with await gateway.connect() as wire:
        wire.send(b"".join(request(body) for body in bodies))
        answers = [await wire.answer() for _ in bodies]
    assert [answer.status for answer in answers] == [200] * 10
    assert [call.body for call in replica.calls] == bodies
    ids = [answer.header("x-request-id") for answer in answers]
    assert ids == [entry.id for entry in await gateway.closed(10)]


async def test_too_many_requests_sent_ahead_end_the_connection(tmp_path: Path) -> None:
    hang = Reply(fault=Fault("before_first_byte"))
    async with FakeReplica(script=[hang]) as replica, running(tmp_path, replica) as gateway:
        async with await gateway.connect() as wire:
            wire.send(request(BODY) * 18)
            await replica.wait_calls(1)
            await gateway.until(lambda: gateway.hub.tally.rejected["pipelined"] == 1, "the 18th was refused")
            replica.release()
            assert (await wire.answer()).header("connection") == "close"
            assert await wire.ended()
        assert len(gateway.entries) == 1


async def test_what_is_sent_ahead_counts_as_one_body(tmp_path: Path) -> None:
    """Sixteen bodies of the full size must not fit where one may."""
    hang = Reply(fault=Fault("before_first_byte"))
    limits = Limits(body_bytes=100_000)
    async with (
        FakeReplica(script=[hang]) as replica,
        running(tmp_path, replica, limits=limits) as gateway,
        await gateway.connect() as wire,
    ):
        wire.send(request(chat("x" * 60_000)) * 4)
        await replica.wait_calls(1)
        await gateway.until(lambda: gateway.hub.tally.rejected["body_too_large"] == 1, "the third was refused")
        replica.release()
        assert (await wire.answer()).status == 200
        assert await wire.ended()


async def test_connection_close_is_kept_to(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        wire.post(BODY, headers={"connection": "close"})
        answer = await wire.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await wire.ended()


async def test_expect_100_continue(gateway: Running, replica: FakeReplica) -> None:
    async with await gateway.connect() as wire:
        wire.send(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        assert (await wire.answer()).status == 100
        wire.send(BODY)
        assert (await wire.answer()).status == 200
    assert "expect" not in replica.calls[0].headers


async def test_a_body_that_is_too_large_is_not_asked_for(tmp_path: Path, replica: FakeReplica) -> None:
    async with running(tmp_path, replica, limits=Limits(body_bytes=1000)) as gateway, await gateway.connect() as wire:
        wire.send(HEAD + b"expect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
        answer = await wire.answer()
    assert answer.status == 413
    assert "1000 bytes" in answer.error


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/nowhere"])
async def test_an_answer_to_head_has_no_body(gateway: Running, path: str) -> None:
    async with await gateway.connect() as wire:
        wire.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = await wire.answer(bodiless=True)
        wire.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        full = await wire.answer()
    assert head.status == full.status
    assert head.headers == full.headers
    assert int(head.header("content-length")) == len(full.body) > 0


# ---- HTTP/1.0


def old(body: bytes, more: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.0\r\n%bcontent-length: %d\r\n\r\n%b" % (CHAT.encode(), more, len(body), body)


async def test_an_http_10_client_gets_a_stream_that_ends_by_closing(tmp_path: Path) -> None:
    async with (
        FakeReplica(Reply(body=Sse(chunks=2))) as replica,
        running(tmp_path, replica) as gateway,
        await gateway.connect() as wire,
    ):
        wire.send(old(chat(stream=True), b"connection: keep-alive\r\n"))
        answer = await wire.head()
        body = await wire.rest()
    assert (answer.header("transfer-encoding"), answer.header("connection")) == ("", "close")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_an_http_10_client_may_keep_its_connection_where_the_length_is_known(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        for _ in range(2):
            wire.send(old(BODY, b"connection: keep-alive\r\n"))
            answer = await wire.answer()
            assert (answer.status, answer.header("connection")) == (200, "keep-alive")
        wire.send(old(BODY))
        assert (await wire.answer()).header("connection") == "close"
        assert await wire.ended()


# ---- offers of another protocol


@pytest.mark.parametrize("framing", [sized, chunked])
async def test_an_offer_of_http_2_is_ignored_and_its_body_read(
    gateway: Running, replica: FakeReplica, framing: Any
) -> None:
    """As Java's client sends it with every first request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    async with await gateway.connect() as wire:
        wire.send(framing(BODY, more=offer) + request(BODY))
        first, second = await wire.answer(), await wire.answer()
    assert (first.status, second.status) == (200, 200)
    assert [call.body for call in replica.calls] == [BODY, BODY]
    assert not {"upgrade", "connection", "http2-settings"} & replica.calls[0].headers.keys()


async def test_an_offer_with_expect_gets_one_100(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        more = b"connection: upgrade\r\nupgrade: h2c\r\nexpect: 100-continue\r\n"
        wire.send(HEAD + more + b"content-length: %d\r\n\r\n" % len(BODY))
        assert (await wire.answer()).status == 100
        wire.send(BODY)
        assert (await wire.answer()).status == 200


async def test_an_offer_that_closes_is_kept_to(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        wire.send(sized(BODY, b"connection: upgrade, close\r\nupgrade: websocket\r\n"))
        assert (await wire.answer()).header("connection") == "close"
        assert await wire.ended()


async def test_a_thousand_offers_in_one_write_are_a_thousand_answers(gateway: Running) -> None:
    count = 1000
    async with await gateway.connect() as wire:
        wire.send(b"GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" * count)
        statuses = {(await wire.answer()).status for _ in range(count)}
    assert statuses == {200}


async def test_an_offer_of_http_10_is_read_as_that(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        wire.send(b"GET /health HTTP/1.0\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert (await wire.answer()).header("connection") == "close"
        assert await wire.ended()


async def test_no_tunnel(gateway: Running) -> None:
    async with await gateway.connect() as wire:
        wire.send(b"CONNECT other:443 HTTP/1.1\r\nhost: other\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
        answer = await wire.answer()
        assert (answer.status, answer.header("connection")) == (400, "close")
        assert await wire.ended()


# ---- nothing may be read in two ways


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
UNCLEAR = {
    "length and chunks": HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunks and length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": HEAD + b"content-length: 0\r\ncontent-length: 40\r\n\r\n" + SMUGGLED,
    "the same length twice": HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "a list of lengths": HEAD + b"content-length: 2, 2\r\n\r\n{}",
    "a signed length": HEAD + b"content-length: +2\r\n\r\n{}",
    "a negative length": HEAD + b"content-length: -2\r\n\r\n{}",
    "a hexadecimal length": HEAD + b"content-length: 0x2\r\n\r\n{}",
    "a length beyond all": HEAD + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "no length at all": HEAD + b"content-length: \r\n\r\n{}",
    "a name with a blank": HEAD + b"content-length : 2\r\n\r\n{}",
    "an encoding that hides": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked, but not last": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two encodings": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two encoding headers": HEAD
    + b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "an encoding after a tab": HEAD + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST " + CHAT.encode() + b" HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": HEAD + b"x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n{}",
    "bare line feeds": b"POST " + CHAT.encode() + b" HTTP/1.1\ncontent-length: 2\n\n{}",
    "a bare line feed in a header": HEAD + b"x-a: b\ncontent-length: 2\r\n\r\n{}",
    "a bare carriage return": HEAD + b"x-a: b\rcontent-length: 2\r\n\r\n",
    "a NUL": HEAD + b"x-a: b\x00c\r\n\r\n",
    "chunk sizes of junk": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a chunk size with 0x": HEAD + b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk size below 0": HEAD + b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond all": HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk that is too long": HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n",
    "chunk lines without CR": HEAD + b"transfer-encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    "a line feed in a chunk extension": HEAD + b"transfer-encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
    "a length among the trailers": HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 9\r\n\r\n",
    "a blank in the path": b"POST " + CHAT.encode() + b" x HTTP/1.1\r\n\r\n",
    "a control character in the path": b"POST " + CHAT.encode() + b"\x01 HTTP/1.1\r\n\r\n",
    "an unknown version": b"POST " + CHAT.encode() + b" HTTP/1.2\r\n\r\n",
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an unknown method": b"FETCH / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", UNCLEAR.values(), ids=UNCLEAR)
async def test_what_two_servers_could_read_in_two_ways_is_refused(
    gateway: Running, replica: FakeReplica, data: bytes
) -> None:
    async with await gateway.connect() as wire:
        wire.send(data)
        answer = await wire.answer()
        assert (answer.status, answer.header("connection")) in ((400, "close"), (413, "close"))
        assert answer.error
        wire.send(SMUGGLED)
        assert await wire.ended(), "something after the refused request was served"
    assert replica.calls == []


async def test_junk_after_a_good_request_does_not_spoil_its_answer(tmp_path: Path) -> None:
    slow = Reply(body=Json(delay=0.05))
    async with FakeReplica(slow) as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        wire.send(request(BODY) + b"\x00\x00 junk\r\n\r\n" + SMUGGLED)
        answer = await wire.answer()
        assert (answer.status, answer.complete, answer.header("connection")) == (200, True, "close")
        assert await wire.ended()


async def test_a_header_of_the_client_cannot_begin_another_upstream(gateway: Running, replica: FakeReplica) -> None:
    """Labels and ids go into headers and into the ledger: they must not carry lines of their own."""
    more = "x-wastegate-tenant: a%0d%0ax-evil: 1\r\nx-request-id: b\\r\\nx-evil: 2\r\nx-bytes: \xff\xfe\r\n"
    answer = await one(gateway, sized(BODY, more.encode("latin-1")))
    (entry,) = await gateway.closed(1)
    assert answer.status == 200
    assert "x-evil" not in replica.calls[0].headers
    assert replica.calls[0].headers["x-request-id"] == f"{entry.id}.1"
    assert replica.calls[0].headers["x-bytes"] == "\xff\xfe"
    assert entry.tenant == "a%0d%0ax-evil: 1"
    assert entry.client_id == "b\\r\\nx-evil: 2"


async def test_headers_that_belong_to_the_clients_connection_end_here(gateway: Running, replica: FakeReplica) -> None:
    more = (
        b"connection: x-one, keep-alive\r\nconnection: X-Two\r\nx-one: 1\r\nx-two: 2\r\nx-three: 3\r\n"
        b"keep-alive: timeout=5\r\nte: trailers\r\nproxy-authorization: Basic eA==\r\naccept-encoding: gzip\r\n"
        b"authorization: Bearer theirs\r\nx-wastegate-tag-team: red\r\n"
    )
    assert (await one(gateway, sized(BODY, more))).status == 200
    got = replica.calls[0].headers
    assert (got["x-three"], got["authorization"]) == ("3", "Bearer theirs")
    ended = {"x-one", "x-two", "keep-alive", "te", "proxy-authorization", "accept-encoding", "connection"}
    assert not (ended | {"x-wastegate-tag-team"}) & got.keys()


async def test_headers_of_the_replicas_connection_end_here_too(tmp_path: Path) -> None:
    headers = (("connection", "keep-alive"), ("keep-alive", "timeout=5"), ("x-request-id", "theirs"), ("x-own", "1"))
    async with FakeReplica(Reply(headers=headers)) as replica, running(tmp_path, replica) as gateway:
        answer = await gateway.post(BODY)
        (entry,) = await gateway.closed(1)
    assert answer.header("x-own") == "1"
    assert answer.header("x-request-id") == entry.id
    assert (answer.header("connection"), answer.header("keep-alive")) == ("", "")


# ---- bounds


async def test_headers_that_are_too_large(tmp_path: Path, replica: FakeReplica) -> None:
    async with running(tmp_path, replica, limits=Limits(header_bytes=2000)) as gateway:
        fits = await one(gateway, sized(BODY, b"x-a: %s\r\n" % (b"x" * 1500)))
        one_long = await one(gateway, sized(BODY, b"x-a: %s\r\n" % (b"x" * 2500)))
        many = await one(gateway, sized(BODY, b"a: b\r\n" * 400))
        counted = gateway.hub.tally.rejected["headers_too_large"]
    assert (fits.status, one_long.status, many.status, counted) == (200, 431, 431, 2)
    assert "2000 bytes" in many.error


async def test_a_path_that_is_too_long(tmp_path: Path, replica: FakeReplica) -> None:
    async with running(tmp_path, replica, limits=Limits(header_bytes=2000)) as gateway:
        answer = await one(gateway, b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 3000))
    assert answer.status == 431


@pytest.mark.parametrize("framing", [sized, chunked])
async def test_a_body_that_is_too_large_is_refused_while_it_is_sent(
    tmp_path: Path, replica: FakeReplica, framing: Any
) -> None:
    """The client is still sending: it must get the answer, not a reset."""
    async with running(tmp_path, replica, limits=Limits(body_bytes=100_000)) as gateway:
        async with await gateway.connect() as wire:
            wire.send(framing(b"x" * 20_000_000))
            answer = await wire.answer()
        assert gateway.hub.tally.rejected["body_too_large"] == 1
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert "100000 bytes" in answer.error
    assert replica.calls == []


async def test_a_refused_client_that_never_stops_is_cut_off(tmp_path: Path, replica: FakeReplica) -> None:
    async with running(tmp_path, replica, limits=Limits(body_bytes=1000)) as gateway, await gateway.connect() as wire:
        wire.send(HEAD + b"content-length: 99999\r\n\r\n")
        assert (await wire.answer()).status == 413
        await gateway.until(lambda: not gateway.connections, "the connection is gone, though its client is not")


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (b"POST /v1/ch", 408, "slow_headers"),
        (HEAD, 408, "slow_headers"),
        (HEAD + b"content-length: 10\r\n\r\n{", 408, "slow_body"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n", 408, "slow_body"),
    ],
)
async def test_a_request_that_does_not_come_is_not_waited_for(
    tmp_path: Path, replica: FakeReplica, sent: bytes, status: int, reason: str
) -> None:
    limits = Limits(header_seconds=0.2, body_seconds=0.2)
    async with running(tmp_path, replica, limits=limits) as gateway:
        answer = await one(gateway, sent)
        assert gateway.hub.tally.rejected[reason] == 1
    assert (answer.status, answer.header("connection")) == (status, "close")
    assert "0.2 s" in answer.error


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    slow = Reply(body=Json(delay=0.6))
    async with (
        FakeReplica(slow) as replica,
        running(tmp_path, replica, limits=Limits(idle_seconds=0.2)) as gateway,
        await gateway.connect() as silent,
        await gateway.connect() as busy,
    ):
        busy.post(BODY)
        assert await silent.ended()
        answer = await busy.answer()
        assert answer.status == 200
        assert await busy.ended()


async def test_connections_are_bounded(tmp_path: Path, replica: FakeReplica) -> None:
    async with running(tmp_path, replica, limits=Limits(connections=2)) as gateway:
        async with await gateway.connect() as first, await gateway.connect():
            await gateway.until(lambda: len(gateway.connections) == 2, "two connections")
            async with await gateway.connect() as third:
                answer = await third.answer()
                assert (answer.status, answer.header("connection")) == (503, "close")
                assert "as many connections as it may" in answer.error
                assert await third.ended()
            first.post(BODY)
            assert (await first.answer()).status == 200
            first.writer.close()
            await gateway.until(lambda: len(gateway.connections) == 1, "one connection less")
            async with await gateway.connect() as fourth:
                fourth.post(BODY)
                assert (await fourth.answer()).status == 200
        assert gateway.hub.tally.rejected["connections"] == 1


async def test_clients_that_come_and_go_leave_nothing_behind(gateway: Running) -> None:
    for data in (b"", b"POST /v1/ch", HEAD, HEAD + b"content-length: 10\r\n\r\n{", b"\r\n\r\n"):
        wire = await gateway.connect()
        wire.send(data)
        wire.reset()
    await gateway.until(lambda: not gateway.connections, "no connection is left")
    assert gateway.entries == []


@pytest.mark.parametrize("name", ["header_bytes", "connections", "idle_seconds", "drain_seconds"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0: a limit must be above 0"):
        Limits(**{name: 0})


async def test_a_later_request_never_overtakes_one_that_waits(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two answers there is an instant in which nothing is served: what arrives then must stand behind."""
    assert gateway.gateway.front is not None
    served: list[bytes] = []
    clients: list[Any] = []

    def serve(incoming: Incoming, client: Any) -> None:
        served.append(incoming.url)
        clients.append(client)

    monkeypatch.setattr(gateway.gateway.front.gate, "serve", serve)
    async with await gateway.connect() as wire:
        wire.send(get("/a") + get("/b"))
        await gateway.until(lambda: bool(served), "the first is served")
        clients[0].respond(200, b"text/plain", b"a")
        clients[0].data_received(get("/c"))  # as the event loop would, before it comes to the next
        assert served == [b"/a"]
        for text in (b"b", b"c"):
            await gateway.until(lambda text=text: served[-1] == b"/" + text, "the next is served")  # type: ignore[misc]
            clients[0].respond(200, b"text/plain", text)
        assert [(await wire.answer()).body for _ in range(3)] == [b"a", b"b", b"c"]
    assert served == [b"/a", b"/b", b"/c"]


async def test_a_client_that_asks_and_reads_nothing_is_not_listened_to(gateway: Running) -> None:
    wire = await gateway.connect(receive_buffer=4096)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.send(get("/v1/models") * 200_000)
    await gateway.until(lambda: any(connection._deaf for connection in gateway.connections), "it is not heard any more")
    await asyncio.sleep(0.2)  # what is tested is that nothing happens
    (connection,) = gateway.connections
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 8 << 20
    assert (await gateway.get("/health")).status == 200
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(1000):
        assert (await wire.answer()).status == 200
    wire.reset()


# ---- a fault of ours


async def test_a_fault_of_ours_is_a_500_and_no_400(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("wastegate.gateway.request.read_request", broken)
    answer = await one(gateway, sized(BODY))
    assert (answer.status, answer.header("connection")) == (500, "close")
    assert "its log says how" in answer.error
    assert "a mistake" in caplog.text
    assert (await gateway.get("/health")).status == 200


async def test_a_fault_after_the_call_flew_cuts_it(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, replica: FakeReplica
) -> None:
    """It may have sent anything by then: only the end of the connection is honest."""
    begin = type(gateway.hub).queue

    def broken(*_: object) -> bool:
        raise RuntimeError("a mistake")

    await replica.stop()
    await gateway.until(lambda: gateway.world.states[0].state != "ready", "the replica is down")
    monkeypatch.setattr(type(gateway.hub), "queue", broken)
    wire = await Wire.connect(gateway.url)
    wire.post(BODY)
    assert await wire.ended()
    monkeypatch.setattr(type(gateway.hub), "queue", begin)
    await replica.start()
    await gateway.ready(1)
    assert (await gateway.post(BODY)).status == 200
