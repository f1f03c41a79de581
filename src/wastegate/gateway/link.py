"""A worker's side of its coordinator: slots are asked for there, the fleet is seen through what it tells. Without an
answer the worker goes on alone, with its share of each cap, and says so; what it took meanwhile is counted as soon as
there is an answer again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

from wastegate.core.mirror import Mirror
from wastegate.core.shares import Share, alone
from wastegate.core.world import Result
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
    Timing,
    Told,
    decode_coordinator,
    frame,
)
from wastegate.gateway.tally import Report

log = logging.getLogger(__name__)

_UNUSED = Result("", "lost")
"""Says nothing of a replica: its slot was never used."""


class _Asked:
    """A claim that waits for its answer."""

    __slots__ = ("asker", "at", "number", "replica")

    def __init__(self, asker: Asker, replica: str, number: int, at: float) -> None:
        self.asker = asker
        self.replica = replica
        self.number = number
        self.at = at


class _Held:
    """A slot in use."""

    __slots__ = ("lease", "number", "replica")

    def __init__(self, replica: str, number: int, lease: int) -> None:
        self.replica = replica
        self.number = number
        self.lease = lease
        """The coordinator's; 0 while it does not know of this slot."""


class Link(asyncio.Protocol):
    """A worker's connection to its coordinator: the Slots of a worker. Leases are its own numbers."""

    def __init__(
        self,
        mirror: Mirror,
        share: Share,
        now: Callable[[], float],
        ordered: Callable[[str, bytes], None],
        timing: Timing,
    ) -> None:
        self._mirror = mirror
        self._share = share
        self._fleet = Fleet((), True)
        self._now = now
        self._ordered = ordered
        """What to do when told; with "gone" when the coordinator is."""
        self._timing = timing
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._seq = 0
        self._asked: dict[int, _Asked] = {}
        self._held: dict[int, _Held] = {}
        self._load: dict[str, int] = {}
        """Of each replica, how many slots are held here."""
        self._behind = False
        """The coordinator does not read: beats must not pile up for it."""
        self._beaten = now()
        self._told = asyncio.Event()
        self._woken: Callable[[], None] = lambda: None
        self.alone = False

    async def connect(self, path: Path, worker: int, woken: Callable[[], None]) -> None:
        """``woken`` is called when the fleet has changed. Raises OSError, or TimeoutError where nothing is said."""
        self._woken = woken
        await self._loop.create_unix_connection(lambda: self, str(path))
        self._send(Hello(worker))
        async with asyncio.timeout(self._timing.lease):
            await self._told.wait()

    # ---- used by the hub

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        """Ask for a slot; ``asker.claimed`` is called with the answer, never from within this call."""
        self._seq += 1
        self._asked[self._seq] = _Asked(asker, replica, number, self._now())
        if self.alone:
            self._loop.call_soon(self._decide_alone, self._seq)
        else:
            self._send(Ask(self._seq, replica, number))

    def back(self, lease: int, result: Result) -> None:
        """A slot is free again."""
        held = self._held.pop(lease, None)
        if held is None:
            return
        self._load[held.replica] -= 1
        if held.lease:
            self._send(Back(held.lease, result))
        if self.alone:
            self._mirror.load(held.replica, self._load[held.replica])

    def beat(self, report: Report) -> None:
        """Say that this worker lives, and look for claims that nobody answers."""
        if not self._behind:
            self._send(Beat(report))
        now = self._now()
        last, self._beaten = self._beaten, now
        if self.alone or now - last > self._timing.beat + self._timing.answer:
            return  # where it was this process that stood still, answers may wait to be read
        if any(asked.at < now - self._timing.answer for asked in self._asked.values()):
            self._go_alone("does not answer")

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.alone:
            self._go_alone("is gone")
        self._ordered("gone", b"")

    def pause_writing(self) -> None:
        self._behind = True

    def resume_writing(self) -> None:
        self._behind = False

    def data_received(self, data: bytes) -> None:
        for piece in self._frames.cut(data):
            message = decode_coordinator(piece)
            kind = type(message)
            if kind is Told:
                self._answered(cast(Told, message))
            elif kind is Fleet:
                self._see(cast(Fleet, message))
            else:
                order = cast(Order, message)
                self._ordered(order.what, order.body)

    def _see(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._show()
        self._told.set()
        self._woken()

    def _show(self) -> None:
        """The fleet as it was told last; alone, with what is this worker's own of it."""
        fleet = self._fleet
        own = alone(fleet.states, self._load, self._share.within(fleet.share)) if self.alone else fleet.states
        self._mirror.told(own, fleet.retry_allowed)

    def _answered(self, told: Told) -> None:
        if self.alone:
            self._join()
        asked = self._asked.pop(told.seq, None)
        if asked is None:  # it was decided alone meanwhile
            held = self._held.get(told.seq)
            if held is not None and not held.lease:
                held.lease = told.lease
            elif told.lease:
                self._send(Back(told.lease, _UNUSED))
            return
        self._mirror.load(asked.replica, told.in_flight)
        if told.lease:
            self._hold(told.seq, asked, told.lease)
        asked.asker.claimed(told.lease > 0, told.seq)

    def _hold(self, seq: int, asked: _Asked, lease: int) -> None:
        self._held[seq] = _Held(asked.replica, asked.number, lease)
        self._load[asked.replica] = self._load.get(asked.replica, 0) + 1

    # ---- alone

    def _go_alone(self, why: str) -> None:
        self.alone = True
        log.error("the coordinator %s: this worker goes on alone, with its share of every cap", why)
        self._show()
        for seq in list(self._asked):
            self._loop.call_soon(self._decide_alone, seq)

    def _join(self) -> None:
        log.warning("the coordinator answers again")
        self.alone = False  # the next word on the fleet brings whole caps back
        for seq, held in self._held.items():
            if not held.lease:
                self._send(Have(seq, held.replica, held.number))

    def _decide_alone(self, seq: int) -> None:
        asked = self._asked.pop(seq, None)
        if asked is None:
            return
        now = self._now()
        granted = any(s.replica.name == asked.replica and s.open_to_calls(now) for s in self._mirror.states)
        if granted:
            self._hold(seq, asked, 0)
            self._mirror.load(asked.replica, self._load[asked.replica])
        asked.asker.claimed(granted, seq)

    def _send(self, message: FromWorker) -> None:
        """Gathered, and written once for each turn of the event loop."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame(message))

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()
