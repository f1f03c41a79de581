"""Replicas that model an engine's batch and prefix cache in real time, behind real sockets, in one cheap process.

    python -m benchmarks.fleet.server PORT PORT PORT PORT

A line of JSON on standard input, ``{"scale": 2, "blocks": 600}``, empties all caches and sets how much faster than the
model's own speed they run; the answer is a line with what they did since the line before.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from dataclasses import replace
from typing import Any

import msgspec
import uvloop

from benchmarks.fleet.loads import chain
from benchmarks.fleet.model import Engine, Job, Speed
from benchmarks.overhead.mock import COMPLETION, HEAD, INFO, PAGES, Connection, Mock, chunk, content, event

BUSY = 8
"""Load is compared where replicas have so many requests in flight on the mean."""
BASE = Speed()


class Replica:
    """One engine with its clock. ``fleet`` is all of them, itself included."""

    def __init__(self, fleet: list[Replica]) -> None:
        self.engine = Engine(BASE)
        self.fleet = fleet
        self.jobs: dict[Job, Served] = {}
        self.prompt = self.cached = self.served = self.steps = 0
        self.late = 0.0
        """Seconds that steps ended later than the model says: others are at work on this machine."""
        self._work: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return len(self.jobs)

    def reset(self, scale: float, blocks: int) -> None:
        speed = replace(
            BASE, fixed=BASE.fixed / scale, prefill=BASE.prefill / scale, decode=BASE.decode / scale, blocks=blocks
        )
        self.engine = Engine(speed)
        self.jobs.clear()
        self.prompt = self.cached = self.served = self.steps = 0
        self.late = 0.0

    def add(self, job: Job, client: Served) -> None:
        self.jobs[job] = client
        self.engine.add(job)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._run())

    def drop(self, job: Job) -> None:
        if self.jobs.pop(job, None) is not None:
            self.engine.drop(job)

    async def _run(self) -> None:
        """Steps end when the model says, whatever the timer's grain: a late one makes the next one shorter."""
        engine, now = self.engine, time.perf_counter()
        while engine.busy and engine is self.engine:
            seconds, finished, decoding = engine.begin()
            now += seconds
            await asyncio.sleep(max(0.0, now - time.perf_counter()))
            self.steps += 1
            self.late += max(0.0, time.perf_counter() - now)
            now = max(now, time.perf_counter() - 0.01)
            done = engine.end(finished, decoding, now)
            for job in done.first:
                if job in self.jobs:
                    self.prompt += job.prompt
                    self.cached += job.cached
                    self.jobs[job].first()
            for job in done.ended:
                client = self.jobs.pop(job, None)
                if client is not None:
                    self.served += 1
                    client.last(job)


class Served(Connection):
    """A connection whose streams are the engine's."""

    def __init__(self, mock: Mock, replica: Replica, ratios: list[float]) -> None:
        super().__init__(mock)
        self.replica = replica
        self.ratios = ratios
        self.job: Job | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.job is not None:
            self.replica.drop(self.job)

    def request(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if method != b"POST":
            self.write(PAGES.get(path.partition(b"?")[0], INFO))
            return
        if path.endswith(b"/render"):
            self.write(self.mock.render(body))
            return
        asked = msgspec.json.decode(body)
        if not asked.get("stream"):  # somebody asks whether we are there
            self.write(COMPLETION)
            return
        text = "".join(message["content"] for message in asked["messages"])
        most = asked.get("max_tokens") or asked["max_completion_tokens"]  # sglang-router writes it the other way
        self.job = Job(chain(text), max(1, len(text) // 4), most)
        self.replica.add(self.job, self)
        loads = [replica.in_flight for replica in self.replica.fleet]
        mean = sum(loads) / len(loads)
        if mean >= BUSY:
            self.ratios.append(max(loads) / mean)

    def first(self) -> None:
        self.write(HEAD + content(0))

    def last(self, job: Job) -> None:
        self.job = None
        usage = {
            "prompt_tokens": job.prompt,
            "completion_tokens": job.made,
            "total_tokens": job.prompt + job.made,
            "prompt_tokens_details": {"cached_tokens": job.cached},
        }
        stop = event(choices=[{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
        rest = b"".join(content(number & 63) for number in range(1, job.made))
        self.write(
            rest + chunk(stop) + chunk(event(choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        )


class Orders(asyncio.Protocol):
    def __init__(self, fleet: list[Replica], ratios: list[float]) -> None:
        self._fleet = fleet
        self._ratios = ratios

    def data_received(self, data: bytes) -> None:
        order: dict[str, Any] = msgspec.json.decode(data)
        said = {
            "computed": sum(replica.engine.computed for replica in self._fleet),
            "prompt": sum(replica.prompt for replica in self._fleet),
            "cached": sum(replica.cached for replica in self._fleet),
            "served": [replica.served for replica in self._fleet],
            "late": sum(replica.late for replica in self._fleet) / max(1, sum(r.steps for r in self._fleet)),
            "ratios": list(self._ratios),
        }
        self._ratios.clear()
        for replica in self._fleet:
            replica.reset(order["scale"], order["blocks"])
        print(msgspec.json.encode(said).decode(), flush=True)

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().stop()  # whoever started us is gone


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    mock, fleet, ratios = Mock(loop), list[Replica](), list[float]()
    for port in ports:
        replica = Replica(fleet)
        fleet.append(replica)
        await loop.create_server(lambda replica=replica: Served(mock, replica, ratios), "127.0.0.1", port, backlog=4096)  # type: ignore[misc]
    await loop.connect_read_pipe(lambda: Orders(fleet, ratios), sys.stdin)
    gc.freeze()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        uvloop.run(serve([int(port) for port in sys.argv[1:]]))
    except RuntimeError:  # the loop was stopped with its task still waiting
        pass
