"""A day of traffic, compressed: seven times as many calls at its peak as at night. Arrivals are made beforehand, and
sent at their times whatever becomes of the calls before; what an engine is told is no business of this module."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time

import aiohttp
from msgspec import Struct

from benchmarks.engines.streams import Prompts

NIGHT = 1 / 7
WINDOWS = 8
"""Stretches of the day, of equal length, whose P95 are compared with each other."""
PEAK = (0.35, 0.65)
"""The part of the day that counts as its peak."""
GRACE = 2.0
"""Seconds that calls get at the end of the day. One that is not answered then has taken at least as long as it has."""


class Call(Struct, frozen=True):
    """When it arrived, seconds after midnight; how long it took, at least, where it was not ``answered``."""

    at: float
    seconds: float
    answered: bool


class Day(Struct, frozen=True):
    """What came of one. Seconds; tokens that the engine made in the peak."""

    calls: tuple[Call, ...]
    peak_tokens: float
    peak_seconds: float

    @property
    def answered(self) -> float:
        return sum(call.answered for call in self.calls) / len(self.calls)

    @property
    def p95(self) -> float:
        return quantile([call.seconds for call in self.calls], 0.95)

    def deviation(self, seconds: float) -> float:
        """Standard deviation of P95 over the windows of a day of so many seconds."""
        windows: list[list[float]] = [[] for _ in range(WINDOWS)]
        for call in self.calls:
            windows[min(WINDOWS - 1, int(call.at / seconds * WINDOWS))].append(call.seconds)
        figures = [quantile(window, 0.95) for window in windows if window]
        middle = sum(figures) / len(figures)
        return math.sqrt(sum((figure - middle) ** 2 for figure in figures) / len(figures))


def quantile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def shape(share: float) -> float:
    """Traffic at a part of the day, 0 to 1: 1 at the peak, one seventh at night; half the day is busy."""
    wave = (1 - math.cos(2 * math.pi * share)) / 2
    return NIGHT + (1 - NIGHT) * min(1.0, 1.6 * wave)


def arrivals(peak: float, seconds: float, seed: int) -> list[float]:
    """Poisson arrivals over a day; ``peak``: calls a second at its height."""
    chance = random.Random(seed)
    times: list[float] = []
    now = 0.0
    while True:
        now += chance.expovariate(peak)
        if now >= seconds:
            return times
        if chance.random() < shape(now / seconds):
            times.append(now)


async def live(
    url: str, model: str, times: list[float], seconds: float, tokens: int, words: int, seed: int, count: bool = True
) -> Day:
    """Send a day's calls. ``count``: the engine counts its tokens at this address. Raises RuntimeError where the engine
    answers anything but 200 or 503."""
    prompts = Prompts(seed, words)
    bodies = [body(model, prompts.next(), tokens) for _ in times]
    connector = aiohttp.TCPConnector(limit=0)
    marks: list[float] = []
    async with aiohttp.ClientSession(connector=connector) as session:
        began = time.perf_counter()
        peak = asyncio.create_task(_peak(session, url, began, seconds, marks)) if count else None
        calls = await asyncio.gather(
            *(_call(session, url, at, data, began, seconds) for at, data in zip(times, bodies, strict=True))
        )
        if peak is not None:
            await peak
    return Day(tuple(calls), marks[1] - marks[0] if marks else 0.0, (PEAK[1] - PEAK[0]) * seconds)


def body(model: str, prompt: str, tokens: int) -> bytes:
    fields = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps(fields).encode()


async def _call(session: aiohttp.ClientSession, url: str, at: float, data: bytes, began: float, seconds: float) -> Call:
    await asyncio.sleep(began + at - time.perf_counter())
    headers = {"content-type": "application/json"}
    try:
        async with (
            asyncio.timeout(began + seconds + GRACE - time.perf_counter()),
            session.post(url + "/v1/completions", data=data, headers=headers) as answer,
        ):
            await answer.read()
            if answer.status not in (200, 503):
                raise RuntimeError(f"{url} answered {answer.status}: {await answer.text()}")
            took = time.perf_counter() - began - at
            return Call(at, took if answer.status == 200 else seconds + GRACE - at, answer.status == 200)
    except TimeoutError:
        return Call(at, time.perf_counter() - began - at, False)


async def _peak(session: aiohttp.ClientSession, url: str, began: float, seconds: float, marks: list[float]) -> None:
    """The engine's own count of tokens at both ends of the peak."""
    for share in PEAK:
        await asyncio.sleep(began + share * seconds - time.perf_counter())
        marks.append(await tokens_of(session, url))


async def tokens_of(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(url + "/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith(("wastegate_engine_output_tokens_total ", "vllm:generation_tokens_total{")):
                return float(line.rpartition(" ")[2])
    raise RuntimeError(f"{url}/metrics counts no tokens")
