"""Each fault of the fake replica is really on the wire: seen by a raw socket that parses nothing for us."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events, silent_port
from tests.fake_replies import Phase

CHAT = "/v1/chat/completions"


def request(body: bytes = b"{}", path: str = CHAT) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


ASKED = b'{"stream":true,"stream_options":{"include_usage":true}}'


@dataclass
class Wire:
    """A raw client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(mark)

    async def rest(self) -> tuple[bytes, Literal["fin", "reset"]]:
        """Everything up to the end, and how it ended."""
        got = b""
        async with asyncio.timeout(5):
            while True:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return got, "reset"
                if not data:
                    return got, "fin"
                got += data

    async def silent(self, seconds: float = 0.05) -> bytes:
        """What comes within so short a time, while the connection stays open."""
        got = b""
        try:
            async with asyncio.timeout(seconds):
                while data := await self.reader.read(65536):
                    got += data
        except TimeoutError:
            return got
        raise AssertionError(f"the connection was closed after {got!r}")

    async def whole(self) -> tuple[bytes, bytes]:
        """Head and body of an answer whose body has a length or comes in plain chunks."""
        head = await self.until(b"\r\n\r\n")
        if b"content-length: " in head:
            size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            async with asyncio.timeout(5):
                return head, await self.reader.readexactly(size)
        return head, b"".join(await self.chunks())

    async def chunks(self) -> list[bytes]:
        got: list[bytes] = []
        while size := int((await self.until(b"\r\n")).split(b";")[0], 16):
            async with asyncio.timeout(5):
                got.append((await self.reader.readexactly(size + 2))[:-2])
        await self.until(b"\r\n")
        return got


@asynccontextmanager
async def ask(replica: FakeReplica, data: bytes = request()) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(data)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def payloads(body: bytes) -> list[Any]:
    lines = (line for line in body.decode().split("\n") if line.startswith("data: "))
    return [line[6:] if line == "data: [DONE]" else msgspec.json.decode(line[6:]) for line in lines]


def texts(body: bytes) -> list[str]:
    chunks = (each for each in payloads(body) if each != "[DONE]")
    deltas = (choice["delta"] for each in chunks for choice in each.get("choices", ()))
    return [delta["content"] for delta in deltas if delta.get("content")]


async def test_json_answer_and_what_arrived() -> None:
    async with FakeReplica() as replica, ask(replica, request(b'{"model":"m"}')) as wire:
        head, body = await wire.whole()
        call = replica.calls[0]
        await call.wait("answered")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert msgspec.json.decode(body)["usage"]["completion_tokens"] == 2
        assert (call.method, call.path, call.json(), call.reused) == ("POST", CHAT, {"model": "m"}, False)
        assert call.headers == {"host": "x", "content-length": "13"}
        assert call.closed_at is None
        assert replica.in_flight == 0


async def test_request_in_chunks_is_read() -> None:
    head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    async with FakeReplica() as replica, ask(replica, head + b"2\r\n{}\r\n3;x=1\r\n[1]\r\n0\r\n\r\n") as wire:
        await wire.whole()
        assert replica.calls[0].body == b"{}[1]"


async def test_keep_alive_and_script_order() -> None:
    script = [Reply(body=Json(status=429)), Reply(body=Json(status=503))]
    async with FakeReplica(script=script) as replica, ask(replica) as wire:
        statuses = [(await wire.whole())[0][9:12]]
        for _ in range(2):
            wire.writer.write(request())
            statuses.append((await wire.whole())[0][9:12])
        assert statuses == [b"429", b"503", b"200"]
        assert [call.reused for call in replica.calls] == [False, True, True]
        assert replica.connections == 1


async def test_stream_is_one_chunk_an_event_and_ends_with_usage_and_done() -> None:
    async with FakeReplica(Reply(body=Sse(chunks=3))) as replica, ask(replica, request(ASKED)) as wire:
        await wire.until(b"\r\n\r\n")
        chunks = await wire.chunks()
        assert chunks == events(Sse(chunks=3))
        assert texts(b"".join(chunks)) == ["Hello", " there", ","]
        assert payloads(chunks[-2])[0]["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
        }
        assert len(chunks) == 1 + 3 + 3


