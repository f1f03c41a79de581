"""Signals that lie in a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.redis_server import RedisServer, needs_redis
from wastegate.gateway.pushed import Board
from wastegate.gateway.pushed_redis import RedisError, collect, key

pytestmark = needs_redis


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path, password="secret") as server:
        yield server


async def test_each_replicas_key_and_the_fleets(server: RedisServer) -> None:
    board = Board(lambda: 1000.0)
    async with Redis.from_url(server.url) as client:
        await client.set(key("site", "a"), '{"busy":0.5,"replica":"ignored: the key says whose it is"}')
        await client.set(key("site", ""), '{"power":70,"alarm":"hot"}')
        await client.set(key("site", "c"), "no JSON")
        await client.set(key("other", "b"), '{"busy":0.1}')
    await collect(server.url, "site", ["a", "b", "c"], board, 5.0)
    loads = {name: board.load(name) for name in ("a", "b", "c")}
    assert {name: (load.busy, load.power) for name, load in loads.items() if load is not None} == {
        "a": (0.5, None),
        "b": (None, 70.0),
        "c": (None, 70.0),
    }
    assert board.alarms("b") == ("hot",)


async def test_a_value_that_is_too_long_is_left(server: RedisServer) -> None:
    board = Board(lambda: 1000.0)
    async with Redis.from_url(server.url) as client:
        await client.set(key("site", ""), '{"busy":0.5}' + " " * 100_000)
    await collect(server.url, "site", ["a"], board, 5.0)
    assert board.load("a") is None


async def test_a_redis_that_is_gone_or_hangs_is_told_without_its_password(server: RedisServer) -> None:
    board = Board(lambda: 1000.0)
    server.hold()
    with pytest.raises(RedisError) as hung:
        await collect(server.url, "site", ["a"], board, 0.1)
    server.stop()
    with pytest.raises(RedisError) as gone:
        await collect(server.url, "site", ["a"], board, 5.0)
    for error in (hung, gone):
        assert str(error.value)
        assert "secret" not in str(error.value)


async def test_a_url_that_makes_no_sense_is_not_quoted() -> None:
    with pytest.raises(RedisError, match="no URL of a Redis") as error:
        await collect("redis://:pa:secret#word@127.0.0.1/0", "site", ["a"], Board(lambda: 1000.0), 5.0)
    assert "secret" not in str(error.value)
