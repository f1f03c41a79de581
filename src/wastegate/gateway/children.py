"""Local replicas as child processes: started, watched, restarted with back-off, drained and stopped. They are reached
over HTTP like any other replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from wastegate.core.elastic import Config as ElasticConfig
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.ledger import NANO
from wastegate.gateway.elastic import Elastic
from wastegate.gateway.probe import Prober
from wastegate.gateway.roster import Roster

log = logging.getLogger(__name__)

_READY = b"ready "
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_WELL_AFTER = 60.0
"""A child that has lived so long starts its back-off anew."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas that ``wastegate up`` starts itself where none is configured."""

    replicas: int = 2
    model: str = "smollm2-135m-instruct"
    price_per_hour: float = 0.0425
    """US dollars for each replica: half of a two-core cloud machine at $0.085 an hour."""
    cap: int = 32
    queue: int = 256
    load_seconds: float = 180.0
    """A child that is not ready after this is stopped and started anew."""
    bind_cores: bool = True
    """Bind each replica to a core of its own: unbound ones land on the same core and halve each other."""
    arguments: tuple[str, ...] = ()
    """More arguments for ``wastegate engine``."""
    elastic: ElasticConfig = ElasticConfig()
    """Whether they come and go with the load."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: at least 1")
        if self.elastic.least > self.replicas:
            raise ValueError(f"elastic.least is {self.elastic.least}, but there are only {self.replicas} replicas")
        if self.price_per_hour < 0:
            raise ValueError(f"price_per_hour is {self.price_per_hour}: it cannot be below 0")


class Child:
    """One local replica and the task that keeps it alive."""

    def __init__(self, name: str, core: int | None, config: Config, roster: Roster, prober: Prober, logs: Path) -> None:
        self.name = name
        self._core = core
        self._config = config
        self._roster = roster
        self._prober = prober
        self._log_path = logs / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Of its process, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._stopping = False
        self._roster.put(self._replica(""))  # no address yet: its port is known once it is ready
        self._task = asyncio.ensure_future(self._keep_alive())

    def _replica(self, url: str) -> Replica:
        price = round(self._config.price_per_hour * NANO)
        return Replica(self.name, url, engine="wastegate", price=price, accelerator="cpu")

    def _command(self) -> list[str]:
        config = self._config
        command = [sys.executable, "-m", "wastegate", "engine", "--model", config.model, "--port", "0"]
        command += ["--cap", str(config.cap), "--queue", str(config.queue), "--die-with-parent"]
        if self._core is not None:
            command += ["--cores", str(self._core)]
        return [*command, *config.arguments]

    async def _keep_alive(self) -> None:
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started = loop.time()
            self._roster.state(self.name, "loading")
            why = await self._live()
            self._prober.forget(self.name)
            self._roster.state(self.name, "down")
            if self._stopping:
                return
            if loop.time() - started > _WELL_AFTER:
                pause = _FIRST_PAUSE
            log.warning("%s %s; it starts again in %.1f s (its log: %s)", self.name, why, pause, self._log_path)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _live(self) -> str:
        """One life of the process: from start to exit. Returns how it ended."""
        try:
            self._process = process = await self._spawn()
        except OSError as error:
            return f"could not be started ({error})"
        try:
            url = await asyncio.wait_for(self._ready(process), self._config.load_seconds)
        except TimeoutError:
            url = None
        if url is None:
            if process.returncode is None:
                process.kill()
            status = await process.wait()
            return f"did not become ready (exit status {status})"
        replica = self._replica(url)
        self._roster.put(replica)
        self._prober.watch(replica, managed=True)
        log.info("%s is ready at %s", self.name, url)
        assert process.stdout is not None
        while await process.stdout.read(65536):  # drained, so that the child never blocks on a full pipe
            pass
        return f"ended with exit status {await process.wait()}"

    async def _spawn(self) -> asyncio.subprocess.Process:
        """The log of the life before is kept beside the new one: it says why that life ended."""
        if self._log_path.exists():
            self._log_path.replace(self._log_path.with_suffix(".log.1"))
        with self._log_path.open("wb") as output:
            return await asyncio.create_subprocess_exec(
                *self._command(), stdout=asyncio.subprocess.PIPE, stderr=output, start_new_session=True
            )

    async def _ready(self, process: asyncio.subprocess.Process) -> str | None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # a line too long to be the one that is waited for
            if line.startswith(_READY):
                return line[len(_READY) :].decode().strip()
            if not line:
                return None

    def park(self) -> None:
        """It has been stopped for now, and is at no address."""
        self._roster.put(self._replica(""))

    async def stop(self, seconds: float) -> None:
        """Ask it to drain, then insist."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            self._prober.forget(self.name)
            self._roster.state(self.name, "draining")
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), seconds)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):  # it has ended just now
                    os.killpg(process.pid, signal.SIGKILL)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._roster.state(self.name, "down")


class Children:
    """All local replicas of one gateway."""

    def __init__(
        self,
        config: Config,
        roster: Roster,
        prober: Prober,
        logs: Path,
        states: Callable[[], tuple[ReplicaState, ...]] = tuple,
        waiting: Callable[[], int] = int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``states``, ``waiting`` (calls in line) and ``now`` tell the load, where replicas come and go with it."""
        logs.mkdir(parents=True, exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        self._children = [
            Child(
                f"local-{number + 1}",
                cores[number % len(cores)] if config.bind_cores else None,
                config,
                roster,
                prober,
                logs,
            )
            for number in range(config.replicas)
        ]

        elastic = config.elastic
        self._elastic = Elastic(self._children, elastic, roster, states, waiting, now) if elastic.least else None

    def start(self) -> None:
        if self._elastic is not None:
            self._elastic.start()
            return
        for child in self._children:
            child.start()

    def process(self, name: str) -> int | None:
        """The process of a replica that runs."""
        return next((child.pid for child in self._children if child.name == name), None)

    async def stop(self, seconds: float) -> None:
        if self._elastic is not None:
            await self._elastic.stop()
        await asyncio.gather(*(child.stop(seconds) for child in self._children))
