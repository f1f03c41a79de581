"""Replicas at one instant, as values. What changes them is ``core.world``; what reads them is policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

State = Literal["loading", "ready", "draining", "down"]
BreakerState = Literal["closed", "open", "half_open"]


class Replica(Struct, frozen=True, gc=False):
    """One engine process that answers calls. ``price`` is nano-dollars an hour for the whole replica."""

    name: str
    url: str
    models: tuple[str, ...] = ()
    """The model names that it serves; empty while unknown: it is then a candidate for any."""
    engine: str = ""
    price: int = 0
    accelerator: str = ""
    cap: int | None = None
    """Most calls in flight that the gateway gives it; None leaves that to the engine's own queue."""


class ReplicaState(Struct, frozen=True, gc=False):
    """A replica with what is known of it now."""

    replica: Replica
    state: State = "loading"
    in_flight: int = 0
    """Claims held, counted from the claim and not from the first byte. A probe never touches it."""
    breaker: BreakerState = "closed"
    resting_until: float = 0.0
    """It asked to be left alone (Retry-After) until then."""

    def fit(self, now: float) -> bool:
        """Ready, not tripped, not resting: it takes calls, though perhaps none at this instant."""
        return self.state == "ready" and self.breaker != "open" and self.resting_until <= now

    def open_to_calls(self, now: float) -> bool:
        """Fit, and below its cap."""
        if self.state != "ready" or self.breaker == "open" or self.resting_until > now:
            return False  # as ``fit`` says, written out: it is asked of every replica for every call
        cap = self.replica.cap
        return cap is None or self.in_flight < cap


Confidence = Literal["DEGRADED", "GUESS"]
"""How sure it is what a replica's prefix cache holds: its engine says with each answer how much of the prompt it had,
or it never says, and all that is known is what was sent there."""


class Outlook(Struct, frozen=True, gc=False):
    """What the replicas would make of one call: each tuple goes with ``View.replicas``, place by place."""

    tokens: float
    """The prompt's, estimated."""
    cached: tuple[float, ...]
    """Of these, in the replica's prefix cache, as far as is known."""
    waits: tuple[float, ...]
    """Seconds until the replica would have done the prefill that is before this call's."""
    paces: tuple[float, ...]
    """Seconds of prefill a token."""
    holdups: tuple[float, ...]
    """Seconds that a token of prefill costs the calls in flight on the replica, all together."""
    confidence: tuple[Confidence, ...]
    shared: float = 0.0
    """Tokens at the front that most replicas hold: having them distinguishes nobody."""
    chance: float = 0.0
    """That a prompt of which nobody holds more than most do is in a cache all the same. 0 where somebody does."""
    home: int = -1
    """The place of the replica to which the first block behind ``shared`` belongs, so that prompts that begin alike
    come to lie together without anybody's knowing; -1 where somebody holds more, or there is no whole block."""
    alike: int = 0
    """Calls in flight that begin like this one, as far as its first block behind ``shared``."""
    sequence: int = 0
    """How many calls were looked at before this one."""
    stuck: str = ""
    """The replica to which a prompt much like this one was sent last (for ``simhash``)."""


class Rations(Struct, frozen=True, gc=False):
    """How much is asked of the fleet, for one call."""

    waiting: int
    """Calls in the line of its model."""
    turn: float | None
    """Seconds until the turn of one that joins the line now, by the line's pace of late; None where that is unknown."""
    running: int
    """Calls of its route that hold a slot now."""


class View(Struct, frozen=True, gc=False):
    """What policy may know when it decides for one call: one instant, nothing mutable."""

    now: float
    replicas: tuple[ReplicaState, ...]
    """Those that serve the call's model, whatever their state."""
    draw: float
    """A uniform draw from [0, 1): the only randomness that policy gets."""
    ahead: int = 0
    """Calls that wait in line before this one."""
    retry_allowed: bool = True
    """The retry budget has room."""
    known_models: tuple[str, ...] = ()
    """All model names that the fleet serves, for the error message when this call's is not among them."""
    outlook: Outlook | None = None
    """None where nobody routes by it."""
    twin: str = ""
    """The id of another call in flight that asks the same as this one and lets others fly along; empty if none does."""
    rations: Rations | None = None
    """None where no route is rationed."""


def serves(state: ReplicaState, model: str) -> bool:
    """A replica that has not said yet what it serves is a candidate for any model."""
    return not state.replica.models or model in state.replica.models


def models_of(states: Iterable[ReplicaState]) -> tuple[str, ...]:
    """All model names that are served, each once."""
    return tuple(dict.fromkeys(model for state in states for model in state.replica.models))
