"""The lines of calls that wait for a replica, one for each model. Who is next, and nothing of what wakes them."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable
from typing import Generic, TypeVar

from wastegate.core.line import QUANTUM, Line

Ticket = TypeVar("Ticket", bound=Hashable)


class Lines(Generic[Ticket]):
    """A bounded line for each model, there only while somebody stands in it.

    A model's line never holds up another's: its replicas may be the only ones that are full.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._lines: dict[str, Line[Ticket]] = {}

    def __bool__(self) -> bool:
        """Somebody waits. Asked for every call, so it counts nobody."""
        return bool(self._lines)

    def __len__(self) -> int:
        """Tickets in all lines together."""
        return sum(len(line) for line in self._lines.values())

    def join(
        self,
        model: str,
        ticket: Ticket,
        priority: int = 0,
        *,
        tenant: str = "",
        group: str = "",
        deadline: float = math.inf,
        cost: float = QUANTUM,
    ) -> bool:
        """A place, or the place that it has already. False if the model's line is full. The rest as in
        :meth:`Line.join`."""
        line = self._lines.get(model)
        if line is None:
            line = Line(self._bound)
        if ticket not in line and not line.join(
            ticket, priority, tenant=tenant, group=group, deadline=deadline, cost=cost
        ):
            return False
        self._lines[model] = line
        return True

    def resize(self, bound: int) -> None:
        """Another bound from now on. Nobody who waits is sent away: a line that is too long drains."""
        self._bound = bound
        for line in self._lines.values():
            line.bound = bound

    def leave(self, model: str, ticket: Ticket, served: bool = False, now: float | None = None) -> bool:
        """Give up a place. False if the ticket has none. The rest as in :meth:`Line.leave`."""
        line = self._lines.get(model)
        if line is None or not line.leave(ticket, served, now):
            return False
        if not line:
            del self._lines[model]
        return True

    def ahead(self, model: str, ticket: Ticket, closed: Container[str] = ()) -> int:
        """How many may go first: none for the head of its line, everybody in the line for one without a place.

        For one in the middle this is an upper bound, since it counts those behind as well.
        """
        line = self._lines.get(model)
        if line is None or line.head(closed) == ticket:
            return 0
        return len(line) - (ticket in line)

    def has(self, model: str, ticket: Ticket) -> bool:
        """It stands in the model's line."""
        line = self._lines.get(model)
        return line is not None and ticket in line

    def waiting(self, model: str) -> tuple[int, float | None]:
        """How many wait for a model, and the seconds until a newcomer's turn, where the line's pace is known."""
        line = self._lines.get(model)
        return (len(line), line.wait(len(line))) if line is not None else (0, None)

    def heads(self, closed: Container[str] = ()) -> list[Ticket]:
        """Whose turn it is, one for each model that has a line. ``closed``: groups that have none now."""
        return [head for line in self._lines.values() if (head := line.head(closed)) is not None]
