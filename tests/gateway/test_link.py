"""A worker's side of claims, at a coordinator that says what the test wants it to say, and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.playbook import call
from wastegate.core.fleet import BreakerState, Replica, ReplicaState
from wastegate.core.mirror import Mirror
from wastegate.core.shares import Share
from wastegate.core.world import Result
from wastegate.gateway.claims import (
    Ask,
    Back,
    Beat,
    Fleet,
    Frames,
    FromCoordinator,
    FromWorker,
    Have,
    Hello,
    Order,
    Timing,
    Told,
    decode_worker,
    frame,
)
from wastegate.gateway.hub import Clock
from wastegate.gateway.link import Link
from wastegate.gateway.tally import Report

LIMIT = 5.0
DONE = Result("a", "finished", 200)
M = TypeVar("M", bound=FromWorker)


def fleet(load: int = 0, cap: int | None = 4, breaker: BreakerState = "closed", share: Share | None = None) -> Fleet:
    state = ReplicaState(Replica("a", "http://a", ("m",), cap=cap), "ready", load, breaker)
    return Fleet((state,), True, share or Share())


class Coordinator:
    """The other end: it reads, and answers nothing by itself."""

    def __init__(self) -> None:
        self.heard: list[FromWorker] = []
        self._news = asyncio.Event()
        self._frames = Frames()
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.say(fleet())
        while data := await reader.read(65536):
            self.heard += [decode_worker(found) for found in self._frames.cut(data)]
            self._news.set()

    def say(self, *messages: FromCoordinator) -> None:
        assert self.writer is not None
        self.writer.write(b"".join(map(frame, messages)))

    async def next(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        async with asyncio.timeout(LIMIT):
            while not self.heard:
                self._news.clear()
                await self._news.wait()
        message = self.heard.pop(0)
        assert isinstance(message, kind), f"{message} instead of {kind.__name__}"
        return message


class Asker:
    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()

    def claimed(self, granted: bool, lease: int) -> None:
        self.answer.set_result((granted, lease))


class Worker:
    """The link, with what a worker's hub does with it."""

    def __init__(self, share: Share, timing: Timing) -> None:
        self.mirror = Mirror()
        self.orders: list[tuple[str, bytes]] = []
        self.woken = 0
        self.link = Link(self.mirror, share, Clock().now, lambda what, body: self.orders.append((what, body)), timing)

    def wake(self) -> None:
        self.woken += 1

    def claim(self) -> Asker:
        asker = Asker()
        self.link.claim("a", 1, asker)
        assert not asker.answer.done(), "never from within the call"
        return asker

    async def claimed(self) -> int:
        async with asyncio.timeout(LIMIT):
            granted, lease = await self.claim().answer
        return lease if granted else 0

    @property
    def seen(self) -> ReplicaState:
        (state,) = self.mirror.states
        return state

    async def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not true():  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None

    async def go_alone(self, coordinator: Coordinator) -> tuple[Ask, Asker]:
        """An unanswered claim makes it do so."""
        asker = self.claim()
        asked = await coordinator.next(Ask)
        await asyncio.sleep(0.03)
        self.link.beat(Report())
        await coordinator.next(Beat)
        assert self.link.alone
        return asked, asker


@asynccontextmanager
async def linked(
    folder: Path, share: Share | None = None, **timing: float
) -> AsyncIterator[tuple[Worker, Coordinator]]:
    coordinator = Coordinator()
    server = await asyncio.start_unix_server(coordinator.serve, folder / "claims")
    worker = Worker(share or Share(1, 2), Timing(**{"answer": 0.02, **timing}))
    await worker.link.connect(folder / "claims", 2, worker.wake)
    assert (await coordinator.next(Hello)).worker == 2
    try:
        yield worker, coordinator
    finally:
        server.close()
        if coordinator.writer is not None:
            coordinator.writer.close()


