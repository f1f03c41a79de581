"""Gateways that share replicas: caps, load and breakers hold across them, and each goes on alone where it must."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, needs_redis
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.world import Breaker, Result, RetryBudget, World
from wastegate.gateway.desk import Desk
from wastegate.gateway.hub import Clock
from wastegate.gateway.shared import Config, exposition
from wastegate.gateway.shared_redis import SharedError

LIMIT = 5.0


class Asker:
    """Waits for a slot."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()

    def claimed(self, granted: bool, lease: int) -> None:
        self.answer.set_result((granted, lease))


class Gateway:
    """A gateway's world and its desk, without sockets for clients."""

    def __init__(self, config: Config, *replicas: Replica, breaker: Breaker) -> None:
        self.world = World(breaker, RetryBudget())
        self.world.set_fleet(replicas)
        for replica in replicas:
            self.world.set_state(replica.name, "ready")
        self.now = Clock().now
        self.changes = 0
        self.desk = Desk(config, self.world, self.now, self._changed, "here")

    def _changed(self) -> None:
        self.changes += 1

    async def claim(self, name: str = "a") -> int:
        """The lease, 0 if it was refused."""
        asker = Asker()
        self.desk.claim(name, 1, asker)
        assert not asker.answer.done(), "never from within the call"
        async with asyncio.timeout(LIMIT):
            granted, lease = await asker.answer
        assert granted == (lease > 0)
        return lease

    def back(self, lease: int, name: str = "a", good: bool = True) -> None:
        self.desk.back(lease, Result(name, "finished", 200) if good else Result(name, "failed"))

    def seen(self, name: str = "a") -> ReplicaState:
        state = self.world.state(name, self.now())
        assert state is not None
        return state

    async def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not true():  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None


def replica(name: str = "a", cap: int | None = 3, url: str = "http://gpu-1:8000") -> Replica:
    return Replica(name, url, ("m",), cap=cap)


def config(redis: str, **other: float) -> Config:
    return Config(redis, **{"beat_seconds": 0.05, "retry_seconds": 0.05, "lease_seconds": 0.6, **other})  # type: ignore[arg-type]


@asynccontextmanager
async def sharing(
    redis: str, *fleets: list[Replica], breaker: Breaker | None = None, **other: float
) -> AsyncIterator[list[Gateway]]:
    """A gateway for each fleet; at the end each parts properly."""
    gateways = [Gateway(config(redis, **other), *fleet, breaker=breaker or Breaker()) for fleet in fleets]
    try:
        for gateway in gateways:
            await gateway.desk.start()
        yield gateways
    finally:
        for gateway in gateways:
            await gateway.desk.stop()


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path) as server:
        yield server


@needs_redis
async def test_a_cap_holds_across_gateways_that_call_the_replica_differently(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica("a")], [replica("other", url="http://GPU-1:8000/v1")]) as (one, two):
        leases = [await one.claim(), await two.claim("other"), await one.claim()]
        assert all(leases)
        assert await two.claim("other") == 0
        assert two.seen("other").in_flight == 3, "a refusal tells how full it is"
        one.back(leases[0])
        assert await two.claim("other")
        assert not await one.claim()


@needs_redis
async def test_many_claims_at_once_never_exceed_the_cap(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica()], [replica()]) as gateways:
        for _ in range(20):
            leases = await asyncio.gather(*(gateway.claim() for gateway in gateways for _ in range(5)))
            held = [(gateways[number // 5], lease) for number, lease in enumerate(leases) if lease]
            assert len(held) == 3
            for gateway, lease in held:
                gateway.back(lease)
            await gateways[0].until(lambda: gateways[0].seen().in_flight == 0, "all is back")


@needs_redis
async def test_the_others_load_shows_in_every_view(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=None)], [replica(cap=None)]) as (one, two):
        before = two.changes
        leases = [await one.claim() for _ in range(4)]
        await two.until(lambda: two.seen().in_flight == 4, "four in flight, all elsewhere")
        assert two.world.states[0].in_flight == 0, "its own are none"
        assert two.changes > before
        assert one.seen().in_flight == 4
        for lease in leases:
            one.back(lease)
        await two.until(lambda: two.seen().in_flight == 0, "none in flight")


@needs_redis
async def test_a_place_that_another_frees_is_seen_soon_where_all_are_taken(redis: RedisServer) -> None:
    fleet = [replica(cap=1)]
    async with sharing(redis.url, fleet, fleet, beat_seconds=5.0, lease_seconds=60.0) as (one, two):
        lease = await one.claim()
        assert not await two.claim()
        changes = two.changes
        one.back(lease)
        async with asyncio.timeout(1.0):
            while two.seen().in_flight:  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                await asyncio.sleep(0.01)
        assert two.changes > changes, "whoever waits is told"


@needs_redis
async def test_two_names_of_one_replica_share_its_cap(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica("a"), replica("b")]) as (one,):
        for name in ("a", "b", "a"):
            assert await one.claim(name)
        assert not await one.claim("b")
        assert (one.seen("a").in_flight, one.seen("b").in_flight) == (3, 3)


