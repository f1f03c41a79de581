"""Several processes that serve clients on one port, and the one that keeps the fleet for them. The chief starts its
workers, starts a dead one anew, and tells them when to drain; it sees no call."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from wastegate.core.mirror import Mirror
from wastegate.core.shares import Share
from wastegate.gateway.claims import Timing
from wastegate.gateway.config import Config, StartError, address, url
from wastegate.gateway.coordination import Coordinator
from wastegate.gateway.front import Front, open_book
from wastegate.gateway.hub import Clock
from wastegate.gateway.link import Link
from wastegate.gateway.reload import Follower, Reloader, pack
from wastegate.gateway.steward import Steward

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_WELL_AFTER = 30.0
_START_SECONDS = 30.0
_KILL_AFTER = 5.0
"""Seconds beyond the drain that a worker gets before it is killed."""

_spawn = multiprocessing.get_context("spawn")  # a fork would copy the chief's threads' locks as they happen to stand


class Chief:
    """Keeps the world; its workers serve."""

    def __init__(self, config: Config, load: Callable[[], Config] | None = None, timing: Timing | None = None) -> None:
        self._config = config
        self._timing = timing if timing is not None else Timing()
        self._reloader = Reloader(config, load)
        self._stop = asyncio.Event()
        self._stopping = False
        self._processes: dict[int, multiprocessing.process.BaseProcess] = {}
        self.url = ""
        self.admin_url = ""

    def stop(self) -> None:
        """Begin to shut down; ``run`` returns when it is done."""
        self._stop.set()

    def reload(self) -> None:
        """Read the configuration anew, soon."""
        self._reloader.wish()

    async def run(self, started: Callable[[], object]) -> None:
        """Serve until ``stop``. ``started`` is called once every worker takes clients. Raises StartError."""
        now = Clock().now
        book = open_book(self._config, "chief", now)
        steward = Steward(
            self._config, book, now, lambda: coordinator.report(), lambda: coordinator.changed(), self._reloader
        )
        desk = steward.share(lambda: coordinator.changed())
        share = (lambda: desk.share) if desk is not None else Share
        coordinator = Coordinator(steward.world, now, self._timing, desk, share)
        self._reloader.parts = (
            lambda ready: coordinator.order("config", pack(ready.config), lasting=True),
            steward.take,
        )
        # Only this user may enter the folder, so only this user's processes can reach the socket in it.
        with tempfile.TemporaryDirectory(prefix="wastegate-") as folder, self._reserve() as reserved:
            meeting = Path(folder) / "claims"
            keepers: list[asyncio.Task[None]] = []
            watcher = asyncio.ensure_future(self._watch(coordinator))
            try:
                await coordinator.start(_listen_unix(meeting))
                await steward.listen()
                await steward.start()
                host, _ = address(self._config.listen)
                port = reserved.getsockname()[1]
                self.url, self.admin_url = url(host, port, self._config.tls.on), steward.admin_url
                numbers = range(1, self._config.workers + 1)
                keepers = [asyncio.ensure_future(self._keep(number, meeting, port)) for number in numbers]
                await self._all_up(coordinator)
                log.info("%d workers listen on %s, admin on %s", len(numbers), self.url, self.admin_url)
                started()
                await self._stop.wait()
                self._stopping = True
                self._reloader.stop()
                coordinator.order("drain", lasting=True)  # one that still starts is told as it joins
                await asyncio.wait(keepers, timeout=self._reloader.config.limits.drain_seconds + _KILL_AFTER)
            finally:
                self._stopping = True
                watcher.cancel()
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
                await steward.stop()
                await coordinator.stop()
                book.close()

    def _reserve(self) -> socket.socket:
        """Bind the clients' address without listening there: it stays ours while workers come and go."""
        host, port = address(self._config.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((host, port))
        except OSError as error:
            reserved.close()
            raise StartError(f"cannot listen on {self._config.listen}: {error.strerror or error}") from None
        return reserved

    async def _all_up(self, coordinator: Coordinator) -> None:
        count = self._config.workers
        try:
            async with asyncio.timeout(_START_SECONDS):
                while len(coordinator.serving) < count:  # noqa: ASYNC110  # a poll at start-up
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise StartError(f"not all of {count} workers came up within {_START_SECONDS:g} s; see the log") from None

    async def _keep(self, number: int, meeting: Path, port: int) -> None:
        """Keep one worker alive."""
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started = loop.time()
            process = self._processes[number] = _spawn.Process(
                target=work,
                args=(self._reloader.config, number, str(meeting), port, self._timing),
                name=f"wastegate-worker-{number}",
            )
            process.start()
            try:
                await _ended(process)
            finally:
                if process.is_alive():
                    process.kill()
                    process.join()
            if self._stopping:
                return
            if loop.time() - started > _WELL_AFTER:
                pause = _FIRST_PAUSE
            log.error("worker %d ended (exit status %s); it starts again", number, process.exitcode)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _watch(self, coordinator: Coordinator) -> None:
        """Kill workers that hang: the system still gives them their part of the new connections."""
        while True:
            await asyncio.sleep(self._timing.beat)
            for number in coordinator.hung():
                log.error("worker %d has been silent for %g s: it is killed", number, self._timing.hung)
                self._processes[number].kill()


async def _ended(process: multiprocessing.process.BaseProcess) -> None:
    """Wait for a process without blocking the loop."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(process.sentinel, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


def _listen_unix(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(64)
    listening.setblocking(False)
    return listening


# ---- in the worker's process


def work(config: Config, number: int, meeting: str, port: int, timing: Timing) -> None:
    """A worker's whole life."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s worker {number}: %(message)s")
    for shared in (signal.SIGINT, signal.SIGHUP):  # these reach the whole group: the chief gives the order
        signal.signal(shared, signal.SIG_IGN)
    try:
        uvloop.run(_work(config, number, Path(meeting), port, timing))
    except (StartError, OSError, TimeoutError) as error:
        log.error("cannot start: %s", error)
        os._exit(2)


async def _work(config: Config, number: int, meeting: Path, port: int, timing: Timing) -> None:
    now = Clock().now
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def ordered(what: str, body: bytes) -> None:
        if what in ("drain", "gone"):  # without its coordinator a worker finishes what it has, and ends
            stop.set()
        elif what == "config":
            follower.told(body)

    book = open_book(config, f"worker{number}", now)
    mirror = Mirror()
    share = Share(number - 1, config.workers)
    front = Front(config, mirror, book, now, share)
    hub = front.hub
    follower = Follower(front.take)
    link = hub.link = Link(mirror, share, now, ordered, timing)
    try:
        await link.connect(meeting, number, lambda: hub.connect(state.replica for state in mirror.states))
        await front.listen(port)
        beat = asyncio.ensure_future(_beat(link, front, timing.beat))
        gc.collect()
        gc.freeze()
        await stop.wait()
        await front.drain()
        link.beat(hub.report())
        beat.cancel()
        await asyncio.sleep(0.05)  # the last word leaves
    finally:
        front.close()
        book.close()


async def _beat(link: Link, front: Front, seconds: float) -> None:
    while True:
        link.beat(front.hub.report())
        await asyncio.sleep(seconds)
