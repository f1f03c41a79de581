"""One turn: a gateway started fresh in front of emptied replicas, one load sent as it was recorded, and what came of
it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
from msgspec import Struct

from benchmarks.fleet.loads import Ask, chain, prompt
from benchmarks.fleet.model import BLOCK_TOKENS, Cache
from benchmarks.overhead.peers import Peer, Running, Start, free_port, pinned, sglang_router, vllm_router

REPLICAS = 4
LIMIT = 60.0
"""Seconds that one answer may take."""


class Load(Struct, frozen=True):
    """``make(seed)`` gives the requests; the replicas run at ``scale`` times the model's speed, with ``blocks`` of
    cache."""

    name: str
    make: Callable[[int], list[Ask]]
    scale: float
    blocks: int


class Result(Struct, frozen=True):
    """Seconds of the client's clock, tokens as the replicas counted them."""

    load: str
    arm: str
    seed: int
    ttft: list[float]
    computed: int
    prompt: int
    cached: int
    pooled: int
    """What one cache as large as all together would have had."""
    ratios: list[float]
    """Most in flight ÷ mean, at each arrival with a mean of 8 or more."""
    failed: int
    late: float
    """Seconds that the replicas' steps were late on the mean: what they modelled took longer than it should have."""


def ours(policy: str) -> Callable[[int, list[int], Path], Start]:
    def start(port: int, replicas: list[int], folder: Path) -> Start:
        rows = [
            f'[[replicas]]\nname = "r{number}"\nurl = "http://127.0.0.1:{at}"\n' for number, at in enumerate(replicas)
        ]
        file = folder / "wastegate.toml"
        file.write_text(f'[levers.routing]\npolicy = "{policy}"\n' + "".join(rows))
        argv = [sys.executable, "-m", "wastegate", "up", "--config", str(file), "--data", str(folder / "data")]
        return Start([*argv, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{free_port()}"])

    return start


OURS = "prefix_aware"
ARMS = (
    Peer(OURS, ours("prefix_aware")),
    Peer("round robin", ours("round_robin")),
    Peer("session hash", ours("session_hash")),
    Peer("vllm-router", vllm_router("cache_aware")),
    Peer("sglang-router", sglang_router("cache_aware")),
)


class Fleet:
    """The replicas' process."""

    def __init__(self) -> None:
        self.ports = [free_port() for _ in range(REPLICAS)]
        argv = [sys.executable, "-m", "benchmarks.fleet.server", *map(str, self.ports)]
        core = max(os.sched_getaffinity(0))
        self._process = pinned(core, argv, stdout=subprocess.PIPE, pipe=True)
        self._line()

    def reset(self, scale: float, blocks: int) -> dict[str, object]:
        """Empty caches, another speed; what was done since the last time."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"scale": scale, "blocks": blocks}) + b"\n")
        self._process.stdin.flush()
        said: dict[str, object] = msgspec.json.decode(self._line())
        return said

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the replicas' process has ended")
        return line

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def turn(fleet: Fleet, load: Load, arm: Peer, seed: int) -> Result:
    """Raises MissingError where the arm cannot be had."""
    asks = load.make(seed)
    salt = f"{load.name} {seed}"
    prompts = [prompt(ask, salt) for ask in asks]
    with tempfile.TemporaryDirectory() as folder:
        running = Running(arm, fleet.ports, Path(folder) / "arm", min(os.sched_getaffinity(0)))
        try:
            running.wait_ready()
            fleet.reset(load.scale, load.blocks)
            ttft = asyncio.run(_send(running.port, asks, prompts))
            said = fleet.reset(load.scale, load.blocks)
        finally:
            running.stop()
    seen = [seconds for seconds in ttft if seconds is not None]
    return Result(
        load.name, arm.name, seed, seen, _int(said, "computed"), _int(said, "prompt"), _int(said, "cached"),
        pooled(prompts, load.blocks * REPLICAS), msgspec.convert(said["ratios"], list[float]), len(ttft) - len(seen),
        msgspec.convert(said["late"], float),
    )  # fmt: skip


def _int(said: dict[str, object], name: str) -> int:
    value = said[name]
    assert isinstance(value, int)
    return value


def pooled(prompts: Sequence[str], blocks: int) -> int:
    """Tokens that one cache of so many blocks would have had, of the same prompts in the same order."""
    cache, found = Cache(blocks), 0
    for text in prompts:
        hashes = chain(text)
        found += min(cache.find(hashes) * BLOCK_TOKENS, max(1, len(text) // 4) - 1)
        cache.use(hashes)
    return found


async def _send(port: int, asks: Sequence[Ask], prompts: Sequence[str]) -> list[float | None]:
    """Open loop: each at its time, whatever has become of those before it."""
    bodies = [
        msgspec.json.encode(
            {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": ask.output, "stream": True}
        )
        for ask, text in zip(asks, prompts, strict=True)
    ]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    timeout = aiohttp.ClientTimeout(total=LIMIT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        begin = time.perf_counter()

        async def one(ask: Ask, body: bytes) -> float | None:
            await asyncio.sleep(max(0.0, begin + ask.at - time.perf_counter()))
            headers = {"content-type": "application/json", "x-wastegate-tag-session": ask.session}
            sent = time.perf_counter()
            first = None
            try:
                async with session.post(url, data=body, headers=headers) as answer:
                    async for piece in answer.content.iter_any():
                        if first is None and b'"content":" word' in piece:
                            first = time.perf_counter() - sent
                    return first if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError):
                return None

        return await asyncio.gather(*map(one, asks, bodies))