@needs_redis
async def test_a_lease_comes_back_once(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=1)], [replica(cap=1)]) as (one, two):
        lease = await one.claim()
        one.back(lease)
        one.back(lease)
        assert await two.claim()
        assert not await one.claim()


@needs_redis
async def test_what_a_replica_says_or_lacks_is_decided_here(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica()]) as (one,):
        assert not await one.claim("stranger")
        one.world.set_state("a", "down")
        assert not await one.claim(), "Redis does not know whether it is ready"


@needs_redis
async def test_a_replica_that_leaves_while_it_is_asked_for_is_refused(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=1)], [replica(cap=1)]) as (one, two):
        asker = Asker()
        one.desk.claim("a", 1, asker)
        one.world.set_fleet([])
        assert await asker.answer == (False, 0)
        async with asyncio.timeout(LIMIT):
            while not await two.claim():
                pass


@needs_redis
async def test_a_breaker_that_one_opens_is_open_for_all_and_lets_one_through(redis: RedisServer) -> None:
    rules = Breaker(failures=2, rest=0.3)
    async with sharing(redis.url, [replica()], [replica()], breaker=rules) as (one, two):
        for gateway in (one, two):
            gateway.back(await gateway.claim(), good=False)
        for gateway in (one, two):
            await gateway.until(lambda gateway=gateway: gateway.seen().breaker == "open", "open for both")  # type: ignore[misc]
            assert not await gateway.claim()
        for gateway in (one, two):
            await gateway.until(lambda gateway=gateway: gateway.seen().breaker == "half_open", "its rest is over")  # type: ignore[misc]
        tried = await asyncio.gather(*(gateway.claim() for gateway in (one, two) for _ in range(5)))
        assert sum(map(bool, tried)) == 1, "one trial among all gateways"
        trial = next(lease for lease in tried if lease)
        tester = one if tried.index(trial) < 5 else two
        other = two if tester is one else one
        assert not await other.claim()
        tester.back(trial)
        await other.until(lambda: other.seen().breaker == "closed", "the trial went well")
        assert await other.claim()


@needs_redis
async def test_a_trial_that_fails_or_says_nothing_ends(redis: RedisServer) -> None:
    rules = Breaker(failures=1, rest=0.1)
    async with sharing(redis.url, [replica()], [replica()], breaker=rules) as (one, two):
        one.back(await one.claim(), good=False)
        await one.until(lambda: one.seen().breaker == "half_open", "rested")
        one.desk.back(await one.claim(), Result("a", "hung_up"))
        await two.until(lambda: two.seen().breaker == "half_open", "a hang-up says nothing: another may try")
        two.back(await two.claim(), good=False)
        await one.until(lambda: one.seen().breaker == "open", "the trial failed")


@needs_redis
async def test_a_replica_that_comes_up_anew_is_trusted_by_all(redis: RedisServer) -> None:
    rules = Breaker(failures=1, rest=60.0)
    async with sharing(redis.url, [replica()], [replica()], breaker=rules) as (one, two):
        await asyncio.sleep(0.1)  # both have seen it ready
        one.back(await one.claim(), good=False)
        await two.until(lambda: two.seen().breaker == "open", "open")
        one.world.set_state("a", "down")
        await asyncio.sleep(0.1)
        one.world.set_state("a", "ready")
        await two.until(lambda: two.seen().breaker == "closed", "trusted again")


