"""What a gateway's workers and their coordinator say to each other, how it is framed, and what asking for a slot looks
like from either side. Only slots and the fleet's state are spoken of; no call's content may enter."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct

from wastegate.core.fleet import ReplicaState
from wastegate.core.shares import Share
from wastegate.core.world import Result
from wastegate.gateway.tally import Report

_LENGTH = 4
_MOST_BYTES = 16 << 20


class Timing(Struct, frozen=True):
    """How long the two sides wait for each other, in seconds."""

    lease: float = 5.0
    """A worker that has been silent for so long gives its slots back."""
    beat: float = 1.0
    """Between two signs of life."""
    push: float = 0.02
    """The fleet's state goes to the workers at most this often, and at least with every beat."""
    answer: float = 1.0
    """A claim without an answer for so long is decided by the worker alone."""
    hung: float = 30.0
    """A worker that has been silent for so long is killed and started anew: clients may be waiting for it."""


# ---- asking for a slot


class Asker(Protocol):
    """Who waits for a slot."""

    def claimed(self, granted: bool, lease: int) -> None:
        """The answer; ``lease`` is what to give the slot back with."""


class Slots(Protocol):
    """Where slots are asked for: at a coordinator, at this gateway's own world, among several gateways."""

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        """Ask for a slot of this replica, for an attempt of this number."""

    def back(self, lease: int, result: Result) -> None:
        """A slot is free again; how its attempt ended. A lease that is unknown, or came back before, is ignored."""


class Supply(Slots, Protocol):
    """Where a coordinator has its slots from."""

    def hold(self, replica: str, number: int, asker: Asker) -> None:
        """Have a slot counted that is in use already, whatever the cap says."""


# ---- messages


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
    """The answer to an Ask or a Have. ``in_flight`` is the replica's load now."""

    seq: int
    lease: int
    """0: refused."""
    in_flight: int


class Fleet(Struct, frozen=True, tag=6, array_like=True):
    """The whole fleet, as it stands."""

    states: tuple[ReplicaState, ...]
    retry_allowed: bool
    share: Share = Share()
    """What this gateway may take of each cap if no other can be asked."""


class Order(Struct, frozen=True, tag=7, array_like=True):
    """Something that every worker must do; ``body`` is the coordinator's own encoding."""

    what: str
    body: bytes = b""


class Have(Struct, frozen=True, tag=8, array_like=True):
    """A slot that the worker took while nobody answered."""

    seq: int
    replica: str
    number: int


FromWorker = Hello | Ask | Have | Back | Beat
FromCoordinator = Told | Fleet | Order
_encode = msgspec.msgpack.Encoder().encode
decode_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_coordinator = msgspec.msgpack.Decoder(FromCoordinator).decode


def frame(message: FromWorker | FromCoordinator) -> bytes:
    """The message as it is sent: its length, then itself."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames:
    """Messages cut out of a byte stream, however its reads fall."""

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
