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


class Line(Generic[Ticket]):
    """A bounded line: in order of arrival within a priority, lower first. A ticket stands in it at most once."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._heap: list[tuple[int, int, Ticket]] = []
        self._waiting: dict[Ticket, int] = {}  # → its place: one who left and came back stands anew
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._waiting

    def join(self, ticket: Ticket, priority: int = 0) -> bool:
        """Take a place at the end of the ticket's priority. False if the line is full."""
        if len(self._waiting) >= self.bound:
            return False
        self._sequence += 1
        heapq.heappush(self._heap, (priority, self._sequence, ticket))
        self._waiting[ticket] = self._sequence
        return True

    def leave(self, ticket: Ticket) -> bool:
        """Give up a place. False if the ticket has none."""
        if ticket not in self._waiting:
            return False
        del self._waiting[ticket]
        if len(self._heap) > 64 + 2 * len(self._waiting):  # sweep now and then: places left behind must not pile up
            self._heap = [place for place in self._heap if self._waiting.get(place[2]) == place[1]]
            heapq.heapify(self._heap)
        return True

    def head(self) -> Ticket | None:
        """The ticket whose turn is next; it keeps its place."""
        while self._heap and self._waiting.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Ticket | None:
        """The ticket whose turn it is; it gives up its place."""
        ticket = self.head()
        if ticket is not None:
            heapq.heappop(self._heap)
            del self._waiting[ticket]
        return ticket


class Admission(Generic[Ticket]):
    """Holds at most ``cap`` running and ``queue`` waiting tickets.

    Every ticket that was told "run" or came out of :meth:`finish` or :meth:`resize` must be finished exactly once.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running = 0
        self._line: Line[Ticket] = Line(limits.queue)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def arrive(self, ticket: Ticket, priority: int = 0) -> Verdict:
        """Admit, queue or refuse a new ticket."""
        if self.running < self.limits.cap and not self._line:
            self.running += 1
            return "run"
        return "wait" if self._line.join(ticket, priority) else "full"

    def leave(self, ticket: Ticket) -> bool:
        """A waiting ticket gives up. False if it was not waiting (it runs, or is unknown)."""
        return self._line.leave(ticket)

    def finish(self) -> list[Ticket]:
        """A running ticket has ended; the tickets that may run now, in order."""
        if self.running < 1:
            raise ValueError("finish() without a running ticket: a slot was released twice")
        self.running -= 1
        return self._admit()

    def resize(self, limits: Limits) -> list[Ticket]:
        """New limits. Running tickets above a lowered cap are not stopped, nor waiting ones sent away: they drain."""
        self.limits = limits
        self._line.bound = limits.queue
        return self._admit()

    def _admit(self) -> list[Ticket]:
        admitted: list[Ticket] = []
        while self._line and self.running < self.limits.cap:
            ticket = self._line.pop()
            assert ticket is not None, "a line that is not empty has a head"
            self.running += 1
            admitted.append(ticket)
        return admitted
