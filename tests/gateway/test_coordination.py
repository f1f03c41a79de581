"""One coordinator and the links of several workers, over a real socket: caps hold, and every slot comes back."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wastegate.core.fleet import Replica
from wastegate.core.mirror import Mirror
from wastegate.core.shares import Share
from wastegate.core.world import Breaker, Result, RetryBudget, World
from wastegate.gateway.claims import Asker, Supply, Timing
from wastegate.gateway.coordination import Coordinator, OwnSlots
from wastegate.gateway.link import Link
from wastegate.gateway.tally import Report, Tally

LIMIT = 5.0
CAP = 3
TIMING = Timing(lease=0.3, beat=0.05, push=0.002)


class Time:
    """A clock that the test may push forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


class Asking:
    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()

    def claimed(self, granted: bool, lease: int) -> None:
        self.answer.set_result((granted, lease))


class Worker:
    """A worker as its coordinator sees it. It gives signs of life by itself until it is held."""

    def __init__(self, number: int, time: Time, timing: Timing) -> None:
        self.number = number
        self.mirror = Mirror()
        self.orders: list[tuple[str, bytes]] = []
        self.report = Report()
        self.link = Link(self.mirror, Share((number - 1) % 2, 2), time.now, self._ordered, timing)
        self._timing = timing
        self._beats: asyncio.Task[None] | None = None

    def _ordered(self, what: str, body: bytes) -> None:
        self.orders.append((what, body))

    async def join(self, path: Path) -> None:
        await self.link.connect(path, self.number, lambda: None)
        self.go_on()

    async def _beat(self) -> None:
        while True:
            self.link.beat(self.report)
            await asyncio.sleep(self._timing.beat)

    def hold(self) -> None:
        assert self._beats is not None
        self._beats.cancel()

    def go_on(self) -> None:
        self._beats = asyncio.ensure_future(self._beat())

    def die(self) -> None:
        self.hold()
        assert self.link._transport is not None
        self.link._transport.abort()

    async def claim(self, replica: str = "a") -> int:
        asking = Asking()
        self.link.claim(replica, 1, asking)
        async with asyncio.timeout(LIMIT):
            granted, lease = await asking.answer
        return lease if granted else 0

    def back(self, lease: int, replica: str = "a") -> None:
        self.link.back(lease, Result(replica, "finished", 200))


class House:
    """A coordinator, its world, and its workers."""

    def __init__(self, folder: Path, timing: Timing, slots: Callable[[World, Time], Supply | None]) -> None:
        self.time = Time()
        self.timing = timing
        self.world = World(Breaker(), RetryBudget())
        self.world.set_fleet([Replica("a", "http://a", ("m",), cap=CAP), Replica("b", "http://b", ("m",))])
        for name in "ab":
            self.world.set_state(name, "ready")
        self.coordinator = Coordinator(self.world, self.time.now, timing, slots(self.world, self.time))
        self.path = folder / "claims"
        self.workers: list[Worker] = []

    async def hire(self) -> Worker:
        worker = Worker(len(self.workers) + 1, self.time, self.timing)
        self.workers.append(worker)
        await worker.join(self.path)
        await self.until(lambda: worker.number in [s.worker for s in self.coordinator.serving], "it serves")
        return worker

    @property
    def load(self) -> int:
        return self.world.load("a")

    async def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not true():  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None


@asynccontextmanager
async def house(
    folder: Path,
    workers: int = 2,
    timing: Timing = TIMING,
    slots: Callable[[World, Time], Supply | None] = lambda world, time: None,
) -> AsyncIterator[House]:
    built = House(folder, timing, slots)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    built.path.unlink(missing_ok=True)
    listening.bind(str(built.path))
    listening.listen()
    listening.setblocking(False)
    await built.coordinator.start(listening)
    try:
        for _ in range(workers):
            await built.hire()
        yield built
    finally:
        for worker in built.workers:
            worker.hold()
        await built.coordinator.stop()


