"""Calls that ask the same, on a real engine: it sees one request, and every client has the whole answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.live.local_gateway import local_gateway
from wastegate.core.ledger import Entry
from wastegate.openai.sse import text_of

pytestmark = pytest.mark.live

CLIENTS = 5


async def test_one_run_answers_five_clients_and_a_sixth_call_runs_anew(tmp_path: Path) -> None:
    more = "[levers.streaming]\none_flight = true\nmost_tokens = 40\n"
    with local_gateway(tmp_path, replicas=1, more=more) as gateway:
        async with aiohttp.ClientSession() as session:
            answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(CLIENTS)))
            again = await ask(session, gateway.url)
        entries = [gateway.entry(id) for id, _ in answers]
        alone = gateway.entry(again[0])
    texts = {text for _, text in answers}
    assert len(texts) == 1
    assert texts == {again[1]}, "greedy answers are the same each time"
    leaders = [entry for entry in entries if entry.flew is None]
    assert len(leaders) == 1
    (leader,) = leaders
    assert all(flew_with(entry, leader) for entry in entries if entry is not leader)
    assert leader.attempts[0].output_tokens == 40, "the bound, not the 200 that were asked for"
    assert alone.flew is None


def flew_with(entry: Entry, leader: Entry) -> bool:
    ran = leader.attempts[0]
    flew = entry.flew
    return (
        entry.attempts == ()
        and entry.outcome == "finished"
        and flew is not None
        and (flew.call, flew.prompt_tokens, flew.output_tokens) == (leader.id, ran.prompt_tokens, ran.output_tokens)
    )


async def ask(session: aiohttp.ClientSession, url: str) -> tuple[str, str]:
    """(its id, its text)."""
    body: dict[str, Any] = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "Tell me a long story about the sea."}],
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    async with session.post(f"{url}/v1/chat/completions", data=msgspec.json.encode(body)) as answer:
        assert answer.status == 200
        text = text_of(await answer.read())
    assert text
    return answer.headers["x-request-id"], text
