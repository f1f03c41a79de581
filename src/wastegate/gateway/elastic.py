"""Local replicas that come and go with the load: started when all are full, drained and stopped when the rest will do.
How many that is, is decided in ``core.elastic``; processes are started and stopped by their own keepers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from wastegate.core.elastic import Config, State, decide
from wastegate.core.fleet import ReplicaState
from wastegate.gateway.roster import Roster

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_DRAIN_SECONDS = 120.0
"""A replica that is to stop and still has calls after so long is stopped all the same; it then has its own drain."""
_STOP_SECONDS = 30.0


class Keeper(Protocol):
    """Who keeps one replica's process."""

    name: str

    def start(self) -> None: ...

    async def stop(self, seconds: float) -> None: ...

    def park(self) -> None:
        """It has been stopped, and is at no address any more."""


class Elastic:
    """The keepers of one gateway, the first of which run."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        config: Config,
        roster: Roster,
        states: Callable[[], tuple[ReplicaState, ...]],
        waiting: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._keepers = keepers
        self._config = config
        self._roster = roster
        self._states = states
        self._waiting = waiting
        self._now = now
        self._state = State(min(config.least, len(keepers)))
        self._up: set[str] = set()
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._follow()
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """No replica comes or goes any more. Those that run are left to their keepers."""
        tasks = [task for task in (self._task, *self._leaving.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                self.tick()
            except Exception:  # whatever it is, replicas must still come and go with the next look
                log.exception("the load of the local replicas cannot be followed")

    def tick(self) -> None:
        """Look at the load, and let replicas come or go for it."""
        load = sum(state.in_flight for state in self._states()) + self._waiting()
        before = self._state.wanted
        self._state = decide(load, self._now(), self._state, self._config, len(self._keepers))
        if self._state.wanted != before:
            log.info("local replicas: %d → %d: %s", before, self._state.wanted, self._state.why)
            self._follow()

    def _follow(self) -> None:
        for number, keeper in enumerate(self._keepers):
            if number < self._state.wanted:
                self._want(keeper)
            elif keeper.name in self._up and keeper.name not in self._leaving:
                self._leaving[keeper.name] = asyncio.ensure_future(self._leave(keeper))

    def _want(self, keeper: Keeper) -> None:
        leaving = self._leaving.get(keeper.name)
        if leaving is not None and keeper.name in self._up:  # it only drains yet: it need not go at all
            leaving.cancel()
            del self._leaving[keeper.name]
            self._roster.undrain(keeper.name)
        elif keeper.name not in self._up and leaving is None:
            self._up.add(keeper.name)
            keeper.start()

    async def _leave(self, keeper: Keeper) -> None:
        """Drain, then stop."""
        self._roster.drain(keeper.name)
        give_up = self._now() + _DRAIN_SECONDS
        while self._busy(keeper.name) and self._now() < give_up:  # noqa: ASYNC110  # load is a state: nobody tells
            await asyncio.sleep(_TICK_SECONDS / 5)
        self._up.discard(keeper.name)  # from here on there is no way back
        await keeper.stop(_STOP_SECONDS)
        self._roster.undrain(keeper.name)
        keeper.park()
        del self._leaving[keeper.name]
        self._follow()  # it may be wanted again by now

    def _busy(self, name: str) -> bool:
        return any(state.in_flight for state in self._states() if state.replica.name == name)
