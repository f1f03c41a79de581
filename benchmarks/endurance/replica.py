"""A replica that answers well most of the time, and fails in every way it knows the rest of the time.

    python -m benchmarks.endurance.replica PORT SEED FAULTY

Its answer to any call is ``t0 t1 t2 …``, as many tokens as were asked for, so that a client can see whether one is
missing, or came twice; it goes on from the text of another's answer. ``/stats`` says how many calls it has open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from typing import Any

MODEL = "soak"
GAP = (0.002, 0.015)
"""Seconds between two tokens."""
LONGEST_HANG = 60.0
FAULTS = (
    "hang before head", "hang after head", "hang midway", "hang at end", "reset before head", "reset midway",
    "end midway", "error event", "500", "502", "503", "503 and retry after", "429 and retry after", "400",
    "close when done",
)  # fmt: skip


class Replica:
    """One process's state: how many calls are open, and its luck."""

    def __init__(self, seed: int, faulty: float) -> None:
        self.luck = random.Random(seed)
        self.faulty = faulty
        self.open = 0
        self.served = 0

    def fault(self) -> str:
        return self.luck.choice(FAULTS) if self.luck.random() < self.faulty else ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ", 2)[1]
        if not head.startswith("POST"):
            _whole(writer, 200, self._page(path))
            return True
        names = (line.partition(":") for line in head.split("\r\n")[1:])
        lengths = [int(value) for name, _, value in names if name.lower() == "content-length"]
        body = json.loads(await reader.readexactly(lengths[0]))
        self.open += 1
        try:
            return await self._answer(Exchange(reader, writer, self.luck), body, self.fault())
        finally:
            self.open -= 1
            self.served += 1

    def _page(self, path: str) -> bytes:
        if path == "/v1/models":
            return json.dumps(
                {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "soak"}]}
            ).encode()
        return json.dumps({"open": self.open, "served": self.served}).encode()

    async def _answer(self, exchange: Exchange, body: dict[str, Any], fault: str) -> bool:
        if fault[:3].isdigit():
            return exchange.error(int(fault[:3]), "retry after" in fault)
        await exchange.maybe(fault, "before head")
        messages = body["messages"]
        start = len(messages[-1]["content"].split()) if messages[-1]["role"] == "assistant" else 0
        prompt = sum(len(message["content"].split()) for message in messages)
        if body.get("stream"):
            await exchange.stream(start, body["max_tokens"], prompt, fault)
        else:
            await asyncio.sleep(self.luck.uniform(*GAP) * body["max_tokens"] / 4)
            await exchange.maybe(fault, "midway")
            exchange.json(start, body["max_tokens"], prompt)
        return fault != "close when done"


class Exchange:
    """One call on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, luck: random.Random) -> None:
        self._reader = reader
        self._writer = writer
        self._luck = luck

    async def maybe(self, fault: str, phase: str) -> None:
        """Commit the fault if its time has come."""
        what, _, when = fault.partition(" ")
        if when != phase or what == "error":
            return
        if what == "hang":
            async with asyncio.timeout(LONGEST_HANG):
                await self._reader.read(1)  # nothing comes: it returns once the other side has left
        elif what == "reset":
            raw = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        raise ConnectionError(fault)

    def error(self, status: int, retry_after: bool) -> bool:
        text = json.dumps({"error": {"message": f"made to fail with {status}", "type": "fault"}}).encode()
        _whole(self._writer, status, text, b"retry-after: 1\r\n" if retry_after else b"")
        return True

    def json(self, start: int, count: int, prompt: int) -> None:
        text = "".join(f"t{number} " for number in range(start, start + count))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        _whole(self._writer, 200, json.dumps({"choices": [choice], "usage": _usage(prompt, count)}).encode())

    async def stream(self, start: int, count: int, prompt: int, fault: str) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._writer.write(head)
        await self.maybe(fault, "after head")
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for number in range(count):
            if number == count // 2:
                await self.maybe(fault, "midway")
                if fault == "error event":
                    self._event({"error": {"message": "made to fail midway", "type": "fault"}})
                    break
            delta = {"content": f"t{start + number} "}
            self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            await self._writer.drain()
            await asyncio.sleep(self._luck.uniform(*GAP))
            if self._reader.at_eof():
                raise ConnectionError("the other side has left")
        else:
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
            self._event({"choices": [], "usage": _usage(prompt, count)})
            await self.maybe(fault, "at end")
            self._chunk(b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _event(self, payload: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _whole(writer: asyncio.StreamWriter, status: int, body: bytes, extra: bytes = b"") -> None:
    head = b"HTTP/1.1 %d Status\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    writer.write(head % (status, extra, len(body)) + body)


async def main(port: int, seed: int, faulty: float) -> None:
    replica = Replica(seed, faulty)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
