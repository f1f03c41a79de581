"""What is sent: two traces, clients who leave, and a burst under a changing cap. It measures only the burst."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from benchmarks.reconcile.fleet import TOKEN

AZURE = "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
BURST = 16
HIGH, LOW = 12, 3
EPISODE_SECONDS = 180.0


class Seen(Struct, frozen=True):
    """The engine at one moment of the episode."""

    at: float
    """Seconds since its start."""
    cap: int
    running: int
    waiting: int


def replay(url: str, trace: Path, model: str, rate: float, seconds: float, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "wastegate", "replay", str(trace), "--url", url, "--model", model]
    command += [
        "--rate",
        str(rate),
        "--duration",
        str(seconds),
        "--on-misfit",
        "clip",
        "--json",
        "--no-progress",
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def leave(url: str, paths: Sequence[tuple[str, str]], every: float, seconds: float) -> int:
    """Now and then a client begins a long answer and leaves after its first pieces; how many did. Most are of the
    first path: of the others nobody tells the gateway what was in flight as the client left, it can only estimate."""
    until, left, turn = time.monotonic() + seconds, 0, 0
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            await asyncio.sleep(every)
            turn += 1
            for path, model in paths if turn % 4 == 0 else paths[:1]:
                left += await _leave(session, url + path, model, left)
    return left


async def _leave(session: aiohttp.ClientSession, url: str, model: str, number: int) -> bool:
    text = f"Story number {number}, of the sea:"
    asked = {"prompt": text} if url.endswith("/v1/completions") else {"messages": [{"role": "user", "content": text}]}
    body = {**asked, "model": model, "max_tokens": 200, "stream": True, "ignore_eos": True}
    async with session.post(url, json=body) as answer:
        pieces = 0
        async for _ in answer.content.iter_any():
            pieces += 1
            if pieces == 4:
                return True  # leaving the block closes the connection
    return False


async def episode(gateway: str, vllm: str) -> list[Seen]:
    """A burst through the gateway onto vLLM, under a cap of LOW, then HIGH, then LOW again."""
    seen: list[Seen] = []
    began = time.monotonic()
    async with aiohttp.ClientSession() as session:

        async def look(cap: int | None = None) -> Seen:
            headers = {"authorization": f"Bearer {TOKEN}"}
            what: dict[str, Any] = {"json": {"cap": cap}} if cap is not None else {}
            method = "GET" if cap is None else "PUT"
            status, told = 504, {}
            while status == 504:  # one step may take longer than the plugin waits for the engine
                async with session.request(method, f"{vllm}/wastegate/settings", headers=headers, **what) as answer:
                    status, told = answer.status, await answer.json()
            if status != 200:
                raise RuntimeError(f"the plugin refused: {told}")
            seen.append(Seen(time.monotonic() - began, told["cap"], told["running"], told["waiting"]))
            return seen[-1]

        async def until(fits: Any) -> None:
            while not fits(await look()) and time.monotonic() - began < EPISODE_SECONDS:  # noqa: ASYNC110  # a poll
                await asyncio.sleep(0.1)

        await look(LOW)
        burst = [asyncio.ensure_future(_call(session, gateway, number)) for number in range(BURST)]
        await until(lambda now: now.waiting >= BURST - LOW - 1 and now.running <= LOW)
        await look(HIGH)
        await until(lambda now: now.running >= HIGH)
        await look(LOW)
        await until(lambda now: now.running <= LOW)
        await look(16)
        await asyncio.gather(*burst)
    return seen


async def _call(session: aiohttp.ClientSession, gateway: str, number: int) -> None:
    # The first ones are short, so that those above a lowered cap can be seen to run to their end.
    tokens = 40 + 12 * (number % 8)
    body = {"model": "exact", "prompt": f"A list of {number} things:", "max_tokens": tokens, "ignore_eos": True}
    async with session.post(gateway + "/v1/completions", json=body) as answer:
        await answer.read()


def effect(seen: Sequence[Seen]) -> tuple[bool, str]:
    """Whether the running batch followed the cap up and down, and how that went, in words."""
    up = next((n for n, one in enumerate(seen) if one.cap == HIGH), None)
    if up is None:
        return False, "the cap was never raised"
    low = [one for one in seen[:up] if one.waiting]
    down = next((n for n, one in enumerate(seen[up:], up) if one.cap == LOW), len(seen))
    risen = next((one for one in seen[up:down] if one.running >= HIGH), None)
    fallen = next((one for one in seen[down:] if one.cap == LOW and one.running <= LOW), None)
    if not low or risen is None or fallen is None:
        return False, f"low {bool(low)}, risen {risen is not None}, fallen {fallen is not None}"
    over = [one for one in seen[down:] if one.cap == LOW and one.running > LOW]
    return max(one.running for one in low[1:] or low) <= LOW, (
        f"cap {LOW}: {low[-1].running} ran and {low[-1].waiting} waited; raised to {HIGH}, {risen.running} ran "
        f"{risen.at - seen[up].at:.1f} s later; lowered to {LOW}, {max((one.running for one in over), default=LOW)} "
        f"ran on and {fallen.at - seen[down].at:.1f} s later {fallen.running} did"
    )


def reports(replays: Sequence[subprocess.Popen[str]], timeout: float) -> list[dict[str, Any]]:
    """What the replays say, once they are done."""
    found = []
    for process in replays:
        said, errors = process.communicate(timeout=timeout)
        if not said:
            raise RuntimeError(f"a replay said nothing: {errors[-500:]}")
        found.append(json.loads(said))
    return found
