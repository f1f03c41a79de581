"""Routing by cached prefixes in front of two real engines: switched on and off while the gateway runs, seen in what the
engines say they had cached, and told by ``wastegate explain``."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.gateway.running import chat
from tests.live.local_gateway import LocalGateway
from tests.live.model import MODEL, WASTEGATE
from tests.live.test_two_replicas import ask
from wastegate.core.ledger import Entry

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

TOPICS = ("kettles", "bicycles", "umbrellas", "lamps")


@contextmanager
def levers(gateway: LocalGateway, lines: str) -> Iterator[None]:
    """These settings in the running gateway, and afterwards what it had before."""
    file = gateway.data.parent / "wastegate.toml"
    before = file.read_text()
    try:
        file.write_text(before + lines)
        reload(gateway)
        yield
    finally:
        file.write_text(before)
        reload(gateway)


def reload(gateway: LocalGateway) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(f"{gateway.admin}/admin/reload", method="POST"), timeout=20
    ) as said:
        assert said.status == 200


def question(topic: str, number: int) -> bytes:
    about = f"You sell {topic}. " + f"A good thing to know about {topic} is that there are many of them. " * 25
    text = f"{about} Question {number}: which of the {topic} is best?"
    return chat(text, model=MODEL, max_tokens=8, stream=True, temperature=0)


async def asked(gateway: LocalGateway, first: int, last: int) -> list[Entry]:
    """Every topic's questions in turn, one after another."""
    entries = []
    for number in range(first, last):
        for topic in TOPICS:
            answer = await ask(gateway, question(topic, number))
            assert answer.status == 200
            entries.append(gateway.entry(answer.header("x-request-id")))
    return entries


def of_topic(entries: list[Entry], place: int) -> list[Entry]:
    return entries[place :: len(TOPICS)]


def cached(entry: Entry) -> float:
    attempt = entry.attempts[-1]
    assert attempt.cached_tokens is not None
    assert attempt.prompt_tokens is not None
    return attempt.cached_tokens / attempt.prompt_tokens


async def test_questions_follow_their_prefix_and_the_engines_confirm_it(two_replicas: LocalGateway) -> None:
    with levers(two_replicas, '\n[levers.routing]\npolicy = "prefix_aware"\n'):
        entries = await asked(two_replicas, 0, 4)
    for place in range(len(TOPICS)):
        mine = of_topic(entries, place)
        assert len({entry.attempts[-1].replica for entry in mine}) == 1
        assert all(cached(entry) > 0.6 for entry in mine[1:]), [cached(entry) for entry in mine]
        assert "is the best of its cache and its wait" in mine[-1].trail[0]
        assert "DEGRADED" in mine[-1].trail[0], "the engine says what it had cached"
    after = await asked(two_replicas, 4, 5)
    assert all(entry.trail[0].startswith("baseline: ") for entry in after)

    config = str(two_replicas.data.parent / "wastegate.toml")
    explained = await asyncio.to_thread(
        subprocess.run,
        [*WASTEGATE, "explain", entries[-1].id, "--config", config, "--ledger", str(two_replicas.data / "ledger.db")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = " ".join(explained.stdout.split())
    assert "routing: local-" in told, explained.stderr
    assert "saves" in told


async def test_an_answer_is_kept_where_its_route_asks_for_it(two_replicas: LocalGateway) -> None:
    with levers(two_replicas, '\n[[routes]]\nname = "faq"\nmatch = "/v1/chat/*"\nanswer_seconds = 60.0\n'):
        first = await ask(two_replicas, question("hats", 1))
        again = await ask(two_replicas, question("hats", 1))
    assert again.body == first.body
    entry = two_replicas.entry(again.header("x-request-id"))
    assert entry.was_stored
    assert entry.attempts == ()
