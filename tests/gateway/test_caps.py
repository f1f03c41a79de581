"""Caps that follow the load in a running gateway, and what the batching lever does with those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fake_replica import FakeReplica, Fault, Reply, Sse
from tests.gateway.running import CHAT, Answer, Running, Wire, chat, running
from tests.gateway.test_reload import File, change
from wastegate.core.admission import CapConfig
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Entry
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.engines.readback import Seen
from wastegate.engines.signals import Signals, Spread
from wastegate.gateway import caps as room
from wastegate.gateway.caps import Caps
from wastegate.gateway.request import Route
from wastegate.gateway.tally import Paced, Report
from wastegate.levers import Config as Levers
from wastegate.levers import batching

HANG = Reply(fault=Fault("before_first_byte"))
ON = batching.Config(on=True, start=8, caps=CapConfig(dwell=0.0))


class Fleet:
    """A world, and what caps are told of it."""

    def __init__(self, *replicas: Replica) -> None:
        self.world = World(Breaker(), RetryBudget())
        self.world.set_fleet(replicas)
        self.told: dict[str, Seen] = {}
        self.report = Report()
        self.now = 100.0
        self.changes = 0
        self.caps = Caps(
            self.world, lambda name: self.told.get(name, Seen()), lambda: self.report, lambda: self.now, self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    def load(self, name: str, calls: int) -> None:
        for _ in range(calls):
            assert self.world.grant(name, 1, False)

    def cap(self, name: str = "a") -> int | None:
        return next(state.replica.cap for state in self.world.states if state.replica.name == name)

    def tick(self) -> int | None:
        self.now += 1.0
        self.caps.tick()
        return self.cap()

    def streams(self, tpot: float, calls: int = 8, tokens: int = 10) -> None:
        """So many streams have ended on a."""
        pace = self.report.tally.paces.setdefault("a", Paced())
        pace.calls += calls
        pace.tokens += calls * tokens
        pace.seconds += calls * tokens * tpot


def a_fleet(engine: str = "vllm", cap: int | None = None, config: batching.Config = ON) -> Fleet:
    fleet = Fleet(Replica("a", "http://a", engine=engine, cap=cap))
    fleet.caps.set(config)
    return fleet


def test_a_cap_begins_where_it_is_told_and_grows_while_calls_wait() -> None:
    fleet = a_fleet()
    assert fleet.tick() == 8
    assert fleet.changes == 1
    fleet.load("a", 8)
    fleet.report.waiting = 3
    assert fleet.tick() == 12
    state = fleet.caps.state("a")
    assert state is not None
    assert state.why == "3 wait and there is room"
    assert fleet.caps.state("b") is None


def test_slow_streams_lower_it() -> None:
    fleet = a_fleet()
    fleet.tick()
    fleet.load("a", 8)
    fleet.streams(0.3)
    assert fleet.tick() == 6
    assert fleet.tick() == 6, "the same streams are not counted twice"


def test_where_no_stream_has_ended_the_engines_own_word_counts_once() -> None:
    fleet = a_fleet()
    fleet.tick()
    fleet.load("a", 8)
    fleet.told["a"] = Seen("vllm", Signals(at=1.0, inter_token=Spread(9, p50=0.4)))
    assert fleet.tick() == 6
    assert fleet.tick() == 6


def test_preemptions_and_a_full_cache_lower_it() -> None:
    fleet = a_fleet()
    fleet.told["a"] = Seen("vllm", Signals(at=1.0, preemptions=5.0))
    fleet.tick()
    fleet.load("a", 6)
    assert fleet.tick() == 8, "what was counted before is no news"
    fleet.told["a"] = Seen("vllm", Signals(at=2.0, preemptions=6.0))
    assert fleet.tick() == 4
    full = a_fleet()
    full.tick()
    full.load("a", 6)
    full.told["a"] = Seen("vllm", Signals(at=1.0, kv_usage=0.99))
    assert full.tick() == 4


def test_an_engine_whose_cache_also_keeps_what_nobody_runs_is_not_full() -> None:
    fleet = a_fleet("wastegate")
    fleet.tick()
    fleet.load("a", 6)
    fleet.told["a"] = Seen("wastegate", Signals(at=1.0, kv_usage=0.99))
    assert fleet.tick() == 8


def test_a_replicas_own_cap_is_the_most_that_it_gets() -> None:
    fleet = a_fleet(cap=3)
    assert fleet.tick() == 3
    fleet.load("a", 3)
    fleet.report.waiting = 9
    assert fleet.tick() == 3
    one = a_fleet(cap=1)
    assert one.tick() == 1


def test_off_gives_each_its_own_cap_back() -> None:
    fleet = a_fleet(cap=20)
    assert fleet.tick() == 8
    fleet.caps.set(batching.Config())
    assert fleet.cap() == 20
    assert fleet.caps.state("a") is None
    fleet.caps.set(batching.Config(on=True, caps=CapConfig("fixed")))
    assert fleet.cap() == 20


async def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "_TICK_SECONDS", 0.005)
    fleet = a_fleet()
    good, fleet.report = fleet.report, None  # type: ignore[assignment]  # no report can be had
    fleet.caps.start()
    try:
        async with asyncio.timeout(5):
            while "caps cannot follow the load" not in caplog.text:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)
            fleet.report = good
            while fleet.cap() != 8:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)
    finally:
        await fleet.caps.stop()


def test_a_replica_that_has_left_is_forgotten() -> None:
    fleet = a_fleet()
    fleet.tick()
    fleet.world.set_fleet([Replica("b", "http://b")])
    fleet.caps.tick()
    assert fleet.caps.state("a") is None
    assert fleet.cap("b") == 8


# ---- in a running gateway


@asynccontextmanager
async def batched(
    path: Path, replica: FakeReplica, lever: batching.Config, *routes: Route, **members: Any
) -> AsyncIterator[Running]:
    async with running(path, replica, levers=Levers(batching=lever), routes=routes, **members) as gateway:
        yield gateway


async def ask(gateway: Running, text: str, path: str = CHAT, **members: object) -> tuple[Wire, asyncio.Task[Answer]]:
    """Send a call and wait until the gateway has it."""
    tenant = str(members.pop("tenant", "t"))
    wire = await gateway.connect()
    before = len(gateway.hub.flights)
    wire.post(chat(text, **members), path, {"x-wastegate-tenant": tenant})
    await gateway.until(lambda: len(gateway.hub.flights) == before + 1, "the call has arrived")
    return wire, asyncio.create_task(wire.answer())


def order(replica: FakeReplica) -> list[str]:
    return [str(call.json()["messages"][0]["content"]) for call in replica.calls]  # type: ignore[index]


async def test_the_cap_follows_the_load_and_a_reload_turns_it_on_and_off(tmp_path: Path) -> None:
    file = File()
    lever = batching.Config(on=True, start=2, caps=CapConfig(dwell=0.05))
    async with FakeReplica(HANG) as replica, running(tmp_path, replica, load=file) as gateway:

        def cap() -> int | None:
            return gateway.world.states[0].replica.cap

        said = await change(gateway, file, levers=Levers(batching=lever))
        assert "[levers] batching.on: false → true" in said["changed"]
        await gateway.until(lambda: cap() == 2, "it begins with 2")
        asked = [await ask(gateway, str(number)) for number in range(8)]
        await gateway.until(lambda: (cap() or 0) >= 8, "it has grown")
        await gateway.waiting(0)
        state = msgspec.json.decode((await gateway.admin("/admin/state"))[1])
        assert "wait and there is room" in state["replicas"][0]["cap_why"]
        replica.release()
        assert {(await answer).status for _, answer in asked} == {200}
        await change(gateway, file, levers=Levers())
        assert cap() is None
        entries = await gateway.closed(8)
    trails = ["; ".join(entry.trail) for entry in entries]
    assert any("batching: r1 may run" in trail for trail in trails)
    assert any("every replica is at its cap" in trail for trail in trails)


async def test_tenants_take_turns_and_off_they_do_not(tmp_path: Path) -> None:
    for lever in (batching.Config(on=True, caps=CapConfig("fixed")), batching.Config()):
        async with FakeReplica(script=[HANG]) as replica:
            one = Replica("r1", replica.url, cap=1)
            async with running(tmp_path / str(lever.on), one, levers=Levers(batching=lever)) as gateway:
                asked = [await ask(gateway, "first")]
                for tenant, number in (*(("a", number) for number in range(7)), ("b", 0)):
                    asked.append(await ask(gateway, f"{tenant}{number}", tenant=tenant))
                await replica.wait_calls(1)
                replica.release()
                await asyncio.gather(*(answer for _, answer in asked))
        assert (order(replica).index("b0") <= 4) == lever.on
        assert [text for text in order(replica) if text[0] == "a"] == [f"a{number}" for number in range(7)]


async def test_a_route_at_its_share_lets_others_pass(tmp_path: Path) -> None:
    lever = batching.Config(on=True, caps=CapConfig("fixed"), calls=1)
    route = Route("texts", "/v1/completions", levers=Levers(batching=lever))
    async with FakeReplica(script=[HANG]) as replica, batched(tmp_path, replica, batching.Config(), route) as gateway:
        asked = [await ask(gateway, text, "/v1/completions") for text in ("one", "two")]
        await gateway.waiting(1)
        other = await gateway.post(chat("other"))
        assert other.status == 200
        await replica.wait_calls(2)
        replica.release()
        await asyncio.gather(*(answer for _, answer in asked))
        entries = await gateway.closed(3)
        assert gateway.hub.rationing is not None
        assert gateway.hub.rationing.closed == set()
    assert order(replica) == ["one", "other", "two"]
    assert "waits: batching: 1 of the 1 calls that the route may have run" in entries[-1].trail


async def test_those_behind_a_route_at_its_share_go_on_at_once(tmp_path: Path) -> None:
    """The closed route's call stands at the head of the line; one that comes later must not wait for it."""
    lever = batching.Config(on=True, caps=CapConfig("fixed"), calls=1)
    route = Route("texts", "/v1/completions", levers=Levers(batching=lever))
    common = batching.Config(on=True, caps=CapConfig("fixed"))
    async with FakeReplica(script=[HANG]) as replica, batched(tmp_path, replica, common, route) as gateway:
        asked = [await ask(gateway, text, "/v1/completions") for text in ("one", "two")]
        await gateway.waiting(1)
        assert (await gateway.post(chat("other"))).status == 200
        replica.release()
        await asyncio.gather(*(answer for _, answer in asked))


