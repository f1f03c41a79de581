"""The processes of a soak: four replicas and a gateway with two workers, started, hurt and looked at. What they do to
each other is not judged here."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 40.0
CONFIG = """
[gateway]
workers = 2
[limits]
drain_seconds = 8.0
[timers]
connect = 1.0
first_byte = 3.0
first_token = 3.0
idle = 2.0
total = {total}
[retry]
hold = 3.0
[breaker]
failures = 5
rest = 1.0
[probe]
every = 0.5
timeout = 1.0
"""
REPLICA = """
[[replicas]]
name = "r{number}"
url = "http://127.0.0.1:{port}"
price_per_hour = {price}
cap = {cap}
"""


def free_ports(count: int, luck: random.Random) -> list[int]:
    """Below the range from which the system takes ports for connections: a killed replica's must stay free."""
    found: list[int] = []
    while len(found) < count:
        port = luck.randrange(20_000, 32_000)
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
        found += [port] if port not in found else []
    return found


def rss_mb(pid: int) -> float | None:
    """Megabytes of memory that a process holds; None where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Replicas:
    """Four faulty upstreams on ports of their own."""

    def __init__(self, faulty: float, seed: int) -> None:
        self.ports = free_ports(4, random.Random())
        self._faulty = faulty
        self._seed = seed
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(4):
            self.start(number)

    def start(self, number: int) -> None:
        self._seed += 1
        arguments = [str(self.ports[number]), str(self._seed), str(self._faulty)]
        command = [sys.executable, "-m", "benchmarks.endurance.replica", *arguments]
        self._processes[number] = subprocess.Popen(command, cwd=ROOT)

    def runs(self, number: int) -> bool:
        return self._processes[number].poll() is None

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def send(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    def open_calls(self) -> int:
        """By their own count."""
        return sum(int(_get(f"http://127.0.0.1:{port}/stats")["open"]) for port in self.ports)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


class Gateway:
    """`wastegate up --workers 2` in front of the replicas."""

    def __init__(self, folder: Path, replicas: Replicas) -> None:
        self.config = folder / "wastegate.toml"
        self.data = folder / "data"
        self.log = folder / "gateway.log"
        self._replicas = replicas
        self.configure(1)
        command = [sys.executable, "-m", "wastegate", "up", "--config", str(self.config), "--data", str(self.data)]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().decode().split()
        if not words or words[0] != "ready":
            raise SystemExit(f"bar: fail: the gateway did not start:\n{self.log.read_text()[-2000:]}")
        self.url, self.admin = words[1], words[3]

    def configure(self, version: int) -> None:
        """Write the configuration; odd and even versions differ."""
        total, cap = (20.0, 24) if version % 2 else (18.0, 20)
        rows = [
            REPLICA.format(number=number, port=port, price=3.6 * number, cap=cap)
            for number, port in enumerate(self._replicas.ports, 1)
        ]
        beside = self.config.with_suffix(".new")
        beside.write_text(CONFIG.format(total=total) + "".join(rows))
        beside.rename(self.config)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while any(row["state"] != "ready" for row in self.state()["replicas"]):
            if time.monotonic() > deadline:
                raise SystemExit("bar: fail: the replicas did not become ready")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def workers(self) -> dict[int, int]:
        """Worker number → process, of those that serve: each holds its own journal open."""
        found: dict[int, int] = {}
        for pid in _children(self.pid):
            number = _journal_of(pid)
            if number:
                found[number] = pid
        return found

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def state(self) -> Any:
        return _get(self.admin + "/admin/state")

    def ended_calls(self) -> int:
        """How many calls have ended, by the metrics."""
        with urllib.request.urlopen(self.admin + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(int(value) for value in re.findall(r"^wastegate_calls_total\{.*\} (\d+)$", text, re.MULTILINE))

    def stop(self, seconds: float) -> int | None:
        """Its exit code; None if it had to be killed."""
        self.send(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        for pid in [*_children(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _children(pid: int) -> Iterator[int]:
    try:
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return


def _journal_of(pid: int) -> int:
    """The number of the worker whose journal this process writes; 0 if none."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found = re.search(r"/worker(\d+)-\d+\.jsonl", str(link.readlink()))
            if found:
                return int(found[1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return 0
