"""Two local replicas of the real engine: load is shared, a killed one comes back, and nothing outlives its gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import Answer, Wire, chat
from tests.live.local_gateway import LocalGateway, alive, descendants, local_gateway, until
from tests.live.model import MODEL

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def body(number: int, tokens: int = 16, **members: Any) -> bytes:
    return chat(f"Tell me about number {number}.", model=MODEL, max_tokens=tokens, ignore_eos=True, **members)


async def ask(gateway: LocalGateway, request: bytes) -> Answer:
    async with await Wire.connect(gateway.url) as wire:
        wire.post(request)
        async with asyncio.timeout(60):
            answer = await wire.head()
            if answer.header("transfer-encoding") != "chunked":
                answer.pieces.append(await wire.reader.readexactly(int(answer.header("content-length"))))
                answer.complete = True
                return answer
            try:
                await all_of(wire, answer)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                pass  # cut: the answer says that it is not complete
        return answer


async def test_both_take_their_share(two_replicas: LocalGateway) -> None:
    answers = await asyncio.gather(*(ask(two_replicas, body(number, stream=number % 2 == 0)) for number in range(16)))
    assert {answer.status for answer in answers} == {200}
    assert all(answer.complete for answer in answers)
    entries = [two_replicas.entry(answer.header("x-request-id")) for answer in answers]
    shares = [entry.attempts[0].replica for entry in entries]
    assert shares.count("local-1") >= 4
    assert shares.count("local-2") >= 4
    assert {(entry.attempts[0].output_tokens, entry.attempts[0].usage) for entry in entries} == {(16, "engine")}
    assert all(replica["in_flight"] == 0 for replica in two_replicas.replicas().values())


async def test_a_killed_replica_fails_its_calls_clearly_or_over_and_comes_back(two_replicas: LocalGateway) -> None:
    """Streams at temperature 0 go on from their text on the other replica; the others end with an error event."""
    engines = two_replicas.engines()
    assert engines.keys() == {"local-1", "local-2"}
    requests = [body(number, 120, stream=True, temperature=0 if number % 2 else 0.8) for number in range(8)]
    calls = [asyncio.create_task(ask(two_replicas, request)) for request in requests]
    await asyncio.to_thread(until, lambda: two_replicas.replicas()["local-1"]["in_flight"] >= 2, "local-1 is at work")
    await asyncio.sleep(1.0)  # well into their answers
    os.kill(engines["local-1"], signal.SIGKILL)
    answers = await asyncio.gather(*calls)
    broken = 0
    for request, answer in zip(requests, answers, strict=True):
        entry = two_replicas.entry(answer.header("x-request-id"))
        tried = [attempt.replica for attempt in entry.attempts]
        if tried == ["local-2"]:
            assert (answer.complete, entry.outcome) == (True, "finished")
        elif b'"temperature":0,' in request or b'"temperature":0}' in request:
            broken += 1
            assert (answer.complete, entry.outcome, tried) == (True, "finished", ["local-1", "local-2"])
        else:
            broken += 1
            assert (answer.complete, entry.outcome, tried) == (False, "failed", ["local-1"])
            assert b'"error"' in answer.pieces[-1]
    assert broken >= 2
    assert (await ask(two_replicas, body(99))).status == 200, "the other one goes on meanwhile"
    await asyncio.to_thread(until, lambda: two_replicas.ready() == 2, "both are ready again", 60)
    assert two_replicas.engines()["local-1"] != engines["local-1"]
    answers = await asyncio.gather(*(ask(two_replicas, body(number)) for number in range(8)))
    assert {answer.status for answer in answers} == {200}


async def test_a_killed_gateway_leaves_no_engine_behind(tmp_path: Path) -> None:
    with local_gateway(tmp_path, replicas=1) as gateway:
        started = descendants(gateway.process.pid)
        assert len(started) >= 2  # the engine, and its step loop
        wire = await Wire.connect(gateway.url)
        wire.post(body(1, 500, stream=True))
        answer = await wire.head()
        for _ in range(3):
            await wire.piece(answer)
        killed = time.monotonic()
        gateway.process.kill()
        gateway.process.wait(10)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await all_of(wire, answer)
        await asyncio.to_thread(until, lambda: not alive(started), "every process that it started has ended", 15)
        assert time.monotonic() - killed < 15


async def all_of(wire: Wire, answer: Answer) -> None:
    while await wire.piece(answer):
        pass
