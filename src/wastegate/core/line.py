"""Who waits, and whose turn is next: by priority, then fairly among flows, then by deadline. No clock and no I/O may
enter, and no word on how many may run: that is ``core.admission``'s."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Container, Hashable
from typing import Generic, NamedTuple, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)
Flow = tuple[str, str]

QUANTUM = 256.0
"""Of cost (tokens, where they are known) that a flow may spend each time its turn in the round comes. A ticket whose
cost nobody knows counts as much, so that flows then simply alternate."""
_CHEAPEST, _DEAREST = QUANTUM / 16, QUANTUM * 64
"""No ticket counts as less or more: a flow has then at most so many turns on end, or waits for so many rounds."""
_OLDEST_EVERY = 8
"""One turn in so many goes to the class of whoever has waited longest, and there to arrival before deadline: nobody
waits for ever."""
_SEEN_ENOUGH = 4
"""Turns after which the pace of a line is an estimate."""
_REMEMBERED = 32
"""Turns that its pace is about."""


class _Place(NamedTuple):
    """Ordered by deadline, then by arrival."""

    deadline: float
    sequence: int
    cost: float
    priority: int
    flow: Flow


class Line(Generic[Ticket]):
    """A bounded line. A ticket stands in it at most once.

    The lowest priority goes first. Within one priority flows (tenants) take turns by deficit round robin on what
    their tickets cost; within a flow the earliest deadline goes first, and among equal ones the first to arrive. A
    flow's ``group`` can be closed for a while: its tickets then keep their places and let others pass.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._places: dict[Ticket, _Place] = {}  # in order of arrival
        self._classes: dict[int, _Round[Ticket]] = {}
        self._sequence = 0
        self._turns = 0
        self._last_turn: float | None = None
        self._pace = 0.0
        self._paced = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._places

    def join(
        self,
        ticket: Ticket,
        priority: int = 0,
        *,
        tenant: str = "",
        group: str = "",
        deadline: float = math.inf,
        cost: float = QUANTUM,
    ) -> bool:
        """Take a place. False if the line is full."""
        if len(self._places) >= self.bound:
            return False
        self._sequence += 1
        place = _Place(deadline, self._sequence, min(max(cost, _CHEAPEST), _DEAREST), priority, (tenant, group))
        self._places[ticket] = place
        if priority not in self._classes:
            self._classes[priority] = _Round()
            self._classes = dict(sorted(self._classes.items()))
        self._classes[priority].add(ticket, place)
        return True

    def leave(self, ticket: Ticket, served: bool = False, now: float | None = None) -> bool:
        """Give up a place. False if the ticket has none. ``served``: it leaves because it may run, so that its flow has
        had a turn; ``now`` then tells how fast the line moves."""
        place = self._places.pop(ticket, None)
        if place is None:
            return False
        round_ = self._classes[place.priority]
        round_.remove(place)
        if served:
            round_.charge(place)
            self._turn(now)
        if not round_:
            del self._classes[place.priority]
        if not self._places:
            self._last_turn = None  # what follows is no wait
        return True

    def head(self, closed: Container[str] = ()) -> Ticket | None:
        """The ticket whose turn is next, of a group that is not closed; it keeps its place."""
        if self._turns % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            return self._oldest(closed)
        for round_ in self._classes.values():
            found = round_.head(closed)
            if found is not None:
                return found
        return None

    def _oldest(self, closed: Container[str]) -> Ticket | None:
        """Of the class of whoever has waited longest: the flow whose turn it is there, and its oldest ticket."""
        longest = next((place for place in self._places.values() if place.flow[1] not in closed), None)
        if longest is None:
            return None
        first = self._classes[longest.priority].head(closed)
        assert first is not None, "a class with a ticket that may go has a head"
        whose = self._places[first]
        return next(t for t, p in self._places.items() if p.flow == whose.flow and p.priority == whose.priority)

    def pop(self, now: float | None = None) -> Ticket | None:
        """The ticket whose turn it is; it gives up its place."""
        ticket = self.head()
        if ticket is not None:
            self.leave(ticket, True, now)
        return ticket

    def _turn(self, now: float | None) -> None:
        self._turns += 1
        if now is not None and self._last_turn is not None:
            self._paced += 1
            self._pace += (now - self._last_turn - self._pace) / min(self._paced, _REMEMBERED)
        self._last_turn = now

    def wait(self, ahead: int) -> float | None:
        """Seconds until the turn of one with so many ahead, by the pace of late; None while there is no pace yet."""
        return (ahead + 1) * self._pace if self._paced >= _SEEN_ENOUGH else None


class _Round(Generic[Ticket]):
    """The tickets of one priority: deficit round robin over their flows (Shreedhar & Varghese, 1996)."""

    def __init__(self) -> None:
        self._flows: dict[Flow, list[tuple[_Place, Ticket]]] = {}
        self._rotation: deque[Flow] = deque()
        self._deficit: dict[Flow, float] = {}
        self._gone: set[int] = set()
        """Places that were given up, but still lie in a heap."""
        self._left: dict[Flow, int] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, ticket: Ticket, place: _Place) -> None:
        flow = place.flow
        if flow not in self._flows:
            self._flows[flow] = []
            self._rotation.append(flow)
            self._deficit[flow] = 0.0
            self._left[flow] = 0
        heapq.heappush(self._flows[flow], (place, ticket))
        self._left[flow] += 1

    def remove(self, place: _Place) -> None:
        flow = place.flow
        heap = self._flows[flow]
        self._left[flow] -= 1
        if not self._left[flow]:
            self._gone.difference_update(other.sequence for other, _ in heap)
            self._rotation.remove(flow)
            for known in (self._flows, self._deficit, self._left):
                del known[flow]
            return
        self._gone.add(place.sequence)
        if len(heap) > 64 + 2 * self._left[flow]:  # sweep now and then: places left behind must not pile up
            kept = [pair for pair in heap if pair[0].sequence not in self._gone]
            self._gone.difference_update(other.sequence for other, _ in heap)
            heapq.heapify(kept)
            self._flows[flow] = kept

    def charge(self, place: _Place) -> None:
        """The flow of a place has had a turn. One that is empty by now owes nothing."""
        if place.flow in self._deficit:
            self._deficit[place.flow] -= place.cost

    def head(self, closed: Container[str]) -> Ticket | None:
        rotation = self._rotation
        if not any(flow[1] not in closed for flow in rotation):
            return None
        skipped = False
        while True:
            flow = rotation[0]
            if flow[1] not in closed:
                place, ticket = self._first(flow)
                if place.cost <= self._deficit[flow]:
                    return ticket
                if not skipped:
                    self._skip_rounds(closed)
                    skipped = True
                self._deficit[flow] += QUANTUM
            rotation.rotate(-1)

    def _skip_rounds(self, closed: Container[str]) -> None:
        """All rounds but the last in which nobody could pay yet: dear tickets would take many."""
        short = [self._first(flow)[0].cost - self._deficit[flow] for flow in self._rotation if flow[1] not in closed]
        rounds = math.ceil(min(short) / QUANTUM) - 1
        for flow in self._rotation:
            if rounds > 0 and flow[1] not in closed:
                self._deficit[flow] += rounds * QUANTUM

    def _first(self, flow: Flow) -> tuple[_Place, Ticket]:
        heap = self._flows[flow]
        while heap[0][0].sequence in self._gone:
            self._gone.discard(heapq.heappop(heap)[0].sequence)
        return heap[0]
