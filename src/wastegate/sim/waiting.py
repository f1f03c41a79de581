"""The line as calls see it and stand in it, with the shares of routes where these are rationed. Whom it wakes, and
when, is the driver's."""

from __future__ import annotations

from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.fleet import Rations, View
from wastegate.core.line import QUANTUM
from wastegate.core.lines import Lines
from wastegate.core.rationing import Rationing
from wastegate.sim.flight import Flight


class Waiting:
    """``rationing`` None: no route is rationed."""

    def __init__(self, bound: int, rationing: Rationing | None) -> None:
        self.lines: Lines[Flight] = Lines(bound)
        self._rationing = rationing

    def ahead(self, flight: Flight, call: Call) -> int:
        """How many may go before it."""
        return self.lines.ahead(call.model, flight, self._rationing.closed if self._rationing is not None else ())

    def rationed(self, view: View, flight: Flight, call: Call) -> View:
        """The view with what is asked of the fleet, where somebody counts it."""
        if self._rationing is None:
            return view
        waiting, turn = self.lines.waiting(call.model)
        turn = None if self.lines.has(call.model, flight) else turn
        return replace(view, rations=Rations(waiting, turn, self._rationing.running(call.route)))

    def join(self, flight: Flight, call: Call, until: float) -> tuple[bool, bool]:
        """(it has a place, others may go because of it)."""
        rationing = self._rationing
        if rationing is None:
            return self.lines.join(call.model, flight, call.priority), False
        before = len(self.lines)
        joined = self.lines.join(
            call.model,
            flight,
            call.priority,
            tenant=call.tenant,
            group=rationing.group(call.route),
            deadline=until,
            cost=call.prompt_tokens + (call.max_tokens or QUANTUM) * call.n,
        )
        # Whoever is before it may only be waiting for its route.
        return joined, bool(rationing.closed) and len(self.lines) > before

    def leave(self, flight: Flight, served: bool, now: float) -> bool:
        """False if it had no place."""
        return bool(self.lines) and self.lines.leave(flight.call.model, flight, served, now)

    def heads(self) -> list[Flight]:
        """Whose turn it is."""
        return self.lines.heads(self._rationing.closed if self._rationing is not None else ())

    def took(self, flight: Flight) -> None:
        """It has a slot."""
        if self._rationing is not None:
            self._rationing.took(flight.call.route)

    def gave(self, flight: Flight) -> None:
        """It has none any more."""
        if self._rationing is not None:
            self._rationing.gave(flight.call.route)
