"""What is asked of a server before a run, and what is said when it does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.fake_replica import FakeReplica, Json, Reply, silent_port
from tests.load.conftest import ToyServer
from wastegate.load.prompts import CHAT, PLAIN
from wastegate.load.target import Model, Target, TargetError


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_the_only_model_is_taken(toy: ToyServer, session: aiohttp.ClientSession) -> None:
    assert await Target(session, toy.url + "/v1/").model("") == Model("toy", 4096)
    assert await Target(session, toy.url).model("other") == Model("other", None)


async def test_of_several_models_one_must_be_named(toy: ToyServer, session: aiohttp.ClientSession) -> None:
    toy.models = ["a", "b"]
    target = Target(session, toy.url)
    assert (await target.model("b")).context == 4096
    with pytest.raises(TargetError, match="serves a, b: choose one with --model"):
        await target.model("")
    toy.models = []
    with pytest.raises(TargetError, match="names no model: give --model"):
        await target.model("")


async def test_both_routes_are_counted_as_they_are(toy: ToyServer, session: aiohttp.ClientSession) -> None:
    target = Target(session, toy.url)
    plain, chat = await target.tokenize("toy", PLAIN, "one two"), await target.tokenize("toy", CHAT, "one two")
    assert plain is not None
    assert chat is not None
    assert (plain.count, len(plain.ids), plain.context) == (2, 2, 4096)
    assert chat.count == 8
    assert await target.measure("toy", CHAT, "one two") == 8
    assert toy.calls[-1]["max_tokens"] == 1
    assert toy.headers[-1]["x-wastegate-tag-purpose"] == "calibration"
    assert target.posted == 3


async def test_a_server_without_a_tokenizer_says_none(toy: ToyServer, session: aiohttp.ClientSession) -> None:
    toy.tokenizes = False
    toy.says_usage = False
    target = Target(session, toy.url)
    assert await target.tokenize("toy", PLAIN, "one") is None
    assert await target.measure("toy", PLAIN, "one") is None


async def test_odd_answers_are_no_answers(session: aiohttp.ClientSession) -> None:
    async with FakeReplica() as replica:
        replica.pages["/tokenize"] = Reply(body=Json(body=b'{"count": "3", "tokens": "x"}'))
        replica.pages["/v1/models"] = Reply(
            body=Json(body=b'{"data": [{"id": 5}, 7, {"id": "m", "max_model_len": "x"}]}')
        )
        target = Target(session, replica.url)
        assert await target.tokenize("m", PLAIN, "one") is None
        assert await target.model("") == Model("m", None)
        replica.pages["/v1/models"] = Reply(body=Json(body=b"<html>"))
        with pytest.raises(TargetError, match="give --model"):
            await target.model("")


async def test_a_url_that_is_none(session: aiohttp.ClientSession) -> None:
    with pytest.raises(TargetError, match="must begin with http"):
        Target(session, "localhost:8080")


async def test_nobody_there(session: aiohttp.ClientSession) -> None:
    async with FakeReplica() as replica:
        url = replica.url
    with pytest.raises(TargetError, match=r"cannot be reached.*Is the server running"):
        await Target(session, url).model("")


async def test_a_server_that_stays_silent_is_not_waited_for_for_ever(session: aiohttp.ClientSession) -> None:
    async with silent_port() as port:
        with pytest.raises(TargetError, match=r"did not answer within 0\.1 s"):
            await Target(session, f"http://127.0.0.1:{port}", patience=0.1).model("")


async def test_a_key_that_is_missing_is_asked_for(session: aiohttp.ClientSession) -> None:
    async with FakeReplica() as replica:
        replica.pages["/v1/models"] = Reply(body=Json(status=401, body=b"{}"))
        with pytest.raises(TargetError, match="401: give the key with --api-key"):
            await Target(session, replica.url).model("")
