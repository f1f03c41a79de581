"""Builds the gateway from its configuration, runs it, and takes it down in order. Nobody else builds anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import uvloop
from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway import children, control, probe, recorder
from wastegate.gateway.hub import Clock, Hub
from wastegate.gateway.request import Gate, Route
from wastegate.gateway.roster import Roster
from wastegate.gateway.serve import ClientConnection, Limits
from wastegate.levers import LEVERS
from wastegate.store.journal import JournalError
from wastegate.store.schema import LedgerError

log = logging.getLogger(__name__)

_BACKLOG = 4096
_BEAT_SECONDS = 5
_CHILD_SECONDS = 15.0


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole gateway, validated. ``replicas`` empty means: start local ones."""

    data: Path
    listen: str = "127.0.0.1:8080"
    control: control.Config = control.Config()
    limits: Limits = Limits()
    timers: Timers = Timers()
    rules: Rules = Rules()
    breaker: Breaker = Breaker()
    budget: RetryBudget = RetryBudget()
    probe: probe.Config = probe.Config()
    ledger: recorder.Config = recorder.Config()
    routes: tuple[Route, ...] = ()
    replicas: tuple[Replica, ...] = ()
    local: children.Config = children.Config()


class StartError(Exception):
    """The gateway cannot start; the text says why and what to do."""


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code."""

    async def serve() -> None:
        gateway = Gateway(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.stop)
        await gateway.run(lambda: print(f"ready {gateway.url} admin {gateway.admin_url}", flush=True))

    try:
        uvloop.run(serve())
    except StartError as error:
        log.error("%s", error)
        return 2
    return 0


def address(listen: str) -> tuple[str, int]:
    """``host:port`` taken apart; an IPv6 host stands in brackets. Raises StartError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{listen!r} is not an address: write host:port, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


class Gateway:
    """One gateway process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self.url = ""
        self.admin_url = ""
        self.hub: Hub | None = None
        """What its flights share, once it runs: for whoever wants to watch it from within."""

    def stop(self) -> None:
        """Begin to shut down; ``run`` returns when it is done."""
        self._stop.set()

    async def run(self, started: Callable[[], object]) -> None:
        """Serve until ``stop``. ``started`` is called once clients can connect. Raises StartError."""
        config = self._config
        now = Clock().now  # one clock for all that is written down
        book = self._open_book(now)
        world = World(config.breaker, config.budget)
        hub = self.hub = Hub(asyncio.get_running_loop(), now, world, book, config.rules, LEVERS, config.limits.line)
        roster = Roster(world, now, book.save_spans, lambda: hub.connect(roster.replicas))
        prober = probe.Prober(roster, config.probe)
        local = None if config.replicas else children.Children(config.local, roster, prober, config.data / "logs")
        gate = Gate(hub, config.routes, config.timers, config.limits)
        admin = control.Control(world, now, hub.report, config.control, *address(config.control.listen))
        try:
            server = await self._listen(gate, admin)
            started()
            await self._serve(gate, roster, prober, local)
            await self._drain(gate, server)
        finally:
            if local is not None:
                await local.stop(_CHILD_SECONDS)
            await prober.stop()
            await admin.stop()
            roster.close()
            hub.stop()
            book.close()

    def _open_book(self, now: Callable[[], float]) -> recorder.Recorder:
        config = self._config
        journal = Path(config.ledger.journal or config.data / "journal")
        ledger = Path(config.ledger.path or config.data / "ledger.db")
        try:
            return recorder.Recorder(journal, ledger, "gateway", config.ledger, now)
        except (LedgerError, JournalError, OSError) as error:
            raise StartError(f"calls cannot be written down: {error}") from None

    async def _listen(self, gate: Gate, admin: control.Control) -> asyncio.Server:
        host, port = address(self._config.listen)
        admin_host, _ = address(self._config.control.listen)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: ClientConnection(gate), host, port, backlog=_BACKLOG)
            admin_port = await admin.start()
        except OSError as error:
            raise StartError(f"cannot listen: {error.strerror or error}; is another gateway running there?") from None
        self.url = f"http://{_host(host)}:{server.sockets[0].getsockname()[1]}"
        self.admin_url = f"http://{_host(admin_host)}:{admin_port}"
        log.info("listening on %s, admin on %s", self.url, self.admin_url)
        return server

    async def _serve(
        self,
        gate: Gate,
        roster: Roster,
        prober: probe.Prober,
        local: children.Children | None,
    ) -> None:
        await prober.start()
        if local is not None:
            local.start()
        else:
            roster.set(self._config.replicas)
            for replica in self._config.replicas:
                prober.watch(replica)
        gate.hub.start()
        gc.collect()
        gc.freeze()  # what is built once is not walked again by every collection
        sweep = asyncio.ensure_future(_sweep(gate))
        beat = asyncio.ensure_future(_beat(roster, gate.hub.recorder))
        await self._stop.wait()
        sweep.cancel()
        beat.cancel()

    async def _drain(self, gate: Gate, server: asyncio.Server) -> None:
        """No new calls; streams finish, or get a terminal event at the deadline."""
        gate.draining = True
        server.close()
        for connection in list(gate.connections):
            connection.drain()
        hub = gate.hub
        log.info("shutting down: %d calls in flight", len(hub.flights))
        deadline = hub.now() + self._config.limits.drain_seconds
        while hub.flights and hub.now() < deadline:  # noqa: ASYNC110  # a poll at shutdown, not on the hot path
            await asyncio.sleep(0.05)
        for flight in list(hub.flights):
            flight.stop("shutdown")
        await asyncio.sleep(0)  # let the last writes leave


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _sweep(gate: Gate) -> None:
    """Close connections that their clients have left hanging."""
    while True:
        await asyncio.sleep(1.0)
        now = gate.hub.now()
        for connection in list(gate.connections):
            connection.check(now)


async def _beat(roster: Roster, book: recorder.Recorder) -> None:
    """Note that all lives: a killed gateway's spans and calls end when it was last seen."""
    while True:
        roster.beat()
        for _ in range(_BEAT_SECONDS):
            book.beat()
            await asyncio.sleep(1.0)
