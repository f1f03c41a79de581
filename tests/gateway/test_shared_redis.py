"""The scripts in a real Redis: whatever gateways do, and whenever one dies, a load is what the living hold."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.redis_server import RedisServer, needs_redis
from wastegate.gateway.shared_redis import (
    Claim,
    Conversation,
    Done,
    ForgottenError,
    Leave,
    News,
    Release,
    Renew,
    SharedError,
    Standing,
    Trust,
    where,
)

CAP = 3
LONG = 60.0
THRESHOLD = 2


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    asyncio.run(server.start())
    yield server
    server.stop()


class Talker:
    """A gateway that only talks."""

    def __init__(self, server: RedisServer, site: str, name: str) -> None:
        self.talk = Conversation(server.url, site, name)

    async def claim(self, replica: str = "a", cap: int | None = CAP, force: bool = False) -> Done:
        (answer,) = await self.talk.send([Claim(replica, cap, THRESHOLD, force)])
        assert isinstance(answer, Done)
        return answer

    async def release(
        self, replica: str = "a", verdict: str = "neutral", trial: bool = False, rest: float = LONG
    ) -> Standing:
        (answer,) = await self.talk.send([Release(replica, verdict, trial, THRESHOLD, rest)])
        assert isinstance(answer, Done)
        return answer.standing

    async def renew(self, *, lease: float = LONG, joins: bool = False, old: str = "", **held: int) -> News:
        (answer,) = await self.talk.send([Renew(lease, held or {"a": 0}, joins, old)])
        assert isinstance(answer, News)
        return answer


@asynccontextmanager
async def talking(server: RedisServer, site: str, *names: str) -> AsyncIterator[list[Talker]]:
    talkers = [Talker(server, site, name) for name in names]
    try:
        for talker in talkers:
            await talker.talk.open()
            await talker.renew(joins=True)
        yield talkers
    finally:
        for talker in talkers:
            await talker.talk.close()


@needs_redis
async def test_who_has_not_joined_is_known_to_nobody(redis: RedisServer) -> None:
    async with talking(redis, "strangers", "x") as (x,):
        y = Talker(redis, "strangers", "y")
        await y.talk.open()
        for attempt in (y.claim(), y.release(), y.renew()):
            with pytest.raises(ForgottenError):
                await attempt
        assert (await x.renew()).gateways == ("x",)
        await y.talk.close()


@needs_redis
async def test_a_cap_and_its_refusal(redis: RedisServer) -> None:
    async with talking(redis, "cap", "x", "y") as (x, y):
        answers = [await each.claim() for each in (x, y, x, y)]
        assert [answer.granted for answer in answers] == [True, True, True, False]
        assert [answer.standing.load for answer in answers] == [1, 2, 3, 3]
        assert (await y.claim(cap=None)).granted
        assert (await y.claim(cap=1, force=True)).standing.load == 5
        assert (await x.claim("b")).standing.load == 1, "another replica's is another load"


@needs_redis
async def test_a_slot_that_is_not_held_cannot_come_back(redis: RedisServer) -> None:
    async with talking(redis, "twice", "x", "y") as (x, y):
        await x.claim()
        assert (await y.release()).load == 1
        assert (await x.release()).load == 0
        assert (await x.release()).load == 0


@needs_redis
async def test_a_breaker_from_closed_to_closed(redis: RedisServer) -> None:
    async with talking(redis, "breaker", "x", "y") as (x, y):
        await x.claim()
        assert await x.release(verdict="bad") == Standing(0, 1)
        await y.claim()
        standing = await y.release(verdict="bad", rest=0.2)
        assert (standing.failures, standing.trial) == (2, False)
        assert 0.1 < standing.rest <= 0.2
        refused = await x.claim()
        assert (refused.granted, refused.standing.trial) == (False, False)
        await asyncio.sleep(0.22)
        trial = await x.claim()
        assert (trial.granted, trial.trial, trial.standing.trial) == (True, True, True)
        assert not (await y.claim()).granted
        assert not (await x.claim()).granted
        assert (await y.claim(force=True)).granted
        assert (await y.release()).trial, "an older call's end does not end the trial"
        assert await x.release(verdict="good", trial=True) == Standing()
        assert (await y.claim()).granted


@needs_redis
async def test_a_full_replica_starts_no_trial(redis: RedisServer) -> None:
    async with talking(redis, "full", "x") as (x,):
        for _ in range(THRESHOLD):
            await x.claim()
            await x.release(verdict="bad", rest=0.0)
        assert not (await x.claim(cap=0)).granted
        assert (await x.claim()).trial


@needs_redis
async def test_a_dead_gateways_trial_and_slots_are_over(redis: RedisServer) -> None:
    async with talking(redis, "dead", "x", "y") as (x, y):
        for _ in range(THRESHOLD):
            await x.claim()
            await x.release(verdict="bad", rest=0.0)
        assert (await x.claim()).trial
        await x.renew(lease=0.1, a=1)
        assert not (await y.claim()).granted
        await asyncio.sleep(0.12)
        taken = await y.claim()
        assert taken.trial
        assert taken.standing.load == 1
        with pytest.raises(ForgottenError):
            await x.release(verdict="good", trial=True)
        assert (await y.renew(a=1)).standings["a"].trial


@needs_redis
async def test_trust_closes_a_breaker_and_leaves_the_load(redis: RedisServer) -> None:
    async with talking(redis, "trust", "x") as (x,):
        await x.claim()
        for _ in range(THRESHOLD):
            await x.claim()
            await x.release(verdict="bad")
        assert await x.talk.send([Trust("a")]) == [None]
        assert (await x.renew(a=1)).standings == {"a": Standing(1)}


@needs_redis
async def test_leaving_gives_everything_back(redis: RedisServer) -> None:
    async with talking(redis, "leave", "x", "y") as (x, y):
        await x.claim()
        await x.claim("b")
        await x.talk.send([Leave()])
        news = await y.renew(a=0, b=0)
        assert news == News(("y",), {"a": Standing(), "b": Standing()})


@needs_redis
async def test_joining_under_a_new_name_buries_the_old_one(redis: RedisServer) -> None:
    async with talking(redis, "anew", "x", "y") as (x, y):
        await x.claim()
        again = Talker(redis, "anew", "z")
        await again.talk.open()
        news = await again.renew(joins=True, old="x", a=2)
        assert news == News(("y", "z"), {"a": Standing(2)})
        with pytest.raises(ForgottenError):
            await x.claim()
        assert (await y.claim()).granted
        assert not (await y.claim()).granted
        await again.talk.close()


@needs_redis
async def test_each_sign_of_life_sets_right_what_went_astray(redis: RedisServer) -> None:
    async with talking(redis, "astray", "x", "y") as (x, y):
        await x.claim()
        await y.claim()
        assert (await x.renew(a=2)).standings["a"].load == 3
        assert (await x.renew(a=0)).standings["a"].load == 1


@needs_redis
async def test_a_flushed_redis_is_an_error_and_no_wrong_answer(redis: RedisServer) -> None:
    async with talking(redis, "flushed", "x") as (x,):
        await x.claim()
        await x.talk._client.flushall()
        with pytest.raises(ForgottenError):
            await x.claim()
        await x.talk._client.script_flush()
        with pytest.raises(SharedError, match="script"):
            await x.claim()


async def test_nobody_there_is_an_error() -> None:
    pytest.importorskip("redis")
    talk = Conversation("redis://127.0.0.1:9", "none", "x")
    with pytest.raises(SharedError, match=r"127\.0\.0\.1:9"):
        await talk.open()
    await talk.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@redis.example:7000/2", "redis.example:7000"),
        ("rediss://user:secret@redis.example", "redis.example:6379"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
    ],
)
def test_what_is_shown_of_a_url_holds_no_secret(url: str, shown: str) -> None:
    assert where(url) == shown


SITES = itertools.count()
GATEWAYS = "xyz"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "force", "release", "renew", "leave", "anew"]),
        st.sampled_from(GATEWAYS),
        st.sampled_from("ab"),
    ),
    max_size=40,
)


@needs_redis
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_load_is_always_what_the_living_hold(redis: RedisServer, steps: list[tuple[str, str, str]]) -> None:
    asyncio.run(_play(redis, f"drawn-{next(SITES)}", steps))


async def _play(redis: RedisServer, site: str, steps: list[tuple[str, str, str]]) -> None:
    """The scripts beside a model that is a counter for each gateway."""
    async with talking(redis, site, *GATEWAYS) as talkers:
        by_name = dict(zip(GATEWAYS, talkers, strict=True))
        held: dict[str, Counter[str]] = {name: Counter() for name in GATEWAYS}
        for what, who, replica in steps:
            talker, own = by_name[who], held[who]
            load = sum(each[replica] for each in held.values())
            if what in ("claim", "force"):
                answer = await talker.claim(replica, force=what == "force")
                assert answer.granted == (what == "force" or load < CAP)
                own[replica] += answer.granted
                assert answer.standing.load == load + answer.granted
            elif what == "release":
                own[replica] = max(0, own[replica] - 1)
                assert (await talker.release(replica)).load == sum(each[replica] for each in held.values())
            elif what == "renew":
                await talker.renew(a=own["a"], b=own["b"])
            else:
                if what == "leave":
                    await talker.talk.send([Leave()])
                own.clear()
                await talker.renew(joins=True, old=who, a=0, b=0)
        news = await by_name["x"].renew(a=held["x"]["a"], b=held["x"]["b"])
        assert {key: standing.load for key, standing in news.standings.items()} == {
            replica: sum(each[replica] for each in held.values()) for replica in "ab"
        }
