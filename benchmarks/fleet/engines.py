"""Three real vLLM replicas on the CPU, whose KV pools hold a third of the products each: the same questions through
round robin and through prefix-aware routing, in turns."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
from msgspec import Struct

from benchmarks.engines.rivals import Contestant, start_vllm
from benchmarks.fleet.loads import text
from benchmarks.fleet.turns import ours
from benchmarks.overhead.peers import MissingError, Peer, Running

REPLICAS, PRODUCTS, QUESTIONS, AT_ONCE = 3, 24, 100, 6
PRODUCT_BYTES = 1600
"""About 700 tokens under SmolLM2's vocabulary, since the words are made up."""
KV_BYTES = 140 << 20
"""About 6,000 tokens: eight or nine products."""
ARMS = (Peer("round robin", ours("round_robin")), Peer("prefix_aware", ours("prefix_aware")))
ORDER = (0, 1, 1, 0)
"""Round robin, ours, ours, round robin: a steady drift of the machine cancels."""
LIMIT = 120.0


class Turn(Struct, frozen=True):
    arm: str
    ttft: list[float]
    prompt: int
    cached: int
    failed: int

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


def compare(bar: Callable[[bool, str], None]) -> list[Turn]:
    """Prints what came of it; tells ``bar`` each promise. Nothing is measured where the engine cannot be had."""
    cache = Path.home() / ".cache" / "wastegate"
    models = sorted((cache / "models").rglob("SmolLM2-135M-Instruct*.gguf"))
    if not models:
        bar(
            False, "vLLM: not measured, since the model is not there: run `wastegate models pull smollm2-135m-instruct`"
        )
        return []
    engines: list[Contestant] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(f"\nstarting {REPLICAS} vLLM replicas …", flush=True)
            for number in range(REPLICAS):
                logs = Path(folder) / f"r{number}"
                logs.mkdir()
                engines.append(
                    start_vllm(
                        cache / "benchmarks", models[0], 8, logs, "--enforce-eager", "--block-size", "32",
                        "--kv-cache-memory-bytes", str(KV_BYTES), "--enable-prompt-tokens-details", context=2048,
                    )
                )  # fmt: skip
            ports = [int(engine.url.rpartition(":")[2]) for engine in engines]
            turns = [_turn(ARMS[which], ports, number, Path(folder)) for number, which in enumerate(ORDER)]
        except (MissingError, RuntimeError) as error:
            bar(False, f"vLLM: not measured: {error}")
            return []
        finally:
            for engine in engines:
                engine.end()
    _tell(turns, bar)
    return turns


def _turn(arm: Peer, ports: list[int], number: int, folder: Path) -> Turn:
    running = Running(arm, ports, folder / f"turn {number}", min(os.sched_getaffinity(0)))
    try:
        _wait(running.port)
        turn = asyncio.run(_ask(arm.name, running.port, _questions(number // 2)))
    finally:
        running.stop()
    print(
        f"  {arm.name:14s} computed {turn.computed:,} of {turn.prompt:,} prompt tokens, "
        f"P99 TTFT {max(turn.ttft, default=0.0):.2f} s", flush=True,
    )  # fmt: skip
    return turn


def _wait(port: int, seconds: float = 60.0) -> None:
    """Until the gateway has found the model."""

    async def ready() -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{port}/v1/models") as answer:
                    return bool((await answer.json())["data"])
            except (aiohttp.ClientError, ValueError, KeyError):
                return False

    limit = time.monotonic() + seconds
    while not asyncio.run(ready()):
        if time.monotonic() > limit:
            raise MissingError("the gateway found no model at the replicas")
        time.sleep(0.2)


def _questions(pair: int) -> list[str]:
    """The same for both arms of a pair; another pair has other products, so that nothing of them is cached."""
    draw = random.Random(pair)
    weights = [1 / (rank + 1) for rank in range(PRODUCTS)]
    return [
        text(f"product {product}", PRODUCT_BYTES, f"pair {pair}") + text(f"question {number}", 60, f"pair {pair}")
        for number, product in enumerate(draw.choices(range(PRODUCTS), weights, k=QUESTIONS))
    ]


async def _ask(arm: str, port: int, questions: Sequence[str]) -> Turn:
    """So many at once, each followed by the next question. The arm's name in front keeps its caches its own."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    left = list(reversed(questions))
    ttft: list[float] = []
    prompt = cached = failed = 0

    async def worker(session: aiohttp.ClientSession) -> None:
        nonlocal prompt, cached, failed
        while left:
            body = {
                "model": "m", "messages": [{"role": "user", "content": f"{arm}: {left.pop()}"}], "max_tokens": 4,
                "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True,
            }  # fmt: skip
            sent, first, usage = time.perf_counter(), None, None
            try:
                async with session.post(url, json=body) as answer:
                    async for line in answer.content:
                        if line.startswith(b"data: {"):
                            event = msgspec.json.decode(line[6:])
                            usage = event.get("usage") or usage
                            if first is None and event["choices"] and event["choices"][0]["delta"].get("content"):
                                first = time.perf_counter() - sent
            except (aiohttp.ClientError, TimeoutError):
                first = None
            if first is None or usage is None:
                failed += 1
                continue
            ttft.append(first)
            prompt += usage["prompt_tokens"]
            cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT)) as session:
        await asyncio.gather(*(worker(session) for _ in range(AT_ONCE)))
    return Turn(arm, ttft, prompt, cached, failed)


def _tell(turns: list[Turn], bar: Callable[[bool, str], None]) -> None:
    theirs, own = ([turn for turn in turns if turn.arm == arm.name] for arm in ARMS)
    work = sum(turn.computed for turn in own) / max(1, sum(turn.computed for turn in theirs))
    spread = [statistics.pvariance([s for turn in side for s in turn.ttft] or [0.0]) for side in (own, theirs)]
    print(
        f"three vLLM CPU replicas, {len(ORDER) // 2} turns each: prompt tokens computed × {work:.2f} of round robin's "
        f"(the article: 0.59), variance of TTFT × {spread[0] / max(spread[1], 1e-9):.2f} (0.37)"
    )
    bar(work <= 0.59, f"vLLM: prompt tokens computed × {work:.2f} of round robin's (≤ 0.59)")
    bar(not any(turn.failed for turn in turns), f"vLLM: {sum(turn.failed for turn in turns)} calls failed (0)")
