"""Made-up time: planned actions, run in order. What an action means is no business of this room."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Heap:
    """Actions in order of time, and of planning where times are equal: nothing else decides who comes first."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Plan an action; one for the past happens now."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time, self.now), self._sequence, action))

    def run(self) -> None:
        """Until nothing is planned any more."""
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()
