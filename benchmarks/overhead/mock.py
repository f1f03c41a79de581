"""Four replicas in one cheap process: what a gateway in front of them adds must not drown in what they cost.

    python -m benchmarks.overhead.mock PORT PORT PORT PORT

No HTTP library and no request model may enter. A line on standard input sets the gap between a stream's chunks in
milliseconds (0: the whole stream in one write) and is answered by the same line on standard output.

A POST gets a 400-byte JSON completion; with ``"stream":true`` an SSE stream of ``max_tokens`` writes: a role chunk
together with the head, content chunks of about 200 bytes, and at last finish reason, usage and [DONE] in one write.
``…/render`` is vLLM's call that only tokenises; vllm-router's cache-aware policy makes it before each request.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from array import array
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

PIECE = 200
"""Bytes of a content event, about what vLLM sends for a token."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
LIMIT = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
STREAMS = re.compile(rb'"stream": ?true')


def answer(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(**fields: object) -> bytes:
    shared = {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 1700000000, "model": "mock"}
    return b"data: " + msgspec.json.encode({**shared, **fields}) + b"\n\n"


def choice(delta: dict[str, str], finish: str | None = None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def content(number: int) -> bytes:
    """A content event of PIECE bytes. Texts differ: some gateways cut a stream that repeats itself."""
    text = f" word{number:02d}"
    short = len(event(choices=choice({"content": text})))
    return chunk(event(choices=choice({"content": text + "y" * (PIECE - short)})))


USAGE = {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116}
CONTENTS = tuple(content(number) for number in range(64))
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
) + chunk(event(choices=choice({"role": "assistant", "content": ""})))
TAIL = (
    chunk(event(choices=choice({}, "stop")))
    + chunk(event(choices=[], usage=USAGE))
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)
MESSAGE = {"role": "assistant", "content": "x" * 205}
COMPLETION = answer(
    msgspec.json.encode(
        {
            "id": "chatcmpl-mock",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "mock",
            "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    )
)
MODEL = {"id": "mock", "object": "model", "created": 1700000000, "owned_by": "mock", "max_model_len": 131072}
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
# No model path here: sglang-router would look for a tokenizer to download.
INFO = answer(b'{"is_generation":true,"version":"0.0.0","tp_size":1,"dp_size":1}')
PAGES = {
    b"/v1/models": answer(msgspec.json.encode({"object": "list", "data": [MODEL]})),
    b"/metrics": answer(
        "".join(f'# TYPE {name} gauge\n{name}{{model_name="mock"}} 0\n' for name in GAUGES).encode(),
        b"text/plain; version=0.0.4",
    ),
    b"/health": answer(b"{}"),
}


class Mock:
    """What all replicas share: the gap, and the last prompt that was tokenised (it comes once a replica)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.gap = 0.0
        self._prompt = b""
        self._rendered = b""

    def render(self, body: bytes) -> bytes:
        if body != self._prompt:
            text = body[body.find(b'"messages"') :]
            tokens = array("H", text[: len(text) & ~3])[::2].tolist()
            self._prompt, self._rendered = body, answer(msgspec.json.encode(_rendered(tokens)))
        return self._rendered


def _rendered(tokens: list[int]) -> dict[str, object]:
    return {"request_id": "mock", "token_ids": tokens, "model": "mock", "sampling_params": {}, "stream": False}


class Connection(asyncio.Protocol):
    __slots__ = ("buffer", "left", "mock", "timer", "transport", "write")

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.buffer = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own is none by class
        self.write: Callable[[bytes], None] = self.transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        if data.startswith(b"PRI "):  # sglang-router asks whether we speak gRPC
            self.transport.close()
            return
        while (end := data.find(b"\r\n\r\n")) >= 0:
            match = LENGTH.search(data, 0, end)
            if match is None and b"transfer-encoding: chunked" in data[:end].lower():
                decoded = unchunk(data, end + 4)
                if decoded is None:
                    break
                body, stop = decoded
            else:
                stop = end + 4 + (int(match[1]) if match is not None else 0)
                if len(data) < stop:
                    break
                body = data[end + 4 : stop]
            self.request(data, body)
            data = data[stop:]
        self.buffer = data

    def request(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if method != b"POST":
            self.write(PAGES.get(path.partition(b"?")[0], INFO))
        elif path.endswith(b"/render"):
            self.write(self.mock.render(body))
        elif STREAMS.search(body, max(0, len(body) - 400)) or STREAMS.search(body, 0, 400):
            limit = LIMIT.search(body, max(0, len(body) - 400)) or LIMIT.search(body)
            self.stream(int(limit[1]) if limit else 16)
        else:
            self.write(COMPLETION)

    def stream(self, writes: int) -> None:
        gap = self.mock.gap
        if not gap:
            self.write(HEAD + b"".join([CONTENTS[n & 63] for n in range(writes - 2)]) + TAIL)
            return
        self.write(HEAD)
        self.left = writes - 1
        self.timer = self.mock.loop.call_later(gap, self.step)

    def step(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.timer = None
            self.write(TAIL)
            return
        self.write(CONTENTS[self.left & 63])
        self.timer = self.mock.loop.call_later(self.mock.gap, self.step)


def unchunk(data: bytes, at: int) -> tuple[bytes, int] | None:
    """A chunked request body and where it ends; None while it is incomplete."""
    parts: list[bytes] = []
    while (eol := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:eol].partition(b";")[0], 16)
        at = eol + 2 + size + 2
        if len(data) < at:
            return None
        if size == 0:
            return b"".join(parts), at
        parts.append(data[eol + 2 : at - 2])
    return None


class Orders(asyncio.Protocol):
    def __init__(self, mock: Mock) -> None:
        self.mock = mock

    def data_received(self, data: bytes) -> None:
        self.mock.gap = float(data.split()[-1]) / 1000
        sys.stdout.write(data.decode())
        sys.stdout.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.mock.loop.stop()  # whoever started us is gone


async def serve(ports: list[int]) -> None:
    mock = Mock(asyncio.get_running_loop())
    for port in ports:
        await mock.loop.create_server(lambda: Connection(mock), "127.0.0.1", port, backlog=4096)
    await mock.loop.connect_read_pipe(lambda: Orders(mock), sys.stdin)
    gc.freeze()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        uvloop.run(serve([int(port) for port in sys.argv[1:]]))
    except RuntimeError:  # the loop was stopped with its task still waiting
        pass
