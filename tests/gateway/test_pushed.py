"""Signals that others push: checked whole, kept for their time, forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.fake_replica import FakeReplica
from tests.gateway.running import Running, running
from wastegate.gateway import control
from wastegate.gateway.pushed import LARGEST_BODY, MOST_ALARMS, Board, PushError


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def board() -> tuple[Board, Clock]:
    clock = Clock()
    return Board(clock), clock


def push(board: Board, **members: Any) -> int:
    return board.take(msgspec.json.encode(members), ["a", "b"])


def test_figures_are_kept_for_their_time() -> None:
    kept, clock = board()
    assert push(kept, replica="a", busy=0.5, power=300, ttl=60) == 1
    load = kept.load("a")
    assert load is not None
    assert (load.source, load.at, load.busy, load.power, load.tensor) == ("pushed", 1000.0, 0.5, 300.0, None)
    assert kept.load("b") is None
    clock.at += 60
    assert kept.load("a") is None


def test_what_comes_later_adds_to_what_is_there() -> None:
    kept, clock = board()
    push(kept, replica="a", busy=0.5)
    clock.at += 1
    push(kept, replica="a", power=200)
    load = kept.load("a")
    assert load is not None
    assert (load.busy, load.power, load.at) == (0.5, 200.0, 1001.0)
    clock.at += 500
    push(kept, replica="a", dram=0.1)
    load = kept.load("a")
    assert load is not None
    assert (load.busy, load.dram) == (None, 0.1), "what was too old is not brought back"


def test_what_is_for_all_is_each_ones_that_has_none_of_its_own() -> None:
    kept, _ = board()
    push(kept, busy=0.9)
    push(kept, replica="a", busy=0.1)
    loads = kept.load("a"), kept.load("b")
    assert [load.busy for load in loads if load is not None] == [0.1, 0.9]


def test_a_time_of_its_own_counts_but_none_in_the_future() -> None:
    kept, clock = board()
    push(kept, replica="a", busy=0.5, at=900, ttl=50)
    assert kept.load("a") is None, "it was over before it came"
    push(kept, replica="a", busy=0.5, at=99_999, ttl=50)
    clock.at += 51
    assert kept.load("a") is None


def test_alarms_go_on_and_off() -> None:
    kept, clock = board()
    push(kept, alarm="gpu hot", ttl=100)
    push(kept, replica="a", alarm="queue", ttl=10)
    assert (kept.alarms("a"), kept.alarms("b")) == (("gpu hot", "queue"), ("gpu hot",))
    clock.at += 11
    assert kept.alarms("a") == ("gpu hot",)
    push(kept, clear="gpu hot")
    assert kept.alarms("a") == ()
    assert kept.load("a") is None, "an alarm is no figure"


def test_alarms_fill_no_memory() -> None:
    kept, _ = board()
    for number in range(MOST_ALARMS + 50):
        push(kept, alarm=f"alarm {number}")
    assert len(kept.alarms("a")) == MOST_ALARMS
    push(kept, alarm="alarm 0", ttl=500)
    assert "alarm 0" in kept.alarms("a")


def test_who_has_left_is_forgotten() -> None:
    kept, _ = board()
    push(kept, replica="a", busy=0.5)
    push(kept, busy=0.2)
    kept.forget(["b"])
    load = kept.load("a")
    assert load is not None
    assert load.busy == 0.2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "cannot be read"),
        (b'{"busy":1.5}', "busy"),
        (b'{"power":-1}', "power"),
        (b'{"bussy":1}', "bussy"),
        (b'{"ttl":0,"busy":1}', "ttl"),
        (b'{"ttl":1e9,"busy":1}', "ttl"),
        (b'{"busy":NaN}', "cannot be read"),
        (b'{"replica":"c","busy":0.5}', "there is no replica 'c'; there are: a, b"),
        (b'[{"replica":"a","busy":0.5},{"replica":"c"}]', "no replica 'c'"),
        (b'"' + b"x" * LARGEST_BODY + b'"', "at most"),
        (b'{"alarm":"' + b"x" * 201 + b'"}', "alarm"),
        (b"5", "cannot be read"),
    ],
)
def test_what_cannot_be_taken_is_told_and_nothing_of_it_is_kept(body: bytes, said: str) -> None:
    kept, _ = board()
    with pytest.raises(PushError, match=said):
        kept.take(body, ["a", "b"])
    assert kept.load("a") is None


def test_a_list_is_taken_as_one() -> None:
    kept, _ = board()
    assert kept.take(b'[{"replica":"a","busy":0.5},{"replica":"b","busy":0.25}]', ["a", "b"]) == 2


# ---- over HTTP


async def state(gateway: Running, token: str = "") -> Any:
    return msgspec.json.decode((await gateway.admin("/admin/state", token))[1])["replicas"][0]


async def post(gateway: Running, body: bytes, **headers: str) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.gateway.admin_url}/admin/signals", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


async def test_they_are_pushed_to_the_operators_listener(tmp_path: Path) -> None:
    async with FakeReplica() as fake, running(tmp_path, fake) as gateway:
        assert await post(gateway, b'{"replica":"r1","busy":0.5,"alarm":"hot"}') == (200, b'{"taken":1}')
        row = await state(gateway)
        assert (row["accelerators"]["busy"], row["accelerators"]["source"], row["alarms"]) == (0.5, "pushed", ["hot"])
        status, body = await post(gateway, b'{"replica":"r9"}')
        assert (status, b"there is no replica" in body) == (422, True)
        status, body = await post(gateway, b" " * (LARGEST_BODY + 10))
        assert (status, b"at most" in body) == (422, True)


async def test_a_token_is_asked_for(tmp_path: Path) -> None:
    guarded = control.Config("127.0.0.1:0", "the-token")
    async with FakeReplica() as fake, running(tmp_path, fake, control=guarded) as gateway:
        assert (await post(gateway, b'{"busy":0.5}'))[0] == 401
        assert (await state(gateway, "the-token"))["accelerators"] is None
        assert (await post(gateway, b'{"busy":0.5}', authorization="Bearer the-token"))[0] == 200
        assert (await state(gateway, "the-token"))["accelerators"]["busy"] == 0.5


async def test_no_web_page_can_push(tmp_path: Path) -> None:
    async with FakeReplica() as fake, running(tmp_path, fake) as gateway:
        assert (await post(gateway, b'{"busy":0.5}', origin="http://evil.example"))[0] == 403
        await asyncio.sleep(0)
        assert (await state(gateway))["accelerators"] is None
