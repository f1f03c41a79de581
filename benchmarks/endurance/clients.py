"""Clients of every kind, and what each of them saw: the word against which the ledger is held."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from benchmarks.endurance.replica import MODEL

SIZES = (1, 8, 32, 96)
"""Tokens asked for."""
PROMPTS = (20, 600, 6000)
"""Words."""
TENANTS = ("acme", "globex", "initech")
LEAVE = ("before head", "midway", "at random")
LEAVERS = 0.12
"""The part of calls whose client leaves before its answer is whole."""
PATIENCE = 25.0
"""Seconds that a client waits for an answer at most."""


class Seen(Struct):
    """One call as its client saw it. Times are seconds of the wall clock."""

    id: str
    stream: bool
    tokens: int
    began: float
    ended: float = 0.0
    sent: bool = False
    """All of the request was handed to the system."""
    status: int = 0
    """0: no head came."""
    whole: bool = False
    """The answer ended as HTTP wants it to."""
    error: bool = False
    """An error event stood in it, or an error body."""
    text: str = ""
    left: bool = False
    """The client itself went away."""


class Clients:
    """So many at a time, each with one call after another, on connections that it keeps while it can."""

    def __init__(self, url: str, count: int, pause: float, luck: random.Random) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._count = count
        self._pause = pause
        self._luck = luck
        self.seen: list[Seen] = []
        self._number = 0

    async def run(self, over: Callable[[], bool]) -> None:
        await asyncio.gather(*(self._client(over) for _ in range(self._count)))

    async def _client(self, over: Callable[[], bool]) -> None:
        luck = self._luck
        while not over():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
                calls = luck.choice((1, 5, 20))
                while calls and not over():
                    calls -= 1
                    if not await self._call(reader, writer):
                        break
                    await asyncio.sleep(luck.expovariate(1 / self._pause))
                writer.close()
            await asyncio.sleep(luck.expovariate(1 / self._pause))

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One call; whether the connection can take another."""
        luck = self._luck
        self._number += 1
        seen = Seen(f"soak-{self._number}", luck.random() < 0.7, luck.choice(SIZES), time.time())
        self.seen.append(seen)
        leave = luck.choice(LEAVE) if luck.random() < LEAVERS else ""
        patience = luck.uniform(0, 1.0) if leave == "at random" else PATIENCE
        try:
            async with asyncio.timeout(patience):
                return await self._exchange(seen, leave, reader, writer)
        except TimeoutError:
            seen.left = True
            return False
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            seen.ended = time.time()

    async def _exchange(
        self, seen: Seen, leave: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(self._request(seen))
        await writer.drain()
        seen.sent = True
        if leave == "before head":
            await asyncio.sleep(self._luck.uniform(0, 0.02))
            seen.left = True
            return False
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        seen.status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            return await self._chunks(seen, leave, reader, head)
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        seen.whole = True
        answer = json.loads(body)
        seen.error = "error" in answer
        if not seen.error:
            seen.text = answer["choices"][0]["message"]["content"]
        return "connection: close" not in head

    async def _chunks(self, seen: Seen, leave: str, reader: asyncio.StreamReader, head: str) -> bool:
        events = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            events += (await reader.readexactly(size + 2))[:-2]
            if leave == "midway":
                seen.left = True
                return False
        await reader.readexactly(2)
        seen.whole = True
        for line in events.split(b"\n"):
            if line.startswith(b"data: {"):
                payload = json.loads(line[6:])
                seen.error = seen.error or "error" in payload
                for choice in payload.get("choices", ()):
                    seen.text += choice["delta"].get("content") or ""
        return "connection: close" not in head

    def _request(self, seen: Seen) -> bytes:
        luck = self._luck
        words = luck.choice(PROMPTS)
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "word " * words}],
            "max_tokens": seen.tokens,
            "stream": seen.stream,
        }
        if luck.random() < 0.5:
            body["temperature"] = 0  # may go on from its text on another replica
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\nx-request-id: {seen.id}\r\n"
            f"x-wastegate-tenant: {luck.choice(TENANTS)}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data
