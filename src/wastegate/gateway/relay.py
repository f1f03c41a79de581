"""The hot path: one call's life, driven. Bytes go from the replica to the client as they come.

The rules of this room:
- The lifecycle decides; this room only does what it asks and tells it what happened.
- Nothing is rebuilt: whole events go on unchanged, one write for each read. Only HTTP's chunk framing is ours.
- The end of an answer waits until the call is in the journal: a client never holds an answer that the ledger lacks.
- The answer's head goes out with its first body bytes: until then nothing has gone to the client, and the call may
  be tried elsewhere.
- Every path ends in ``_close``, once.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Protocol

from wastegate.core.call import BYTES_PER_TOKEN, Call
from wastegate.core.effects import (
    Claim,
    Claimed,
    Closed,
    Event,
    Look,
    Prepare,
    Queue,
    Reply,
    Send,
    Woken,
)
from wastegate.core.ledger import Attempt, Outcome, UsageSource
from wastegate.core.lifecycle import Life
from wastegate.core.plan import Plan, Refusal, Timers
from wastegate.gateway.hub import Hub
from wastegate.gateway.upstream import Connection, Headers, Pool
from wastegate.openai.chat import read_answer
from wastegate.openai.errors import error_event
from wastegate.openai.sse import StreamReader, Usage

MAX_HELD_BYTES = 4 << 20
"""Of an answer that is read whole (an error, or JSON whose usage is wanted), at most this much is kept."""
_END_GRACE = 1.0
"""Seconds that a replica may take to end its answer after [DONE]; the client has had enough by then."""


class Client(Protocol):
    """The waiting client, as a flight sees it."""

    def begin(self, status: int, headers: Headers, length: int | None) -> None: ...

    def write(self, data: bytes) -> None: ...

    def finish(self, last: bytes) -> None: ...

    def cut(self, last: bytes) -> None: ...

    def refuse(self, refusal: Refusal) -> None: ...

    def answer(self, status: int, headers: Headers, body: bytes) -> None: ...


class Outgoing:
    """A request as it will be sent: everything but what each attempt adds."""

    __slots__ = ("body", "headers", "path")

    def __init__(self, path: bytes, headers: bytes, body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body


class Flight:
    """One call between its client and a replica."""

    __slots__ = (
        "_answer",
        "_answer_headers",
        "_begun",
        "_call",
        "_claimed",
        "_client",
        "_connection",
        "_dialling",
        "_first_byte",
        "_first_token",
        "_gone",
        "_held",
        "_hub",
        "_inflate",
        "_left",
        "_life",
        "_out",
        "_output_bytes",
        "_plan",
        "_reader",
        "_redialled",
        "_seen",
        "_sent",
        "_status",
        "_timers",
        "_wait_until",
    )

    def __init__(self, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> None:
        self._hub = hub
        self._client = client
        self._call = call
        self._life = life
        self._out = out
        self._timers = timers
        self._plan: Plan | None = None
        self._wait_until = 0.0
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._begun = False
        self._gone = False
        self._clear()

    def _clear(self) -> None:
        """What belongs to one attempt."""
        self._claimed = 0.0
        self._sent: float | None = None
        self._first_byte: float | None = None
        self._first_token: float | None = None
        self._seen = 0.0
        self._status = 0
        self._answer_headers: Headers = []
        self._answer: list[bytes] = []
        self._held = b""
        self._left: int | None = None
        self._output_bytes = 0
        self._reader: StreamReader | None = None
        self._inflate: zlib._Decompress | None = None
        self._redialled = False

    # ---- the driver: commands in, events out

    def start(self) -> None:
        self._hub.flights.add(self)
        self._advance(None)

    def _advance(self, event: Event | None) -> None:
        """Run the lifecycle until it must wait for something, or ends."""
        hub = self._hub
        try:
            while True:
                command = self._life.send(event)  # type: ignore[arg-type]  # None starts the generator
                kind = type(command)
                if kind is Look:
                    event = hub.look(self, self._call)
                elif kind is Claim:
                    event = self._claim(command.plan)  # type: ignore[union-attr]
                elif kind is Prepare:
                    event = command.call  # type: ignore[union-attr]
                elif kind is Send:
                    self._send(command)  # type: ignore[arg-type]
                    return
                else:
                    assert isinstance(command, Queue)
                    if hub.queue(self, self._call):
                        self._wait_until = command.wait.until
                        return
                    event = Woken("full", hub.now())
        except StopIteration as stop:
            self._close(stop.value)

    def _claim(self, plan: Plan) -> Claimed:
        now = self._hub.now()
        granted = self._hub.claim(self, self._call, plan, now)
        return Claimed(granted, now)

    def wake(self, now: float) -> None:
        """Its turn in the line."""
        self._advance(Woken("turn", now))

    def _reply(self, outcome: Outcome, reason: str = "") -> None:
        """The attempt has ended: give its slot back and tell the lifecycle."""
        assert self._plan is not None
        assert self._plan.replica is not None
        now = self._hub.now()
        usage, finish_reason = self._usage()
        prompt, output, source = self._count(usage)
        attempt = Attempt(
            number=self._plan.number,
            replica=self._plan.replica.name,
            claimed=self._claimed,
            ended=now,
            outcome=outcome,
            sent=self._sent,
            first_byte=self._first_byte,
            first_token=self._first_token,
            status=self._status or None,
            reason=reason,
            prompt_tokens=prompt,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            output_tokens=output,
            usage=source,
        )
        reply = Reply(attempt, self._begun, _retry_after(self._answer_headers), finish_reason)
        self._plan = None
        self._connection = None
        self._hub.released(reply, now)
        self._advance(reply)

    # ---- one attempt

    def _send(self, command: Send) -> None:
        self._clear()
        self._plan = command.plan
        self._claimed = self._seen = command.claimed
        connection = self._hub.pool(command.plan).take()
        if connection is None:
            self._dial()
        else:
            self._go(connection)

    def _dial(self) -> None:
        assert self._plan is not None
        self._seen = self._hub.now()
        self._dialling = asyncio.ensure_future(self._dialled(self._hub.pool(self._plan)))

    async def _dialled(self, pool: Pool) -> None:
        try:
            connection = await pool.dial()
        except (OSError, asyncio.CancelledError) as error:
            self._dialling = None
            if self._plan is not None and isinstance(error, OSError):
                self._reply("failed", f"connect: {error.strerror or error}")
            return
        self._dialling = None
        self._go(connection)

    def _go(self, connection: Connection) -> None:
        assert self._plan is not None
        out = self._out
        origin = self._hub.pool(self._plan).origin
        head = b"POST %s%s HTTP/1.1\r\nhost: %s\r\n%sx-request-id: %s.%d\r\ncontent-length: %d\r\n\r\n" % (
            origin.prefix,
            out.path,
            origin.host_header,
            out.headers,
            self._call.id.encode(),
            self._plan.number,
            len(out.body),
        )
        self._connection = connection
        self._sent = self._seen = self._hub.now()
        connection.send(self, head, out.body)

    # ---- what the replica answers (upstream.Exchange)

    def on_head(self, status: int, headers: Headers) -> None:
        self._status = status
        self._answer_headers = headers
        self._first_byte = self._seen = self._hub.now()
        if status >= 400:
            return  # held back: the lifecycle may try elsewhere
        encoding = _header(headers, b"content-encoding").strip().lower()
        if encoding in (b"gzip", b"deflate"):  # we asked for none; undone here, so that the answer can be read
            self._inflate = zlib.decompressobj(47)
        if _header(headers, b"content-type").lower().startswith(b"text/event-stream"):
            self._reader = StreamReader(hide_usage=not self._call.wants_usage)
        elif self._inflate is None:
            length = _header(headers, b"content-length")
            self._left = int(length) if length.isdigit() else None

    def on_body(self, data: bytes) -> None:
        self._seen = self._hub.now()
        if self._inflate is not None:
            data = self._inflate.decompress(data)
        reader = self._reader
        if reader is None:
            self._on_plain(data)
            return
        out = reader.feed(data)
        if self._first_token is None and reader.first_token:
            self._first_token = self._seen
        if out:
            if not self._begun:
                self._begin(None)
            self._client.write(out)

    def _on_plain(self, data: bytes) -> None:
        """A body that is not a stream of events: relayed as it comes, its last piece held until it is whole."""
        if self._output_bytes < MAX_HELD_BYTES:
            self._answer.append(data)
        self._output_bytes += len(data)
        if self._status >= 400 or not data:
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._held = data
                return
        if not self._begun:
            self._begin(self._left + len(data) if self._left is not None else None)
        self._client.write(data)

    def on_end(self) -> None:
        reader = self._reader
        if self._status >= 400:
            self._reply("failed", f"status {self._status}")
        elif reader is not None and reader.error:
            self._reply("failed", f"error event: {reader.error}")
        elif reader is not None and not reader.done and not reader.finish_reason:
            self._lost("its stream ended without [DONE]")
        else:
            self._reply("finished")

    def on_lost(self, why: str, stale: bool) -> None:
        self._connection = None
        if stale and not self._redialled:
            # The replica had closed a kept-alive connection just as it was taken: it never saw this request.
            self._redialled = True
            self._dial()
        elif self._reader is not None and self._reader.done:
            self._reply("finished")  # cut after [DONE]: the answer is whole
        else:
            self._lost(why)

    def _lost(self, why: str) -> None:
        self._reply("failed", f"cut: {why}")

    def _begin(self, length: int | None) -> None:
        self._begun = True
        drop_encoding = self._inflate is not None
        headers = [h for h in self._answer_headers if not (drop_encoding and h[0].lower() == b"content-encoding")]
        self._client.begin(self._status, headers, length)

    # ---- ends

    def hang_up(self) -> None:
        """The client has left. For the engine this frees the sequence: its connection is closed at once."""
        self._gone = True
        if self._plan is not None:
            self._abandon()
            self._reply("hung_up", "the client left")
        else:
            self._hub.leave(self, self._call)
            self._advance(Woken("hung_up", self._hub.now()))

    def _abandon(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def check(self, now: float) -> None:
        """Fire the timer that has run out, if any. Called a few times a second."""
        if self._plan is None:
            if now >= self._wait_until:
                self._hub.leave(self, self._call)
                self._advance(Woken("deadline", now))
            return
        fired = self._fired(now)
        if fired == "end":
            self._abandon()
            self._reply("finished")
        elif fired:
            self._abandon()
            self._reply("failed", f"timeout: {fired}")

    def _fired(self, now: float) -> str:
        timers = self._timers
        if now - self._call.arrived > timers.total:
            return "total"
        if self._dialling is not None:
            return "connect" if now - self._seen > timers.connect else ""
        if self._sent is None:
            return ""
        if self._first_byte is None:
            return "first byte" if now - self._sent > timers.first_byte else ""
        reader = self._reader
        if reader is not None:
            if reader.done:
                return "end" if now - self._seen > _END_GRACE else ""
            if self._first_token is None and now - self._sent > timers.first_token:
                return "first token"
        return "idle" if now - self._seen > timers.idle else ""

    def stop(self, why: str) -> None:
        """The gateway shuts down and cannot wait longer."""
        if self._plan is not None:
            self._abandon()
            self._reply("failed", f"timeout: {why}")
        else:
            self._hub.leave(self, self._call)
            self._advance(Woken("deadline", self._hub.now()))

    def pause(self) -> None:
        """The client reads slowly: stop reading from the replica until it has caught up."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._seen = self._hub.now()  # the replica was not idle, it was held
        if self._connection is not None:
            self._connection.resume()

    def _close(self, closed: Closed) -> None:
        """Write the call down, then let the client have the end of its answer."""
        hub = self._hub
        hub.flights.discard(self)
        hub.leave(self, self._call)
        hub.record(closed.entry)
        if self._gone:
            return
        client, entry = self._client, closed.entry
        if closed.refusal is not None:
            client.refuse(closed.refusal)
        elif not self._begun and self._status >= 400:
            client.answer(self._status, self._answer_headers, b"".join(self._answer))
        elif entry.outcome == "finished":
            if not self._begun:
                self._begin(len(self._held) if self._left is not None else None)
            client.finish(self._reader.last if self._reader is not None else self._held)
        elif self._reader is not None and not self._reader.error:
            client.cut(error_event(502, f"the answer is incomplete: {entry.reason}", code="upstream_failed"))
        elif self._reader is not None:
            client.finish(self._reader.last)  # the replica's own error event has gone out already
        else:
            client.cut(b"")

    # ---- counting

    def _usage(self) -> tuple[Usage | None, str]:
        if self._reader is not None:
            return self._reader.usage, self._reader.finish_reason
        if self._answer and self._status < 400:
            return read_answer(b"".join(self._answer))
        return None, ""

    def _count(self, usage: Usage | None) -> tuple[int | None, int | None, UsageSource]:
        """(prompt tokens, output tokens, where they come from). What is not known is not 0."""
        if self._sent is None or self._status >= 400:
            return None, None, "none"
        if usage is not None and usage.prompt_tokens is not None and usage.output_tokens is not None:
            return usage.prompt_tokens, usage.output_tokens, "engine"
        prompt = self._call.prompt_tokens
        if self._reader is not None:
            return prompt, self._reader.tokens, "counted"
        return prompt, self._output_bytes // BYTES_PER_TOKEN, "estimated"


def _header(headers: Headers, name: bytes) -> bytes:
    for key, value in headers:
        if key.lower() == name:
            return value
    return b""


def _retry_after(headers: Headers) -> float | None:
    """Seconds; a date, which HTTP also allows, is read as 1 s: the replica wants a pause, how long is unclear."""
    value = _header(headers, b"retry-after").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        return 1.0
