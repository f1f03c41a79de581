"""Everything at once: random faults, replicas killed and restarted, clients that leave. Afterwards nothing is left
over: no load, no call without its Entry, no Entry twice, and no answer that claims to be whole and is not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events
from tests.fake_replies import Phase
from tests.faults.bench import ASKS_USAGE, Bench, chat, gateway, payloads
from wastegate.core.plan import Rules, Timers

CALLS = 250
TIMERS = Timers(connect=0.5, first_byte=0.4, first_token=0.4, idle=0.4, total=3)
RULES = Rules(hold=2)


def any_reply(draw: random.Random) -> Reply:
    """A stream or a JSON answer, in any framing, with any fault at any phase, or none."""
    body: Json | Sse = Json(text="word " * draw.choice((2, 3000)), delay=draw.choice((0, 0.02)))
    if draw.random() < 0.7:
        body = Sse(
            chunks=draw.choice((0, 1, 5, 40)),
            gap=draw.choice((0, 0.002)),
            ping=draw.random() < 0.2,
            eol=draw.choice(("\n", "\r\n")),
            field=draw.choice(("data: ", "data:")),
            merge=draw.choice((1, 1, 3)),
            usage_when=draw.choice(("asked", "never")),
            error=draw.choice((None, None, None, b'{"error":{"message":"broken"}}')),
        )
    if isinstance(body, Json) and draw.random() < 0.2:
        body = Json(status=draw.choice((400, 429, 500, 503)), body=draw.choice((b"", b"<html>", b'{"error":{}}')))
    fault = None
    if draw.random() < 0.4:
        fault = Fault(draw.choice(get_args(Phase)), draw.choice(("hang", "fin", "reset")))
    return Reply(
        body=body,
        fault=fault,
        framing=draw.choice(("auto", "auto", "close")),
        version=draw.choice(("1.1", "1.1", "1.0")),
        gzip=draw.random() < 0.1,
        after=draw.choice(("keep", "keep", "close_idle", "drop_reuse")),
    )


class Storm:
    def __init__(self, running: Bench, seed: int) -> None:
        self.running = running
        self.draw = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.torn: list[str] = []
        """Answers that ended as if they were whole, but were not."""

    async def call(self) -> None:
        draw, members = self.draw, dict[str, Any]()
        members["stream"] = draw.random() < 0.7
        if draw.random() < 0.3 and members["stream"]:
            members |= ASKS_USAGE
        await asyncio.sleep(draw.uniform(0, 1.5))
        client = await self.running.connect()
        client.ask(chat(**members))
        if draw.random() < 0.25:
            await client.closed_within(draw.uniform(0, 0.1))
            self.outcomes["left"] += 1
            client.close()
            return
        answer = await client.answer()
        client.close()
        self.outcomes[f"{answer.status} {'whole' if answer.complete else 'cut'}"] += 1
        stream = answer.header("content-type").startswith("text/event-stream")
        if answer.status == 200 and answer.complete and stream and not _ends(payloads(answer)):
            self.torn.append(answer.body[-200:].decode())

    async def kill(self, replica: FakeReplica) -> None:
        for _ in range(3):
            await asyncio.sleep(self.draw.uniform(0.1, 0.5))
            await replica.stop(self.draw.choice(("fin", "reset")))
            await asyncio.sleep(self.draw.uniform(0.05, 0.3))
            await replica.start()


def _ends(stream: list[Any]) -> bool:
    """[DONE], an error event, or, from replicas that send no [DONE], a finish reason or the usage behind it."""
    if not stream or stream[-1] == "[DONE]" or stream[-1].get("error"):
        return bool(stream)
    choices = stream[-1].get("choices") or []
    return bool(stream[-1].get("usage")) or any(choice.get("finish_reason") for choice in choices)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_leaves_nothing_behind(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    replicas = [FakeReplica(Reply(body=Sse())) for _ in range(3)]
    for replica in replicas:
        replica.script.extend(any_reply(draw) for _ in range(CALLS // 3))
    one, two, three = replicas
    async with one, two, three, gateway(tmp_path, *replicas, timers=TIMERS, rules=RULES) as running:
        storm = Storm(running, seed)
        await asyncio.gather(*(storm.call() for _ in range(CALLS)), storm.kill(one), storm.kill(two))
        await running.settled()
        entries = running.running.entries
        assert storm.torn == []
        assert storm.outcomes["200 whole"] > CALLS // 4
        # A client that left before its request was read made no call.
        assert CALLS - storm.outcomes["left"] <= len(entries) <= CALLS
        assert len({entry.id for entry in entries}) == len(entries)
        assert not any(replica.in_flight for replica in replicas)


def test_the_storm_has_every_fault_in_it() -> None:
    draw = random.Random(1)
    replies = [any_reply(draw) for _ in range(2000)]
    struck = {(reply.fault.at, reply.fault.do) for reply in replies if reply.fault is not None}
    assert len(struck) == len(get_args(Phase)) * 3
    assert {reply.after for reply in replies} == {"keep", "close_idle", "drop_reuse"}
    assert any(events(reply.body)[0].startswith(b": ping") for reply in replies if isinstance(reply.body, Sse))
