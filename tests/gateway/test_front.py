"""The clients' side of a process: it takes clients, takes other rules while it does, and drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from tests.fake_replica import FakeReplica, Fault, Reply, Sse
from tests.gateway.running import chat, running
from wastegate.core.plan import Timers
from wastegate.gateway.front import Front
from wastegate.gateway.reload import prepare
from wastegate.gateway.serve import Limits

SILENT = Reply(body=Sse(chunks=2), fault=Fault("between_tokens"))


async def test_another_configuration_is_taken_by_the_connections_that_are_open(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        front = front_of(gateway.gateway.front)
        wire.post(chat())
        assert (await wire.answer()).status == 200
        front.take(prepare(replace(front._config, limits=Limits(body_bytes=10), api_keys=("key",))))
        wire.post(chat())
        assert (await wire.answer()).status == 413


async def test_a_drain_lets_streams_end(tmp_path: Path) -> None:
    async with FakeReplica(SILENT) as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        wire.post(chat(stream=True))
        answer = await wire.head()
        gateway.gateway.stop()
        await gateway.until(lambda: front_of(gateway.gateway.front).gate.draining, "it drains")
        replica.release()
        while await wire.piece(answer):
            pass
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await wire.ended(), "and its connection with it"


async def test_the_time_for_a_drain_is_the_one_in_force(tmp_path: Path) -> None:
    """What outlives it gets a last event that says so."""
    async with FakeReplica(SILENT) as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        front = front_of(gateway.gateway.front)
        front.take(prepare(replace(front._config, limits=Limits(drain_seconds=0.2), timers=Timers(total=60.0))))
        wire.post(chat(stream=True))
        answer = await wire.head()
        gateway.gateway.stop()
        async with asyncio.timeout(3):
            body = await wire.rest()
        assert b"shutdown" in body
        assert not body.endswith(b"0\r\n\r\n"), "it must not look whole"
        assert answer.status == 200
        (entry,) = await gateway.closed(1)
        assert (entry.outcome, entry.reason) == ("failed", "timeout: shutdown")


def front_of(front: Front | None) -> Front:
    assert front is not None
    return front
