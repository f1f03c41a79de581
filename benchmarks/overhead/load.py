"""One load process: sends requests at a fixed rate or as fast as they are answered, or holds streams open.

    python -m benchmarks.overhead.load '{"mode": "open", "port": 8080, …}'      (fields: see Load)

Prints one JSON object (see Measured). It knows a port and a process id, nothing else of what it measures.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
import uvloop

from benchmarks.overhead.client import Bodies, Client, now
from benchmarks.overhead.meter import cpu_seconds, memory_mib


class Load(msgspec.Struct, frozen=True):
    mode: Literal["open", "closed", "hold"]
    """open: Poisson arrivals at ``rate``; closed: each connection asks again once answered; hold: ``connections``
    streams are opened at ``rate`` and left open."""
    port: int
    pid: int = 0
    """Root of the process tree whose CPU time and memory are read; 0: none."""
    rate: float = 300.0
    seconds: float = 4.0
    connections: int = 32
    rounds: int = 0
    """closed: requests a connection at most; 0: as many as ``seconds`` allow."""
    prompt: int = 1024
    chunks: int = 16
    stream: bool = False
    gap: float = 0.0
    """Seconds over which a closed run spreads its connections' first requests."""
    path: str = "/v1/chat/completions"
    key: str = "sk-bench"


class Measured(msgspec.Struct, frozen=True):
    """Times in seconds; ``cpu`` a request, of the measured tree; ``own_cpu`` a request, of this process."""

    requests: int
    seconds: float
    rate: float
    offered: float = 0.0
    cpu: float | None = None
    busy: float | None = None
    """Share of a core that the measured tree used."""
    own_cpu: float = 0.0
    latency_p50: float | None = None
    latency_p99: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    reads: float = 0.0
    """Reads of body data for a stream: as many as its chunks, if each was relayed by itself."""
    opened: int = 0
    memory_before: float | None = None
    memory_open: float | None = None
    errors: dict[str, int] = {}


class Run:
    def __init__(self, load: Load) -> None:
        self.load = load
        self.loop = asyncio.get_running_loop()
        self.bodies = Bodies(load)
        self.latencies: list[float] = []
        self.ttfts: list[float] = []
        self.errors: Counter[str] = Counter()
        self.reads = self.sent = self.ended = 0
        self.free: list[Client] = []
        self.over = asyncio.Event()
        self.again: Callable[[Client], None] = self.free.append

    def done(self, client: Client, error: str) -> None:
        self.ended += 1
        if error:
            self.errors[error] += 1
        else:
            self.latencies.append(client.answered - client.asked)
            self.reads += client.reads
            if client.first is not None:
                self.ttfts.append(client.first - client.asked)
        self.again(client)

    async def connect(self) -> Client:
        _, client = await self.loop.create_connection(
            lambda: Client(self.done, self.load.stream), "127.0.0.1", self.load.port
        )
        return client

    async def ask_anew(self) -> None:
        """Send the next request on a new connection; what that takes counts for nobody's latency."""
        try:
            client = await self.connect()
        except OSError as error:
            self.ended += 1
            self.errors[type(error).__name__] += 1
            self.finish_if_over()
            return
        client.ask(self.bodies.next())

    def finish_if_over(self) -> None:
        if self.ended == self.sent and self.last_sent:
            self.over.set()

    last_sent = False

    async def open(self) -> None:
        """Poisson arrivals; the same seed gives every peer the same arrivals."""
        arrivals = random.Random(11)
        self.free += await asyncio.gather(*[self.connect() for _ in range(self.load.connections)])

        def again(client: Client) -> None:
            if client.alive:
                self.free.append(client)
            self.finish_if_over()

        self.again = again
        start = now()
        due = 0.0
        while (due := due + arrivals.expovariate(self.load.rate)) < self.load.seconds:
            if (early := start + due - now()) > 0:
                await asyncio.sleep(early)
            self.sent += 1
            while self.free and not self.free[-1].alive:
                self.free.pop()
            if self.free:
                self.free.pop().ask(self.bodies.next())
            else:
                self.loop.create_task(self.ask_anew())
        self.last_sent = True
        self.finish_if_over()
        await self.wait(30)

    async def closed(self) -> None:
        """As many requests at once as there are connections, each followed by the next."""
        until = now() + self.load.seconds
        most = self.load.rounds * self.load.connections

        def again(client: Client) -> None:
            if now() >= until or (most and self.sent >= most):
                self.last_sent = True
                self.finish_if_over()
                return
            self.sent += 1
            if client.alive:
                client.ask(self.bodies.next())
            else:
                self.loop.create_task(self.ask_anew())

        self.again = again
        clients = await asyncio.gather(*[self.connect() for _ in range(self.load.connections)])
        self.sent = len(clients)
        for number, client in enumerate(clients):
            self.loop.call_later(number * self.load.gap / len(clients), client.ask, self.bodies.next())
        await self.wait(self.load.seconds + 60)

    async def hold(self) -> Measured:
        """Open streams one after another, wait for the first chunk of each, and look at the memory."""
        before = memory_mib(self.load.pid) if self.load.pid else None
        clients: list[Client] = []
        for _ in range(self.load.connections):
            clients.append(await self.connect())
            clients[-1].ask(self.bodies.next())
            await asyncio.sleep(1 / self.load.rate)
        limit = now() + 20
        # A thousand clients, looked at now and then: an event each would be the load's own memory.
        while now() < limit and any(client.first is None and client.alive for client in clients):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        opened = sum(client.alive and client.first is not None for client in clients)
        held = memory_mib(self.load.pid) if self.load.pid else None
        for client in clients:
            client.busy = False
            client.transport.abort()
        return Measured(
            len(clients), 0, 0, opened=opened, memory_before=before, memory_open=held, errors=dict(self.errors)
        )

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            self.errors["unanswered"] += self.sent - self.ended


async def measure(load: Load) -> Measured:
    run = Run(load)
    if load.mode == "hold":
        return await run.hold()
    before = cpu_seconds(load.pid) if load.pid else 0.0
    start, own = now(), time.process_time()
    await (run.open() if load.mode == "open" else run.closed())
    seconds, own = now() - start, time.process_time() - own
    used = cpu_seconds(load.pid) - before if load.pid else None
    answered = max(1, len(run.latencies))
    return Measured(
        requests=len(run.latencies),
        seconds=seconds,
        rate=len(run.latencies) / seconds,
        offered=run.sent / load.seconds,
        cpu=used / answered if used is not None else None,
        busy=used / seconds if used is not None else None,
        own_cpu=own / answered,
        latency_p50=_quantile(run.latencies, 0.5),
        latency_p99=_quantile(run.latencies, 0.99),
        ttft_p50=_quantile(run.ttfts, 0.5),
        ttft_p99=_quantile(run.ttfts, 0.99),
        reads=run.reads / answered,
        errors=dict(run.errors),
    )


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=Load)))).decode())
