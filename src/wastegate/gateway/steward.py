"""The fleet's side of one gateway: who is in it, how it fares, what it costs, and the operator's listener. There is
one steward, however many processes serve clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from wastegate.core.fleet import Replica
from wastegate.core.world import World
from wastegate.gateway import children, control, probe, records
from wastegate.gateway.caps import Caps
from wastegate.gateway.config import Config, StartError, address, url
from wastegate.gateway.desk import Desk
from wastegate.gateway.devices import Gauges
from wastegate.gateway.pushed import Board
from wastegate.gateway.recorder import Recorder
from wastegate.gateway.reload import Ready, Reloader, prepare_first
from wastegate.gateway.roster import Roster
from wastegate.gateway.shared_redis import SharedError
from wastegate.gateway.signals import Watcher
from wastegate.gateway.tally import Report

_BEAT_SECONDS = 5
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
        reloader: Reloader | None = None,
    ) -> None:
        self._config = config
        reloader = reloader or Reloader(config)
        self._book = book
        self._now = now
        self.world = World(config.breaker, config.budget)
        self.roster = Roster(self.world, now, book.save_spans, changed)
        self._prober = probe.Prober(self.roster, config.probe)
        self.watcher = Watcher(self.world, config.signals, now)
        board = Board(now)
        self.gauges = Gauges(self.world, config.devices, now, self.roster.used, board)
        logs = config.data / "logs"
        self._collector = records.Collector(config.records, book.save_records, book.cursors, now, self.roster.measured)
        self._local = None
        if not config.replicas:
            self._local = children.Children(
                config.local, self.roster, self._prober, logs, lambda: self.world.states, lambda: report().waiting, now
            )
        host, port = address(config.control.listen)
        self._control = control.Control(self.world, now, report, self.roster, reloader, host, port)
        self._control.seen = self.watcher.seen
        self._control.gauges, self._control.board = self.gauges, board
        if self._local is not None:
            self._control.process = self._local.process
        self.caps = Caps(self.world, self.watcher.seen, report, now, changed)
        self.caps.set(config.levers.batching)
        self._control.capped = self.caps.state
        self._host = host
        self._beater: asyncio.Task[None] | None = None
        self._desk: Desk | None = None
        self.admin_url = ""

    def share(self, changed: Callable[[], None]) -> Desk | None:
        """Where slots are to be asked for if other gateways give calls to the same replicas; else None.

        ``changed`` is called when they have changed what the world shows. Raises StartError.
        """
        if not self._config.shared.redis:
            return None
        try:
            desk = Desk(self._config.shared, self.world, self._now, changed, socket.gethostname())
        except SharedError as error:
            raise StartError(f"replicas cannot be shared with other gateways: {error}") from None
        self._desk = desk
        self._control.shared = lambda: desk.status
        return desk

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
        if self._desk is not None:
            await self._desk.start()
        await self._prober.start()
        await self._collector.start()
        if self._local is not None:
            self._local.start()
        self._watch({}, prepare_first(self._config))
        self.watcher.start()
        self.gauges.start()
        self.caps.start()
        self._beater = asyncio.ensure_future(self._beat())

    def take(self, ready: Ready) -> None:
        """Keep the fleet by another configuration from now on."""
        known = {replica.name: replica for replica in self._config.replicas}
        self._config = ready.config
        self.world.set_rules(ready.config.breaker, ready.config.budget)
        self._prober.config = ready.config.probe
        self._collector.config = ready.config.records
        self.watcher.config = ready.config.signals
        self.gauges.config = ready.config.devices
        self.caps.set(ready.config.levers.batching)
        self._watch(known, ready)

    def _watch(self, known: Mapping[str, Replica], ready: Ready) -> None:
        """Replicas that are new or changed are watched anew, those that are gone no more."""
        self._prober.origins = self.watcher.origins = self._collector.origins = ready.origins
        self.gauges.places = ready.config.places
        if self._local is not None:
            return  # they come and go by themselves
        replicas = ready.config.replicas
        self.roster.change(replicas)
        self._collector.watch(replicas)
        for name in known.keys() - {replica.name for replica in replicas}:
            self._prober.forget(name)
        for replica in replicas:
            if known.get(replica.name) != replica:
                self._prober.watch(replica)

    async def _beat(self) -> None:
        """Note that the replicas last: a killed gateway's spans end when they were last seen. Those that leave go."""
        while True:
            self.roster.beat()
            for _ in range(_BEAT_SECONDS):
                await asyncio.sleep(1.0)
                self.roster.settle()

    async def stop(self) -> None:
        """After the last call: stop what was started, close every span."""
        if self._beater is not None:
            self._beater.cancel()
        if self._local is not None:
            await self._local.stop(_CHILD_SECONDS)
        await self._prober.stop()
        await self._collector.stop()
        await self.caps.stop()
        await self.watcher.stop()
        await self.gauges.stop()
        if self._desk is not None:
            await self._desk.stop()
        await self._control.stop()
        self.roster.close()
