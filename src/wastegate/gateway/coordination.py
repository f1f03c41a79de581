"""Claims across the worker processes of one gateway: one coordinator keeps the world, workers ask it over a Unix
socket. Only slots and the fleet's state pass here; no call's content does.

Every slot is a lease. A worker that dies gives its slots back at once, since its connection closes; one that hangs
gives them back when it has been silent for ``LEASE_SECONDS``. A worker whose coordinator does not answer goes on
alone, with its share of each cap, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from wastegate.core.fleet import ReplicaState
from wastegate.core.leases import Leases
from wastegate.core.world import Mirror, Result, World
from wastegate.gateway.tally import Report

log = logging.getLogger(__name__)

LEASE_SECONDS = 5.0
BEAT_SECONDS = 1.0
_PUSH_SECONDS = 0.02
"""The fleet's state goes to the workers at most this often, and at least every ``BEAT_SECONDS``."""
_ANSWER_SECONDS = 1.0
"""A claim without an answer for so long is decided by the worker alone."""
_LENGTH = 4
_MOST_BYTES = 16 << 20


class Hello(Struct, frozen=True, tag=1, array_like=True):
    """A worker's first word."""

    worker: int


class Ask(Struct, frozen=True, tag=2, array_like=True):
    """A slot of this replica, for an attempt of this number."""

    seq: int
    replica: str
    number: int


class Back(Struct, frozen=True, tag=3, array_like=True):
    """A slot comes back, with how its attempt ended."""

    lease: int
    result: Result


class Beat(Struct, frozen=True, tag=4, array_like=True):
    """A sign of life, with all that the worker has counted."""

    report: Report


class Told(Struct, frozen=True, tag=5, array_like=True):
    """The answer to an Ask. ``in_flight`` is the replica's load now."""

    seq: int
    lease: int
    """0: refused."""
    in_flight: int


class Fleet(Struct, frozen=True, tag=6, array_like=True):
    """The whole fleet, as it stands."""

    states: tuple[ReplicaState, ...]
    retry_allowed: bool


class Order(Struct, frozen=True, tag=7, array_like=True):
    """Something that every worker must do; ``body`` is the coordinator's own encoding."""

    what: str
    body: bytes = b""


_FromWorker = Hello | Ask | Back | Beat
_FromCoordinator = Told | Fleet | Order
_encode = msgspec.msgpack.Encoder().encode
_decode_worker = msgspec.msgpack.Decoder(_FromWorker).decode
_decode_coordinator = msgspec.msgpack.Decoder(_FromCoordinator).decode

M = TypeVar("M")


class _Frames:
    """Messages with their length before them, cut out of a byte stream."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def cut(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes. Raises ValueError on a length that makes no sense."""
        buffer = self._buffer + data if self._buffer else data
        frames: list[bytes] = []
        at = 0
        while len(buffer) - at >= _LENGTH:
            size = int.from_bytes(buffer[at : at + _LENGTH], "big")
            if size > _MOST_BYTES:
                raise ValueError(f"a message of {size} bytes")
            if len(buffer) - at - _LENGTH < size:
                break
            frames.append(buffer[at + _LENGTH : at + _LENGTH + size])
            at += _LENGTH + size
        self._buffer = buffer[at:]
        return frames