async def test_who_cannot_be_served_in_time_is_told_so_and_when_to_come_again(tmp_path: Path) -> None:
    lever = batching.Config(on=True, caps=CapConfig("fixed"), max_wait=0.3)
    async with FakeReplica(script=[HANG]) as replica:
        one = Replica("r1", replica.url, cap=1)
        async with running(tmp_path, one, levers=Levers(batching=lever)) as gateway:
            _, first = await ask(gateway, "first")
            late = await gateway.post(chat("late"))
            assert (late.status, late.header("retry-after")) == (503, "2")
            replica.release()
            assert (await first).status == 200
            entries: list[Entry] = await gateway.closed(2)
    assert {entry.reason for entry in entries} == {"", "wait_over"}
    assert entries[0].ended - entries[0].arrived < 1.0


async def test_under_pressure_answers_are_bounded_and_replica_and_client_are_told(tmp_path: Path) -> None:
    degrade = batching.Degrade(night="00:00-24:00", max_tokens=7, features=True)
    lever = batching.Config(on=True, caps=CapConfig("fixed"), degrade=degrade)
    async with FakeReplica(Reply(body=Sse())) as replica, batched(tmp_path, replica, lever) as gateway:
        answer = await gateway.post(chat(stream=True, max_tokens=100))
        plain = await gateway.post(chat(stream=True, max_tokens=5))
        entries = await gateway.closed(2)
    assert answer.header("x-wastegate-reduced") == "max_tokens=7, features"
    assert replica.calls[0].json()["max_tokens"] == 7
    assert dict(replica.calls[0].headers)["x-wastegate-reduced"] == "max_tokens=7, features"
    assert plain.header("x-wastegate-reduced") == "features"
    assert any("batching: reduced (max_tokens=7, features): it is night" in reason for reason in entries[0].trail)