async def test_usage_only_when_asked() -> None:
    async with FakeReplica(Reply(body=Sse())) as replica, ask(replica) as wire:
        _, body = await wire.whole()
        assert b"usage" not in body


@pytest.mark.parametrize(
    ("place", "where"), [("own", [5]), ("beside", [5]), ("each", [0, 1, 2, 3, 4, 5]), ("null", [5])]
)
async def test_usage_places(place: Literal["own", "beside", "each", "null"], where: list[int]) -> None:
    sse = Sse(chunks=3, usage_place=place)
    async with FakeReplica(Reply(body=sse)) as replica, ask(replica, request(ASKED)) as wire:
        chunks = payloads((await wire.whole())[1])[:-1]
    assert [n for n, chunk in enumerate(chunks) if chunk.get("usage")] == [n - (place == "beside") for n in where]
    assert all("usage" in chunk for chunk in chunks) is (place in ("each", "null"))


async def test_odd_usage_goes_out_as_given() -> None:
    odd = {"prompt_tokens": None, "completion_tokens": "4"}
    async with FakeReplica(Reply(body=Sse(usage=odd))) as replica, ask(replica, request(ASKED)) as wire:
        assert payloads((await wire.whole())[1])[-2]["usage"] == odd


@pytest.mark.parametrize("kind", ["reasoning", "reasoning_content", "tool_calls"])
async def test_other_deltas(kind: Literal["reasoning", "reasoning_content", "tool_calls"]) -> None:
    sse = Sse(kind=kind, role=False, empty_deltas=2, chunks=2)
    async with FakeReplica(Reply(body=sse)) as replica, ask(replica) as wire:
        deltas = [each["choices"][0]["delta"] for each in payloads((await wire.whole())[1])[:4]]
    assert deltas[:2] == [{}, {}]
    assert [list(delta) for delta in deltas[2:]] == [[kind], [kind]]


async def test_text_completions_have_text() -> None:
    async with FakeReplica(Reply(body=Sse(chunks=2))) as replica:
        async with ask(replica, request(path="/v1/completions")) as wire:
            chunks = payloads((await wire.whole())[1])
        replica.default = Reply()
        async with ask(replica, request(path="/v1/completions")) as wire:
            whole = msgspec.json.decode((await wire.whole())[1])
    assert [chunk["choices"][0]["text"] for chunk in chunks[:2]] == ["Hello", " there"]
    assert whole["choices"][0]["text"] == "Hello there."


async def test_several_tokens_a_chunk() -> None:
    async with (
        FakeReplica(Reply(body=Sse(chunks=2, tokens=3))) as replica,
        ask(replica, request(ASKED)) as wire,
    ):
        body = (await wire.whole())[1]
    assert texts(body) == ["Hello there,", " this is a"]
    assert payloads(body)[-2]["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("sse", "start", "holds"),
    [
        (Sse(field="data:"), b"data:{", b"data:[DONE]\n\n"),
        (Sse(eol="\r\n"), b"data: {", b"data: [DONE]\r\n\r\n"),
        (Sse(eol="\r"), b"data: {", b"data: [DONE]\r\r"),
        (Sse(bom=True), b"\xef\xbb\xbfdata: {", b"[DONE]"),
        (Sse(ping=True), b": ping\n\ndata: {", b": ping\n\ndata: [DONE]\n\n"),
    ],
)
async def test_forms_of_an_event(sse: Sse, start: bytes, holds: bytes) -> None:
    async with FakeReplica(Reply(body=sse)) as replica, ask(replica) as wire:
        body = (await wire.whole())[1]
    assert body.startswith(start)
    assert holds in body
    assert body.count(b"\xef\xbb\xbf") == sse.bom


async def test_error_event_then_clean_end() -> None:
    sse = Sse(error=b'{"error":{"message":"out of memory","code":500}}', error_after=2)
    async with FakeReplica(Reply(body=sse)) as replica, ask(replica) as wire:
        body = (await wire.whole())[1]
    assert payloads(body)[-2] == {"error": {"message": "out of memory", "code": 500}}
    assert (len(texts(body)), payloads(body)[-1]) == (2, "[DONE]")


