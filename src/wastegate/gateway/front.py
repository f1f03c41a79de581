"""The clients' side of one process: it listens, holds what is in flight, and drains. Where the fleet's state comes from
is its owner's business."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from wastegate.core.mirror import Mirror
from wastegate.core.rationing import Rationing
from wastegate.core.reuse import Reuse
from wastegate.core.shares import Share
from wastegate.core.world import World
from wastegate.gateway.config import Config, StartError, address, url
from wastegate.gateway.hub import Hub
from wastegate.gateway.keys import Keys
from wastegate.gateway.prefix import load_seed
from wastegate.gateway.recorder import Recorder
from wastegate.gateway.reload import Ready, prepare_first
from wastegate.gateway.request import Gate
from wastegate.gateway.serve import ClientConnection
from wastegate.gateway.telemetry import TelemetryError, open_telemetry
from wastegate.gateway.tls import Certificate
from wastegate.store.journal import JournalError
from wastegate.store.schema import LedgerError

log = logging.getLogger(__name__)

_BACKLOG = 4096
_SWEEP_SECONDS = 1.0
_FLUSH_SECONDS = 1.0
_CLAIM_SECONDS = 3.0
"""No claim goes unanswered for so long: whoever is asked for it, it is then decided here."""
"""At the end, for the last bytes to leave: they lie in buffers that go with this process."""


def open_book(config: Config, worker: str, now: Callable[[], float]) -> Recorder:
    """Where this process writes calls down. Raises StartError."""
    try:
        telemetry = open_telemetry(config.telemetry, worker)
    except TelemetryError as error:
        raise StartError(str(error)) from None
    try:
        return Recorder(config.journal_path, config.ledger_path, worker, config.ledger, now, telemetry)
    except (LedgerError, JournalError, OSError) as error:
        raise StartError(f"calls cannot be written down: {error}") from None


class Front:
    """Serves clients until it is told to drain."""

    def __init__(
        self,
        config: Config,
        world: World | Mirror,
        book: Recorder,
        now: Callable[[], float],
        share: Share = Share(),  # noqa: B008  # frozen
    ) -> None:
        """``share``: this process's of what is bounded for all workers together."""
        self._config = config
        self._share = share
        loop = asyncio.get_running_loop()
        seed = load_seed(config.data / "prefix.seed")
        self.hub = Hub(loop, now, world, book, config.rules, config.limits.line, seed)
        self.gate = Gate(self.hub, config.routes, config.timers, config.limits, config.levers)
        ready = prepare_first(config)
        self._certificate = Certificate(ready.certificate) if ready.certificate is not None else None
        self.take(ready)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def take(self, ready: Ready) -> None:
        """Serve by another configuration from now on. Calls in flight keep what they started with."""
        config = self._config = ready.config
        self.hub.rules = config.rules
        self.hub.set_line(config.limits.line)
        self.hub.recorder.set_rules(config.ledger)
        self.hub.origins = ready.origins
        self.hub.connect(state.replica for state in self.hub.world.states)
        self._route(config)
        self._ration(config)
        self.gate.limits = config.limits
        self.gate.set_routes(config.routes, config.timers, config.levers)
        self.gate.keys = Keys(config.api_keys) if config.api_keys else None
        if self._certificate is not None and ready.certificate is not None:
            self._certificate.show(ready.certificate)

    def _route(self, config: Config) -> None:
        """Keep what routing knows while some route goes by it, and nothing otherwise."""
        world = self.hub.world
        levers = [config.levers.routing, *(route.levers.routing for route in config.routes)]
        on = [lever for lever in levers if lever.policy != "off"]
        self.hub.likeness = any(lever.policy == "simhash" for lever in on)
        if not on:
            world.reuse = None
        elif world.reuse is None or world.reuse.config != config.levers.routing.index:
            others = isinstance(world, Mirror) or bool(config.shared.redis)
            world.reuse = Reuse(config.levers.routing.index, on[0].sticky_seconds, self.hub.now(), others)
            world.reuse.fleet(world.states)

    def _ration(self, config: Config) -> None:
        """Count calls by route while batching is on somewhere, and nothing otherwise."""
        own = {route.name: route.levers.batching for route in config.routes}
        common = config.levers.batching
        if not common.on and not any(lever.on for lever in own.values()):
            self.hub.rationing = None
            return
        calls = {name: lever.calls if lever.on else 0 for name, lever in own.items()}
        if self.hub.rationing is None:
            self.hub.rationing = Rationing(self._share)
        self.hub.rationing.set(calls, common.calls if common.on else 0)

    async def listen(self, port: int | None = None) -> None:
        """Take clients. ``port``: shared with other processes that listen there too. Raises StartError."""
        host, own_port = address(self._config.listen)
        loop = asyncio.get_running_loop()
        certificate = self._certificate
        secure = certificate.options(self._config.limits.header_seconds) if certificate is not None else {}
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self.gate),
                host,
                own_port if port is None else port,
                backlog=_BACKLOG,
                reuse_port=port is not None,
                **secure,
            )
        except OSError as error:
            raise StartError(
                f"cannot listen on {self._config.listen}: {error.strerror or error}; is another gateway running there?"
            ) from None
        self.url = url(host, self._server.sockets[0].getsockname()[1], tls=bool(secure))
        self.hub.start()
        self._sweeper = asyncio.ensure_future(self._sweep())

    async def _sweep(self) -> None:
        """Close connections that their clients have left hanging, and note in the journal that all lives."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self.hub.now()
            for connection in list(self.gate.connections):
                connection.check(now)
            if self.hub.flights:
                self.hub.recorder.beat()

    async def drain(self) -> None:
        """No new calls; streams finish, or get a terminal event at the deadline."""
        self.gate.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.gate.connections):
            connection.drain()
        hub = self.hub
        log.info("shutting down: %d calls in flight", len(hub.flights))
        await self._until_empty(hub.flights, self._config.limits.drain_seconds)
        give_up = hub.now() + _CLAIM_SECONDS
        while hub.flights and hub.now() < give_up:  # one that waits for its slot's answer can only be stopped then
            for flight in list(hub.flights):
                flight.stop()
            await asyncio.sleep(0.02)
        hub.write_down()
        await self._until_empty(self.gate.connections, _FLUSH_SECONDS)

    async def _until_empty(self, some: Collection[object], seconds: float) -> None:
        deadline = self.hub.now() + seconds
        while some and self.hub.now() < deadline:  # noqa: ASYNC110  # a poll at shutdown, not on the hot path
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """After the drain: nothing is left but connections to replicas."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.hub.stop()
