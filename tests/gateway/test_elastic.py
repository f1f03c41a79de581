from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from wastegate.core.elastic import Config
from wastegate.core.fleet import Replica
from wastegate.core.ledger import ReplicaSpan
from wastegate.core.world import Breaker, Result, RetryBudget, World
from wastegate.gateway import elastic as room
from wastegate.gateway.elastic import Elastic
from wastegate.gateway.hub import Clock
from wastegate.gateway.roster import Roster

CONFIG = Config(least=1, calls_each=4, start_after=0.0, stop_after=0.0, room=1.0)


class Keeper:
    """Keeps no process: it is ready as soon as it is started."""

    def __init__(self, name: str, roster: Roster) -> None:
        self.name = name
        self._roster = roster
        self.did: list[str] = []
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    def start(self) -> None:
        self.did.append("start")
        self._roster.put(Replica(self.name, f"http://{self.name}", price=100))
        self._roster.state(self.name, "ready")

    async def stop(self, seconds: float) -> None:
        self.did.append("stop")
        await self.may_stop.wait()
        self._roster.state(self.name, "down")

    def park(self) -> None:
        self.did.append("park")
        self._roster.put(Replica(self.name, "", price=100))


class Farm:
    def __init__(self, config: Config, keepers: int) -> None:
        self.world = World(Breaker(), RetryBudget())
        self.spans: list[ReplicaSpan] = []
        self.roster = Roster(self.world, Clock().now, self.spans.extend, lambda: None)
        self.keepers = [Keeper(f"local-{number}", self.roster) for number in range(1, keepers + 1)]
        self.waiting = 0
        self.elastic = Elastic(
            self.keepers, config, self.roster, lambda: self.world.states, lambda: self.waiting, Clock().now
        )

    @property
    def states(self) -> dict[str, str]:
        return {state.replica.name: state.state for state in self.world.states}

    async def until(self, **states: str) -> None:
        wanted = {name.replace("_", "-"): state for name, state in states.items()}
        async with asyncio.timeout(5):
            while not wanted.items() <= self.states.items():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)

    async def done(self, number: int, *did: str) -> None:
        async with asyncio.timeout(5):
            while self.keepers[number].did != list(did):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)


@asynccontextmanager
async def farm(config: Config = CONFIG, keepers: int = 3) -> AsyncIterator[Farm]:
    here = Farm(config, keepers)
    here.elastic.start()
    try:
        yield here
    finally:
        await here.elastic.stop()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_TICK_SECONDS", 0.02)


async def test_as_few_as_may_be_run_and_more_start_with_the_load() -> None:
    async with farm() as here:
        assert here.states == {"local-1": "ready"}
        here.waiting = 9
        await here.until(local_1="ready", local_2="ready", local_3="ready")


async def test_one_that_is_to_go_finishes_its_calls_first_and_is_at_no_address_then() -> None:
    async with farm(keepers=2) as here:
        here.waiting = 8
        await here.until(local_2="ready")
        assert here.world.grant("local-2", 1, False)
        here.waiting = 0
        await here.until(local_2="draining")
        assert here.keepers[1].did == ["start"]
        here.world.give_back(Result("local-2", "finished", 200), 0.0)
        await here.until(local_2="down")
        await here.done(1, "start", "stop", "park")
    assert here.world.states[-1].replica.url == ""
    assert [(span.phase, span.end is None) for span in here.spans if span.replica == "local-2"][-1] == (
        "draining", False,
    )  # fmt: skip


async def test_one_that_only_drains_yet_is_taken_back_when_the_load_returns() -> None:
    async with farm(keepers=2) as here:
        here.waiting = 8
        await here.until(local_2="ready")
        assert here.world.grant("local-2", 1, False)
        here.waiting = 0
        await here.until(local_2="draining")
        here.waiting = 8
        await here.until(local_2="ready")
    assert here.keepers[1].did == ["start"]


async def test_one_that_stops_already_starts_again_afterwards() -> None:
    async with farm(keepers=2) as here:
        here.waiting = 8
        await here.until(local_2="ready")
        here.keepers[1].may_stop.clear()
        here.waiting = 0
        await here.done(1, "start", "stop")
        here.waiting = 8
        await asyncio.sleep(0.1)
        here.keepers[1].may_stop.set()
        await here.until(local_2="ready")
    assert here.keepers[1].did == ["start", "stop", "park", "start"]


async def test_one_that_never_becomes_free_is_stopped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_DRAIN_SECONDS", 0.1)
    async with farm(keepers=2) as here:
        here.waiting = 8
        await here.until(local_2="ready")
        assert here.world.grant("local-2", 1, False)
        here.waiting = 0
        await here.until(local_2="down")


async def test_a_look_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    async with farm() as here:
        here.waiting = None  # type: ignore[assignment]  # nobody can add that up
        async with asyncio.timeout(5):
            while "cannot be followed" not in caplog.text:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)
        here.waiting = 9
        await here.until(local_3="ready")


async def test_it_can_be_stopped_before_it_has_begun() -> None:
    await Farm(CONFIG, 1).elastic.stop()
