"""How many replicas a load needs: one more soon after they are full, one fewer long after one could go. Values only;
what starts and stops them is elsewhere."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """When local replicas come and go. ``least = 0`` keeps all of them."""

    least: int = 0
    """Replicas that always run; 0: all that there are, whatever the load."""
    calls_each: int = 8
    """Calls in flight or in line that make a replica full."""
    start_after: float = 2.0
    """Seconds for which all must be full before one more starts. Starting takes a few itself."""
    stop_after: float = 120.0
    """Seconds for which the rest could serve the load, with room, before one stops. A cold start costs its loading
    time, so that less than some times that saves nothing."""
    room: float = 0.6
    """Share of full that the rest may reach when one stops: or it would start again at once."""

    def __post_init__(self) -> None:
        if self.least < 0 or self.calls_each < 1:
            raise ValueError("least must not be below 0, calls_each at least 1")
        if self.start_after < 0 or self.stop_after < 0:
            raise ValueError("start_after and stop_after are seconds, not below 0")
        if not 0 < self.room <= 1:
            raise ValueError(f"room is {self.room:g}: a share of full, above 0 and at most 1")


class State(Struct, frozen=True):
    """How many are wanted, and since when another number would do better. Begin with ``State(least)``."""

    wanted: int
    full_since: float | None = None
    spare_since: float | None = None
    why: str = "as few as may be"


def decide(load: int, now: float, state: State, config: Config, most: int) -> State:
    """``load``: calls in flight and in line; ``now``: seconds on a clock that does not go back. Between ``least`` and
    ``most``, one step at a time down, and as many as the load needs up."""
    if not config.least:
        return replace(state, wanted=most)
    least = min(config.least, most)
    wanted = max(least, min(most, state.wanted))
    full = load > wanted * config.calls_each
    spare = load <= (wanted - 1) * config.calls_each * config.room
    full_since = (now if state.full_since is None else state.full_since) if full else None
    spare_since = (now if state.spare_since is None else state.spare_since) if spare else None
    if full_since is not None and now - full_since >= config.start_after and wanted < most:
        more = min(most, math.ceil(load / config.calls_each))
        return State(more, why=f"{load} calls fill {wanted} replicas of {config.calls_each} each")
    if spare_since is not None and now - spare_since >= config.stop_after and wanted > least:
        return State(wanted - 1, why=f"{load} calls for {now - spare_since:.0f} s: {wanted - 1} can serve them")
    return State(wanted, full_since, spare_since, state.why)
