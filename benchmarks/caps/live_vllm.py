"""The cap policy inside a running vLLM, through the plugin: set over HTTP while calls run, and seen in vLLM's own count
of what runs."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path

import aiohttp
import uvloop
from msgspec import Struct

from benchmarks.caps import day
from benchmarks.engines.rivals import Contestant
from benchmarks.engines.streams import Prompts
from benchmarks.reconcile.fleet import TOKEN, start_vllm
from wastegate import site
from wastegate.local.models import Library

MODEL = "exact"
"""What benchmarks/reconcile lets vLLM call it."""
CLIENTS, TOKENS, WORDS = 24, 48, 20
PHASES: tuple[tuple[str, dict[str, object]], ...] = (
    ("fixed at 2", {"cap": 2, "policy": {"policy": "fixed"}}),
    ("cost_aware from 2", {"policy": {"policy": "cost_aware", "min": 2, "max": 16, "dwell": 0.5, "tpot_slo": 1.0}}),
    ("fixed at 3", {"cap": 3, "policy": {"policy": "fixed"}}),
)
PHASE_SECONDS = 20.0


class Step(Struct, frozen=True):
    """What vLLM ran at one moment, seconds after the first call, and in which phase."""

    at: float
    phase: str
    running: float


def follow(scratch: Path) -> list[Step]:
    """Start vLLM, keep it busy, and change how its cap follows the load."""
    cache = site.cache_dir() / "benchmarks"
    print("starting vLLM with the plugin …", flush=True)
    vllm = start_vllm(cache, Library(site.cache_dir()).pull("smollm2-135m-instruct", lambda *_: None), scratch)
    try:
        return uvloop.run(_follow(vllm))
    finally:
        vllm.end()


async def _follow(vllm: Contestant) -> list[Step]:
    prompts = Prompts(seed=3, words=WORDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        clients = [asyncio.create_task(_ask_for_ever(session, vllm, prompts)) for _ in range(CLIENTS)]
        steps: list[Step] = []
        began = time.perf_counter()
        try:
            for phase, settings in PHASES:
                await asyncio.to_thread(put, vllm.url, settings)
                until = time.perf_counter() + PHASE_SECONDS
                while time.perf_counter() < until:
                    steps.append(Step(time.perf_counter() - began, phase, await _running(session, vllm.url)))
                    await asyncio.sleep(0.5)
        finally:
            for client in clients:
                client.cancel()
            ends = await asyncio.gather(*clients, return_exceptions=True)
    for end in ends:
        if isinstance(end, RuntimeError):
            raise end
    return steps


async def _ask_for_ever(session: aiohttp.ClientSession, vllm: Contestant, prompts: Prompts) -> None:
    while True:
        data = day.body(MODEL, prompts.next(), TOKENS)
        headers = {"content-type": "application/json"}
        async with session.post(vllm.url + "/v1/completions", data=data, headers=headers) as answer:
            if answer.status != 200:
                raise RuntimeError(f"vLLM answered {answer.status}: {await answer.text()}")
            await answer.read()


async def _running(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(url + "/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith("vllm:num_requests_running{"):
                return float(line.rpartition(" ")[2])
    raise RuntimeError("vLLM's metrics do not say how many requests run")


def put(url: str, settings: dict[str, object]) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    request = urllib.request.Request(url + "/wastegate/settings", json.dumps(settings).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def judge(steps: list[Step], failed: list[str], said: list[str]) -> None:
    """The last seconds of each phase: those above a lowered cap run to their end first."""
    late = {}
    for number, (phase, _) in enumerate(PHASES):
        after = (number + 0.6) * PHASE_SECONDS
        late[phase] = [step.running for step in steps if step.phase == phase and step.at >= after]
        print(f"vLLM, {phase}: {late[phase]} running", flush=True)
    held = max(late["fixed at 2"]) <= 2 and max(late["fixed at 3"]) <= 3
    grew = max(late["cost_aware from 2"])
    (said if held and grew > 3 else failed).append(f"vLLM ran 2, then grew to {grew:.0f} by the policy, then 3")
