"""The load's requests as bytes, and one connection that sends them and watches the answers. It measures only times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from benchmarks.overhead.load import Load

now = time.perf_counter
SHARED_TEXTS = 8
"""Different system messages; each request takes one of them, so prefix-aware policies have something to find."""


class Bodies:
    """Requests as bytes, each with a prompt never sent before and one of a few shared beginnings."""

    def __init__(self, load: Load) -> None:
        words = random.Random(7)
        letters = "abcdefghijklmnopqrstuvwxyz"
        lexicon = ["".join(words.choices(letters, k=words.randint(2, 9))) for _ in range(2000)]

        def prose(size: int) -> str:
            return " ".join(words.choices(lexicon, k=size // 2 + 1))[:size]

        options = f'"max_tokens":{load.chunks},"temperature":0.7,"stream":{str(load.stream).lower()}'
        half = load.prompt // 2
        self._parts: list[tuple[bytes, bytes]] = []
        for _ in range(SHARED_TEXTS):
            system = f'{{"role":"system","content":"{prose(half)}"}}'
            before = f'{{"model":"mock","messages":[{system},{{"role":"user","content":"'.encode()
            after = f' {prose(load.prompt - half - 13)}"}}],{options}}}'.encode()
            head = (
                f"POST {load.path} HTTP/1.1\r\nhost: 127.0.0.1:{load.port}\r\naccept: */*\r\n"
                f"content-type: application/json\r\nauthorization: Bearer {load.key}\r\n"
                f"content-length: {len(before) + 12 + len(after)}\r\n\r\n"
            )
            self._parts.append((head.encode() + before, after))
        self._number = random.SystemRandom().randrange(10**11)

    def next(self) -> bytes:
        self._number += 1
        before, after = self._parts[self._number % SHARED_TEXTS]
        return b"%s%012d%s" % (before, self._number, after)


class Client(asyncio.Protocol):
    """One kept-alive connection, one request at a time; tells ``done`` of each end."""

    __slots__ = ("alive", "answered", "asked", "busy", "done", "finished", "first", "head", "left", "reads",
                 "status", "stream", "tail", "transport")  # fmt: skip

    def __init__(self, done: Callable[[Client, str], None], stream: bool) -> None:
        self.done, self.stream = done, stream
        self.busy = self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own is none by class
        self.alive = True

    def ask(self, request: bytes) -> None:
        self.busy, self.finished = True, False
        self.head: bytes = b""
        self.tail: bytes = b""
        self.status = self.reads = 0
        self.left: int | None = None
        self.first: float | None = None
        self.asked = now()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self.busy:
            return
        if not self.status:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.head[:end].lower()
            self.status, data = int(head[9:12]), self.head[end + 4 :]
            at = head.find(b"content-length:")
            if at >= 0:
                self.left = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if not data and self.left != 0:
                return
        self.reads += 1
        if self.stream:
            if self.first is None and b"data:" in data:
                self.first = now()
            if b"[DONE]" in data or b"[DONE]" in self.tail + data[:16]:
                self.finished = True
        if self.left is not None:
            self.left -= len(data)
            if self.left <= 0:
                self._end("")
        else:
            self.tail = (self.tail + data)[-16:] if len(data) < 16 else data[-16:]
            if self.tail.endswith(b"0\r\n\r\n"):
                self._end("")

    def _end(self, error: str) -> None:
        self.answered = now()
        self.busy = False
        if not error and self.status != 200:
            error = f"status {self.status}"
        if not error and self.stream and not self.finished:
            error = "no [DONE]"
        self.done(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        if self.busy:
            self._end("connection lost")
