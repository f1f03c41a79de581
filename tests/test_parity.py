"""What the gateway's lifecycles were told in a real run, told to the simulator's driver, ends in the same entries: the
policy that a what-if runs is the policy that is deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import Running, chat, running
from wastegate.core.admission import CapConfig
from wastegate.core.fleet import Replica, View
from wastegate.core.ledger import Entry
from wastegate.core.plan import Rules, Timers
from wastegate.core.rationing import Rationing
from wastegate.core.shares import Share
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway import request as gateway_request
from wastegate.gateway.serve import Limits
from wastegate.levers import Config as Levers
from wastegate.levers import batching, routing, streaming
from wastegate.sim.replayed import Recorder, Replayed

LINE = 12


def odd(shift: int) -> list[Reply]:
    """Answers of a replica that is not always well."""
    sick = {
        1: Reply(body=Json(status=503)),
        3: Reply(fault=Fault("between_tokens", "reset"), body=Sse(gap=0.002)),
        4: Reply(fault=Fault("headers_read", "reset")),
    }
    answers = [sick.get((each + shift) % 8, Reply(body=Sse(gap=0.002, ttft=0.004))) for each in range(40)]
    answers[14] = Reply(body=Json(status=429), headers=(("retry-after", "1"),))
    return answers


async def traffic(gateway: Running, count: int) -> None:
    """Clients of several kinds, most at once, so that the line fills; some hang up in it or in mid-answer."""

    async def one(number: int) -> None:
        await asyncio.sleep(0.003 * number)
        text = f"prompt of family {number % 3} " * 120
        body = chat(text, stream=number % 4 != 0, temperature=0 if number % 3 == 0 else 1)
        if number % 7:
            await gateway.post(body)
            return
        async with await gateway.connect() as wire:
            wire.post(body)
            await asyncio.sleep(0.01)
            wire.reset()

    await asyncio.gather(*(one(number) for number in range(count)))
    await gateway.closed(count)


ALL_ON = Levers(
    routing=routing.Config(policy="prefix_aware"),
    batching=batching.Config(on=True, calls=5, max_wait=2.0, caps=CapConfig(policy="fixed")),
    streaming=streaming.Config(one_flight=True, most_tokens=64),
)


@pytest.mark.parametrize("levers", [Levers(), ALL_ON], ids=["baseline", "levers"])
async def test_a_real_run_replayed_ends_in_the_same_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levers: Levers
) -> None:
    recorder, entries, fleet = await record(tmp_path, monkeypatch, levers)
    kinds = {type(told.event).__name__ for told in recorder.told}
    every = {"Call", "View", "Claimed", "Reply", "Woken"} | ({"Joined"} if levers.streaming.one_flight else set())
    assert kinds >= every, "the run must have met every kind of event"
    assert len({entry.outcome for entry in entries}) >= 3
    assert any(len(entry.attempts) > 1 for entry in entries)
    rationing = Rationing(Share()) if levers.batching.on else None
    if rationing is not None:
        rationing.set({}, levers.batching.calls)
    world = World(Breaker(), RetryBudget())
    again = Replayed(fleet, world, recorder.started, recorder.told, LINE, rationing)
    ended = {closed.entry.id: closed.entry for closed in again.run()}
    assert ended.keys() == {entry.id for entry in entries}
    for entry in entries:
        assert ended[entry.id].trail == entry.trail
        assert ended[entry.id] == entry
    assert again.differences == [], "the simulator's world and lines, kept by the same events, show the same"
    assert [state.in_flight for state in again.world.states] == [0] * len(fleet)
    assert len(again.lines) == 0


async def test_a_recording_that_was_tampered_with_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: one claim's answer turned round shows in what the world says."""
    recorder, _, fleet = await record(tmp_path, monkeypatch, Levers())
    first, second = recorder.told[:2]
    assert isinstance(second.event, View)
    told = [first, replace(second, event=replace(second.event, ahead=second.event.ahead + 1))]
    again = Replayed(fleet, World(Breaker(), RetryBudget()), recorder.started, told, LINE)
    again.run()
    assert [one.what for one in again.differences] == ["ahead"]


async def record(
    data: Path, monkeypatch: pytest.MonkeyPatch, levers: Levers
) -> tuple[Recorder, list[Entry], list[Replica]]:
    members: dict[str, Any] = {
        "timers": Timers(first_byte=2.0, total=3.0),
        "rules": Rules(hold=1.0),
        "limits": Limits(line=LINE),
        "levers": levers,
    }
    async with FakeReplica(script=odd(0)) as one, FakeReplica(script=odd(4)) as other:
        fleet = [Replica(f"r{number}", each.url, ("fake",), cap=3) for number, each in enumerate((one, other), 1)]
        async with running(data, *fleet, **members) as gateway:
            recorder = Recorder(gateway.hub.now)
            monkeypatch.setattr(gateway_request, "lifecycle", recorder.lifecycle)
            fleet = [state.replica for state in gateway.world.states]
            await traffic(gateway, 48)
            entries = list(gateway.entries)
            return recorder, entries, fleet