async def test_error_event_then_cut() -> None:
    reply = Reply(body=Sse(error=b'{"error":{}}'), fault=Fault("before_terminator", "reset"))
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        body, how = await wire.rest()
    assert b'data: {"error":{}}' in body
    assert (how, body.endswith(b"0\r\n\r\n")) == ("reset", False)


SENT: dict[Phase, tuple[bytes, bytes]] = {
    # phase: (what has been seen by then, what has not)
    "before_first_byte": (b"", b"H"),
    "in_head": (b"HTTP/1.1 ", b"200"),
    "after_headers": (b"chunked\r\n\r\n", b"data:"),
    "before_first_token": (b'"role"', b"Hello"),
    "between_tokens": (b" there", b","),
    "before_end": (b"this", b"stop"),
    "before_terminator": (b"[DONE]", b"\r\n0\r\n"),
    "after_end": (b"\r\n0\r\n\r\n", b"?"),
}
PHASES: list[Phase] = list(SENT)


def _seen(phase: Phase, body: bytes) -> bool:
    has, lacks = SENT[phase]
    if phase == "between_tokens":
        return texts(body) == ["Hello", " there"]
    if phase == "before_end":
        return len(texts(body)) == 4 and lacks not in body
    return has in body and lacks not in body


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("do", ["hang", "fin", "reset"])
async def test_stream_faults_at_every_phase(phase: Phase, do: Literal["hang", "fin", "reset"]) -> None:
    reply = Reply(body=Sse(), fault=Fault(phase, do, 2))
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        if do != "hang":
            body, how = await wire.rest()
            assert _seen(phase, body), body
            assert how == do
            return
        body = await wire.silent()
        assert _seen(phase, body), body
        replica.release()
        await replica.calls[0].wait("answered")
        if phase != "after_end":
            assert (body + await wire.silent()).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("do", ["fin", "reset"])
