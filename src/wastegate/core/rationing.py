"""How many calls of each route hold a slot in this process, and whose turn in the line must wait for that. What follows
from it is decided by the batching lever; no call is seen here."""

from __future__ import annotations

from collections.abc import Mapping

from wastegate.core.shares import Share


class Rationing:
    """The counts of one process. Each ``took`` is followed by one ``gave``."""

    def __init__(self, share: Share) -> None:
        """``share``: this process's of what all workers together may run. Without bounds yet."""
        self._share = share
        self._calls: dict[str, int] = {}
        self._common = 0
        self._running: dict[str, int] = {}
        self.closed: set[str] = set()
        """Routes of which as many run as may."""

    def set(self, calls: Mapping[str, int], common: int) -> None:
        """``calls``: how many of a route may run at once, 0 for any; ``common``: the same for those that it does not
        name. What runs already counts."""
        self._calls = dict(calls)
        self._common = common
        self.closed.clear()
        for route in self._running:
            self._look(route)

    def took(self, route: str) -> None:
        """A call asks for a slot, or has one."""
        self._running[route] = self._running.get(route, 0) + 1
        self._look(route)

    def gave(self, route: str) -> None:
        """It has none, or no more. One that took its slot before anybody counted is passed over."""
        left = self._running.get(route, 0) - 1
        if left > 0:
            self._running[route] = left
        else:
            self._running.pop(route, None)
        self._look(route)

    def _look(self, route: str) -> None:
        most = self._calls.get(route, self._common)
        if most and self._running.get(route, 0) >= self._share.cap(most):
            self.closed.add(route)
        else:
            self.closed.discard(route)

    def running(self, route: str) -> int:
        """As the lever counts: all that may run, where this process has its share of them."""
        own = self._running.get(route, 0)
        return max(own, self._calls.get(route, self._common)) if route in self.closed else own

    def group(self, route: str) -> str:
        """What the route's calls are called in the line: they are passed by while it is closed."""
        return route if self._calls.get(route, self._common) else ""
