"""A process's copy of a world that another process keeps. Told, never asked to decide: slots are claimed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.fleet import ReplicaState, View, models_of, serves
from wastegate.core.reuse import Reuse


class Mirror:
    """A worker's copy of a world that another process keeps: told of every change, asked for views."""

    def __init__(self) -> None:
        self._states: dict[str, ReplicaState] = {}
        self._models: tuple[str, ...] = ()
        self._retry_allowed = True
        self.reuse: Reuse | None = None
        """As in ``World``: each process has its own, and learns of the calls that it sends itself."""

    @property
    def states(self) -> tuple[ReplicaState, ...]:
        return tuple(self._states.values())

    def seen(self, now: float) -> tuple[ReplicaState, ...]:
        """All replicas, with their breakers as they stood when last told."""
        return self.states

    def told(self, states: Iterable[ReplicaState], retry_allowed: bool) -> None:
        """Everything anew."""
        self._states = {state.replica.name: state for state in states}
        self._models = models_of(self._states.values())
        if self.reuse is not None:
            self.reuse.fleet(self._states.values())
            self.reuse.regroup()
        self._retry_allowed = retry_allowed

    def load(self, name: str, in_flight: int) -> None:
        """One replica's load, as the answer to a claim tells it."""
        state = self._states.get(name)
        if state is not None:
            self._states[name] = replace(state, in_flight=in_flight)

    def view(self, call: Call, now: float, draw: float, ahead: int = 0) -> View:
        """As ``World.view``."""
        replicas = tuple(state for state in self._states.values() if serves(state, call.model))
        outlook = self.reuse.look(call, replicas, now) if self.reuse is not None else None
        return View(now, replicas, draw, ahead, self._retry_allowed, self._models, outlook)
