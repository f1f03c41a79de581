"""`wastegate up` with replicas that it starts itself, as a newcomer runs it; for tests that need a real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.model import WASTEGATE, fetch_or_skip
from wastegate.core.ledger import Entry
from wastegate.store.entries import Ledger

START_SECONDS = 120.0


class LocalGateway:
    """The running command, and what it has started."""

    def __init__(self, process: subprocess.Popen[str], url: str, admin: str, data: Path) -> None:
        self.process = process
        self.url = url
        self.admin = admin
        self.data = data

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.admin}/admin/state", timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def replicas(self) -> dict[str, dict[str, Any]]:
        return {replica["name"]: replica for replica in self.state()["replicas"]}

    def ready(self) -> int:
        return sum(replica["state"] == "ready" for replica in self.replicas().values())

    def entry(self, id: str) -> Entry:
        """A call by its x-request-id, once it is in the ledger."""
        found: list[Entry] = []

        def there() -> bool:
            with Ledger(self.data / "ledger.db", create=False) as ledger:
                try:
                    found.append(ledger.entry(id))
                except KeyError:
                    return False
            return True

        until(there, f"{id} is in the ledger")
        return found[0]

    def engines(self) -> dict[str, int]:
        """The process of each replica's engine, by the replica's name."""
        found = {}
        for pid in children(self.process.pid):
            words = command(pid)
            if "engine" in words:
                port = self._port_of(pid)
                found.update({name: pid for name, r in self.replicas().items() if r["url"].endswith(f":{port}")})
        return found

    def _port_of(self, pid: int) -> int:
        """Where a process listens, by the kernel's tables."""
        sockets = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(link.readlink()))
            except FileNotFoundError:
                continue  # closed while we looked
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                return int(columns[1].split(":")[1], 16)
        return 0


@contextmanager
def local_gateway(folder: Path, replicas: int = 2, more: str = "", ready: int | None = None) -> Iterator[LocalGateway]:
    """Start it, wait until all replicas (or so many) are ready, end it as a user would, and see that nothing is left of
    it."""
    fetch_or_skip()
    config = folder / "wastegate.toml"
    config.write_text(f"[local]\nreplicas = {replicas}\n{more}")
    flags = ["--config", str(config), "--data", str(folder / "data")]
    log = folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*WASTEGATE, "up", *flags, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    started: set[int] = set()
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], log.read_text()[-2000:]
        gateway = LocalGateway(process, words[1], words[3], folder / "data")
        wanted = replicas if ready is None else ready
        until(lambda: gateway.ready() == wanted, f"{wanted} replicas are ready", START_SECONDS)
        yield gateway
        if process.poll() is None:
            started = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()[-2000:]
        until(lambda: not alive(started), "nothing that it started is left")
    finally:
        started |= descendants(process.pid)
        for pid in alive({process.pid, *started}):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for what other processes do."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> set[int]:
    found = set(children(pid))
    for child in list(found):
        found |= descendants(child)
    return found


def command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pids: set[int]) -> set[int]:
    """Those that run still; one that has ended and that nobody has buried does not."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            running.add(pid)
    return running
