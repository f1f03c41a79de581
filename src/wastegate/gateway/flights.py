"""Flights of other kinds than the relay's own: one whose answer several clients share, and one that holds its answer
back until it is whole. Used only where a route asks for them; which calls may share is not decided here."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b

from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.effects import Closed, Joined
from wastegate.core.ledger import SHUTDOWN, Entry, Outcome
from wastegate.core.lifecycle import Life
from wastegate.core.plan import Plan, Refusal, Timers
from wastegate.gateway.answer_cache import Answers, Maker, StoredFlight, keeping, key_of, stored
from wastegate.gateway.heads import Headers
from wastegate.gateway.hub import Hub
from wastegate.gateway.relay import Client, Flight, Outgoing
from wastegate.gateway.twins import Fan, Member
from wastegate.gateway.watch import Watch
from wastegate.levers import streaming
from wastegate.openai.chat import Request, essence

MOST_BUFFERED = 16 << 20
"""Of an answer that is held back, at most this much; what goes beyond it goes out as it comes."""


class SharedFlight(Flight):
    """A call that may be answered by another's run, or whose own run may answer others.

    As a leader it is a flight like any other, with a fan in its client's place. It goes on while anybody waits, also
    without the client that it began for. As a follower it has no replica: it is a member of its leader's fan.
    """

    __slots__ = ("_end", "_leader", "_left", "_own", "_ran", "_started", "_torn", "fan")

    def __init__(self, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> None:
        self.fan = Fan(hub.twins, self._too_slow)
        self.fan.add(client)
        super().__init__(hub, self.fan, call, life, out, timers)
        self._own = client
        self._left = False
        """As a leader: its own client has left, and others stay."""
        self._ran: Entry | None = None
        """As a leader: how its run has ended."""
        self._leader: SharedFlight | None = None
        """As a follower: with whom it goes along."""
        self._started = False
        """As a follower: part of the answer is with its client."""
        self._end: bytes | None = None
        """As a follower: the last bytes of an answer that has ended properly."""
        self._torn = b""
        """As a follower: the last event of one that broke off."""

    @property
    def id(self) -> str:
        return self._call.id

    # ---- as a follower

    def _join(self, plan: Plan) -> Joined | None:
        hub, call = self._hub, self._call
        leader = hub.twins.find(call.twin, self)
        assert isinstance(leader, SharedFlight), "nothing happens between the look and the decision to join"
        hub.admit(self, call, replace(plan, number=0), hub.now())
        self.fan.close()
        self._leader = leader
        leader.fan.add(self)
        leader._hold()
        return None

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        self._started = True
        self._own.begin(status, headers, length)

    def write(self, data: bytes) -> None:
        self._own.write(data)

    def finish(self, last: bytes) -> None:
        self._end = last
        self._landed()

    def cut(self, last: bytes) -> None:
        self._torn = last
        self._landed()

    def refuse(self, refusal: Refusal) -> None:
        self._go_alone()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._go_alone()

    def _go_alone(self) -> None:
        """The leader has no answer to share, so that this call is what it would have been without one."""
        self._leader = None
        self._call = replace(self._call, twin=b"")
        self._advance(Joined(self._hub.now(), None))

    def _landed(self) -> None:
        """The leader's answer has ended, and is written down."""
        ran = self._leader._ran if self._leader is not None else None
        assert ran is not None
        self._get_off(ran.outcome, ran.reason, ran.status, ran.finish_reason)

    def _get_off(self, outcome: Outcome, reason: str, status: int, finish_reason: str = "") -> None:
        """The end for this follower, whatever becomes of the others."""
        leader = self._leader
        assert leader is not None
        leader.leave(self)
        ran = leader._ran.attempts[-1] if leader._ran is not None else None
        prompt, output = (ran.prompt_tokens, ran.output_tokens) if ran is not None else (None, None)
        self._advance(Joined(self._hub.now(), outcome, status, reason, finish_reason, prompt, output))

    def _tell_end(self) -> None:
        closed, client = self._closed, self._own
        if self._leader is None:
            super()._tell_end()
        elif self._gone or closed is None:
            return
        elif self._end is not None:
            client.finish(self._end)
        elif self._started:
            client.cut(self._torn)
        elif closed.refusal is not None:
            client.refuse(closed.refusal)

    # ---- as a leader

    def leave(self, follower: SharedFlight) -> None:
        """A follower goes. With the last of all who wait the run ends."""
        self.fan.drop(follower)
        if self._left and not len(self.fan) and self._ran is None:
            self._give_up()
        else:
            self._hold()

    def _give_up(self) -> None:
        """Nobody waits any more, and nobody may join what is about to end."""
        self._hub.twins.leave(self._call.twin, self)
        super().hang_up()

    def _hold(self) -> None:
        """Read from the replica while anybody reads from here."""
        if self.fan.held and not self._held:
            super().pause()
        elif self._held and not self.fan.held:
            super().resume()

    def _too_slow(self, member: Member) -> None:
        if isinstance(member, SharedFlight):
            member._get_off("failed", "the client read too slowly to share an answer", 200)
        else:
            self._left = True
            member.cut(b"")

    def _close(self, closed: Closed) -> None:
        self._ran = closed.entry
        self._hub.twins.leave(self._call.twin, self)
        if self._left and closed.entry.outcome == "finished":
            reason = "the client left; others stayed for the answer"
            super()._close(replace(closed, entry=replace(closed.entry, outcome="hung_up", reason=reason)))
            self._closed = closed  # what those who stayed are told
        else:
            super()._close(closed)

    # ---- as either

    def hang_up(self) -> None:
        if self._leader is not None:
            self._gone = True
            if self._closed is None:
                self._get_off("hung_up", "the client left", 200 if self._started else 499)
            return
        self.fan.drop(self._own)
        if len(self.fan):
            self._left = True
            self._hold()
        else:
            self._give_up()

    def stop(self) -> None:
        if self._leader is None:
            super().stop()
        else:
            self._get_off("failed", SHUTDOWN, 200 if self._started else 503)

    def check(self, now: float) -> None:
        if self._leader is None:
            super().check(now)
        elif now - self._call.arrived > self._timers.total:
            self._get_off("failed", "timeout: total", 200 if self._started else 504)

    def pause(self) -> None:
        if self._leader is not None:
            self._leader.fan.pause(self)
            self._leader._hold()
        else:
            self.fan.pause(self._own)
            self._hold()

    def resume(self) -> None:
        if self._leader is not None:
            self._leader.fan.resume(self)
            self._leader._hold()
        else:
            self.fan.resume(self._own)
            self._hold()


