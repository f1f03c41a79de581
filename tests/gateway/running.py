"""A whole gateway in the test's own event loop, and a raw HTTP client that shows every chunk as it came.

    async with running(tmp_path, replica) as gateway:
        answer = await gateway.post(chat("Hello", stream=True))
        (entry,) = await gateway.closed(1)

Leaving the block is a test of its own: no call may be in flight or in line, no replica may hold load, and the
ledger must hold exactly the calls that were written down, each once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from tests.fake_replica import FakeReplica
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Entry
from wastegate.core.world import World
from wastegate.gateway import control, probe
from wastegate.gateway.app import Gateway
from wastegate.gateway.config import Config
from wastegate.gateway.hub import Hub
from wastegate.gateway.serve import ClientConnection
from wastegate.store.entries import Ledger

CHAT = "/v1/chat/completions"
LIMIT = 5.0
"""Seconds that anything may take before the test fails."""


class Answer:
    """One HTTP answer. ``pieces`` are its chunks, or the whole body as one."""

    def __init__(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.headers = headers
        self.pieces: list[bytes] = []
        self.complete = False
        """It ended as HTTP wants it to: with its last chunk, or at its full length."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def header(self, name: str) -> str:
        """The one value of a header, empty if it is not there."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else ""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> str:
        """The sentence in an error body."""
        message = self.json()["error"]["message"]
        assert isinstance(message, str)
        return message


class Wire:
    """A raw client connection: what is sent is the test's own business, what comes is read by the book."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str, receive_buffer: int | None = None, trust: ssl.SSLContext | None = None) -> Self:
        host, _, port = url.partition("://")[2].partition(":")
        raw = socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        named: dict[str, Any] = {"ssl": trust, "server_hostname": "localhost"} if trust is not None else {}
        return cls(*await asyncio.open_connection(sock=raw, **named))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes, path: str = CHAT, headers: Mapping[str, str] | None = None) -> None:
        self.send(request(body, path, headers))

    async def head(self) -> Answer:
        """The next answer's status and headers; an interim 100 is an answer like any other."""
        async with asyncio.timeout(LIMIT):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        pairs = (line.split(": ", 1) for line in lines)
        return Answer(int(status), [(name.lower(), value) for name, value in pairs])

    async def piece(self, answer: Answer) -> bytes:
        """The next chunk of a chunked body, added to the answer; empty for the last."""
        async with asyncio.timeout(LIMIT):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        if data:
            answer.pieces.append(data)
        else:
            answer.complete = True
        return data

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """One whole answer, or what there is of it when the connection ends."""
        answer = await self.head()
        if bodiless or answer.status == 100:
            answer.complete = True
        elif answer.header("transfer-encoding") == "chunked":
            try:
                while await self.piece(answer):
                    pass
            except (asyncio.IncompleteReadError, ConnectionResetError):
                pass
        else:
            await self._sized(answer)
        return answer

    async def _sized(self, answer: Answer) -> None:
        length = answer.header("content-length")
        async with asyncio.timeout(LIMIT):
            try:
                answer.pieces.append(await self.reader.readexactly(int(length)) if length else await self.rest())
                answer.complete = True
            except asyncio.IncompleteReadError as error:
                answer.pieces.append(error.partial)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(LIMIT):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def ended(self) -> bool:
        """The gateway closes, and says nothing more before."""
        return await self.rest() == b""

    def reset(self) -> None:
        """Leave as a crashed client does: with an RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


class Running:
    """The gateway while it runs."""

    def __init__(self, gateway: Gateway, data: Path, trust: ssl.SSLContext | None = None) -> None:
        assert gateway.front is not None
        self.gateway = gateway
        self.hub: Hub = gateway.front.hub
        self.data = data
        self.trust = trust
        """Whom its clients trust, where it speaks TLS."""
        self.task: asyncio.Task[None] | None = None
        """The gateway's own run: done when it has ended."""
        self.entries: list[Entry] = []
        """Every call that was written down, in that order."""
        self._news = asyncio.Event()
        end = self.hub.recorder.end

        def watched(entries: Sequence[Entry]) -> None:
            end(entries)
            self.entries.extend(entries)
            self._news.set()

        self.hub.recorder.end = watched  # type: ignore[method-assign]

    @property
    def world(self) -> World:
        assert isinstance(self.hub.world, World)
        return self.hub.world

    @property
    def connections(self) -> set[ClientConnection]:
        """The clients that are connected."""
        assert self.gateway.front is not None
        return self.gateway.front.gate.connections

    @property
    def url(self) -> str:
        return self.gateway.url

    async def connect(self, receive_buffer: int | None = None) -> Wire:
        return await Wire.connect(self.url, receive_buffer, self.trust)

    async def post(self, body: bytes, path: str = CHAT, headers: Mapping[str, str] | None = None) -> Answer:
        """One call on a connection of its own."""
        async with await self.connect() as wire:
            wire.post(body, path, headers)
            return await wire.answer()

    async def get(self, path: str) -> Answer:
        async with await self.connect() as wire:
            wire.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            return await wire.answer()

    async def admin(self, path: str, token: str = "", method: str = "GET") -> tuple[int, bytes]:
        """(status, body) from the operator's side."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.gateway.admin_url + path, headers=headers) as got,
        ):
            return got.status, await got.read()

    async def closed(self, count: int) -> list[Entry]:
        """Wait until so many calls are written down; all of them."""
        async with asyncio.timeout(LIMIT):
            while len(self.entries) < count:
                self._news.clear()
                await self._news.wait()
        return self.entries

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for a state that nobody announces."""
        try:
            async with asyncio.timeout(LIMIT):
                while not true():  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None

    async def ready(self, count: int) -> None:
        """Wait until so many replicas take calls."""
        states = self.hub.world.states
        await self.until(
            lambda: sum(s.state == "ready" for s in self.hub.world.states) >= count, f"{count} ready of {states}"
        )

    async def waiting(self, count: int) -> None:
        """Wait until so many calls stand in line."""
        await self.until(lambda: self.hub.waiting == count, f"{count} calls in line, not {self.hub.waiting}")

    async def quiet(self) -> None:
        """Wait until nobody is served and nothing is held."""
        await self.until(lambda: not self.hub.flights and not self.hub.waiting, "no call in flight or in line")
        held = {state.replica.name: state.in_flight for state in self.hub.world.states if state.in_flight}
        assert held == {}, f"load that nobody gave back: {held}"


