"""The fleet's side of one gateway: who is in it, how it fares, what it costs, and the operator's listener. There is
one steward, however many processes serve clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wastegate.core.world import World
from wastegate.gateway import children, control, probe
from wastegate.gateway.config import Config, StartError, address, url
from wastegate.gateway.recorder import Recorder
from wastegate.gateway.roster import Roster
from wastegate.gateway.tally import Report

_BEAT_SECONDS = 5.0
_CHILD_SECONDS = 15.0


class Steward:
    """Keeps the world up to date."""

    def __init__(
        self,
        config: Config,
        book: Recorder,
        now: Callable[[], float],
        report: Callable[[], Report],
        changed: Callable[[], None],
    ) -> None:
        self._config = config
        self._book = book
        self.world = World(config.breaker, config.budget)
        self.roster = Roster(self.world, now, book.save_spans, changed)
        self._prober = probe.Prober(self.roster, config.probe)
        logs = config.data / "logs"
        self._local = None if config.replicas else children.Children(config.local, self.roster, self._prober, logs)
        host, port = address(config.control.listen)
        self._control = control.Control(self.world, now, report, config.control, host, port)
        self._host = host
        self._beater: asyncio.Task[None] | None = None
        self.admin_url = ""

    async def listen(self) -> None:
        """Open the operator's listener. Raises StartError."""
        try:
            self.admin_url = url(self._host, await self._control.start())
        except OSError as error:
            raise StartError(
                f"cannot listen on {self._config.control.listen}: {error.strerror or error}; is another gateway there?"
            ) from None

    async def start(self) -> None:
        """Begin to watch the fleet, or to start it."""
        await self._prober.start()
        if self._local is not None:
            self._local.start()
        else:
            self.roster.set(self._config.replicas)
            for replica in self._config.replicas:
                self._prober.watch(replica)
        self._beater = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        """Note that the replicas last: a killed gateway's spans end when they were last seen."""
        while True:
            self.roster.beat()
            await asyncio.sleep(_BEAT_SECONDS)

    async def stop(self) -> None:
        """After the last call: stop what was started, close every span."""
        if self._beater is not None:
            self._beater.cancel()
        if self._local is not None:
            await self._local.stop(_CHILD_SECONDS)
        await self._prober.stop()
        await self._control.stop()
        self.roster.close()