class _Whole:
    """A client that is given its answer at the end, all at once."""

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client
        self._head: tuple[int, Headers] | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def leave(self) -> None:
        self._client = None
        self._pieces.clear()

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        self._head = (status, headers)

    def write(self, data: bytes) -> None:
        if self._client is None:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_BUFFERED:
            self._flush(self._client, None)

    def _flush(self, client: Client, length: int | None) -> None:
        if self._head is not None:
            client.begin(*self._head, length)
            self._head = None
        if self._pieces:
            client.write(b"".join(self._pieces))
            self._pieces.clear()

    def finish(self, last: bytes) -> None:
        if self._client is not None:
            self._flush(self._client, self._size + len(last))
            self._client.finish(last)

    def cut(self, last: bytes) -> None:
        if self._client is not None:
            self._flush(self._client, None)
            self._client.cut(last)

    def refuse(self, refusal: Refusal) -> None:
        if self._client is not None:
            self._client.refuse(refusal)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        if self._client is not None:
            self._client.answer(status, headers, body)


class BufferedFlight(Flight):
    """What the gateway is measured against: the client gets its answer when it is whole, and a replica that works for
    one that has left is let do so."""

    __slots__ = ("_left", "_whole")

    def __init__(self, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> None:
        self._whole = _Whole(client)
        self._left = False
        super().__init__(hub, self._whole, call, life, out, timers)

    def hang_up(self) -> None:
        self._left = True
        self._whole.leave()

    def pause(self) -> None:
        """Only the end of an answer is ever written, so there is nothing to hold."""

    def resume(self) -> None:
        """As little."""

    def _reply(self, outcome: Outcome, reason: str = "") -> None:
        if self._left and outcome == "finished":
            outcome, reason = "hung_up", "the client left; its answer was made for nobody"
        super()._reply(outcome, reason)


class Special:
    """What a route asks for beyond the relay. Routes that ask for nothing have none."""

    def __init__(self, config: streaming.Config, watch: Watch, answers: Answers, answer_seconds: float) -> None:
        self._config = config
        self._watch = watch
        self._answers = answers
        self._answer_seconds = answer_seconds

    @classmethod
    def of(
        cls, config: streaming.Config, watch: Watch, answers: Answers, answer_seconds: float = 0.0
    ) -> Special | None:
        """None where the relay's own flights will do."""
        special = config.one_flight or config.watch_prefixes or config.answers == "buffered" or answer_seconds > 0
        return cls(config, watch, answers, answer_seconds) if special else None

    def dress(
        self, call: Call, request: Request, body: bytes, prompt: bytes, authorization: bytes
    ) -> tuple[Call, Maker]:
        """The call with what its route wants known of it, and the kind of its flight."""
        config = self._config
        completes = call.path.endswith("/completions")
        if config.watch_prefixes and completes:
            call = replace(call, divergence=self._watch.look(call.route, call.model, prompt))
        if config.answers == "buffered":
            return call, BufferedFlight
        if not (completes and request.repeatable):
            return call, Flight
        twin = twin_of(call, body, authorization)
        make: Maker = Flight
        if self._answer_seconds and (key := key_of(call, twin)):
            kept = self._answers.get(key, call.arrived)
            if kept is not None:
                return stored(call, kept), partial(StoredFlight, kept)
            make = keeping(SharedFlight if config.one_flight else Flight, self._answers, key, self._answer_seconds)
        elif config.one_flight and twin:
            make = SharedFlight
        return (replace(call, twin=twin) if config.one_flight else call), make


def twin_of(call: Call, body: bytes, authorization: bytes) -> bytes:
    """A key that two calls share only if one answer will do for both; empty where there is none.

    Tenants never share, nor do clients whose key the replica sees. It is a cryptographic hash: a collision would give
    one client another's answer.
    """
    asked = essence(body)
    if asked is None:
        return b""
    key = blake2b(digest_size=16)
    for part in (call.path.encode(), call.tenant.encode(), authorization, asked):
        key.update(len(part).to_bytes(8, "big"))
        key.update(part)
    return key.digest()