async def test_json_cut_at_every_phase(phase: Phase, do: Literal["fin", "reset"]) -> None:
    async with FakeReplica(Reply(fault=Fault(phase, do))) as replica, ask(replica) as wire:
        got, how = await wire.rest()
    head, _, body = got.partition(b"\r\n\r\n")
    size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if body else 0
    sent = {"between_tokens": size // 2, "before_end": size - 1, "before_terminator": size - 1, "after_end": size}
    assert how == do
    assert len(body) == sent.get(phase, 0)


async def test_hang_after_accept_reads_nothing_and_sees_the_peer_leave() -> None:
    async with FakeReplica(Reply(fault=Fault("accepted"))) as replica:
        async with ask(replica) as wire:
            assert await wire.silent() == b""
            assert replica.calls == []
            replica.release()
            await wire.whole()
        await replica.calls[0].wait("closed")


@pytest.mark.parametrize("do", ["fin", "reset"])
async def test_closed_after_accept(do: Literal["fin", "reset"]) -> None:
    async with FakeReplica(script=[Reply(fault=Fault("accepted", do))]) as replica:
        async with ask(replica, b"") as wire:
            assert await wire.rest() == (b"", do)
        async with ask(replica) as wire:
            assert (await wire.whole())[0].startswith(b"HTTP/1.1 200")


async def test_unread_body_pushes_back_and_leaving_is_seen() -> None:
    reply = Reply(fault=Fault("headers_read"), reads_body=False)
    async with FakeReplica(reply) as replica:
        async with ask(replica, request(b"x" * (8 << 20))) as wire:
            await replica.wait_calls(1)
            assert await wire.silent() == b""
            assert wire.writer.transport.get_write_buffer_size() > 0
            # A reset: with the window shut, the kernel could not deliver a plain close behind unsent bytes.
            raw = wire.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.writer.transport.abort()
        await replica.calls[0].wait("closed")
        assert replica.calls[0].abandoned
        assert replica.calls[0].body_at is None


@pytest.mark.parametrize("reads_body", [True, False])
async def test_answer_before_the_body_was_read(reads_body: bool) -> None:
    reply = Reply(body=Json(status=413), early=True, reads_body=reads_body)
    head, body = request(b"x" * 100)[:-100], b"x" * 100
    async with FakeReplica(reply) as replica, ask(replica, head) as wire:
        assert (await wire.whole())[0].startswith(b"HTTP/1.1 413 ")
        call = replica.calls[0]
        assert call.body_at is None
        wire.writer.write(body)
        if reads_body:
            await call.wait("body")
            assert call.body == body


@pytest.mark.parametrize("phase", ["before_first_byte", "after_headers", "before_first_token", "between_tokens"])
async def test_peer_leaving_is_recorded_at_once(phase: Phase) -> None:
    async with FakeReplica(Reply(body=Sse(), fault=Fault(phase))) as replica:
        async with ask(replica) as wire:
            await wire.silent()
            left = time.monotonic()
        call = replica.calls[0]
        assert 0 <= await call.wait("closed") - left < 1
        assert (call.closed_by, call.abandoned) == ("peer", True)
        assert replica.in_flight == 0


async def test_idle_connection_is_closed() -> None:
    reply = Reply(after="close_idle", idle=0.03)
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        await wire.whole()
        answered = time.monotonic()
        assert await wire.rest() == (b"", "fin")
        assert time.monotonic() - answered > 0.01
        assert replica.calls[0].closed_by == "replica"


async def test_reused_connection_is_reset_on_its_next_request() -> None:
    async with FakeReplica(Reply(after="drop_reuse")) as replica, ask(replica) as wire:
        await wire.whole()
        assert await wire.silent() == b""
        wire.writer.write(request())
        assert await wire.rest() == (b"", "reset")
        assert [call.reused for call in replica.calls] == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        Json(status=429, body=b'{"error":{"message":"slow down"}}'),
        Json(status=502, body=b"<html>Bad Gateway</html>", content_type="text/html"),
        Json(status=503, body=b""),
    ],
)
async def test_statuses(body: Json) -> None:
    reply = Reply(body=body, headers=(("retry-after", "7"),))
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        head, got = await wire.whole()
    assert head.startswith(b"HTTP/1.1 %d " % body.status)
    assert b"\r\nretry-after: 7\r\n" in head
    assert (got, body.content_type.encode() in head) == (body.body, True)


async def test_cut_at_every_byte_is_still_the_same_answer() -> None:
    async with FakeReplica(Reply(body=Sse())) as replica:
        async with ask(replica) as wire:
            want = await wire.whole()
        replica.default = Reply(body=Sse(), cuts="every")
        async with ask(replica) as wire:
            assert await wire.whole() == want


async def test_cuts_fall_where_they_are_asked() -> None:
    reply = Reply(cuts=(5, 20), cut_pause=0.05)
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        async with asyncio.timeout(5):
            pieces = [await wire.reader.read(65536) for _ in range(3)]
    assert [len(piece) for piece in pieces[:2]] == [5, 15]


async def test_merged_events_come_in_one_chunk() -> None:
    async with FakeReplica(Reply(body=Sse(merge=4))) as replica, ask(replica) as wire:
        await wire.until(b"\r\n\r\n")
        chunks = await wire.chunks()
    assert [chunk.count(b"data:") for chunk in chunks] == [4, 3]
    assert b"".join(chunks) == b"".join(events(Sse(), usage=False))


@pytest.mark.parametrize("body", [Json(), Sse(chunks=6)])
async def test_gzip(body: Json | Sse) -> None:
    async with FakeReplica(Reply(body=body)) as replica:
        async with ask(replica) as wire:
            _, plain = await wire.whole()
        replica.default = Reply(body=body, gzip=True)
        async with ask(replica) as wire:
            head, packed = await wire.whole()
    assert b"content-encoding: gzip" in head
    assert zlib.decompress(packed, wbits=31) == plain


@pytest.mark.parametrize("error", [10, -10])
async def test_wrong_content_length(error: int) -> None:
    reply = Reply(length_error=error, fault=Fault("after_end", "fin"))
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        head = await wire.until(b"\r\n\r\n")
        body, _ = await wire.rest()
    assert int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) == len(body) + error


