"""What the fault-injecting replica says, as values, and the exact bytes and pauses that each value becomes.

Pure: a :class:`Reply` goes in, a list of steps comes out. No socket and no clock may enter; the socket is in
``tests/fake_replica.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

Phase = Literal[
    "accepted",
    "headers_read",
    "before_first_byte",
    "in_head",
    "after_headers",
    "before_first_token",
    "between_tokens",
    "before_end",
    "before_terminator",
    "after_end",
]
"""Where in an answer a fault strikes.

"accepted": the connection was taken, nothing is read. "headers_read": the request's head was read, its body
is not. "in_head": half of the status line was sent. "before_first_token": head and role chunk (if any) were
sent. "between_tokens": ``Fault.tokens`` content chunks were sent (a JSON answer: half of its body).
"before_end": all content was sent, but no finish reason, usage or [DONE]. "before_terminator": everything but
the last HTTP chunk was sent (a JSON answer: everything but its last byte).
"""

WORDS = ("Hello", " there", ",", " this", " is", " a", " fake", " réplica", " with", " €", " signs", ".")


class Json(Struct, frozen=True, kw_only=True):
    """A whole answer at once. ``body`` None is a chat completion (or a text completion, by the path)."""

    status: int = 200
    body: bytes | None = None
    content_type: str = "application/json"
    delay: float = 0.0
    """Seconds before the first byte."""
    text: str = "Hello there."
    finish_reason: str = "stop"
    usage: Mapping[str, Any] | UnsetType | None = UNSET
    """UNSET: right counts. None: ``"usage": null``. A mapping: these very fields, however odd."""


class Sse(Struct, frozen=True, kw_only=True):
    """A stream of ``chunks`` content events, each ``tokens`` tokens long, ``gap`` seconds apart."""

    chunks: int = 4
    tokens: int = 1
    """Tokens in one content event."""
    delay: float = 0.0
    """Seconds before the first byte."""
    ttft: float = 0.0
    """Seconds between the role chunk and the first content."""
    gap: float = 0.0
    kind: Literal["content", "reasoning", "reasoning_content", "tool_calls"] = "content"
    role: bool = True
    """A first chunk with the role and empty content, as vLLM sends it."""
    empty_deltas: int = 0
    """So many events with an empty delta go before the first content."""
    finish_reason: str | None = "stop"
    usage: Mapping[str, Any] | UnsetType | None = UNSET
    """UNSET: right counts. None: ``"usage": null``. A mapping: these very fields, however odd."""
    usage_when: Literal["asked", "always", "never"] = "asked"
    usage_place: Literal["own", "beside", "each", "null"] = "own"
    """In a chunk of its own with no choices; beside the finishing choice; running counts in every chunk and a
    chunk of its own; null in every chunk and a chunk of its own."""
    done: bool = True
    """Whether [DONE] is sent."""
    error: bytes | None = None
    """A JSON error body sent as an event after ``error_after`` content events, instead of the rest."""
    error_after: int = 1
    ping: bool = False
    """A comment line before every event."""
    field: str = "data: "
    eol: str = "\n"
    bom: bool = False
    merge: int = 1
    """So many events in one write."""
    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"


class Fault(Struct, frozen=True):
    """At a phase, the replica falls silent, closes its side (FIN) or resets the connection."""

    at: Phase
    do: Literal["hang", "fin", "reset"] = "hang"
    tokens: int = 1


class Reply(Struct, frozen=True, kw_only=True):
    """An answer, how its bytes travel, and what goes wrong on the way."""

    body: Json | Sse = Json()
    fault: Fault | None = None
    headers: tuple[tuple[str, str], ...] = ()
    framing: Literal["auto", "length", "chunked", "close"] = "auto"
    """"auto": Content-Length for JSON, chunks for a stream. "close": no length, ended by closing."""
    length_error: int = 0
    """Added to a true Content-Length."""
    version: Literal["1.1", "1.0"] = "1.1"
    interim: tuple[int, ...] = ()
    """1xx answers that go before the real one."""
    trailers: tuple[tuple[str, str], ...] = ()
    chunk_extension: str = ""
    gzip: bool = False
    cuts: tuple[int, ...] | Literal["every"] = ()
    """Offsets in the whole answer, head included, at which a write is cut in two; "every" byte alone."""
    cut_pause: float = 0.0
    """Seconds between the pieces of a cut write."""
    early: bool = False
    """Answer on the request's head, before its body was read."""
    reads_body: bool = True
    """False: never read the request's body (the sender feels back pressure)."""
    after: Literal["keep", "close_idle", "drop_reuse"] = "keep"
    """Once answered: keep the connection, close it after ``idle`` seconds, or reset it on the next request."""
    idle: float = 0.0


