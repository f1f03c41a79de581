"""The line and the cap: who runs now, who waits, who is turned away. One policy for the gateway, the local
engine and the simulator; no clock and no I/O may enter."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

from msgspec import Struct

Ticket = TypeVar("Ticket", bound=Hashable)
Verdict = Literal["run", "wait", "full"]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How many run at once (``cap``) and how many may wait for a place (``queue``)."""

    cap: int = 32
    queue: int = 256

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ValueError(f"cap is {self.cap}: at least 1 call must be able to run")
        if self.queue < 0:
            raise ValueError(f"queue is {self.queue}: it counts waiting calls, so it cannot be below 0")


class Admission(Generic[Ticket]):
    """Holds at most ``cap`` running and ``queue`` waiting tickets.

    Tickets wait in order of arrival within a priority (lower first). Every ticket that was told "run"
    or came out of :meth:`finish` or :meth:`resize` must be finished exactly once.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running = 0
        self._line: list[tuple[int, int, Ticket]] = []
        self._gone: set[Ticket] = set()
        self._waiting: set[Ticket] = set()
        self._sequence = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, ticket: Ticket, priority: int = 0) -> Verdict:
        """Admit, queue or refuse a new ticket."""
        if self.running < self.limits.cap and not self._waiting:
            self.running += 1
            return "run"
        if len(self._waiting) >= self.limits.queue:
            return "full"
        self._sequence += 1
        heapq.heappush(self._line, (priority, self._sequence, ticket))
        self._waiting.add(ticket)
        return "wait"

    def leave(self, ticket: Ticket) -> bool:
        """A waiting ticket gives up. False if it was not waiting (it runs, or is unknown)."""
        if ticket not in self._waiting:
            return False
        self._waiting.remove(ticket)
        self._gone.add(ticket)
        if len(self._gone) > 64 + len(self._waiting):  # sweep now and then: the line must stay bounded
            self._line = [place for place in self._line if place[2] not in self._gone]
            heapq.heapify(self._line)
            self._gone.clear()
        return True

    def finish(self) -> list[Ticket]:
        """A running ticket has ended; the tickets that may run now, in order."""
        if self.running < 1:
            raise ValueError("finish() without a running ticket: a slot was released twice")
        self.running -= 1
        return self._admit()

    def resize(self, limits: Limits) -> list[Ticket]:
        """New limits. Running tickets above a lowered cap are not stopped: they drain."""
        self.limits = limits
        return self._admit()

    def _admit(self) -> list[Ticket]:
        admitted: list[Ticket] = []
        while self._waiting and self.running < self.limits.cap:
            ticket = heapq.heappop(self._line)[2]
            if ticket in self._gone:
                self._gone.remove(ticket)
                continue
            self._waiting.remove(ticket)
            self.running += 1
            admitted.append(ticket)
        if not self._waiting:  # only tickets that left can remain: drop them, so that the line stays bounded
            self._line.clear()
            self._gone.clear()
        return admitted
