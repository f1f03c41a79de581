"""Whole answers that are kept for a while and given again to who asks exactly the same: another thing than a prefix
cache, and only where a route asks for it. Answers live in memory alone; which calls may have one is decided by key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.call import Call, Stored
from wastegate.core.lifecycle import Life
from wastegate.core.plan import Refusal, Timers
from wastegate.gateway.heads import Headers
from wastegate.gateway.hub import Hub
from wastegate.gateway.relay import REDUCED, Client, Flight, Outgoing

MOST_BYTES = 64 << 20
"""Of all answers that one process keeps."""
MOST_ANSWER = 1 << 20
"""Of one; a longer one is not kept."""
_OVERHEAD = 512
"""Bytes that an answer takes beside its own."""


class Kept(Struct, frozen=True):
    """An answer as it went out: ``body`` is its bytes, a stream's events included."""

    call: str
    at: float
    until: float
    status: int
    headers: Headers
    body: bytes
    finish_reason: str
    prompt_tokens: int | None
    output_tokens: int | None


class Answers:
    """Answers by what was asked. Bounded in bytes: the one used longest ago goes."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: float) -> Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now >= kept.until:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def put(self, key: bytes, kept: Kept) -> None:
        if len(kept.body) > MOST_ANSWER:
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self.bytes += len(kept.body) + _OVERHEAD
        while self.bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self.bytes -= len(self._kept.pop(key).body) + _OVERHEAD


class Keeper:
    """A client whose answer is kept as it passes, if it comes whole. One that was reduced is not: what was short of
    something then need not be now."""

    def __init__(self, client: Client, answers: Answers, key: bytes, seconds: float) -> None:
        self._client = client
        self._answers = answers
        self._key = key
        self._seconds = seconds
        self._head: tuple[int, Headers] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.flight: Flight | None = None
        """Whose answer it is."""

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        self._head = (status, headers)
        self._client.begin(status, headers, length)

    def write(self, data: bytes) -> None:
        self._keep(data)
        self._client.write(data)

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MOST_ANSWER:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def finish(self, last: bytes) -> None:
        self._keep(last)
        entry = self.flight.ended if self.flight is not None else None
        if entry is not None and entry.outcome == "finished" and entry.attempts and self._head is not None:
            status, headers = self._head
            ran = entry.attempts[-1]
            reduced = any(name == REDUCED for name, _ in headers)
            if status == 200 and self._size <= MOST_ANSWER and not reduced:
                kept = Kept(
                    entry.id, entry.ended, entry.ended + self._seconds, status, headers, b"".join(self._pieces),
                    entry.finish_reason, ran.prompt_tokens, ran.output_tokens,
                )  # fmt: skip
                self._answers.put(self._key, kept)
        self._client.finish(last)

    def cut(self, last: bytes) -> None:
        self._client.cut(last)

    def refuse(self, refusal: Refusal) -> None:
        self._client.refuse(refusal)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._client.answer(status, headers, body)


class StoredFlight(Flight):
    """A call whose answer is at hand: its life ends at once, and its client gets the stored bytes."""

    __slots__ = ("_stored",)

    def __init__(
        self, kept: Kept, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers
    ) -> None:
        super().__init__(hub, client, call, life, out, timers)
        self._stored = kept

    def _tell_end(self) -> None:
        if not self._gone:
            kept = self._stored
            self._client.begin(kept.status, kept.headers, len(kept.body))
            self._client.finish(kept.body)


def key_of(call: Call, twin: bytes) -> bytes:
    """Equal only for calls that may share an answer (``twin``) and want it in the same form; empty where the answer
    may not be given twice."""
    return twin + bytes((call.stream, call.wants_usage)) if twin and call.deterministic else b""


class Maker(Protocol):
    """How a flight is made."""

    def __call__(self, hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> Flight: ...


def keeping(make: Maker, answers: Answers, key: bytes, seconds: float) -> Maker:
    """The same flight, whose answer is kept."""

    def made(hub: Hub, client: Client, call: Call, life: Life, out: Outgoing, timers: Timers) -> Flight:
        keeper = Keeper(client, answers, key, seconds)
        keeper.flight = make(hub, keeper, call, life, out, timers)
        return keeper.flight

    return made


def stored(call: Call, kept: Kept) -> Call:
    """The call with the answer that it will get, as far as policy and ledger are concerned."""
    told = Stored(
        kept.call, call.arrived, call.arrived - kept.at, kept.finish_reason, kept.prompt_tokens, kept.output_tokens
    )
    return replace(call, stored=told)
