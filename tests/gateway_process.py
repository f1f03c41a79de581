"""`wastegate up` as a user starts it: a process, its workers, its two addresses. What it says goes to a file."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.fake_replica import FakeReplica

START_SECONDS = 40.0
END_SECONDS = 20.0


class GatewayProcess:
    """Use it as an async context, or start and end it by hand, as often as you like: its data stay.

    ``replicas``: fakes, named r1, r2, … with ``cap``, or none where ``toml`` has them; ``toml``: more configuration.
    """

    def __init__(
        self,
        folder: Path,
        *replicas: FakeReplica,
        workers: int = 1,
        cap: int | None = None,
        toml: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        limit = f"cap = {cap}\n" if cap is not None else ""
        rows = [
            f'[[replicas]]\nname = "r{number}"\nurl = "{replica.url}"\nprice_per_hour = 3.6\n{limit}'
            for number, replica in enumerate(replicas, 1)
        ]
        self.config = folder / "wastegate.toml"
        self.config.write_text("\n".join(["[probe]\nevery = 0.1\n", toml, *rows]))
        self.data = folder / "data"
        self.log = folder / "log"
        self.workers = workers
        self.url = ""
        self.admin_url = ""
        self._environ = {**os.environ, **(environ or {})}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text()

    def worker_pids(self) -> list[int]:
        """The processes that serve, by their own number."""
        found = []
        for child in children(self.pid):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"spawn_main" in command:
                found.append(child)
        return sorted(found)

    async def start(self) -> None:
        """Returns once it takes clients, which may be before it knows that a replica is ready."""
        command = ["-m", "wastegate", "up", "--config", str(self.config), "--data", str(self.data)]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", str(self.workers)]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=self._environ
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = (await self._process.stdout.readline()).decode()
        assert line.startswith("ready "), f"it did not start: {self.said[-2000:]}"
        _, self.url, _, self.admin_url = line.split()

    async def ready(self, count: int) -> None:
        """Wait until so many replicas take calls."""
        async with asyncio.timeout(END_SECONDS):
            while sum(row["state"] == "ready" for row in (await self.state())["replicas"]) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self.send(how)
        async with asyncio.timeout(END_SECONDS):
            return await self._process.wait()

    async def admin(self, path: str, method: str = "GET") -> str:
        async with aiohttp.ClientSession() as session, session.request(method, self.admin_url + path) as got:
            return await got.text()

    async def state(self) -> Any:
        """What /admin/state says."""
        async with aiohttp.ClientSession() as session, session.get(self.admin_url + "/admin/state") as got:
            return await got.json()

    async def metric(self, name: str) -> float:
        """One sample, or the sum of all with that name."""
        text = await self.admin("/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            for pid in [self.pid, *self.worker_pids()]:
                os.kill(pid, signal.SIGCONT)
            await self.end()


def children(pid: int) -> Sequence[int]:
    """The processes that this one has started and that are still there."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    """It is there, and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