@needs_redis
async def test_a_newcomer_learns_of_an_open_breaker_and_closes_none(redis: RedisServer) -> None:
    rules = Breaker(failures=1, rest=60.0)
    async with sharing(redis.url, [replica()], breaker=rules) as (one,):
        one.back(await one.claim(), good=False)
        await one.until(lambda: one.seen().breaker == "open", "open")
        async with sharing(redis.url, [replica()], breaker=rules) as (two,):
            assert two.seen().breaker == "open"
            await asyncio.sleep(0.1)
            assert one.seen().breaker == two.seen().breaker == "open"


@needs_redis
async def test_who_falls_silent_loses_its_slots_and_who_comes_back_keeps_what_it_holds(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=2)], [replica(cap=2)]) as (one, two):
        assert await one.claim()
        kept = await one.claim()
        one.desk._beat_at = float("inf")  # it stands still
        assert not await two.claim()
        await two.until(lambda: two.seen().in_flight == 0, "its time has run out")
        lease = await two.claim()
        assert lease
        one.desk._beat_at = 0.0
        one.desk._due.set()
        await two.until(lambda: two.seen().in_flight == 3, "what it held all the while counts again, above the cap")
        one.back(kept)
        two.back(lease)
        await two.until(lambda: two.seen().in_flight == 1, "one of its two is left")
        assert one.desk.status.state == "joined"


@needs_redis
async def test_without_redis_each_keeps_to_its_share_and_says_so(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with sharing(redis.url, [replica(cap=5)], [replica(cap=5)]) as gateways:
        for gateway in gateways:
            await gateway.until(lambda gateway=gateway: gateway.desk.status.gateways == 2, "both know both")  # type: ignore[misc]
        held = {gateway: await gateway.claim() for gateway in gateways}
        redis.stop()
        for gateway in gateways:
            await gateway.until(lambda gateway=gateway: gateway.desk.alone, "alone")  # type: ignore[misc]
        granted = [[lease for lease in [await g.claim() for _ in range(6)] if lease] for g in gateways]
        assert sorted(len(leases) for leases in granted) == [1, 2], "shares of 2 and 3, one in use each"
        for gateway, leases in zip(gateways, granted, strict=True):
            status = gateway.desk.status
            assert (status.state, status.gateways, status.claims_alone) == ("alone", 2, 6)
            assert status.why
            assert "wastegate_shared_alone 1\n" in exposition(status)
            assert gateway.seen().in_flight == gateway.seen().replica.cap == len(leases) + 1
        await asyncio.sleep(0.3)
        said = [record for record in caplog.records if "goes on alone" in record.getMessage()]
        assert len(said) == 2, "once each, however often it tries to join again"
        gateways[0].back(granted[0].pop())
        await redis.start()
        for gateway in gateways:
            await gateway.until(lambda gateway=gateway: not gateway.desk.alone, "joined again")  # type: ignore[misc]
            assert "wastegate_shared_alone 0\n" in exposition(gateway.desk.status)
        total = 2 + sum(map(len, granted))
        for gateway in gateways:
            await gateway.until(lambda gateway=gateway: gateway.seen().in_flight == total, "all is counted again")  # type: ignore[misc]
        assert sum([bool(await gateways[0].claim()) for _ in range(6)]) == 5 - total
        gateways[1].back(held[gateways[1]])
        await gateways[0].until(lambda: gateways[0].seen().in_flight == 4, "one of five is free")
        assert await gateways[0].claim()


@needs_redis
async def test_what_happens_while_it_joins_is_told_as_well(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=None)], [replica(cap=None)], retry_seconds=0.01) as (one, two):
        over, luck = False, random.Random(1)

        async def busy() -> None:
            while not over:
                lease = await one.claim()
                await asyncio.sleep(luck.uniform(0, 0.002))
                one.back(lease)
                await asyncio.sleep(luck.uniform(0, 0.002))

        clients = [asyncio.create_task(busy()) for _ in range(8)]
        for _ in range(6):
            redis.stop()
            await one.until(lambda: one.desk.alone, "alone")
            await redis.start()
            await one.until(lambda: not one.desk.alone, "joined")
            await asyncio.sleep(0.05)
        over = True
        await asyncio.gather(*clients)
        await two.until(lambda: not two.desk.alone, "joined")
        await two.until(lambda: two.seen().in_flight == 0, "nothing is held any more")
        assert one.seen().in_flight == 0


