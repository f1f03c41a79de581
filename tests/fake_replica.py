"""A fault-injecting, OpenAI-like replica on a loopback port, for tests.

It is a raw asyncio protocol, so that every byte on the wire, every silence and every kind of closing is
exactly what the test's :class:`~tests.fake_replies.Reply` says, and it records what arrived and when the peer
left. It must never be served through an in-process ASGI transport: those buffer whole bodies and hide faults.

    async with FakeReplica(Reply(body=Sse(chunks=3))) as replica:
        ...  # talk to replica.url
        call = (await replica.wait_calls(1))[0]
        await call.wait("closed")

``replica.script`` holds the answers to the next calls, first in, first out; when it is empty,
``replica.default`` answers. Both may be changed at any time. ``/v1/models``, ``/health``, ``/metrics`` and
``/tokenize`` are answered from ``replica.pages`` and recorded in ``replica.probes``, apart from the calls.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Self, cast

import msgspec

from tests.fake_replies import Close, Fault, Hang, Json, Reply, Send, Sse, Step, Wait, events, plan

__all__ = ["FakeReplica", "Fault", "Json", "Received", "Reply", "Sse", "events", "silent_port"]

# Unread bytes beyond which the fake gives up: a runaway peer must fail the test, not the machine.
LIMIT = 16 << 20


@dataclass(slots=True, eq=False)
class Received:
    """One request as it arrived. Times are ``time.monotonic()`` seconds; None where it has not happened."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case; of a repeated header the last value (``raw_head`` has all)."""
    raw_head: bytes
    connection: int
    """Which connection to this replica it came on, from 1."""
    reused: bool
    """Whether an earlier request had come on the same connection."""
    head_at: float
    body: bytes = b""
    body_at: float | None = None
    first_byte_at: float | None = None
    answered_at: float | None = None
    """When the whole answer, as scripted, had been written."""
    closed_at: float | None = None
    """When the connection ended while this was its latest request."""
    closed_by: Literal["", "peer", "replica"] = ""
    _events: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def abandoned(self) -> bool:
        """The peer closed before the answer was complete."""
        return self.closed_by == "peer" and self.answered_at is None

    def json(self) -> dict[str, object]:
        decoded: dict[str, object] = msgspec.json.decode(self.body)
        return decoded

    async def wait(self, what: Literal["body", "first_byte", "answered", "closed"], limit: float = 5.0) -> float:
        """Wait until that has happened; when it did. Raises TimeoutError."""
        name = f"{what}_at"
        async with asyncio.timeout(limit):
            while getattr(self, name) is None:
                await self._events.setdefault(name, asyncio.Event()).wait()
        at: float = getattr(self, name)
        return at

    def mark(self, name: str) -> None:
        if getattr(self, name) is None:
            setattr(self, name, time.monotonic())
        if (event := self._events.get(name)) is not None:
            event.set()


