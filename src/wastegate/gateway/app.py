"""Builds the gateway from its configuration, runs it, and takes it down in order. Nobody else builds anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from typing import Protocol

import uvloop

from wastegate.gateway.config import Config, StartError
from wastegate.gateway.front import Front, open_book
from wastegate.gateway.hub import Clock
from wastegate.gateway.reload import Reloader
from wastegate.gateway.steward import Steward
from wastegate.gateway.workers import Chief

log = logging.getLogger(__name__)


class Service(Protocol):
    """A gateway that can be run: in this process alone, or with workers."""

    url: str
    admin_url: str

    def stop(self) -> None: ...

    def reload(self) -> None: ...

    async def run(self, started: Callable[[], object]) -> None: ...


def run(config: Config, load: Callable[[], Config] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code.

    ``load`` reads the configuration anew, on SIGHUP or when an operator asks for it; it raises ValueError where that
    is wrong, and the one in force then stays.
    """

    async def serve() -> None:
        gateway: Service = Chief(config, load) if config.workers > 1 else Gateway(config, load)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.stop)
        loop.add_signal_handler(signal.SIGHUP, _hang_up(gateway))
        # For scripts and for tests, which ask for port 0.
        await gateway.run(lambda: print(f"ready {gateway.url} admin {gateway.admin_url}", flush=True))

    try:
        uvloop.run(serve())
    except StartError as error:
        log.error("%s", error)
        return 2
    return 0


def _hang_up(gateway: Service) -> Callable[[], None]:
    """SIGHUP asks for a reload, unless it says that the terminal has gone in which all this was started: then stop."""
    bound = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # nohup ignores it

    def hang_up() -> None:
        if bound and not _has_terminal():
            gateway.stop()
        else:
            gateway.reload()

    return hang_up


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Gateway:
    """A gateway in one process."""

    def __init__(self, config: Config, load: Callable[[], Config] | None = None) -> None:
        self._config = config
        self._reloader = Reloader(config, load)
        self._stop = asyncio.Event()
        self.url = ""
        self.admin_url = ""
        self.front: Front | None = None
        """Its clients' side, once it runs: for whoever wants to watch it from within."""

    def stop(self) -> None:
        """Begin to shut down; ``run`` returns when it is done."""
        self._stop.set()

    def reload(self) -> None:
        """Read the configuration anew, soon."""
        self._reloader.wish()

    async def run(self, started: Callable[[], object]) -> None:
        """Serve until ``stop``. ``started`` is called once clients can connect. Raises StartError."""
        now = Clock().now  # one clock for all that is written down
        book = open_book(self._config, "gateway", now)
        steward = Steward(
            self._config,
            book,
            now,
            lambda: front.hub.report(),
            lambda: front.hub.connect(steward.roster.replicas),
            self._reloader,
        )
        front = Front(self._config, steward.world, book, now)
        self.front = front
        front.hub.link = steward.share(front.hub.changed)
        self._reloader.parts = (front.take, steward.take)
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
            self._reloader.stop()
            await front.drain()
        finally:
            await steward.stop()
            front.close()
            book.close()
