"""Builds the gateway from its configuration, runs it, and takes it down in order. Nobody else builds anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from typing import Protocol

import uvloop

from wastegate.gateway.config import Config, StartError
from wastegate.gateway.front import Front, open_book
from wastegate.gateway.hub import Clock
from wastegate.gateway.steward import Steward
from wastegate.gateway.workers import Chief

log = logging.getLogger(__name__)


class Service(Protocol):
    """A gateway that can be run: in this process alone, or with workers."""

    url: str
    admin_url: str

    def stop(self) -> None: ...

    async def run(self, started: Callable[[], object]) -> None: ...


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code."""

    async def serve() -> None:
        gateway: Service = Chief(config) if config.workers > 1 else Gateway(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.stop)
        # For scripts and for tests, which ask for port 0.
        await gateway.run(lambda: print(f"ready {gateway.url} admin {gateway.admin_url}", flush=True))

    try:
        uvloop.run(serve())
    except StartError as error:
        log.error("%s", error)
        return 2
    return 0


class Gateway:
    """A gateway in one process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self.url = ""
        self.admin_url = ""
        self.front: Front | None = None
        """Its clients' side, once it runs: for whoever wants to watch it from within."""

    def stop(self) -> None:
        """Begin to shut down; ``run`` returns when it is done."""
        self._stop.set()

    async def run(self, started: Callable[[], object]) -> None:
        """Serve until ``stop``. ``started`` is called once clients can connect. Raises StartError."""
        now = Clock().now  # one clock for all that is written down
        book = open_book(self._config, "gateway", now)
        steward = Steward(
            self._config, book, now, lambda: front.hub.report(), lambda: front.hub.connect(steward.roster.replicas)
        )
        front = Front(self._config, steward.world, book, now)
        self.front = front
        try:
            await front.listen()
            await steward.listen()
            self.url, self.admin_url = front.url, steward.admin_url
            log.info("listening on %s, admin on %s", self.url, self.admin_url)
            started()
            await steward.start()
            gc.collect()
            gc.freeze()  # what is built once is not walked again by every collection
            await self._stop.wait()
            await front.drain()
        finally:
            await steward.stop()
            front.close()
            book.close()
