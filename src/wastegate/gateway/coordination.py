"""Claims across the worker processes of one gateway: one coordinator keeps the world, workers ask it over a Unix
socket. Only slots and the fleet's state pass here; no call's content does.

Every slot is a lease. A worker that dies gives its slots back at once, since its connection closes; one that hangs
gives them back when it has been silent for too long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import Struct

from wastegate.core.leases import Leases
from wastegate.core.shares import Share
from wastegate.core.world import Result, World
from wastegate.gateway.claims import (
    Ask,
    Asker,
    Back,
    Beat,
    Fleet,
    Frames,
    FromWorker,
    Have,
    Hello,
    Order,
    Supply,
    Timing,
    Told,
    decode_worker,
    frame,
)
from wastegate.gateway.tally import Report

log = logging.getLogger(__name__)


class WorkerStatus(Struct):
    """What the coordinator knows of one worker."""

    worker: int
    report: Report | None = None
    seen: float = 0.0


class OwnSlots:
    """The slots of a gateway that shares its replicas with no other: its world decides at once, within the call."""

    def __init__(self, world: World, now: Callable[[], float]) -> None:
        self._world = world
        self._now = now

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        asker.claimed(self._world.take(replica, number, self._now()), 0)

    def hold(self, replica: str, number: int, asker: Asker) -> None:
        asker.claimed(self._world.grant(replica, number, False), 0)

    def back(self, lease: int, result: Result) -> None:
        """Whoever holds slots of this kind sees to it that each comes back once: all leases are the same."""
        self._world.give_back(result, self._now())


class _Lent(Struct, frozen=True):
    """A slot that a worker holds."""

    replica: str
    lease: int
    """What to give it back with."""


class Coordinator:
    """Keeps the world for all workers of a gateway."""

    def __init__(
        self,
        world: World,
        now: Callable[[], float],
        timing: Timing,
        slots: Supply | None = None,
        share: Callable[[], Share] = Share,
    ) -> None:
        """``slots``: where they come from, if not from this gateway's world alone; ``share``: what it then may take
        of each cap by itself."""
        self._world = world
        self._now = now
        self._timing = timing
        self._slots: Supply = slots if slots is not None else OwnSlots(world, now)
        self._share = share
        self._leases: Leases[_Peer, _Lent] = Leases(timing.lease)
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._changed = True
        self._lasting: dict[str, bytes] = {}
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

    def order(self, what: str, body: bytes = b"", lasting: bool = False) -> None:
        """Tell every worker to do something; ``lasting``: those that join later, too, for the last such order."""
        if lasting:
            self._lasting[what] = body
        for peer in self._peers:
            peer.send(frame(Order(what, body)))

    @property
    def serving(self) -> list[WorkerStatus]:
        """The workers that take clients, in order: one that does has sent a beat."""
        serving = (peer.status for peer in self._peers if peer.status.report is not None)
        return sorted(serving, key=lambda status: status.worker)

    def hung(self) -> list[int]:
        """The workers that have been silent for far too long."""
        latest = self._now() - self._timing.hung
        return [status.worker for status in self.serving if status.seen < latest]

    def report(self) -> Report:
        """All workers together, as of their last beats."""
        report = Report()
        report.merge(self._buried)
        for peer in self._peers:
            if peer.status.report is not None:
                report.merge(peer.status.report)
        return report

    # ---- time

    async def _push(self) -> None:
        timing = self._timing
        pushed = looked = self._now()
        while True:
            await asyncio.sleep(timing.push)
            now = self._now()
            if now - looked > timing.push + timing.lease / 4:
                self._forgive(now)
            looked = now
            self._take_back(now)
            if self._changed or now - pushed >= timing.beat:
                self._changed, pushed = False, now
                fleet = self.fleet()
                for peer in self._peers:
                    if not peer.behind:
                        peer.send(fleet)

    def _forgive(self, now: float) -> None:
        """It was the coordinator that stood still: its workers' signs of life are there, but unread."""
        for peer in self._peers:
            self._leases.renew(peer, now)
            peer.status.seen = now

    def _take_back(self, now: float) -> None:
        lost = self._leases.expired(now)
        if lost:
            log.warning("a worker has been silent for %g s: its %d slots are taken back", self._timing.lease, len(lost))
        self._lose(lost)

    def _lose(self, slots: list[_Lent]) -> None:
        for slot in slots:
            self._slots.back(slot.lease, Result(slot.replica, "lost"))
        self._changed = True

    def fleet(self) -> bytes:
        return frame(Fleet(self._world.seen(self._now()), self._world.retry_allowed, self._share()))

    # ---- called by peers

    def joined(self, peer: _Peer) -> None:
        self._peers.add(peer)
        self._leases.renew(peer, self._now())
        for what, body in self._lasting.items():
            peer.send(frame(Order(what, body)))
        peer.send(self.fleet())

    def left(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        lost = self._leases.gone(peer)
        if peer.status.report is not None:
            self._buried.merge(peer.status.report)
            self._buried.flights = self._buried.waiting = 0
            self._buried.prefix_blocks = self._buried.prefix_bytes = 0
            self._buried.failing = ""
        if lost:
            log.warning(
                "worker %d is gone with %d calls in flight: their slots are free", peer.status.worker, len(lost)
            )
        self._lose(lost)

    def heard(self, peer: _Peer, message: FromWorker) -> None:
        kind = type(message)
        if kind is Ask:
            ask = cast(Ask, message)
            self._slots.claim(ask.replica, ask.number, _Claim(self, peer, ask.seq, ask.replica))
        elif kind is Back:
            back = cast(Back, message)
            slot = self._leases.end(peer, back.lease)
            if slot is not None:
                result = back.result
                self._slots.back(slot.lease, result if result.replica else Result(slot.replica, result.outcome))
                self._changed = True
        elif kind is Beat:
            peer.status.report = cast(Beat, message).report
            peer.status.seen = self._now()
            self._leases.renew(peer, peer.status.seen)
        elif kind is Have:
            have = cast(Have, message)
            self._slots.hold(have.replica, have.number, _Claim(self, peer, have.seq, have.replica))
        else:
            peer.status.worker = cast(Hello, message).worker

    def decided(self, claim: _Claim, granted: bool, lease: int) -> None:
        """A slot has been granted to a peer, or refused."""
        peer, number = claim.peer, 0
        if granted and peer not in self._peers:
            self._lose([_Lent(claim.replica, lease)])
            return
        if granted:
            number = self._leases.grant(peer, _Lent(claim.replica, lease), self._now())
            self._changed = True
        peer.answer(Told(claim.seq, number, self._world.load(claim.replica)))


class _Claim:
    """A worker's claim on its way."""

    __slots__ = ("_coordinator", "peer", "replica", "seq")

    def __init__(self, coordinator: Coordinator, peer: _Peer, seq: int, replica: str) -> None:
        self._coordinator = coordinator
        self.peer = peer
        self.seq = seq
        self.replica = replica

    def claimed(self, granted: bool, lease: int) -> None:
        self._coordinator.decided(self, granted, lease)


class _Peer(asyncio.Protocol):
    """A worker's connection, at the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._frames = Frames()
        self._answers: list[bytes] = []
        self._reading = False
        self._transport: asyncio.Transport | None = None
        self.behind = False
        """It does not read what it is sent: news of the fleet must not pile up for it."""
        self.status = WorkerStatus(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._coordinator.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._coordinator.left(self)

    def data_received(self, data: bytes) -> None:
        self._reading = True
        try:
            for piece in self._frames.cut(data):
                self._coordinator.heard(self, decode_worker(piece))
        except (ValueError, msgspec.DecodeError) as error:
            log.error("worker %d speaks nonsense (%s): its connection is closed", self.status.worker, error)
            self.close()
        self._reading = False
        self._flush()

    def pause_writing(self) -> None:
        self.behind = True

    def resume_writing(self) -> None:
        self.behind = False
        self._coordinator.changed()

    def answer(self, message: Told) -> None:
        """Within a read, sent with the others of this read in one write; else at once."""
        self._answers.append(frame(message))
        if not self._reading:
            self._flush()

    def _flush(self) -> None:
        if self._answers:
            self.send(b"".join(self._answers))
            self._answers.clear()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