async def test_a_claim_is_asked_for_and_what_is_told_is_seen(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        asker = worker.claim()
        asked = await coordinator.next(Ask)
        assert (asked.replica, asked.number) == ("a", 1)
        coordinator.say(Told(asked.seq, 77, 3))
        granted, lease = await asker.answer
        assert granted
        assert worker.seen.in_flight == 3
        worker.link.back(lease, DONE)
        assert await coordinator.next(Back) == Back(77, DONE)
        worker.link.back(lease, DONE)
        refused = worker.claim()
        asked = await coordinator.next(Ask)  # and no second Back before it
        coordinator.say(Told(asked.seq, 0, 4))
        assert await refused.answer == (False, asked.seq)
        assert worker.seen.in_flight == 4


async def test_news_of_the_fleet_wake_whoever_waits(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        before = worker.woken
        coordinator.say(fleet(load=2))
        await worker.until(lambda: worker.woken > before, "woken")
        assert worker.mirror.view(call(model="m"), 0.0, 0.5).replicas[0].in_flight == 2


async def test_orders_are_handed_on(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        coordinator.say(Order("config", b"\x00\xff"), Order("drain"))
        await worker.until(lambda: worker.orders == [("config", b"\x00\xff"), ("drain", b"")], "both, in order")


async def test_a_coordinator_that_says_nothing_at_first_is_an_error(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(mute, tmp_path / "claims"):
        worker = Worker(Share(), Timing(lease=0.05))
        with pytest.raises(TimeoutError):
            await worker.link.connect(tmp_path / "claims", 1, worker.wake)


async def test_without_an_answer_it_goes_on_alone_with_its_share_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(tmp_path, Share(1, 3)) as (worker, coordinator):
        coordinator.say(fleet(load=4, cap=5))
        await worker.until(lambda: worker.seen.replica.cap == 5, "a cap of 5, of which 4 are others'")
        _, asker = await worker.go_alone(coordinator)
        granted, first = await asker.answer
        assert granted, "the others' load is not known any more: its share counts"
        assert await worker.claimed()
        assert not await worker.claimed(), "5 in 3 parts are 2, 2 and 1"
        assert not worker.seen.open_to_calls(0.0), "its view says so, too: no call asks again and again"
        worker.link.back(first, DONE)
        assert worker.seen.open_to_calls(0.0)
        assert await worker.claimed()
        assert coordinator.heard == [], "nobody was asked"
        said = [record for record in caplog.records if "goes on alone" in record.getMessage()]
        assert len(said) == 1


async def test_a_worker_that_stood_still_itself_reads_before_it_judges(tmp_path: Path) -> None:
    async with linked(tmp_path, beat=0.02) as (worker, coordinator):
        asker = worker.claim()
        asked = await coordinator.next(Ask)
        await asyncio.sleep(0.1)
        worker.link.beat(Report())
        assert not worker.link.alone
        coordinator.say(Told(asked.seq, 5, 1))
        assert (await asker.answer)[0]


async def test_alone_within_a_gateway_that_has_a_share_itself(tmp_path: Path) -> None:
    async with linked(tmp_path, Share(0, 2)) as (worker, coordinator):
        coordinator.say(fleet(cap=8, share=Share(1, 2)))
        await worker.until(lambda: worker.seen.replica.cap == 8, "told")
        await worker.go_alone(coordinator)
        assert worker.seen.replica.cap == 2


async def test_alone_it_keeps_away_from_what_was_unfit(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        coordinator.say(fleet(breaker="open"))
        await worker.until(lambda: worker.seen.breaker == "open", "told")
        _, asker = await worker.go_alone(coordinator)
        assert (await asker.answer)[0] is False


async def test_news_that_come_while_alone_bring_no_whole_caps(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        await worker.go_alone(coordinator)
        coordinator.say(fleet(load=9, cap=6))
        await worker.until(lambda: worker.seen.replica.cap == 3, "half of six")
        assert worker.seen.in_flight == 1, "its own"


async def test_joining_again_what_was_taken_alone_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        asked, asker = await worker.go_alone(coordinator)
        _, lease = await asker.answer
        other = await worker.claimed()
        coordinator.say(Told(asked.seq, 50, 1), fleet(load=1))
        held = {(await coordinator.next(Have)).seq for _ in range(2)}
        assert held == {lease, other}
        assert not worker.link.alone
        assert "the coordinator answers again" in caplog.text
        await worker.until(lambda: worker.seen.replica.cap == 4, "whole caps")
        coordinator.say(Told(other, 51, 2), Told(lease, 52, 3))
        assert (await coordinator.next(Back)).lease == 52, "one slot too many: the late answer had given it already"
        worker.link.back(lease, DONE)
        assert await coordinator.next(Back) == Back(50, DONE)
        worker.link.back(other, DONE)
        assert await coordinator.next(Back) == Back(51, DONE)


async def test_a_late_answer_to_what_is_over_goes_back(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        asked, asker = await worker.go_alone(coordinator)
        _, lease = await asker.answer
        worker.link.back(lease, DONE)
        coordinator.say(Told(asked.seq, 50, 1))
        back = await coordinator.next(Back)
        assert (back.lease, back.result.outcome, back.result.verdict) == (50, "lost", "neutral")
        coordinator.say(Told(asked.seq, 0, 0))
        await worker.until(lambda: not worker.link.alone, "joined")


async def test_a_slot_that_comes_back_before_it_was_counted_is_not_kept(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        asked, asker = await worker.go_alone(coordinator)
        _, lease = await asker.answer
        coordinator.say(Told(asked.seq, 0, 4))
        assert (await coordinator.next(Have)).seq == lease
        worker.link.back(lease, DONE)
        coordinator.say(Told(lease, 60, 1))
        assert (await coordinator.next(Back)).lease == 60


async def test_when_the_coordinator_is_gone_it_goes_on_and_is_told_to_end(tmp_path: Path) -> None:
    async with linked(tmp_path) as (worker, coordinator):
        asker = worker.claim()
        await coordinator.next(Ask)
        assert coordinator.writer is not None
        coordinator.writer.transport.abort()
        granted, lease = await asker.answer
        assert granted
        assert worker.orders == [("gone", b"")]
        assert await worker.claimed()
        worker.link.back(lease, DONE)
        worker.link.beat(Report())


async def test_beats_do_not_pile_up_for_one_who_does_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with linked(tmp_path) as (worker, coordinator):
        worker.link.pause_writing()
        worker.link.beat(Report())
        worker.link.resume_writing()
        worker.link.beat(Report(flights=7))
        assert (await coordinator.next(Beat)).report.flights == 7
