"""Streams of completions, all begun at once: a client that does next to nothing, since it shares the cores with what it
measures. It knows HTTP/1.1 and server-sent events only as far as it must to see first and last token."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct

TIMEOUT = 600.0
_TAIL = 512
"""Bytes kept of a stream, enough to find its counts and its end in."""


class Batch(Struct, frozen=True):
    """What came of streams that began together. Times in seconds."""

    tokens: int
    seconds: float
    """From the first request to the last token."""
    first: tuple[float, ...]
    """From each request to its first token."""

    @property
    def rate(self) -> float:
        """Tokens per second, of all streams together."""
        return self.tokens / self.seconds


class Prompts:
    """Prompts of random words, no two with a beginning in common."""

    def __init__(self, seed: int, words: int) -> None:
        self._random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._lexicon = ["".join(self._random.choices(letters, k=self._random.randint(2, 8))) for _ in range(4000)]
        self._words = words

    def next(self) -> str:
        return " ".join(self._random.choices(self._lexicon, k=self._words))


def body(model: str, prompt: str, tokens: int) -> bytes:
    """A greedy streamed completion of exactly ``tokens`` tokens."""
    fields = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    return json.dumps(fields).encode()


async def run(url: str, bodies: Sequence[bytes], tokens: int) -> Batch:
    """Send all bodies at once, each on a connection of its own. Raises RuntimeError where a stream did not bring
    exactly ``tokens`` tokens."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    loop = asyncio.get_running_loop()
    streams = []
    for _ in bodies:
        _, stream = await loop.create_connection(_Stream, host, port)
        streams.append(stream)
    began = time.perf_counter()
    for stream, data in zip(streams, bodies, strict=True):
        stream.send(host, data)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(stream.done for stream in streams))
    ended = max(stream.last for stream in streams)
    for stream in streams:
        if stream.tokens() != tokens:
            raise RuntimeError(
                f"{url}: a stream brought {stream.tokens()} tokens, not {tokens}: {stream.tail[-200:]!r}"
            )
    return Batch(tokens * len(streams), ended - began, tuple(stream.first - began for stream in streams))


class _Stream(asyncio.Protocol):
    """One request and its events."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first = self.last = 0.0
        self.tail = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by descent

    def send(self, host: str, data: bytes) -> None:
        assert self._transport is not None
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self._transport.write(head.encode() + data)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-_TAIL:]
        if not self.first and b'"text":"' in data:
            self.first = time.perf_counter()
        if b"[DONE]" in self.tail:
            self.last = time.perf_counter()
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"a stream broke off: {exc}: {self.tail[-200:]!r}"))

    def tokens(self) -> int:
        """What the stream's own usage says."""
        _, _, rest = self.tail.rpartition(b'"completion_tokens":')
        digits = rest[: next((at for at, byte in enumerate(rest) if not 48 <= byte < 58), len(rest))]
        return int(digits or -1)

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()
