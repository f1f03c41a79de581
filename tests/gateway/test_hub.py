"""What all flights share: the clock, the line, the connections to the fleet, the journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply
from tests.gateway.running import Answer, Running, Wire, chat, running
from wastegate.core.call import Call
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Admission, Entry
from wastegate.core.lifecycle import lifecycle
from wastegate.core.plan import Plan, Rules, Timers
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway.hub import Clock, Hub
from wastegate.gateway.recorder import Config, Recorder
from wastegate.gateway.relay import Client, Flight, Outgoing
from wastegate.gateway.serve import Limits

HANG = Reply(fault=Fault("before_first_byte"))
"""Holds its slot until the test releases it."""


def test_the_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock.now()
    assert abs(before - time.time()) < 5
    monkeypatch.setattr(time, "time", lambda: 0.0)  # somebody sets the wall clock back
    assert clock.now() >= before


# ---- the line, through the real gateway


def capped(replica: FakeReplica, cap: int = 1, name: str = "r1") -> Replica:
    return Replica(name, replica.url, cap=cap)


async def ask(gateway: Running, number: int | str, **members: object) -> tuple[Wire, asyncio.Task[Answer]]:
    """Send a call and wait until the gateway has it, so that the order of arrival is known."""
    wire = await gateway.connect()
    before = len(gateway.hub.flights)
    wire.post(chat(f"call {number}", **members))
    await gateway.until(lambda: len(gateway.hub.flights) == before + 1, "the call has arrived")
    return wire, asyncio.create_task(wire.answer())


def order(replica: FakeReplica) -> list[str]:
    """The calls that arrived there, by their texts."""
    return [str(call.json()["messages"][0]["content"]) for call in replica.calls]  # type: ignore[index]


async def test_who_waits_is_served_in_the_order_of_arrival(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, capped(replica)) as gateway:
        asked = [await ask(gateway, number) for number in range(8)]
        assert gateway.hub.waiting == 7
        await replica.wait_calls(1)
        replica.release()
        answers = [await answer for _, answer in asked]
        entries = await gateway.closed(8)
    assert [answer.status for answer in answers] == [200] * 8
    assert order(replica) == [f"call {number}" for number in range(8)]
    assert [entry.id for entry in entries] == [answer.header("x-request-id") for answer in answers]
    assert entries[0].trail == ("baseline: r1, the only one open (0 in flight)",)
    assert entries[1].trail[0] == "waits: every replica is at its cap"
    assert entries[7].trail[0] == "waits: others are ahead in line"


async def test_a_lower_priority_goes_first(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, capped(replica)) as gateway:
        asked = [await ask(gateway, priority, priority=priority) for priority in (0, 5, 1, 5, -1)]
        await replica.wait_calls(1)
        replica.release()
        await asyncio.gather(*(answer for _, answer in asked))
    assert order(replica) == ["call 0", "call -1", "call 1", "call 5", "call 5"]


async def test_two_slots_are_two_calls_at_once_and_no_more(tmp_path: Path) -> None:
    slow = Reply(body=Json(delay=0.02))
    async with FakeReplica(slow) as replica, running(tmp_path, capped(replica, 2)) as gateway:
        answers = await asyncio.gather(*(gateway.post(chat(str(number))) for number in range(12)))
        entries = await gateway.closed(12)
    assert {answer.status for answer in answers} == {200}
    for entry in entries:
        held = [other.attempts[0] for other in entries]
        start = entry.attempts[0].claimed
        assert sum(one.claimed <= start < one.ended for one in held) <= 2


async def test_a_full_line_is_a_503_at_once(tmp_path: Path) -> None:
    async with (
        FakeReplica(script=[HANG]) as replica,
        running(tmp_path, capped(replica), limits=Limits(line=2)) as gateway,
    ):
        asked = [await ask(gateway, number) for number in range(3)]
        answer = await gateway.post(chat("one too many"))
        assert (answer.status, answer.json()["error"]["code"]) == (503, "line_full")
        assert answer.header("retry-after") == "1"
        replica.release()
        assert [(await each).status for _, each in asked] == [200] * 3
        entries = await gateway.closed(4)
    assert [entry.outcome for entry in entries] == ["refused"] + ["finished"] * 3
    assert (entries[0].reason, entries[0].attempts) == ("line_full", ())


async def test_who_leaves_the_line_is_passed_over(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, capped(replica)) as gateway:
        first, head, middle, last = [await ask(gateway, number) for number in range(4)]
        await replica.wait_calls(1)
        for wire, answer in (head, middle):
            answer.cancel()
            wire.reset()
        await gateway.waiting(1)
        left = (await gateway.closed(2))[:2]
        assert [(entry.outcome, entry.status, entry.reason) for entry in left] == [
            ("hung_up", 499, "left while waiting")
        ] * 2
        replica.release()
        assert ((await first[1]).status, (await last[1]).status) == (200, 200)
    assert order(replica) == ["call 0", "call 3"]


async def test_who_leaves_while_it_runs_makes_room_for_the_next(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, capped(replica)) as gateway:
        first, second = [await ask(gateway, number) for number in range(2)]
        await replica.wait_calls(1)
        first[1].cancel()
        first[0].reset()
        assert (await second[1]).status == 200
    assert order(replica) == ["call 0", "call 1"]


async def test_one_models_line_holds_up_no_other(tmp_path: Path) -> None:
    async with (
        FakeReplica(HANG, models=("full",)) as full,
        FakeReplica(models=("free",)) as free,
        running(tmp_path, capped(full), capped(free, name="r2")) as gateway,
    ):
        stuck = [await ask(gateway, number, model="full") for number in range(2)]
        assert (await gateway.post(chat(model="free"))).status == 200
        await full.wait_calls(1)
        full.default = Reply()
        full.release()
        assert [(await answer).status for _, answer in stuck] == [200, 200]


async def test_a_wait_ends_with_the_calls_own_time(tmp_path: Path) -> None:
    async with (
        FakeReplica(HANG) as replica,
        running(tmp_path, capped(replica), timers=Timers(total=0.3, first_byte=5)) as gateway,
    ):
        (_, running_one), (_, waiting_one) = [await ask(gateway, number) for number in range(2)]
        answers = [await running_one, await waiting_one]
    assert answers[0].json()["error"]["code"] == "timeout_total"
    assert answers[1].status in (503, 504)
    assert answers[1].json()["error"]["code"] in ("wait_over", "timeout_total")


async def test_a_replica_that_comes_up_takes_who_waits_for_it(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica, rules=Rules(hold=5)) as gateway:
        await replica.stop()
        await gateway.until(lambda: gateway.world.states[0].state == "down", "the replica is down")
        asked = [await ask(gateway, number) for number in range(3)]
        assert gateway.hub.waiting == 3
        await replica.start()
        assert [(await answer).status for _, answer in asked] == [200] * 3
        entries = await gateway.closed(3)
    assert entries[0].trail[0] == "waits: no replica is ready; held while one comes up"


# ---- the hub alone


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    clock = Clock()
    recorder = Recorder(tmp_path / "journal", tmp_path / "ledger.db", "gateway", Config(), clock.now)
    world = World(Breaker(), RetryBudget())
    hub = Hub(asyncio.get_running_loop(), clock.now, world, recorder, Rules(), 10)
    yield hub
    hub.stop()
    recorder.close()


def world_of(hub: Hub) -> World:
    assert isinstance(hub.world, World)
    return hub.world


def plan_for(replica: Replica) -> Plan:
    call = Call("c-1", 100.0, "chat", "/v1/chat/completions", "m", prompt_tokens=5, tags=(("team", "red"),))
    return Plan(call, 1, Timers(), replica)


async def test_connections_to_a_replica_that_stays_are_kept(hub: Hub) -> None:
    one, other = Replica("a", "http://127.0.0.1:1"), Replica("b", "http://127.0.0.1:2")
    hub.connect([one, other])
    pools = [hub.pool(plan_for(replica)) for replica in (one, other)]
    moved = Replica("b", "http://127.0.0.1:3")
    hub.connect([one, moved, Replica("no address yet", "")])
    assert hub.pool(plan_for(one)) is pools[0]
    new = hub.pool(plan_for(moved))
    assert new is not None
    assert new is not pools[1]
    assert new.origin.port == 3
    hub.connect([one])
    assert hub.pool(plan_for(moved)) is None


async def test_connections_to_a_replica_that_goes_are_closed(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway:
        await gateway.post(chat())
        idle = replica.calls[0]
        assert idle.closed_at is None
        gateway.hub.connect([])
        await idle.wait("closed")
        assert idle.closed_by == "peer"


async def test_a_claim_is_written_down_with_what_a_lost_call_needs(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: list[Admission] = []
    monkeypatch.setattr(hub.recorder, "admit", admitted.append)
    replica = Replica("a", "http://127.0.0.1:1", ("m",), cap=1)
    world_of(hub).set_fleet([replica])
    world_of(hub).set_state("a", "ready")
    plan = plan_for(replica)
    flight = flight_of(hub, plan.call)
    claimed = hub.claim(flight, plan.call, plan)
    assert claimed is not None
    assert claimed.granted
    assert world_of(hub).states[0].in_flight == 1
    again = hub.claim(flight, plan.call, plan)
    assert again is not None
    assert not again.granted, "its cap is 1"
    (admission,) = admitted
    assert (admission.id, admission.number, admission.replica) == ("c-1", 1, "a")
    assert (admission.claimed, admission.prompt_tokens, admission.tags) == (claimed.at, 5, (("team", "red"),))


def flight_of(hub: Hub, call: Call) -> Flight:
    life = lifecycle(call, (), Timers(), Rules())
    return Flight(hub, cast(Client, None), call, life, Outgoing(b"/", b"", b"", b""), Timers())


async def test_the_line_is_looked_at_once_however_often_the_fleet_changes(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[float] = []
    monkeypatch.setattr(Flight, "wake", lambda self, now: woken.append(now))
    call = plan_for(Replica("a", "")).call
    flight = flight_of(hub, call)
    hub.changed()
    await asyncio.sleep(0)
    assert woken == []  # nobody waits
    assert hub.queue(flight, call, 1e9)
    for _ in range(5):
        hub.changed()
    await asyncio.sleep(0)
    assert len(woken) == 1
    hub.leave(flight, call)
    hub.changed()
    await asyncio.sleep(0)
    assert (len(woken), hub.waiting) == (1, 0)


async def test_what_the_operator_is_told(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, capped(replica)) as gateway:
        asked = [await ask(gateway, number) for number in range(3)]
        report = gateway.hub.report()
        assert (report.flights, report.waiting, report.unrecorded, report.failing) == (3, 2, 0, "")
        replica.release()
        await asyncio.gather(*(answer for _, answer in asked))


async def test_all_that_ends_in_one_turn_is_written_at_once_and_one_fault_stops_no_other(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writes: list[list[str]] = []
    monkeypatch.setattr(hub.recorder, "end", lambda entries: writes.append([entry.id for entry in entries]))
    told: list[str] = []

    def fault() -> None:
        raise RuntimeError("a mistake")

    hub.record(entry("c-1"), lambda: told.append("c-1"))
    hub.record(entry("c-2"), fault)
    hub.record(entry("c-3"), None)
    hub.record(entry("c-4"), lambda: told.append("c-4"))
    assert told == [], "nobody is told before it is written down"
    await asyncio.sleep(0)
    assert (writes, told) == ([["c-1", "c-2", "c-3", "c-4"]], ["c-1", "c-4"])
    assert "a mistake" in caplog.text


def entry(id: str) -> Entry:
    return Entry(id, 1.0, 2.0, "chat", "/", "m", "t", "short", False, "finished", 200)
