"""The batching lever through the real engine: caps that follow the load, replicas that come and go, and the trail."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.gateway.running import chat
from tests.live.local_gateway import LocalGateway, local_gateway, until
from tests.live.model import MODEL, WASTEGATE, fetch_or_skip
from tests.running_engine import running_engine

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def body(number: int, tokens: int) -> bytes:
    text = f"Number {number}: tell me about it."
    return chat(text, model=MODEL, max_tokens=tokens, ignore_eos=True, stream=True)


class Answered(NamedTuple):
    status: int
    id: str
    whole: bool


async def ask(url: str, request: bytes) -> Answered:
    """A streamed answer, to its end. A wire of ``running`` would not wait for so long as a busy machine needs."""
    timeout = aiohttp.ClientTimeout(total=150)
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url + "/v1/chat/completions", data=request, headers=headers) as answer,
    ):
        text = await answer.read()
        return Answered(answer.status, answer.headers.get("x-request-id", ""), text.endswith(b"[DONE]\n\n"))


def reload(running: LocalGateway) -> None:
    request = urllib.request.Request(running.admin + "/admin/reload", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


ON = "[levers.batching]\non = true\nstart = 2\n[levers.batching.caps]\ndwell = 0.2\ntpot_slo = 5.0\n"


async def test_a_running_gateway_takes_the_lever_on_and_off_and_explain_shows_its_trail(tmp_path: Path) -> None:
    local = "[local]\nreplicas = 1\n"
    with local_gateway(tmp_path, 1) as running:
        assert running.replicas()["local-1"]["cap"] is None
        (tmp_path / "wastegate.toml").write_text(local + ON)
        await asyncio.to_thread(reload, running)
        await asyncio.to_thread(until, lambda: running.replicas()["local-1"]["cap"] == 2, "it begins with 2")
        answers = await asyncio.gather(*(ask(running.url, body(number, 32)) for number in range(16)))
        assert {answer.status for answer in answers} == {200}
        told = running.replicas()["local-1"]
        assert told["cap"] > 2
        assert "wait and there is room" in told["cap_why"]
        entries = [running.entry(answer.id) for answer in answers]
        held = next(entry for entry in entries if any("at its cap" in reason for reason in entry.trail))
        shown = await asyncio.to_thread(explained, running, held.id)
        assert "batching: local-1 may run" in shown
        assert "waits: every replica is at its cap" in shown
        (tmp_path / "wastegate.toml").write_text(local)
        await asyncio.to_thread(reload, running)
        assert running.replicas()["local-1"]["cap"] is None
        plain = await ask(running.url, body(99, 4))
        assert not any("batching" in reason for reason in running.entry(plain.id).trail)


def explained(running: LocalGateway, id: str) -> str:
    command = [*WASTEGATE, "explain", id, "--ledger", str(running.data / "ledger.db")]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


async def test_replicas_come_and_go_and_no_call_is_lost(tmp_path: Path) -> None:
    elastic = "[local.elastic]\nleast = 1\ncalls_each = 4\nstart_after = 0.2\nstop_after = 1.0\n"
    with local_gateway(tmp_path, 2, elastic, ready=1) as running:
        assert list(running.replicas()) == ["local-1"]
        enough = asyncio.Event()
        busy = [asyncio.create_task(keep_asking(running.url, number, enough)) for number in range(10)]
        await asyncio.to_thread(until, lambda: running.ready() == 2, "the load brings the second", 120)
        late = await asyncio.gather(*(ask(running.url, body(100 + number, 16)) for number in range(6)))
        enough.set()
        answers = [*late, *(answer for some in await asyncio.gather(*busy) for answer in some)]
        assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}
        served = {running.entry(answer.id).attempts[0].replica for answer in late}
        assert "local-2" in served
        await asyncio.to_thread(until, lambda: running.replicas()["local-2"]["state"] == "down", "it goes again", 60)
        assert list(running.engines()) == ["local-1"]
        assert (await ask(running.url, body(999, 4))).status == 200


async def keep_asking(url: str, number: int, enough: asyncio.Event) -> list[Answered]:
    answers = []
    while not enough.is_set():
        answers.append(await ask(url, body(number, 48)))
    return answers


def test_the_engines_own_cap_follows_the_load() -> None:
    fetch_or_skip()
    with running_engine(MODEL, "--cap", "2", "--cap-policy", "cost_aware", "--tpot-slo", "5") as engine:
        asyncio.run(busy(engine.url))
        told: dict[str, Any] = engine.get("/admin/caps")
        assert told["cap"] > 2
        assert "wait and there is room" in told["why"]
        assert len(told["tokens_per_second"]) >= 2, "it has learnt what wider batches bring"


async def busy(url: str) -> None:
    answers = await asyncio.gather(*(ask(url, body(number, 32)) for number in range(16)))
    assert {answer.status for answer in answers} == {200}