@asynccontextmanager
async def running(
    data: Path,
    *replicas: FakeReplica | Replica,
    ready: bool = True,
    load: Callable[[], Config] | None = None,
    trust: ssl.SSLContext | None = None,
    **members: Any,
) -> AsyncIterator[Running]:
    """``members`` go over the configuration's defaults; ``ready`` waits until every replica takes calls; ``load`` is
    what a reload reads."""
    fleet = tuple(
        replica if isinstance(replica, Replica) else Replica(f"r{number}", replica.url)
        for number, replica in enumerate(replicas, 1)
    )
    defaults: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "control": control.Config(listen="127.0.0.1:0"),
        "probe": probe.Config(every=0.1, timeout=1.0),
    }
    gateway = Gateway(Config(data=data, replicas=fleet, **{**defaults, **members}), load)
    started = asyncio.Event()
    task = asyncio.create_task(gateway.run(started.set))
    first = asyncio.create_task(started.wait())
    await asyncio.wait((task, first), timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        first.cancel()
        task.result()
    here = Running(gateway, data, trust)
    here.task = task
    try:
        if ready:
            await here.ready(len(fleet))
        yield here
        await here.quiet()
    except BaseException:
        task.cancel()  # the test has failed: its reason matters, not what else does not end well
        await asyncio.wait((task,), timeout=LIMIT)
        raise
    gateway.stop()
    async with asyncio.timeout(LIMIT):
        await task
    check_ledger(here)


def check_ledger(here: Running) -> None:
    """Every call that was written down is in the ledger once, and no other is; one whose end the journal could not take
    may stand there as lost."""
    unrecorded = here.hub.recorder.unrecorded
    with Ledger(here.data / "ledger.db", create=False) as ledger:
        ids = [entry.id for entry in here.entries]
        assert len(set(ids)) == len(ids), "a call was closed twice"
        assert len(ids) - unrecorded <= ledger.count() <= len(ids)
        for entry in here.entries if not unrecorded else ():
            assert ledger.entry(entry.id) == entry


def request(body: bytes, path: str = CHAT, headers: Mapping[str, str] | None = None) -> bytes:
    """A POST as a client sends it."""
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def chat(text: str = "Hello", **members: Any) -> bytes:
    """A chat request's body."""
    return msgspec.json.encode({"model": "fake", "messages": [{"role": "user", "content": text}], **members})
