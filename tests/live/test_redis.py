"""Several gateways, each a process of its own, that share a replica through a real Redis."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import Answer, Wire, chat
from tests.gateway_process import GatewayProcess
from tests.redis_server import RedisServer, needs_redis
from wastegate.store.entries import Ledger

pytestmark = [pytest.mark.live, pytest.mark.timeout(180), needs_redis]

LIMIT = 30.0
HELD = Reply(body=Sse(chunks=3), fault=Fault("between_tokens", "hang"))
BROKEN = Reply(body=Json(status=500, body=b'{"error":{"message":"broken"}}'))
SHARED = '[shared]\nredis_env = "SHARED_REDIS"\nlease_seconds = 2.0\nbeat_seconds = 0.1\nretry_seconds = 0.2\n'
PASSWORD = "not-to-be-seen"


class Two:
    """Two gateways in front of one replica."""

    def __init__(self, redis: RedisServer, replica: FakeReplica, gateways: list[GatewayProcess]) -> None:
        self.redis = redis
        self.replica = replica
        self.gateways = gateways
        self.most = 0
        """Calls that the replica has ever had in flight at once."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, self.replica.in_flight)
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        self._watching.cancel()

    async def loads(self) -> list[int]:
        """The replica's load as each gateway sees it."""
        return [(await gateway.state())["replicas"][0]["in_flight"] for gateway in self.gateways]

    async def shared(self) -> list[str]:
        return [(await gateway.state())["shared"]["state"] for gateway in self.gateways]

    async def know_each_other(self) -> bool:
        return {(await gateway.state())["shared"]["gateways"] for gateway in self.gateways} == {len(self.gateways)}

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not await true():  # noqa: ASYNC110  # another process's state
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None

    async def loaded(self, *loads: int) -> None:
        async def true() -> bool:
            return await self.loads() == list(loads)

        await self.until(true, f"loads {loads}")

    async def all_are(self, state: str) -> None:
        async def true() -> bool:
            return set(await self.shared()) == {state}

        await self.until(true, f"all are {state}")


async def ask(gateway: GatewayProcess) -> Answer:
    async with await Wire.connect(gateway.url) as wire:
        wire.post(chat())
        return await wire.answer()


async def begun(gateway: GatewayProcess, count: int) -> list[tuple[Wire, Answer]]:
    """So many streams that have begun and stand still."""
    streams = []
    for _ in range(count):
        wire = await Wire.connect(gateway.url)
        wire.post(chat(stream=True))
        answer = await wire.head()
        await wire.piece(answer)
        streams.append((wire, answer))
    return streams


async def finish(streams: list[tuple[Wire, Answer]]) -> None:
    for wire, answer in streams:
        while await wire.piece(answer):
            pass
        assert answer.complete


@asynccontextmanager
async def two(
    folder: Path, reply: Reply, *, cap: int | None = 3, workers: int = 1, toml: str = ""
) -> AsyncIterator[Two]:
    async with RedisServer(folder, PASSWORD) as redis, FakeReplica(reply) as replica:
        gateways = [
            GatewayProcess(
                folder / name,
                replica,
                workers=workers,
                cap=cap,
                toml=SHARED + toml,
                environ={"SHARED_REDIS": redis.url},
            )
            for name in ("one", "two")
        ]
        async with gateways[0], gateways[1]:
            for gateway in gateways:
                await gateway.ready(1)
            here = Two(redis, replica, gateways)
            await here.all_are("joined")
            await here.until(here.know_each_other, "each knows of the other")
            try:
                yield here
            finally:
                here.stop()
                replica.release()
        for gateway in gateways:
            assert PASSWORD not in gateway.said


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_cap_of_three_holds_under_twenty_calls(tmp_path: Path, workers: int) -> None:
    async with two(tmp_path, Reply(body=Json(delay=0.05)), workers=workers) as here:
        answers = await asyncio.gather(*(ask(gateway) for gateway in here.gateways for _ in range(20)))
        assert [answer.status for answer in answers] == [200] * 40
        assert here.most == 3
        await here.loaded(0, 0)
        assert [await gateway.metric("wastegate_shared_gateways") for gateway in here.gateways] == [2, 2]
    for gateway in here.gateways:
        with Ledger(gateway.data / "ledger.db", create=False) as ledger:
            assert ledger.count() == 20