def _frame(message: Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


# ---- the coordinator's side


class WorkerStatus(Struct):
    """What the coordinator knows of one worker."""

    worker: int
    report: Report | None = None
    seen: float = 0.0


class Coordinator:
    """Keeps the world for all workers of a gateway."""

    def __init__(self, world: World, now: Callable[[], float]) -> None:
        self._world = world
        self._now = now
        self._leases: Leases[_Peer] = Leases(LEASE_SECONDS)
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._changed = True
        self._buried = Report()
        """What workers that are gone have counted: it still counts."""

    async def start(self, listening: socket.socket) -> None:
        """``listening``: a Unix socket, bound where only this user can reach it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Peer(self), sock=listening)
        self._pusher = asyncio.ensure_future(self._push())

    async def stop(self) -> None:
        if self._pusher is not None:
            self._pusher.cancel()
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.close()

    def changed(self) -> None:
        """The fleet is not what the workers were last told."""
        self._changed = True

    def order(self, what: str, body: bytes = b"") -> None:
        """Tell every worker to do something."""
        for peer in self._peers:
            peer.send(_frame(Order(what, body)))

    @property
    def serving(self) -> list[WorkerStatus]:
        """The workers that take clients, in order: one that does has sent a beat."""
        serving = (peer.status for peer in self._peers if peer.status.report is not None)
        return sorted(serving, key=lambda status: status.worker)

    def report(self) -> Report:
        """All workers together, as of their last beats."""
        report = Report()
        report.merge(self._buried)
        for peer in self._peers:
            if peer.status.report is not None:
                report.merge(peer.status.report)
        return report

    async def _push(self) -> None:
        quiet = 0.0
        while True:
            await asyncio.sleep(_PUSH_SECONDS)
            quiet += _PUSH_SECONDS
            now = self._now()
            for replica in self._leases.expired(now):
                log.warning("a worker has been silent for %g s: its slot on %s is taken back", LEASE_SECONDS, replica)
                self._world.give_back(Result(replica, "lost"), now)
                self._changed = True
            if self._changed or quiet >= BEAT_SECONDS:
                self._changed, quiet = False, 0.0
                frame = self.fleet()
                for peer in self._peers:
                    peer.send(frame)

    def fleet(self) -> bytes:
        return _frame(Fleet(self._world.seen(self._now()), self._world.retry_allowed))

    # ---- called by peers

    def joined(self, peer: _Peer) -> None:
        self._peers.add(peer)
        self._leases.renew(peer, self._now())
        peer.send(self.fleet())

    def left(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        now = self._now()
        lost = self._leases.gone(peer)
        for replica in lost:
            self._world.give_back(Result(replica, "lost"), now)
        if peer.status.report is not None:
            self._buried.merge(peer.status.report)
            self._buried.flights = self._buried.waiting = 0
        if lost:
            log.warning(
                "worker %d is gone with %d calls in flight: their slots are free", peer.status.worker, len(lost)
            )
        self._changed = True

    def heard(self, peer: _Peer, message: _FromWorker) -> None:
        kind = type(message)
        if kind is Ask:
            self._ask(peer, cast(Ask, message))
        elif kind is Back:
            back = cast(Back, message)
            if self._leases.end(peer, back.lease) is not None:
                self._world.give_back(back.result, self._now())
                self._changed = True
        elif kind is Beat:
            peer.status.report = cast(Beat, message).report
            peer.status.seen = self._now()
            self._leases.renew(peer, peer.status.seen)
        else:
            peer.status.worker = cast(Hello, message).worker

    def _ask(self, peer: _Peer, ask: Ask) -> None:
        now = self._now()
        lease = 0
        if self._world.take(ask.replica, ask.number, now):
            lease = self._leases.grant(peer, ask.replica, now)
            self._changed = True
        peer.answer(Told(ask.seq, lease, self._world.load(ask.replica)))


class _Peer(asyncio.Protocol):
    """A worker's connection, at the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._frames = _Frames()
        self._answers: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.status = WorkerStatus(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._coordinator.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._coordinator.left(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.cut(data):
                self._coordinator.heard(self, _decode_worker(frame))
        except (ValueError, msgspec.DecodeError) as error:
            log.error("worker %d speaks nonsense (%s): its connection is closed", self.status.worker, error)
            self.close()
        if self._answers:
            self.send(b"".join(self._answers))
            self._answers.clear()

    def answer(self, message: Told) -> None:
        """Sent with the others of this read, in one write."""
        self._answers.append(_frame(message))

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


# ---- the worker's side


class Asker(Protocol):
    """Who waits for a slot. ``lease`` 0 with ``granted`` means: taken alone, nobody was asked."""

    def claimed(self, granted: bool, lease: int) -> None: ...


class Link(asyncio.Protocol):
    """A worker's connection to its coordinator."""

    def __init__(
        self, mirror: Mirror, workers: int, now: Callable[[], float], ordered: Callable[[str, bytes], None]
    ) -> None:
        self._mirror = mirror
        self._workers = workers
        self._now = now
        self._ordered = ordered
        """What to do when told; with "gone" when the coordinator is."""
        self._frames = _Frames()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._seq = 0
        self._asked: dict[int, tuple[Asker, str, float]] = {}
        self._own: dict[str, int] = {}
        """Slots of each replica that this worker holds: its share counts when it is alone."""
        self._told = asyncio.Event()
        self._woken: Callable[[], None] = lambda: None
        self.alone = False

    async def connect(self, path: Path, worker: int, woken: Callable[[], None]) -> None:
        """Raises OSError, or TimeoutError where the coordinator says nothing."""
        self._woken = woken
        await self._loop.create_unix_connection(lambda: self, str(path))
        self._send(Hello(worker))
        async with asyncio.timeout(LEASE_SECONDS):
            await self._told.wait()

    # ---- used by the hub

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        """Ask for a slot; ``asker.claimed`` is called with the answer, never from within this call."""
        self._seq += 1
        self._asked[self._seq] = (asker, replica, self._now())
        if self.alone:
            self._loop.call_soon(self._decide_alone, self._seq)
        else:
            self._send(Ask(self._seq, replica, number))

    def back(self, lease: int, result: Result) -> None:
        """A slot is free again."""
        held = self._own.get(result.replica, 0)
        self._own[result.replica] = max(0, held - 1)
        if lease:
            self._send(Back(lease, result))

    def beat(self, report: Report) -> None:
        """Say that this worker lives, and look for claims that nobody answers."""
        self._send(Beat(report))
        late = [seq for seq, (_, _, asked) in self._asked.items() if self._now() - asked > _ANSWER_SECONDS]
        if late and not self.alone:
            self._go_alone("does not answer")
        for seq in late:
            self._decide_alone(seq)

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._go_alone("is gone")
        self._ordered("gone", b"")

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.cut(data):
            message = _decode_coordinator(frame)
            kind = type(message)
            if kind is Told:
                self._answered(cast(Told, message))
            elif kind is Fleet:
                fleet = cast(Fleet, message)
                self._mirror.told(fleet.states, fleet.retry_allowed)
                self._told.set()
                self._woken()
            else:
                order = cast(Order, message)
                self._ordered(order.what, order.body)

    def _answered(self, told: Told) -> None:
        if self.alone:
            log.warning("the coordinator answers again")
            self.alone = False
        entry = self._asked.pop(told.seq, None)
        if entry is None:  # decided alone meanwhile: the slot is not needed twice
            if told.lease:
                self._send(Back(told.lease, Result("", "lost")))
            return
        asker, replica, _ = entry
        self._mirror.load(replica, told.in_flight)
        if told.lease:
            self._own[replica] = self._own.get(replica, 0) + 1
        asker.claimed(told.lease > 0, told.lease)

    def _go_alone(self, why: str) -> None:
        self.alone = True
        log.error("the coordinator %s: this worker goes on alone, with its share of every cap", why)
        for seq in list(self._asked):
            self._loop.call_soon(self._decide_alone, seq)

    def _decide_alone(self, seq: int) -> None:
        entry = self._asked.pop(seq, None)
        if entry is None:
            return
        asker, replica, _ = entry
        state = next((s for s in self._mirror.states if s.replica.name == replica), None)
        held = self._own.get(replica, 0)
        granted = state is not None and state.fit(self._now())
        if granted and state is not None and state.replica.cap is not None:
            granted = held < max(1, state.replica.cap // self._workers)
        if granted:
            self._own[replica] = held + 1
            self._mirror.load(replica, held + 1)
        asker.claimed(granted, 0)

    def _send(self, message: Struct) -> None:
        """Gathered, and written once for each turn of the event loop."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_frame(message))

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()
