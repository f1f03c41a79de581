from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.running_engine import RunningEngine, chat, running_engine
from wastegate.core.admission import CapConfig, Limits
from wastegate.local.admin import _is_this_machine, caps_of, limits_of
from wastegate.local.requests import RequestError


def test_limits_that_are_not_given_stay() -> None:
    assert limits_of({"cap": 3}, Limits(32, 256)) == Limits(3, 256)
    assert limits_of({"queue": 0}, Limits(32, 256)) == Limits(32, 0)
    assert limits_of({}, Limits(32, 256)) == Limits(32, 256)


@pytest.mark.parametrize("fields", [{"cap": 0}, {"queue": -1}, {"cap": "3"}, {"cop": 3}, {"cap": None}], ids=str)
def test_limits_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="limits"):
        limits_of(fields, Limits())


def test_what_is_not_given_of_caps_stays() -> None:
    present = CapConfig("fixed", min=4)
    assert caps_of({"policy": "gradient"}, present) == CapConfig("gradient", min=4)


@pytest.mark.parametrize("fields", [{"policy": "fast"}, {"min": 0}, {"max": 1}, {"cop": 3}], ids=str)
def test_caps_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="caps"):
        caps_of(fields, CapConfig())


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("10.0.0.1", False), ("", False), (None, False)],
)
def test_who_is_on_this_machine(address: str | None, here: bool) -> None:
    assert _is_this_machine(address) == here


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny, "--cap", "1", "--admin-token", "s3cret") as running:
        yield running


def ask(engine: RunningEngine, path: str, token: str) -> int:
    request = urllib.request.Request(engine.url + path, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_with_a_token_nobody_comes_in_without_it(engine: RunningEngine) -> None:
    for path in ("/admin/limits", "/admin/caps", "/admin/work"):
        assert [ask(engine, path, token) for token in ("", "other", "s3cret")] == [401, 401, 200]


async def test_limits_change_while_it_runs(engine: RunningEngine) -> None:
    headers = {"Authorization": "Bearer s3cret"}
    async with aiohttp.ClientSession(engine.url, headers=headers) as client:
        async with client.get("/admin/limits") as answer:
            assert await answer.json() == {"cap": 1, "queue": 256, "running": 0, "waiting": 0}
        body = {"prompt": "the", "max_tokens": 400, "n": 3, "ignore_eos": True, "stream": True}
        async with client.post("/v1/completions", json=body) as stream:
            assert stream.status == 200
            await engine.until("requests_waiting", 2)
            async with client.put("/admin/limits", json={"cap": 3}) as answer:
                assert (await answer.json())["cap"] == 3
            await engine.until("requests_running", 3)
        async with client.put("/admin/limits", json={"cap": 0}) as answer:
            assert answer.status == 400
        assert engine.metric("requests_running_max") == 3


async def test_what_steps_cost_is_told_once_there_were_enough(engine: RunningEngine) -> None:
    headers = {"Authorization": "Bearer s3cret"}
    async with aiohttp.ClientSession(engine.url, headers=headers) as client:
        for number in range(40):
            body = {"prompt": "the a " * (number + 1), "max_tokens": 12, "ignore_eos": True}
            async with client.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
        async with client.get("/admin/work") as answer:
            cost = await answer.json()
        assert cost["samples"] >= 480
        assert all(cost[part] >= 0 for part in ("prefill", "decode", "kv", "fixed"))
        assert 0 < cost["fixed"] + cost["decode"] < 1


async def test_the_cap_follows_the_load_and_says_why(engine: RunningEngine) -> None:
    headers = {"Authorization": "Bearer s3cret"}

    async def ask_for_much(client: aiohttp.ClientSession) -> None:
        body = chat(max_tokens=100, ignore_eos=True)
        async with client.post(engine.url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()

    async with aiohttp.ClientSession(headers=headers) as client:
        async with client.put(engine.url + "/admin/caps", json={"policy": "cost_aware", "dwell": 0.05}) as answer:
            told = await answer.json()
        assert (told["policy"], told["knee"]) == ("cost_aware", None)
        calls = [asyncio.create_task(ask_for_much(client)) for _ in range(12)]
        await asyncio.gather(*calls)
        async with client.get(engine.url + "/admin/caps") as answer:
            told = await answer.json()
        assert told["cap"] > 2
        assert "room" in told["why"]
        assert told["tokens_per_second"]
        async with client.put(engine.url + "/admin/caps", json={"policy": "fixed"}) as answer:
            assert (await answer.json())["policy"] == "fixed"
        async with client.put(engine.url + "/admin/limits", json={"cap": 1}) as answer:
            assert answer.status == 200
        async with client.get(engine.url + "/admin/caps") as answer:
            assert (await answer.json())["why"] == "set by hand"
