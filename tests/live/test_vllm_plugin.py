"""Real vLLM with the plugin behind a real gateway: every request has its record, the cap holds, an abort is told of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.engines import rivals
from benchmarks.engines.rivals import Contestant
from benchmarks.reconcile import fleet
from tests.gateway_process import GatewayProcess
from tests.live.model import fetch_or_skip
from wastegate import site
from wastegate.local.models import Library
from wastegate.steps.audit import At, Report, run
from wastegate.store.entries import Ledger

CACHE = site.cache_dir() / "benchmarks"
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not (CACHE / f"vllm-{rivals.VLLM}" / "complete").exists(),
        reason="vLLM's environment is not there: benchmarks/engines_reconcile.py makes it, 3.5 GB",
    ),
]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contestant]:
    fetch_or_skip()
    model = Library(site.cache_dir()).pull(fleet.MODEL, lambda *_: None)
    engine = fleet.start_vllm(CACHE, model, tmp_path_factory.mktemp("vllm"))
    try:
        yield engine
    finally:
        engine.end()


async def test_what_vllm_did_for_each_call_is_told(vllm: Contestant, tmp_path: Path) -> None:
    replica = f'[[replicas]]\nname = "v"\nurl = "{vllm.url}"\nprice_per_hour = 3.6\n'
    records = f'[records]\ntoken = "{fleet.TOKEN}"\nevery = 0.1\n'
    async with GatewayProcess(tmp_path, toml=records + replica) as gateway, aiohttp.ClientSession() as session:
        await gateway.ready(1)

        async def complete(prompt: str, tokens: int, **more: Any) -> int:
            body = {"model": "exact", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
            async with session.post(gateway.url + "/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                return int((await answer.json())["usage"]["prompt_tokens"])

        async def settings(**given: Any) -> dict[str, Any]:
            method = "PUT" if given else "GET"
            headers = {"authorization": f"Bearer {fleet.TOKEN}"}
            async with session.request(
                method, vllm.url + "/wastegate/settings", headers=headers, json=given or None
            ) as answer:
                told: dict[str, Any] = await answer.json()
                assert answer.status == 200, told
                return told

        beginning = " ".join(f"word{number}" for number in range(40))
        prompts = [await complete(f"{beginning} {number}", 8) for number in range(2)]
        assert (await settings(cap=1))["cap"] == 1
        waiting = [asyncio.ensure_future(complete(f"Of {number} things:", 24, n=number % 2 + 1)) for number in range(3)]
        most = 0
        while not all(one.done() for one in waiting):
            most = max(most, (await settings())["running"])
            await asyncio.sleep(0.02)
        prompts += [one.result() for one in waiting]
        assert most == 1
        assert (await settings(cap=8))["cap"] == 8
        body = {"model": "exact", "prompt": "For ever:", "max_tokens": 400, "stream": True, "ignore_eos": True}
        async with session.post(gateway.url + "/v1/completions", json=body) as answer:
            await answer.content.readany()
        report = await audited(gateway.data / "ledger.db", 6)
        ids = [entry.id for entry in entries(gateway.data / "ledger.db")]
        with Ledger(gateway.data / "ledger.db", create=False) as ledger:
            told = {id: ledger.records(id) for id in ids}
    (bill,) = report.replicas
    assert (bill.basis, report.basis, bill.recorded, bill.attempts) == ("EXACT", "EXACT", 6, 6)
    assert report.bill.off_by <= 1e-3 * report.bill.total
    (counts,) = report.told
    assert counts.prompt == (sum(prompts), sum(prompts))
    assert counts.output[0] == counts.output[1] == 2 * 8 + 24 * 4
    finishes = sorted(record.finish for some in told.values() for _, record in some)
    assert finishes == ["abort", *["length"] * 6]
    second = [record for _, record in told[ids[1]]]
    assert second[0].cached > 0, "the beginning of its prompt was there already"
    assert sum(one.prefill for one in second[0].runs) == second[0].prompt - second[0].cached


def entries(path: Path) -> list[Any]:
    with Ledger(path, create=False) as ledger:
        return ledger.read(ledger.facts(-float("inf"), float("inf")).calls.key.tolist())


async def audited(path: Path, calls: int) -> Report:
    """Once all calls have ended and all their records are there."""
    async with asyncio.timeout(20.0):
        while True:
            report = run(At(path))
            if report.calls == calls and report.replicas and report.replicas[0].recorded == calls:
                return report
            await asyncio.sleep(0.2)