@needs_redis
async def test_who_joins_an_emptied_redis_first_leaves_the_others_their_share(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=4)], [replica(cap=4)], lease_seconds=1.0) as (one, two):
        await one.until(lambda: one.desk.status.gateways == 2, "each knows of the other")
        held = [await two.claim(), await two.claim()]
        redis.stop()
        for gateway in (one, two):
            await gateway.until(lambda gateway=gateway: gateway.desk.alone, "alone")  # type: ignore[misc]
        two.desk._stopping.set()  # it is slow to come back
        await redis.start()
        await one.until(lambda: not one.desk.alone, "joined, as the only one")
        assert [bool(await one.claim()) for _ in range(4)] == [True, True, False, False]
        assert not one.seen().open_to_calls(one.now()), "its view says so, too"
        assert one.desk.share.of == 1, "its world shows the share already"
        await one.until(lambda: one.seen().replica.cap == 4, "the other has had time enough to come back")
        assert [bool(await one.claim()) for _ in range(3)] == [True, True, False]
        assert one.desk.status.gateways == 1
        for lease in held:
            two.back(lease)


@needs_redis
async def test_a_redis_that_hangs_costs_a_claim_a_bounded_wait(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica()], wait_seconds=0.2) as (one,):
        assert await one.claim()
        redis.hold()
        started = one.now()
        assert await one.claim(), "decided alone"
        assert one.now() - started < 1.0
        assert one.desk.alone
        assert one.desk.status.why == "Redis did not answer in time"
        began = one.now()
        assert await one.claim()
        assert one.now() - began < 0.1, "the next one does not wait again"
        assert not await one.claim()
        redis.go_on()
        await one.until(lambda: not one.desk.alone, "joined again")
        assert one.seen().in_flight == 3, "what Redis did late for who it was before does not count"
        assert not await one.claim()


@needs_redis
async def test_slots_taken_without_asking_are_counted(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=1)], [replica(cap=1)]) as (one, two):
        for _ in range(2):
            asker = Asker()
            one.desk.hold("a", 1, asker)
            granted, lease = await asker.answer
            assert granted
        await two.until(lambda: two.seen().in_flight == 2, "above the cap, but true")
        one.back(lease)
        await two.until(lambda: two.seen().in_flight == 1, "one is back")
        asker = Asker()
        one.desk.hold("stranger", 1, asker)
        assert await asker.answer == (False, 0)


@needs_redis
async def test_whoever_parts_gives_everything_back_at_once(redis: RedisServer) -> None:
    async with sharing(redis.url, [replica(cap=1)], lease_seconds=60.0) as (two,):
        async with sharing(redis.url, [replica(cap=1)], lease_seconds=60.0) as (one,):
            assert await one.claim()
            assert not await two.claim()
            assert two.desk.share.of == 2 or two.desk.status.gateways <= 2
        assert await two.claim()


@needs_redis
async def test_sites_do_not_meet(redis: RedisServer) -> None:
    here, there = (
        Gateway(Config(redis.url, site=site), replica(cap=1), breaker=Breaker()) for site in ("here", "there")
    )
    for gateway in (here, there):
        await gateway.desk.start()
        assert await gateway.claim()
        assert gateway.desk.status.gateways == 1
    for gateway in (here, there):
        await gateway.desk.stop()


@needs_redis
async def test_a_wrong_password_is_said_but_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with RedisServer(tmp_path, password="s3cret") as server:
        async with sharing(server.url.replace("s3cret", "wr0ng"), [replica()]) as (one,):
            status = one.desk.status
            assert status.state == "alone"
            assert status.redis == f"127.0.0.1:{server.port}"
            assert await one.claim(), "calls go on"
            said = caplog.text + repr(status) + exposition(status)
            assert "wr0ng" not in said
            assert "s3cret" not in said
        async with sharing(server.url, [replica()]) as (one,):
            assert one.desk.status.state == "joined"


async def test_with_nobody_there_it_starts_alone_with_whole_caps(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis")
    async with sharing("redis://127.0.0.1:9", [replica()]) as (one,):
        assert one.desk.status.state == "alone"
        assert [bool(await one.claim()) for _ in range(4)] == [True, True, True, False]
        assert one.desk.share.of == 1
    assert "the whole of every cap" in caplog.text


def test_a_client_that_is_not_installed_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SharedError, match=r"pip install 'wastegate\[redis\]'"):
        Desk(Config("redis://x"), World(Breaker(), RetryBudget()), float, lambda: None, "here")
