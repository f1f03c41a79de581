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

from wastegate.core.call import Call
from wastegate.core.effects import Claim, Claimed, Closed, Event, Join, Joined, Look, Prepare, Queue, Reply, Send, Woken
from wastegate.core.ledger import SHUTDOWN, Attempt, Entry, Outcome
from wastegate.core.lifecycle import Life
from wastegate.core.plan import Plan, Refusal, Timers
from wastegate.gateway.answer import Answer
from wastegate.gateway.heads import Headers
from wastegate.gateway.hub import Hub
from wastegate.gateway.upstream import Connection, Pool
from wastegate.openai.chat import with_most_tokens, with_text_so_far
from wastegate.openai.errors import error_event
from wastegate.openai.sse import Continued, text_of

_KEPT_BYTES = 512 * 1024
"""Of a stream that may continue elsewhere, at most this much is kept; a longer one fails where it breaks."""
REDUCED = b"x-wastegate-reduced"
"""What a call got less of than it asked for: said to its replica and to its client."""
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

    __slots__ = ("authorization", "body", "headers", "path", "prompt")

    def __init__(self, path: bytes, headers: bytes, body: bytes, prompt: bytes, authorization: bytes = b"") -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.prompt = prompt
        self.authorization = authorization
        """The client's own header line, for replicas that have no key of theirs."""