class FakeReplica:
    """See the module. ``port`` stays the same over :meth:`stop` and :meth:`start`."""

    def __init__(
        self,
        default: Reply | None = None,
        script: Iterable[Reply] = (),
        *,
        models: tuple[str, ...] = ("fake",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.default = default or Reply()
        self.script: deque[Reply] = deque(script)
        self.models = models
        self.port = port
        self.tls = tls
        self.calls: list[Received] = []
        self.probes: list[Received] = []
        self.connections = 0
        """Connections ever accepted."""
        self.pages: dict[str, Reply] = {
            "/health": Reply(body=Json(body=b"{}")),
            "/v1/models": Reply(body=Json(body=_models(models))),
            "/tokenize": Reply(body=Json(body=b'{"tokens":[1,2,3],"count":3,"max_model_len":4096}')),
        }
        self.open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._news = asyncio.Event()
        self._release = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.tls is None else f"https://127.0.0.1:{self.port}"

    @property
    def in_flight(self) -> int:
        """Calls that are neither answered nor closed."""
        return sum(call.answered_at is None and call.closed_at is None for call in self.calls)

    async def start(self) -> Self:
        """Listen; on the same port as before, if it had one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, reuse_address=True, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def stop_listening(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self, how: Literal["fin", "reset"] = "reset") -> None:
        """Die: stop listening and end every connection."""
        self.stop_listening()
        ended = [connection.end(how) for connection in tuple(self.open)]
        await asyncio.gather(*ended, return_exceptions=True)

    def release(self) -> None:
        """Let every answer that hangs now go on with its next step."""
        self._release.set()
        self._release = asyncio.Event()

    async def wait_calls(self, count: int, limit: float = 5.0) -> list[Received]:
        """Wait until so many calls have arrived (heads read). Raises TimeoutError."""
        async with asyncio.timeout(limit):
            while len(self.calls) < count:
                await self._news.wait()
        return self.calls

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def record(self, received: Received) -> Reply | None:
        """Note a request; the answer, if it asked for one of the pages."""
        page = received.path.partition("?")[0]
        if page == "/metrics" and page not in self.pages:
            self.probes.append(received)
            return Reply(body=Json(body=self._metrics(), content_type="text/plain; version=0.0.4"))
        if page in self.pages:
            self.probes.append(received)
            return self.pages[page]
        if received.method != "POST":
            self.probes.append(received)
            return Reply(body=Json(status=404, body=b'{"detail":"Not Found"}'))
        self.calls.append(received)
        self._news.set()
        self._news = asyncio.Event()
        return None

    def strikes_on_accept(self) -> Reply | None:
        """The next answer, taken out of the script, if its fault strikes before anything is read."""
        following = self.script[0] if self.script else self.default
        if following.fault is None or following.fault.at != "accepted":
            return None
        return self.script.popleft() if self.script else following

    def choose(self) -> Reply:
        return self.script.popleft() if self.script else self.default

    async def hang(self) -> None:
        await self._release.wait()

    def _metrics(self) -> bytes:
        labels = f'{{model_name="{self.models[0]}",engine="0"}}'
        gauges = {"num_requests_running": self.in_flight, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}\n" for name, value in gauges.items()]
        return "".join(lines).encode()


class _Connection(asyncio.Protocol):
    """One connection: a task reads requests and plays their answers, one after another."""

    def __init__(self, replica: FakeReplica) -> None:
        self.replica = replica
        self.buffer = bytearray()
        self.news = asyncio.Event()
        self.eof = False
        self.latest: Received | None = None
        self.ended_here = False
        self.gone = asyncio.Event()
        self.drop_reuse = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own is none by class
        self.replica.connections += 1
        self.number = self.replica.connections
        self.replica.open.add(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) > LIMIT:
            self.transport.abort()
        self.news.set()

    def eof_received(self) -> bool:
        self._closed("peer")
        return False  # close our side too

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed("replica" if self.ended_here else "peer")
        self.replica.open.discard(self)
        self.gone.set()
        self.task.cancel()

    def _closed(self, by: Literal["peer", "replica"]) -> None:
        self.eof = True
        self.news.set()
        if self.latest is not None and not self.latest.closed_by:
            self.latest.closed_by = by
            self.latest.mark("closed_at")

    async def end(self, how: Literal["fin", "reset"]) -> None:
        """Close our side and wait until the transport is gone."""
        self.ended_here = True
        if how == "fin":
            self.transport.close()
        else:
            # Without lingering the kernel sends RST, whatever has been read.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        async with asyncio.timeout(2):
            await self.gone.wait()

    async def _serve(self) -> None:
        try:
            first = self.replica.strikes_on_accept()
            if first is not None and first.fault is not None:
                self.transport.pause_reading()
                await self._strike(first.fault)
                self.transport.resume_reading()
            while (head := await self._head()) is not None:
                if not await self._exchange(head, first):
                    return
                first = None
        except (ConnectionError, TimeoutError):
            return

    async def _exchange(self, head: bytes, chosen: Reply | None) -> bool:
        """Read one request, answer it; whether the connection lives on."""
        received = _received(head, self.number, self.latest is not None)
        self.latest = received
        page = self.replica.record(received)
        if self.drop_reuse:
            await self.end("reset")
            return False
        reply = page or chosen or self.replica.choose()
        fault = reply.fault
        if not reply.reads_body:
            self.transport.pause_reading()
            _watch_close(self)
        if fault is not None and fault.at == "headers_read":
            await self._strike(fault)
        if not reply.early and reply.reads_body and not await self._body(received):
            return False
        for step in plan(reply, received.path, received.body):
            if not await self._play(step, received):
                return False
        received.mark("answered_at")
        if reply.early and reply.reads_body and not await self._body(received):
            return False
        if reply.after == "close_idle":
            await self._idle(reply.idle)
            return False
        self.drop_reuse = reply.after == "drop_reuse"
        return True

    async def _idle(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.end("fin")

    async def _strike(self, fault: Fault) -> None:
        if fault.do == "hang":
            _watch_close(self)
            await self.replica.hang()
        else:
            await self.end(fault.do)
            raise ConnectionError("ended by the script")

    async def _play(self, step: Step, received: Received) -> bool:
        match step:
            case Send(data):
                if data:
                    self.transport.write(data)
                    received.mark("first_byte_at")
                    await asyncio.sleep(0)  # a write of its own
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Hang():
                await self.replica.hang()
            case Close(how):
                if how == "fin":
                    received.mark("answered_at")
                await self.end(how)
                return False
        return not self.eof

    async def _more(self) -> bool:
        """Wait for more bytes; False when the peer has closed."""
        if self.eof:
            return False
        self.news.clear()
        await self.news.wait()
        return not self.eof

    async def _until(self, mark: bytes) -> bytes | None:
        while (at := self.buffer.find(mark)) < 0:
            if not await self._more():
                return None
        return self._take(at + len(mark))

    def _take(self, size: int) -> bytes:
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    async def _head(self) -> bytes | None:
        return await self._until(b"\r\n\r\n")

    async def _body(self, received: Received) -> bool:
        """Read the request's body; False if the peer closed before its end."""
        if "chunked" in received.headers.get("transfer-encoding", ""):
            body = await self._chunked()
        else:
            body = await self._exactly(int(received.headers.get("content-length", "0")))
        if body is None:
            return False
        received.body = body
        received.mark("body_at")
        return True

    async def _exactly(self, size: int) -> bytes | None:
        while len(self.buffer) < size:
            if not await self._more():
                return None
        return self._take(size)

    async def _chunked(self) -> bytes | None:
        parts: list[bytes] = []
        while (line := await self._until(b"\r\n")) is not None:
            size = int(line.split(b";")[0], 16)
            if size == 0:
                return b"".join(parts) if await self._until(b"\r\n") is not None else None
            part = await self._exactly(size + 2)
            if part is None:
                return None
            parts.append(part[:-2])
        return None


def _watch_close(connection: _Connection) -> None:
    """While nothing is read, ask the kernel whether the peer has closed: the event loop does not say."""
    raw: socket.socket = connection.transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLRDHUP)
    loop = asyncio.get_running_loop()

    def look() -> None:
        if connection.gone.is_set() or connection.eof:
            return
        if poll.poll(0):
            connection._closed("peer")
            connection.transport.abort()
            return
        loop.call_later(0.005, look)

    look()


def _received(head: bytes, connection: int, reused: bool) -> Received:
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Received(method, path, headers, head, connection, reused, time.monotonic())


def _models(models: tuple[str, ...]) -> bytes:
    shared = {"object": "model", "created": 1_700_000_000, "owned_by": "fake", "max_model_len": 4096}
    return msgspec.json.encode({"object": "list", "data": [{"id": name, **shared} for name in models]})


@asynccontextmanager
async def silent_port(port: int = 0) -> AsyncIterator[int]:
    """A port whose connections never complete: its listener's backlog is full, so that SYNs go unanswered."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers: list[socket.socket] = []
    try:
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        yield port
    finally:
        for each in (*fillers, listener):
            each.close()