class Send(Struct, frozen=True):
    data: bytes


class Wait(Struct, frozen=True):
    seconds: float


class Hang(Struct, frozen=True):
    """Stay silent until the peer leaves or the test releases the replica."""


class Close(Struct, frozen=True):
    how: Literal["fin", "reset"]


class _Mark(Struct, frozen=True):
    phase: Phase


Step = Send | Wait | Hang | Close
_Raw = Send | Wait | Close | _Mark

REASONS = {
    100: "Continue", 103: "Early Hints", 200: "OK", 400: "Bad Request", 404: "Not Found",
    408: "Request Timeout", 413: "Content Too Large", 422: "Unprocessable Content", 429: "Too Many Requests",
    500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


def plan(reply: Reply, path: str, request: bytes) -> list[Step]:
    """The steps that answer ``request`` (the body sent to ``path``): bytes, pauses, silence, closing."""
    body = reply.body
    marked = _json(reply, body, path) if isinstance(body, Json) else _sse(reply, body, path, request)
    return list(_cut(_strike(marked, reply.fault), reply))


def events(sse: Sse, path: str = "/v1/chat/completions", *, usage: bool = True) -> list[bytes]:
    """The stream's events as bytes, comments and byte-order mark included, without any HTTP framing."""
    asked = b'{"stream_options":{"include_usage":true}}' if usage else b"{}"
    steps = [step for step in _events(sse, path, asked) if isinstance(step, Send)]
    return [step.data for step in steps]


def _strike(steps: Iterable[_Raw], fault: Fault | None) -> Iterator[Step]:
    left = fault.tokens if fault is not None and fault.at == "between_tokens" else 1
    for step in steps:
        if not isinstance(step, _Mark):
            yield step
        elif fault is not None and step.phase == fault.at:
            left -= 1
            if left == 0:
                if fault.do != "hang":
                    yield Close(fault.do)
                    return
                yield Hang()


def _cut(steps: Iterable[Step], reply: Reply) -> Iterator[Step]:
    offset, cuts = 0, reply.cuts
    for step in steps:
        if not isinstance(step, Send) or not cuts:
            yield step
            continue
        size = len(step.data)
        inside = range(1, size) if cuts == "every" else sorted(cut - offset for cut in cuts)
        edges = [0, *(at for at in inside if 0 < at < size), size]
        for start, end in pairwise(edges):
            yield Send(step.data[start:end])
            if reply.cut_pause:
                yield Wait(reply.cut_pause)
        offset += size


def _head(reply: Reply, status: int, content_type: str, length: int | None) -> bytes:
    lines = [f"HTTP/{code_version} {status} {REASONS.get(status, 'Status')}" for code_version in (reply.version,)]
    lines.append(f"content-type: {content_type}")
    if reply.gzip:
        lines.append("content-encoding: gzip")
    if reply.framing == "length" or (reply.framing == "auto" and length is not None and reply.version == "1.1"):
        lines.append(f"content-length: {(length or 0) + reply.length_error}")
    elif _chunked(reply):
        lines.append("transfer-encoding: chunked")
    lines += [f"{name}: {value}" for name, value in reply.headers]
    interim = "".join(f"HTTP/1.1 {code} {REASONS[code]}\r\n\r\n" for code in reply.interim)
    return (interim + "\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunked(reply: Reply) -> bool:
    if reply.framing == "auto":
        return isinstance(reply.body, Sse) and reply.version == "1.1"
    return reply.framing == "chunked"


def _frame(reply: Reply, data: bytes) -> bytes:
    if not _chunked(reply) or not data:
        return data
    return b"%x%s\r\n%s\r\n" % (len(data), reply.chunk_extension.encode(), data)


def _terminator(reply: Reply) -> bytes:
    if not _chunked(reply):
        return b""
    trailers = "".join(f"{name}: {value}\r\n" for name, value in reply.trailers)
    return b"0\r\n" + trailers.encode("latin-1") + b"\r\n"


def _json(reply: Reply, body: Json, path: str) -> Iterator[_Raw]:
    data = _completion(body, path) if body.body is None else body.body
    if reply.gzip:
        data = zlib.compress(data, wbits=31)
    head = _head(reply, body.status, body.content_type, len(data))
    yield from _opening(reply, head, body.delay)
    yield _Mark("before_first_token")
    if _chunked(reply):
        yield from (Send(_frame(reply, data[: len(data) // 2])), _Mark("between_tokens"))
        yield from (Send(_frame(reply, data[len(data) // 2 :])), _Mark("before_end"))
        yield from (_Mark("before_terminator"), Send(_terminator(reply)))
    elif reply.fault is not None and data:  # split only where a fault needs it: else one write
        half = len(data) // 2
        yield from (Send(data[:half]), _Mark("between_tokens"), Send(data[half:-1]), _Mark("before_end"))
        yield from (_Mark("before_terminator"), Send(data[-1:]))
    else:
        yield Send(data)
    yield from _closing(reply)


def _sse(reply: Reply, sse: Sse, path: str, request: bytes) -> Iterator[_Raw]:
    pack = zlib.compressobj(wbits=31) if reply.gzip else None
    inner: list[_Raw] = []
    for step in _merged(_events(sse, path, request), sse.merge):
        if isinstance(step, Send) and pack is not None:
            step = Send(pack.compress(step.data) + pack.flush(zlib.Z_SYNC_FLUSH))
        inner.append(step)
    if pack is not None:
        inner.append(Send(pack.flush()))
    length = sum(len(step.data) for step in inner if isinstance(step, Send))
    head = _head(reply, sse.status, sse.content_type, length if reply.framing == "length" else None)
    yield from _opening(reply, head, sse.delay)
    for step in inner:
        yield Send(_frame(reply, step.data)) if isinstance(step, Send) else step
    yield _Mark("before_terminator")
    yield Send(_terminator(reply))
    yield from _closing(reply)


def _opening(reply: Reply, head: bytes, delay: float) -> Iterator[_Raw]:
    yield _Mark("before_first_byte")
    if delay:
        yield Wait(delay)
    if reply.fault is not None and reply.fault.at == "in_head":
        yield from (Send(head[:9]), _Mark("in_head"))
        head = head[9:]
    yield from (Send(head), _Mark("after_headers"))


def _closing(reply: Reply) -> Iterator[_Raw]:
    yield _Mark("after_end")
    if reply.framing == "close" or (reply.version == "1.0" and reply.framing == "auto"):
        yield Close("fin")


def _merged(steps: Iterable[_Raw], several: int) -> Iterator[_Raw]:
    """Join so many events into one write; pauses and marks between them move behind it."""
    held: list[bytes] = []
    later: list[_Raw] = []
    for step in steps:
        if several < 2:
            yield step
            continue
        if isinstance(step, Send):
            held.append(step.data)
        else:
            later.append(step)
        if len(held) == several:
            yield from (Send(b"".join(held)), *later)
            held, later = [], []
    if held or later:
        yield from (Send(b"".join(held)), *later)


def _events(sse: Sse, path: str, request: bytes) -> Iterator[_Raw]:
    asked = sse.usage_when == "always" or (sse.usage_when == "asked" and _asks_usage(request))
    first = True

    def event(payload: bytes) -> Send:
        nonlocal first
        mark = "\ufeff" if sse.bom and first else ""
        first = False
        ping = f": ping{sse.eol}{sse.eol}" if sse.ping else ""
        return Send(f"{mark}{ping}{sse.field}".encode() + payload + (sse.eol * 2).encode())

    chat = not path.endswith("/v1/completions")
    if chat and sse.role:
        yield event(_chunk(sse, chat, {"role": "assistant", "content": ""}, None, 0, asked))
    for _ in range(sse.empty_deltas):
        yield event(_chunk(sse, chat, {}, None, 0, asked))
    yield _Mark("before_first_token")
    if sse.ttft:
        yield Wait(sse.ttft)
    for number in range(sse.chunks):
        if sse.error is not None and number == sse.error_after:
            break
        if number and sse.gap:
            yield Wait(sse.gap)
        yield event(_chunk(sse, chat, _delta(sse, number), None, (number + 1) * sse.tokens, asked))
        yield _Mark("between_tokens")
    yield _Mark("before_end")
    if sse.error is not None:
        yield event(sse.error)
    else:
        if sse.finish_reason is not None:
            yield event(_chunk(sse, chat, {}, sse.finish_reason, sse.chunks * sse.tokens, asked))
        if asked and sse.usage_place != "beside":
            usage = _usage(sse.usage, sse.chunks * sse.tokens)
            yield event(msgspec.json.encode({**_envelope(chat), "choices": [], "usage": usage}))
    if sse.done:
        yield event(b"[DONE]")


def _delta(sse: Sse, number: int) -> dict[str, Any]:
    text = "".join(WORDS[(number * sse.tokens + k) % len(WORDS)] for k in range(sse.tokens))
    if sse.kind != "tool_calls":
        return {sse.kind: text}
    function: dict[str, Any] = {"arguments": text}
    call: dict[str, Any] = {"index": 0, "function": function}
    if number == 0:
        function["name"] = "look_up"
        call |= {"id": "call_1", "type": "function"}
    return {"tool_calls": [call]}


def _chunk(sse: Sse, chat: bool, delta: dict[str, Any], finish: str | None, tokens: int, asked: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    if not chat:
        choice = {"index": 0, "text": delta.get(sse.kind, ""), "logprobs": None, "finish_reason": finish}
    chunk = {**_envelope(chat), "choices": [choice]}
    if asked and sse.usage_place == "null":
        chunk["usage"] = None
    elif asked and (sse.usage_place == "each" or (sse.usage_place == "beside" and finish is not None)):
        chunk["usage"] = _usage(sse.usage, tokens)
    return msgspec.json.encode(chunk)


def _envelope(chat: bool) -> dict[str, Any]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "chatcmpl-fake", "object": kind, "created": 1_700_000_000, "model": "fake"}


def _usage(odd: Mapping[str, Any] | UnsetType | None, tokens: int) -> Any:
    if odd is UNSET:
        return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    return odd


def _completion(body: Json, path: str) -> bytes:
    tokens = len(body.text.split())
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": body.finish_reason}
    chat = not path.endswith("/v1/completions")
    if chat:
        choice["message"] = {"role": "assistant", "content": body.text}
    else:
        choice["text"] = body.text
    answer = {
        "id": "chatcmpl-fake",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [choice],
        "usage": _usage(body.usage, tokens),
    }
    return msgspec.json.encode(answer)


def _asks_usage(request: bytes) -> bool:
    try:
        options = msgspec.json.decode(request).get("stream_options")
    except (msgspec.DecodeError, AttributeError):
        return False
    return bool(options and options.get("include_usage"))