class Flight:
    """One call between its client and a replica."""

    __slots__ = (
        "_answer",
        "_asked",
        "_asking",
        "_begun",
        "_body",
        "_call",
        "_claimed",
        "_client",
        "_closed",
        "_connection",
        "_dialling",
        "_gone",
        "_held",
        "_hub",
        "_kept",
        "_kept_bytes",
        "_lease",
        "_life",
        "_out",
        "_plan",
        "_pool",
        "_redialled",
        "_sent",
        "_spent",
        "_streaming",
        "_timers",
        "_wait_until",
    )

    def __init__(self, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> None:
        self._hub = hub
        self._client = client
        self._call = call
        self._life = life
        self._closed: Closed | None = None
        """How the call has ended, while its client waits for it to be written down."""
        self._out = out
        self._timers = timers
        self._wait_until = 0.0
        self._begun = False
        """Part of an answer has gone to the client."""
        self._streaming = False
        """What has gone to the client is a stream of events."""
        self._gone = False
        self._held = False
        """The client reads slowly, so nothing is read from the replica."""
        self._kept: list[bytes] = []
        """What the client has of a stream that may go on elsewhere."""
        self._kept_bytes = 0
        self._spent = 0
        """Tokens that earlier attempts have given to the client."""
        self._asked: Plan | None = None
        """The plan whose slot was claimed last."""
        self._asking = False
        """Another process has been asked for that slot, and has not answered yet."""
        self._lease = 0
        # Of the attempt that runs:
        self._plan: Plan | None = None
        self._pool: Pool | None = None
        """Kept for the attempt: its replica may leave the fleet while it runs."""
        self._claimed = 0.0
        self._sent: float | None = None
        self._body = out.body
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._redialled = False
        self._answer = Answer(call, call.arrived)

    # ---- the driver: commands in, events out

    @property
    def ended(self) -> Entry | None:
        """How it has ended, once that is written down."""
        return self._closed.entry if self._closed is not None else None

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
                    self._asked = command.plan  # type: ignore[union-attr]
                    event = hub.claim(self, self._call, self._asked)
                    if event is None:
                        self._asking = True
                        return  # another process keeps the slots: ``claimed`` is told
                elif kind is Prepare:
                    event = self._call = hub.prepare(command.call, self._out.prompt)  # type: ignore[union-attr]
                elif kind is Send:
                    self._send(command)  # type: ignore[arg-type]
                    return
                elif kind is Join:
                    event = self._join(command.plan)  # type: ignore[union-attr]
                    if event is None:
                        return
                else:
                    assert isinstance(command, Queue)
                    if self._gone:
                        event = Woken("hung_up", hub.now())
                        continue
                    if hub.queue(self, command.call, command.wait.until):
                        self._wait_until = command.wait.until
                        return
                    event = Woken("full", hub.now())
        except StopIteration as stop:
            self._close(stop.value)

    def claimed(self, granted: bool, lease: int) -> None:
        """The coordinator's answer to a claim."""
        now = self._hub.now()
        self._asking = False
        self._lease = lease
        if granted and self._asked is not None:
            self._hub.admit(self, self._call, self._asked, now)
        else:
            self._hub.unclaimed(self._call)
        self._advance(Claimed(granted, now))

    def _join(self, plan: Plan) -> Joined | None:
        """Go along with another flight; None: its end will be told."""
        raise AssertionError("only a call that may share an answer is asked to")

    def wake(self, now: float) -> None:
        """Its turn in the line."""
        if not self._asking:  # one that asks for its slot has had its turn
            self._advance(Woken("turn", now))

    def _reply(self, outcome: Outcome, reason: str = "") -> None:
        """The attempt has ended: give its slot back and tell the lifecycle."""
        plan, answer, now = self._plan, self._answer, self._hub.now()
        assert plan is not None and plan.replica is not None, "an attempt ended twice"  # noqa: PT018
        usage, finish_reason = answer.usage()
        prompt, output, source = answer.count(usage) if self._sent is not None else (None, None, "none")
        attempt = Attempt(
            plan.number,
            plan.replica.name,
            self._claimed,
            now,
            outcome,
            self._sent,
            answer.first_byte,
            answer.first_token,
            answer.status or None,
            reason,
            prompt,
            usage.cached_tokens if usage is not None else None,
            output,
            source,
        )
        can_continue = self._call.may_continue and bool(self._kept) and self._kept_bytes <= _KEPT_BYTES
        if answer.reader is not None:
            self._spent += answer.reader.tokens
        self._plan = None
        self._connection = None
        reply = Reply(attempt, self._begun, can_continue, answer.retry_after(), finish_reason)
        if (reuse := self._hub.world.reuse) is not None:
            reuse.ended(self._call.id, attempt, now)
        self._hub.released(reply, self._lease, now, self._call)
        self._advance(reply)

    # ---- one attempt

    def _send(self, command: Send) -> None:
        self._plan = command.plan
        self._claimed = command.claimed
        self._sent = None
        self._redialled = False
        if command.plan.number > 1:
            self._answer = Answer(self._call, command.claimed)
        if command.plan.most_tokens is not None:
            self._out.body = with_most_tokens(self._out.body, command.plan.most_tokens)
        if command.plan.reduced and REDUCED not in self._out.headers:
            self._out.headers += b"%s: %s\r\n" % (REDUCED, command.plan.reduced.encode())
        self._body = self._out.body
        if self._gone:
            self._reply("hung_up", "the client left")
            return
        if command.continues and not self._continue():
            self._reply("failed", "not asked: nothing of the answer was left")
            return
        pool = self._pool = self._hub.pool(command.plan)
        if pool is None:
            self._reply("failed", "connect: it has left the fleet")
            return
        connection = pool.take()
        if connection is None:
            self._dial(pool)
        else:
            self._go(connection)

    def _continue(self) -> bool:
        """Ask for the rest of the answer only. False where nothing but its end is missing."""
        text = text_of(b"".join(self._kept))
        rest = with_text_so_far(self._out.body, text, self._spent) if text is not None else None
        self._body = rest or b""
        return rest is not None

    def _dial(self, pool: Pool) -> None:
        self._answer.seen = self._hub.now()
        self._dialling = asyncio.ensure_future(self._dialled(pool))

    async def _dialled(self, pool: Pool) -> None:
        try:
            connection = await pool.dial()
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, OSError) and self._dialling is not None:
                self._dialling = None
                self._reply("failed", f"connect: {error.strerror or error}")
            return
        self._dialling = None
        self._go(connection)

    def _go(self, connection: Connection) -> None:
        assert self._plan is not None
        out, origin = self._out, connection.origin
        head = b"POST %s%s HTTP/1.1\r\nhost: %s\r\n%s%sx-request-id: %s.%d\r\ncontent-length: %d\r\n\r\n" % (
            origin.prefix,
            out.path,
            origin.host_header,
            origin.authorization or out.authorization,
            out.headers,
            self._call.id.encode(),
            self._plan.number,
            len(self._body),
        )
        self._connection = connection
        self._sent = self._answer.seen = self._hub.now()
        connection.send(self, head, self._body)

    # ---- what the replica answers (upstream.Exchange)

    def on_head(self, status: int, headers: Headers) -> None:
        continued = Continued(self._spent) if self._begun else None
        self._answer.on_head(status, headers, self._hub.now(), continued)
        if self._streaming and self._answer.reader is None and not self._answer.is_error:
            self._abandon()
            self._reply("failed", "cut: asked for the rest of a stream, it answered with something else")

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        try:
            out = answer.feed(data, self._hub.now())
        except zlib.error as error:
            self._abandon()
            self._reply("failed", f"cut: its body is not the gzip that it says ({error})")
            return
        if not out:
            return
        if not self._begun:
            self._begin(len(out))
        if self._call.may_continue and self._kept_bytes <= _KEPT_BYTES:
            self._kept.append(out)
            self._kept_bytes += len(out)
        self._client.write(out)

    def on_end(self) -> None:
        self._reply(*self._answer.verdict())

    def on_lost(self, why: str, stale: bool) -> None:
        self._connection = None
        if stale and not self._redialled and self._plan is not None and self._pool is not None:
            # The replica had closed a kept-alive connection just as it was taken: it never saw this request.
            self._redialled = True
            self._dial(self._pool)
        elif self._answer.whole:
            self._reply(*self._answer.verdict())
        else:
            self._reply("failed", f"cut: {why}")

    def _begin(self, waiting: int) -> None:
        answer = self._answer
        self._begun = True
        if (reuse := self._hub.world.reuse) is not None:
            reuse.began(self._call.id)
        self._streaming = answer.reader is not None
        headers = answer.headers
        asked = self._asked  # not ``_plan``, which is gone where an answer is held until its end
        if asked is not None and asked.reduced:
            headers = [*headers, (REDUCED, asked.reduced.encode())]
        self._client.begin(answer.status, headers, answer.length(waiting))

    # ---- ends

    def hang_up(self) -> None:
        """The client has left. For the engine this frees the sequence: its connection is closed at once."""
        self._gone = True
        if self._asking or self._closed is not None:
            return  # once the slot is granted it is given back; and what has ended has ended
        if self._plan is not None:
            self._abandon()
            self._reply("hung_up", "the client left")
        else:
            self._leave_line("hung_up")

    def stop(self) -> None:
        """The gateway shuts down and cannot wait longer."""
        if self._asking:
            return
        if self._plan is not None:
            self._abandon()
            self._reply("failed", SHUTDOWN)
        else:
            self._leave_line("deadline")

    def _leave_line(self, why: str) -> None:
        self._hub.leave(self, self._call)
        self._advance(Woken("hung_up" if why == "hung_up" else "deadline", self._hub.now()))

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
            if now >= self._wait_until and not self._asking:
                self._leave_line("deadline")
            return
        fired = self._fired(now)
        if not fired:
            return
        self._abandon()
        if fired == "end":
            self._reply(*self._answer.verdict())
        else:
            self._reply("failed", f"timeout: {fired}")

    def _fired(self, now: float) -> str:
        timers, answer = self._timers, self._answer
        if now - self._call.arrived > timers.total:
            return "total"
        if self._sent is None:
            return "connect" if now - answer.seen > timers.connect else ""
        if answer.first_byte is None:
            return "first byte" if now - self._sent > timers.first_byte else ""
        if answer.whole:
            return "end" if now - answer.seen > _END_GRACE else ""
        if answer.reader is not None and answer.first_token is None and now - self._sent > timers.first_token:
            return "first token"
        return "idle" if now - answer.seen > timers.idle and not self._held else ""

    def pause(self) -> None:
        """The client reads slowly: stop reading from the replica until it has caught up."""
        self._held = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._held = False
        self._answer.seen = self._hub.now()  # the replica was not idle, it was held
        if self._connection is not None:
            self._connection.resume()

    def _close(self, closed: Closed) -> None:
        """Write the call down, then let the client have the end of its answer."""
        hub = self._hub
        hub.flights.discard(self)
        hub.leave(self, self._call)
        if self._gone:
            hub.record(closed.entry, None)
        else:
            self._closed = closed
            hub.record(closed.entry, self._tell_end)

    def _tell_end(self) -> None:
        """The call is written down: its client may have the end of its answer."""
        closed = self._closed
        if self._gone or closed is None:
            return
        client, answer, refusal = self._client, self._answer, closed.refusal
        if refusal is not None and not self._begun:
            client.refuse(refusal)
        elif answer.is_error and not self._begun:
            client.answer(answer.status, answer.headers, answer.body)
        elif closed.entry.outcome == "finished" or (answer.reader is not None and answer.reader.error):
            if not self._begun:
                self._begin(len(answer.last))
            client.finish(answer.last)  # where the replica sent an error event, it has gone out like any other
        elif self._streaming:
            status, code = (refusal.status, refusal.code) if refusal is not None else (502, "upstream_failed")
            client.cut(error_event(status, f"the answer is incomplete: {closed.entry.reason}", code=code))
        else:
            client.cut(b"")