@pytest.mark.parametrize("body", [Json(), Sse()])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_close_delimited(body: Json | Sse, version: Literal["1.0", "1.1"]) -> None:
    reply = Reply(body=body, version=version, framing="auto" if version == "1.0" else "close")
    async with FakeReplica(reply) as replica, ask(replica) as wire:
        head = await wire.until(b"\r\n\r\n")
        got, how = await wire.rest()
    assert head.startswith(f"HTTP/{version} 200".encode())
    assert (b"content-length" in head, b"transfer-encoding" in head, how) == (False, False, "fin")
    assert got.endswith(b"[DONE]\n\n" if isinstance(body, Sse) else b"}")


async def test_stream_with_content_length() -> None:
    async with FakeReplica(Reply(body=Sse(), framing="length")) as replica, ask(replica) as wire:
        head, body = await wire.whole()
    assert b"content-length" in head
    assert body.endswith(b"[DONE]\n\n")


async def test_interim_answers_trailers_extensions_and_a_huge_header() -> None:
    reply = Reply(
        body=Sse(),
        interim=(100, 103),
        trailers=(("x-sum", "1"),),
        chunk_extension=";note=1",
        headers=(("x-huge", "h" * 70_000),),
    )
    async with FakeReplica(reply) as replica:
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.port, limit=1 << 20)
        writer.write(request())
        wire = Wire(reader, writer)
        assert await wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await wire.until(b"\r\n\r\n") == b"HTTP/1.1 103 Early Hints\r\n\r\n"
        assert len(await wire.until(b"\r\n\r\n")) > 70_000
        got = await wire.silent()
        writer.close()
    assert got.count(b";note=1\r\ndata:") == len(events(Sse(), usage=False))
    assert got.endswith(b"\r\n0\r\nx-sum: 1\r\n\r\n")


async def test_times_of_a_stream() -> None:
    sse = Sse(chunks=3, delay=0.03, ttft=0.04, gap=0.05)
    async with FakeReplica(Reply(body=sse)) as replica, ask(replica) as wire:
        start = time.monotonic()
        await wire.until(b"\r\n\r\n")
        head = time.monotonic() - start
        await wire.until(b"Hello")
        first = time.monotonic() - start
        await wire.until(b"[DONE]")
        end = time.monotonic() - start
    assert head >= 0.025
    assert first >= 0.065
    assert end >= 0.16


async def test_stop_and_start_on_the_same_port() -> None:
    async with FakeReplica(Reply(body=Sse(), fault=Fault("between_tokens"))) as replica:
        port = replica.port
        async with ask(replica) as wire:
            await wire.until(b"Hello")
            await replica.stop()
            assert (await wire.rest())[1] == "reset"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        replica.default = Reply()
        await replica.start()
        async with ask(replica) as wire:
            await wire.whole()
        assert replica.port == port


async def test_stop_listening_keeps_what_is_open() -> None:
    async with FakeReplica() as replica, ask(replica) as wire:
        await wire.whole()
        replica.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", replica.port)
        wire.writer.write(request())
        assert (await wire.whole())[0].startswith(b"HTTP/1.1 200")


async def test_pages_are_kept_apart_from_calls() -> None:
    async with FakeReplica(Reply(fault=Fault("before_first_byte"))) as replica:
        async with ask(replica) as running:
            await replica.wait_calls(1)
            for path in ("/health", "/v1/models", "/metrics", "/tokenize"):
                async with ask(replica, get(path)) as wire:
                    head, body = await wire.whole()
                    assert head.startswith(b"HTTP/1.1 200")
                    assert (b"num_requests_running{" in body) is (path == "/metrics")
                    assert (b'engine="0"} 1' in body) is (path == "/metrics")
            assert await running.silent() == b""
        replica.pages["/health"] = Reply(body=Json(status=503))
        async with ask(replica, get("/health")) as wire:
            assert (await wire.whole())[0].startswith(b"HTTP/1.1 503")
        assert (len(replica.calls), len(replica.probes)) == (1, 5)


async def test_silent_port_never_connects() -> None:
    async with silent_port() as port:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.open_connection("127.0.0.1", port)