async def test_a_cap_holds_over_all_workers(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        one, two = here.workers
        for _ in range(10):
            leases = await asyncio.gather(*(worker.claim() for worker in (one, two) for _ in range(4)))
            assert sum(map(bool, leases)) == here.load == CAP
            for number, lease in enumerate(leases):
                (one if number < 4 else two).back(lease)
            await here.until(lambda: here.load == 0, "all is back")


async def test_every_worker_sees_the_load_of_all(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        one, two = here.workers
        lease = await one.claim("b")
        await two.claim("b")

        def loads(worker: Worker) -> list[int]:
            return [state.in_flight for state in worker.mirror.states]

        await here.until(lambda: loads(one) == loads(two) == [0, 2], "told")
        one.back(lease, "b")
        await here.until(lambda: loads(one) == loads(two) == [0, 1], "told again")
        here.world.set_state("a", "down")
        here.coordinator.changed()
        await here.until(lambda: two.mirror.states[0].state == "down", "states, too")


async def test_failures_count_whoever_meets_them(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        for number in range(Breaker().failures):
            worker = here.workers[number % 2]
            worker.link.back(await worker.claim(), Result("a", "failed"))

        def breakers() -> set[str]:
            return {worker.mirror.states[0].breaker for worker in here.workers}

        await here.until(lambda: breakers() == {"open"}, "open for both")
        assert not await here.workers[0].claim()


async def test_a_dead_workers_slots_are_free_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path, timing=Timing(lease=60.0, push=0.002)) as here:
        one, two = here.workers
        kept = await two.claim()
        for _ in range(2):
            await one.claim()
        one.die()
        await here.until(lambda: here.load == 1, "only the survivor's is left")
        assert "worker 1 is gone with 2 calls in flight" in caplog.text
        two.back(kept)
        await here.until(lambda: here.load == 0, "and that comes back as ever")


async def test_a_silent_workers_slots_expire_and_its_late_returns_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as here:
        one, two = here.workers
        leases = [await one.claim() for _ in range(CAP)]
        one.hold()
        assert not await two.claim()
        await here.until(lambda: here.load == 0, "taken back")
        assert "silent for 0.3 s: its 3 slots are taken back" in caplog.text
        taken = await two.claim()
        for lease in leases:
            one.back(lease)
        one.go_on()
        again = await one.claim()
        assert again
        assert here.load == 2, "what came late was not counted twice"
        one.back(again)
        two.back(taken)
        await here.until(lambda: here.load == 0, "back to zero")


async def test_a_coordinator_that_stood_still_robs_nobody(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        for worker in here.workers:
            await worker.claim()
        here.time.ahead += 100.0  # the process was stopped: time has passed all at once
        await asyncio.sleep(0.05)
        assert here.load == 2
        assert here.coordinator.hung() == []


async def test_who_is_silent_for_long_is_called_hung(tmp_path: Path) -> None:
    async with house(tmp_path, timing=Timing(lease=0.1, beat=0.02, push=0.002, hung=0.2)) as here:
        here.workers[1].hold()
        await here.until(lambda: here.coordinator.hung() == [2], "the second is")
        here.workers[1].go_on()
        await here.until(lambda: here.coordinator.hung() == [], "no longer")


async def test_counts_add_up_and_never_go_down(tmp_path: Path) -> None:
    def counted(number: int, failing: str = "") -> Report:
        tally = Tally({"finished chat": number})
        return Report(flights=number, waiting=1, failing=failing, tally=tally, prefix_blocks=number, prefix_bytes=64)

    async with house(tmp_path) as here:
        one, two = here.workers
        one.report, two.report = counted(10, "disk full"), counted(5)
        await here.until(lambda: here.coordinator.report().flights == 15, "both have told")
        report = here.coordinator.report()
        assert (report.waiting, report.failing, report.tally.outcomes) == (2, "disk full", {"finished chat": 15})
        one.die()
        await here.until(lambda: len(here.coordinator.serving) == 1, "one is left")
        report = here.coordinator.report()
        assert report.tally.outcomes == {"finished chat": 15}
        assert (report.flights, report.waiting) == (5, 1), "what the dead one had in flight is over"
        assert report.failing == "", "its disk is no concern any more"
        assert (report.prefix_blocks, report.prefix_bytes) == (5, 64), "what it knew of prompts is gone with it"
        third = await here.hire()
        third.report = counted(2)
        await here.until(lambda: here.coordinator.report().tally.outcomes["finished chat"] == 17, "it counts anew")
        assert [status.worker for status in here.coordinator.serving] == [2, 3]


async def test_orders_reach_every_worker_in_order(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        here.coordinator.order("config", b"1")
        here.coordinator.order("drain")
        for worker in here.workers:
            await here.until(lambda worker=worker: len(worker.orders) == 2, "both")  # type: ignore[misc]
            assert worker.orders == [("config", b"1"), ("drain", b"")]


async def test_a_lasting_order_reaches_those_who_come_later(tmp_path: Path) -> None:
    async with house(tmp_path, workers=0) as here:
        for body in (b"1", b"2"):
            here.coordinator.order("config", body, lasting=True)
        here.coordinator.order("other", b"3")
        worker = await here.hire()
        await here.until(lambda: worker.orders == [("config", b"2")], "the last of its kind only")


async def test_who_speaks_nonsense_is_shown_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path) as here:
        reader, writer = await asyncio.open_unix_connection(here.path)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(LIMIT):
            while await reader.read(65536):
                pass
        writer.close()
        assert "speaks nonsense" in caplog.text
        assert await here.workers[0].claim(), "the others go on"


async def test_a_worker_that_reads_nothing_does_not_fill_the_memory(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        link = here.workers[0].link
        assert link._transport is not None
        link._transport.pause_reading()
        (peer,) = [peer for peer in here.coordinator._peers if peer.status.worker == 1]
        here.coordinator.order("noise", b"x" * (1 << 20))
        await here.until(lambda: peer.behind, "its buffer is full")
        assert peer._transport is not None
        size = peer._transport.get_write_buffer_size()
        for _ in range(20):
            here.coordinator.changed()
            await asyncio.sleep(0.005)
        assert peer._transport.get_write_buffer_size() == size, "no news for one who is behind"
        here.world.set_state("a", "draining")
        link._transport.resume_reading()
        await here.until(lambda: here.workers[0].mirror.states[0].state == "draining", "it catches up at once")


class Slow:
    """Slots that are decided later, as those are that other gateways have a say in."""

    def __init__(self, world: World, now: Callable[[], float]) -> None:
        self._own = OwnSlots(world, now)
        self.waiting: list[Callable[[], None]] = []

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        self.waiting.append(lambda: self._own.claim(replica, number, asker))

    def hold(self, replica: str, number: int, asker: Asker) -> None:
        self._own.hold(replica, number, asker)

    def back(self, lease: int, result: Result) -> None:
        self._own.back(lease, result)

    def decide(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


async def test_slots_may_be_decided_later(tmp_path: Path) -> None:
    made: list[Slow] = []

    def slow(world: World, time: Time) -> Slow:
        made.append(Slow(world, time.now))
        return made[0]

    async with house(tmp_path, slots=slow) as here:
        one, two = here.workers
        claims = [asyncio.ensure_future(worker.claim()) for worker in (one, two)]
        await here.until(lambda: len(made[0].waiting) == 2, "both have asked")
        one.die()
        await here.until(lambda: len(here.coordinator.serving) == 1, "one has gone before its answer")
        made[0].decide()
        lease = await claims[1]
        assert here.load == 1, "nobody keeps the dead one's slot"
        two.back(lease)
        await here.until(lambda: here.load == 0, "all is back")
        claims[0].cancel()


async def test_what_a_worker_took_alone_is_counted_when_it_joins(tmp_path: Path) -> None:
    async with house(tmp_path, timing=Timing(lease=60.0, beat=0.01, push=0.002, answer=0.02)) as here:
        one, two = here.workers
        (peer,) = [peer for peer in here.coordinator._peers if peer.status.worker == 1]
        assert peer._transport is not None
        held = await one.claim()
        peer._transport.pause_reading()  # for this worker the coordinator hangs
        taken = [await one.claim() for _ in range(2)]
        assert list(map(bool, taken)) == [True, False], "its share of three is two"
        assert one.link.alone
        assert await two.claim()
        assert here.load == 2
        peer._transport.resume_reading()
        await here.until(lambda: here.load == 3, "what it took alone is known now")
        assert not one.link.alone
        for lease in (held, taken[0]):
            one.back(lease)
        await here.until(lambda: here.load == 1, "each came back once")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), count=st.integers(5, 40))
def test_load_is_always_what_workers_hold(tmp_path: Path, seed: int, count: int) -> None:
    asyncio.run(_play(tmp_path, random.Random(seed), count))


async def _play(folder: Path, draw: random.Random, count: int) -> None:
    """Claims, returns, deaths and hirings at random; then everything comes back."""
    logging.disable(logging.WARNING)
    try:
        async with house(folder, workers=2, timing=Timing(lease=60.0, push=0.002)) as here:
            held: dict[Worker, list[int]] = {worker: [] for worker in here.workers}
            for _ in range(count):
                worker = draw.choice(list(held))
                what = draw.choices(["claim", "back", "die"], [6, 4, 1])[0]
                if what == "claim":
                    lease = await worker.claim()
                    assert bool(lease) == (sum(map(len, held.values())) < CAP)
                    held[worker] += [lease] if lease else []
                elif what == "back" and held[worker]:
                    worker.back(held[worker].pop(draw.randrange(len(held[worker]))))
                elif what == "die":
                    worker.die()
                    del held[worker]
                    held[await here.hire()] = []
                await here.until(lambda: here.load == sum(map(len, held.values())), "the load is what is held")
    finally:
        logging.disable(logging.NOTSET)
