"""Which calls in flight ask the same, and the fan that gives one answer to all who wait for it. Bounded in bytes kept
for latecomers; no decision whether calls may share is made here, and no answer outlives its flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wastegate.core.plan import Refusal
from wastegate.gateway.heads import Headers

MOST_KEPT = 256 * 1024
"""Bytes of one answer kept for those who come later; once it is longer, nobody may join any more."""
MOST_KEPT_TOGETHER = 64 << 20
MOST_BEHIND = 1 << 20
"""Bytes that a client may be behind the others; one that reads more slowly than this is cut off."""


class Member(Protocol):
    """Who is given an answer as it comes: a client, or a flight that goes along for one."""

    def begin(self, status: int, headers: Headers, length: int | None) -> None: ...

    def write(self, data: bytes) -> None: ...

    def finish(self, last: bytes) -> None: ...

    def cut(self, last: bytes) -> None: ...

    def refuse(self, refusal: Refusal) -> None: ...

    def answer(self, status: int, headers: Headers, body: bytes) -> None: ...


class Leader(Protocol):
    """A flight that others may go along with."""

    @property
    def id(self) -> str: ...

    @property
    def fan(self) -> Fan: ...


class Twins:
    """The leaders of one process, by what they ask. Several processes do not know of each other's."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Leader] = {}
        self.kept = 0
        """Bytes kept for latecomers, of all leaders together."""

    def __len__(self) -> int:
        return len(self._leaders)

    def find(self, twin: bytes, flight: Leader) -> Leader | None:
        """Who leads those that ask this, if another does. If nobody does, this flight leads from now on."""
        leader = self._leaders.get(twin)
        if leader is None or not leader.fan.open:
            self._leaders[twin] = leader = flight
        return None if leader is flight else leader

    def leave(self, twin: bytes, flight: Leader) -> None:
        """Its flight has ended: whoever comes now asks anew."""
        if self._leaders.get(twin) is flight:
            del self._leaders[twin]
        flight.fan.close()


class Fan:
    """Gives what comes for one to all its members; those who come later get what they have missed first."""

    def __init__(self, twins: Twins, too_slow: Callable[[Member], None]) -> None:
        """``too_slow`` is called with a member that is too far behind, once it has been dropped."""
        self._twins = twins
        self._too_slow = too_slow
        self._members: dict[Member, int | None] = {}
        """With the bytes that each is behind since it stopped reading; None while it reads."""
        self._head: tuple[int, Headers, int | None] | None = None
        self._kept: list[bytes] = []
        self._size = 0
        self.open = True
        """Others may still join."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def held(self) -> bool:
        """Nobody reads: more need not be asked for."""
        return bool(self._members) and all(behind is not None for behind in self._members.values())

    def add(self, member: Member) -> None:
        """One more, while ``open``: it is given at once what the others have already."""
        self._members[member] = None
        if self._head is not None:
            member.begin(*self._head)
        for data in self._kept:
            member.write(data)

    def drop(self, member: Member) -> None:
        self._members.pop(member, None)

    def pause(self, member: Member) -> None:
        """It does not read at present. The others go on."""
        if member in self._members:
            self._members[member] = 0

    def resume(self, member: Member) -> None:
        if member in self._members:
            self._members[member] = None

    def close(self) -> None:
        """Nobody may join any more, so nothing is kept."""
        self.open = False
        self._twins.kept -= self._size
        self._kept, self._size = [], 0

    # ---- the answer (relay.Client): to all

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        self._head = (status, headers, length)
        for member in list(self._members):
            member.begin(status, headers, length)

    def write(self, data: bytes) -> None:
        if self.open:
            self._kept.append(data)
            self._size += len(data)
            self._twins.kept += len(data)
            if self._size > MOST_KEPT or self._twins.kept > MOST_KEPT_TOGETHER:
                self.close()
        for member, behind in list(self._members.items()):
            member.write(data)
            if behind is not None and behind + len(data) > MOST_BEHIND:
                self.drop(member)
                self._too_slow(member)
            elif behind is not None and member in self._members:
                self._members[member] = behind + len(data)

    def finish(self, last: bytes) -> None:
        for member in list(self._members):
            member.finish(last)

    def cut(self, last: bytes) -> None:
        for member in list(self._members):
            member.cut(last)

    def refuse(self, refusal: Refusal) -> None:
        for member in list(self._members):
            member.refuse(refusal)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        for member in list(self._members):
            member.answer(status, headers, body)