async def test_a_killed_gateways_slots_come_back_when_its_time_is_up(tmp_path: Path) -> None:
    async with two(tmp_path, HELD) as here:
        one, other = here.gateways
        streams = await begun(one, 3)
        await here.loaded(3, 3)
        waiting = asyncio.create_task(ask(other))
        await one.end(signal.SIGKILL)
        for wire, _ in streams:
            await wire.rest()
        here.gateways = [other]
        began = asyncio.get_running_loop().time()
        here.replica.default = Reply()
        assert (await waiting).status == 200
        assert asyncio.get_running_loop().time() - began < 2.0 + 1.0, "its lease is 2 s"
        await here.loaded(0)
        assert await other.metric("wastegate_shared_gateways") == 1


async def test_without_redis_both_go_on_and_with_it_they_join_again(tmp_path: Path) -> None:
    async with two(tmp_path, HELD, cap=4) as here:
        one, other = here.gateways
        streams = await begun(one, 1)
        here.redis.stop()
        await here.all_are("alone")
        for gateway in here.gateways:
            assert await gateway.metric("wastegate_shared_alone") == 1
            assert gateway.said.count("goes on alone") == 1
            assert (await gateway.state())["shared"]["why"]
        streams += await begun(one, 1) + await begun(other, 2)
        late = [asyncio.create_task(ask(gateway)) for gateway in here.gateways]
        await asyncio.sleep(0.5)
        assert here.replica.in_flight == here.most == 4, "shares of two each are the cap"
        await here.loaded(2, 2)
        await here.redis.start()
        await here.all_are("joined")
        await here.loaded(4, 4)
        assert await one.metric("wastegate_shared_alone") == 0
        here.replica.default = Reply()
        here.replica.release()
        await finish(streams)
        assert [(await answer).status for answer in late] == [200, 200]
        assert here.most == 4
        await here.loaded(0, 0)


async def test_a_redis_that_hangs_holds_up_no_call(tmp_path: Path) -> None:
    async with two(tmp_path, Reply()) as here:
        here.redis.hold()
        try:
            began = asyncio.get_running_loop().time()
            assert (await ask(here.gateways[0])).status == 200
            assert asyncio.get_running_loop().time() - began < 2.0
            await here.all_are("alone")
        finally:
            here.redis.go_on()
        await here.all_are("joined")
        assert (await ask(here.gateways[1])).status == 200
        await here.loaded(0, 0)


async def test_a_breaker_is_shared_and_half_open_one_call_gets_through(tmp_path: Path) -> None:
    toml = "[breaker]\nfailures = 4\nrest = 2.0\n[retry]\nmax_attempts = 1\nhold = 0.2\n"
    async with two(tmp_path, BROKEN, toml=toml) as here:
        for gateway in here.gateways:
            for _ in range(2):
                assert (await ask(gateway)).status == 500

        async def open_for_both() -> bool:
            return [(await g.state())["replicas"][0]["breaker"] for g in here.gateways] == ["open", "open"]

        await here.until(open_for_both, "four failures over both gateways open it for both")
        for gateway in here.gateways:
            assert (await ask(gateway)).status == 503
        assert len(here.replica.calls) == 4
        here.replica.default = HELD

        async def half_open() -> bool:
            return [(await g.state())["replicas"][0]["breaker"] for g in here.gateways] == ["half_open"] * 2

        await here.until(half_open, "its rest is over")
        wires = [await Wire.connect(gateway.url) for gateway in here.gateways for _ in range(5)]
        for wire in wires:
            wire.post(chat(stream=True))
        await here.replica.wait_calls(5)
        await asyncio.sleep(0.5)
        assert len(here.replica.calls) == 5, "one of ten"
        here.replica.default = Reply()
        here.replica.release()
        statuses = sorted([(await wire.answer()).status for wire in wires])
        assert statuses[0] == 200
        assert set(statuses) <= {200, 503}, "the others were held for a moment, then served or turned away"

        async def closed() -> bool:
            return [(await g.state())["replicas"][0]["breaker"] for g in here.gateways] == ["closed"] * 2

        await here.until(closed, "the trial went well")
        await here.loaded(0, 0)
