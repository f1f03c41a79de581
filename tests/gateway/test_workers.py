"""Real worker processes under load, killed, stopped and drained: caps hold, and only what was lost is lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import Answer, Wire, chat
from tests.gateway_process import GatewayProcess, alive
from wastegate.core.admission import CapConfig
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Entry
from wastegate.gateway import control, probe
from wastegate.gateway.claims import Timing
from wastegate.gateway.config import Config, StartError
from wastegate.gateway.serve import Limits
from wastegate.gateway.workers import Chief
from wastegate.levers import Config as Levers
from wastegate.levers import batching, routing
from wastegate.store.entries import Ledger

pytestmark = pytest.mark.timeout(120)

LIMIT = 20.0
TIMING = Timing(lease=0.6, beat=0.1)
HANG = Reply(fault=Fault("before_first_byte", "hang"))
HELD = Reply(body=Sse(chunks=3), fault=Fault("between_tokens", "hang"))
"""A stream that stands still after its first token, until the test lets it go on."""


class Crew:
    """A chief in this process, its workers in their own."""

    def __init__(self, chief: Chief, data: Path) -> None:
        self.chief = chief
        self.data = data

    @property
    def url(self) -> str:
        return self.chief.url

    def pid(self, number: int) -> int:
        pid = self.chief._processes[number].pid
        assert pid is not None
        return pid

    def kill(self, number: int, how: signal.Signals) -> None:
        os.kill(self.pid(number), how)

    def worker_of(self, call: str) -> int:
        """Which worker has a call in its journal."""
        for file in (self.data / "journal").glob("*.jsonl"):
            if call in file.read_text():
                found = re.match(r"worker(\d+)", file.name)
                assert found, file.name
                return int(found[1])
        raise AssertionError(f"no journal knows {call}")

    async def state(self) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.chief.admin_url + "/admin/state") as got:
            return await got.json()

    async def load(self) -> int:
        return sum(row["in_flight"] for row in (await self.state())["replicas"])

    async def metric(self, sample: str) -> int:
        async with aiohttp.ClientSession() as session, session.get(self.chief.admin_url + "/metrics") as got:
            found = re.search(rf"^{re.escape(sample)} (\d+)$", await got.text(), re.MULTILINE)
        return int(found[1]) if found else 0

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while not await true():  # noqa: ASYNC110  # it is a state: nothing tells when it changes
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}") from None

    async def loaded(self, number: int) -> None:
        async def true() -> bool:
            return await self.load() == number

        await self.until(true, f"a load of {number}")

    async def streams(self, number: int) -> dict[int, list[tuple[Wire, Answer]]]:
        """At least so many streams that have begun, by the worker that serves them; each worker has some."""
        by_worker: dict[int, list[tuple[Wire, Answer]]] = {}
        while sum(map(len, by_worker.values())) < number or len(by_worker) < 2:  # the system deals out connections
            wire = await Wire.connect(self.url)
            wire.post(chat(stream=True))
            answer = await wire.head()
            assert answer.status == 200
            await wire.piece(answer)
            by_worker.setdefault(self.worker_of(answer.header("x-request-id")), []).append((wire, answer))
        return by_worker

    def entry(self, call: str) -> Entry:
        with Ledger(self.data / "ledger.db", create=False) as ledger:
            return ledger.entry(call)


@asynccontextmanager
async def crew(
    data: Path,
    *replicas: FakeReplica,
    workers: int = 2,
    cap: int | None = None,
    timing: Timing = TIMING,
    **members: Any,
) -> AsyncIterator[Crew]:
    """Workers in front of the replicas. At the end nobody is left, and each call is in the ledger once."""
    fleet = tuple(Replica(f"r{number}", replica.url, cap=cap) for number, replica in enumerate(replicas, 1))
    members = {
        "control": control.Config(listen="127.0.0.1:0"),
        "probe": probe.Config(every=0.1, timeout=1.0),
        **members,
    }
    chief = Chief(Config(data=data, listen="127.0.0.1:0", workers=workers, replicas=fleet, **members), timing=timing)
    started = asyncio.Event()
    task = asyncio.create_task(chief.run(started.set))
    first = asyncio.create_task(started.wait())
    await asyncio.wait((task, first), timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        first.cancel()
        task.result()
    here = Crew(chief, data)

    async def ready() -> bool:
        return all(row["state"] == "ready" for row in (await here.state())["replicas"])

    try:
        await here.until(ready, "all replicas are ready")
        yield here
    finally:
        pids = [here.pid(number) for number in range(1, workers + 1)]
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGCONT)
        chief.stop()
        async with asyncio.timeout(LIMIT):
            await task
    assert not any(map(alive, pids))
    assert list((data / "journal").glob("*.jsonl")) == [], "all that was written down is in the ledger"


async def rest(wire: Wire, answer: Answer) -> None:
    """Read a stream to its proper end; raises where there is none."""
    while await wire.piece(answer):
        pass


async def test_a_cap_holds_across_workers_under_load(tmp_path: Path) -> None:
    most = 0

    async def ask(here: Crew) -> Answer:
        async with await Wire.connect(here.url) as wire:
            wire.post(chat())
            return await wire.answer()

    async with FakeReplica(Reply(body=Json(delay=0.05))) as replica:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, replica.in_flight)
                await asyncio.sleep(0.002)

        watching = asyncio.create_task(watch())
        async with crew(tmp_path, replica, cap=3) as here:
            answers = await asyncio.gather(*(ask(here) for _ in range(30)))
            watching.cancel()
            assert [answer.status for answer in answers] == [200] * 30
            served = Counter(here.worker_of(answer.header("x-request-id")) for answer in answers)
            assert served.keys() == {1, 2}, "both have served, each under a name of its own"
            assert most == 3
            await here.loaded(0)
            with Ledger(tmp_path / "ledger.db", create=False) as ledger:
                ids = {answer.header("x-request-id") for answer in answers}
                await here.until(_count(ledger, 30), "all are in the ledger")
                assert {ledger.entry(key).outcome for key in ids} == {"finished"}


def _count(ledger: Ledger, count: int) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return ledger.count() == count

    return true


async def test_a_workers_line_keeps_the_order_of_arrival(tmp_path: Path) -> None:
    async with FakeReplica(HELD) as replica, crew(tmp_path, replica, workers=1, cap=1) as here:
        wires = []
        for number in range(8):
            wire = await Wire.connect(here.url)
            wire.post(chat(f"call {number}", stream=True))
            wires.append(wire)

            async def arrived(number: int = number) -> bool:
                state = await here.state()
                return bool(state["in_flight"] == number + 1)

            await here.until(arrived, f"{number + 1} have arrived")
        replica.default = Reply()
        replica.release()
        for wire in wires:
            assert (await wire.answer()).complete
        said = [re.findall(r"call \d", call.body.decode()) for call in replica.calls]
        assert said == [[f"call {number}"] for number in range(8)]


async def test_a_killed_worker_loses_its_own_streams_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timing = Timing(lease=60.0, beat=0.1)  # that slots come back is not for want of a sign of life
    async with FakeReplica(HELD) as replica, crew(tmp_path, replica, timing=timing) as here:
        streams = await here.streams(12)
        total = len(streams[1] + streams[2])
        await here.loaded(total)
        done = await here.metric('wastegate_calls_total{outcome="finished",route="/v1/chat/completions"}')
        old = here.pid(1)
        here.kill(1, signal.SIGKILL)
        await here.loaded(len(streams[2]))
        for wire, answer in streams[1]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await rest(wire, answer)
        replica.release()
        for wire, answer in streams[2]:
            await rest(wire, answer)
            assert answer.complete
        await here.loaded(0)

        async def again() -> bool:
            return here.pid(1) != old and len(await _served(here)) == 2

        replica.default = Reply()
        await here.until(again, "it was started anew, and serves")
        lost = {answer.header("x-request-id") for _, answer in streams[1]}
        kept = {answer.header("x-request-id") for _, answer in streams[2]}

        async def told() -> bool:
            with Ledger(tmp_path / "ledger.db", create=False) as ledger:
                return ledger.count() >= total

        await here.until(told, "all are in the ledger")
        assert {here.entry(call).outcome for call in lost} == {"lost"}
        assert {here.entry(call).outcome for call in kept} == {"finished"}
        sample = 'wastegate_calls_total{outcome="finished",route="/v1/chat/completions"}'
        assert await here.metric(sample) >= done + len(kept)
        assert f"worker 1 is gone with {len(lost)} calls in flight" in caplog.text
        assert "worker 1 ended (exit status -9); it starts again" in caplog.text


async def _served(here: Crew) -> set[int]:
    """Which workers answer, by a few calls."""
    served = set()
    for _ in range(8):
        async with await Wire.connect(here.url) as wire:
            wire.post(chat())
            try:
                answer = await wire.answer()
            except (asyncio.IncompleteReadError, ConnectionResetError):
                continue
            served.add(here.worker_of(answer.header("x-request-id")))
    return served


async def test_a_stopped_workers_slots_expire_and_its_late_returns_are_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeReplica(HELD) as replica, crew(tmp_path, replica, cap=30) as here:
        streams = await here.streams(8)
        here.kill(1, signal.SIGSTOP)
        await here.loaded(len(streams[2]))
        assert f"its {len(streams[1])} slots are taken back" in caplog.text
        here.kill(1, signal.SIGCONT)
        replica.release()
        for wire, answer in streams[1] + streams[2]:
            await rest(wire, answer)
            assert answer.complete, "nobody has lost a byte"
        await here.loaded(0)
        replica.default = Reply(body=Json(delay=0.02))

        async def both() -> bool:
            return await _served(here) == {1, 2}

        await here.until(both, "both serve again")
        await here.loaded(0)
    outcomes = {here.entry(answer.header("x-request-id")).outcome for _, answer in streams[1] + streams[2]}
    assert outcomes == {"finished"}


async def test_a_worker_that_stays_hung_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timing = Timing(lease=0.3, beat=0.1, hung=0.8)
    async with FakeReplica() as replica, crew(tmp_path, replica, timing=timing) as here:
        old = here.pid(2)
        here.kill(2, signal.SIGSTOP)

        async def replaced() -> bool:
            return here.pid(2) != old and len(await _served(here)) == 2

        await here.until(replaced, "another serves in its place")
        assert "worker 2 has been silent for 0.8 s: it is killed" in caplog.text
        assert not alive(old)


async def test_counts_of_all_workers_add_up(tmp_path: Path) -> None:
    sample = 'wastegate_calls_total{outcome="finished",route="/v1/chat/completions"}'
    async with FakeReplica() as replica, crew(tmp_path, replica) as here:
        for _ in range(10):
            async with await Wire.connect(here.url) as wire:
                wire.post(chat())
                assert (await wire.answer()).status == 200

        async def ten() -> bool:
            return await here.metric(sample) == 10

        await here.until(ten, "ten calls")
        here.kill(1, signal.SIGKILL)
        seen = [await here.metric(sample) for _ in range(20)]
        assert seen == [10] * 20, "the dead one's calls still count"


async def test_each_worker_routes_by_what_it_has_sent_itself(tmp_path: Path) -> None:
    levers = Levers(routing=routing.Config(policy="prefix_aware"))
    async with FakeReplica() as one, FakeReplica() as two, crew(tmp_path, one, two, levers=levers) as here:
        calls: dict[str, list[str]] = {}
        for number in range(16):
            async with await Wire.connect(here.url) as wire:
                wire.post(chat("the same beginning " * 60 + str(number), stream=True))
                answer = await wire.answer()
            call = answer.header("x-request-id")
            calls.setdefault(call.partition("-")[0], []).append(call)
    for of_worker in calls.values():
        first, *later = [here.entry(call).trail[0] for call in of_worker]
        assert "is home to its beginning" in first
        assert all("is the best of its cache and its wait" in line for line in later)
    assert 0 in (len(one.calls), len(two.calls)), "both workers find the same home"


async def test_live_caps_hold_across_workers_and_grow_with_the_lines_of_both(tmp_path: Path) -> None:
    lever = batching.Config(on=True, start=2, caps=CapConfig(dwell=0.1, max=12))
    async with (
        FakeReplica(Reply(body=Sse()), script=[HANG] * 12) as replica,
        crew(tmp_path, replica, levers=Levers(batching=lever)) as here,
    ):

        async def cap() -> int:
            return int((await here.state())["replicas"][0]["cap"] or 0)

        async def begun() -> bool:
            return await cap() == 2

        await here.until(begun, "it begins with 2")
        wires = [await Wire.connect(here.url) for _ in range(16)]
        for wire in wires:
            wire.post(chat(stream=True))

        async def grown() -> bool:
            return await cap() == 12 and await here.load() == 12

        await here.until(grown, "it has grown as far as it may, and all of it is used")
        replica.release()
        assert {(await wire.answer()).status for wire in wires} == {200}
        await here.loaded(0)
        why = (await here.state())["replicas"][0]["cap_why"]
        assert "wait and there is room" in why


async def test_draining_lets_streams_end_and_takes_no_new_calls(tmp_path: Path) -> None:
    async with FakeReplica(HELD) as replica:
        async with crew(tmp_path, replica) as here:
            streams = await here.streams(6)
            here.chief.stop()

            async def closed() -> bool:
                try:
                    wire = await Wire.connect(here.url)
                except ConnectionRefusedError:
                    return True
                except ConnectionResetError:  # it stopped listening just as it was asked
                    return False
                wire.writer.close()
                return False

            await here.until(closed, "nobody listens any more")
            replica.release()
            for wire, answer in [pair for pairs in streams.values() for pair in pairs]:
                await rest(wire, answer)
                assert answer.complete
        for _, answer in [pair for pairs in streams.values() for pair in pairs]:
            assert here.entry(answer.header("x-request-id")).outcome == "finished"


async def test_a_drain_has_an_end(tmp_path: Path) -> None:
    limits = Limits(drain_seconds=0.5)
    async with FakeReplica(HELD) as replica:
        async with crew(tmp_path, replica, limits=limits) as here:
            streams = await here.streams(2)
        for wire, answer in [pair for pairs in streams.values() for pair in pairs]:
            with pytest.raises(asyncio.IncompleteReadError):
                await rest(wire, answer)
            assert b"shutdown" in answer.body, "it is told why"
            assert here.entry(answer.header("x-request-id")).outcome == "failed"


async def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = Config(
            data=tmp_path, listen=listen, workers=2, control=control.Config(listen="127.0.0.1:0"),
            replicas=(Replica("r", "http://127.0.0.1:9"),),
        )  # fmt: skip
        with pytest.raises(StartError, match=re.escape(f"cannot listen on {listen}")):
            await Chief(config).run(lambda: None)


# ---- the whole process


async def test_without_their_chief_workers_finish_what_they_have_and_go(tmp_path: Path) -> None:
    async with FakeReplica(HELD) as replica:
        gateway = GatewayProcess(tmp_path, replica, workers=2)
        await gateway.start()
        await gateway.ready(1)
        wires = []
        for _ in range(6):
            wire = await Wire.connect(gateway.url)
            wire.post(chat(stream=True))
            answer = await wire.head()
            await wire.piece(answer)
            wires.append((wire, answer))
        workers = gateway.worker_pids()
        assert len(workers) == 2
        assert await gateway.end(signal.SIGKILL) == -signal.SIGKILL
        await asyncio.sleep(0.3)
        assert all(map(alive, workers)), "they have calls in flight"
        replica.release()
        for wire, answer in wires:
            await rest(wire, answer)
            assert answer.complete
        async with asyncio.timeout(LIMIT):
            while any(map(alive, workers)):  # noqa: ASYNC110  # they are nobody's children any more
                await asyncio.sleep(0.02)
        assert "the coordinator is gone" in gateway.said
    with Ledger(gateway.data / "ledger.db", create=False) as ledger:
        outcomes = {ledger.entry(answer.header("x-request-id")).outcome for _, answer in wires}
        assert (ledger.count(), outcomes) == (6, {"finished"})


async def test_while_the_chief_hangs_workers_go_on_with_their_shares(tmp_path: Path) -> None:
    async with (
        FakeReplica(Reply(body=Json(delay=0.01))) as replica,
        GatewayProcess(tmp_path, replica, workers=2, cap=4) as gateway,
    ):
        await gateway.ready(1)
        gateway.send(signal.SIGSTOP)
        replica.default = HELD
        wires = [await Wire.connect(gateway.url) for _ in range(24)]
        for wire in wires:
            wire.post(chat(stream=True))
        async with asyncio.timeout(LIMIT):
            while len(replica.calls) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
        assert len(replica.calls) == 4, "two for each, and no more"
        assert gateway.said.count("this worker goes on alone") == 2
        gateway.send(signal.SIGCONT)
        async with asyncio.timeout(LIMIT):
            while gateway.said.count("the coordinator answers again") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await gateway.state())["replicas"][0]["in_flight"] == 4, "what they took alone is counted"
        replica.default = Reply()
        for _ in range(50):
            replica.release()
            await asyncio.sleep(0.01)
        for wire in wires:
            assert (await wire.answer()).complete
        async with asyncio.timeout(LIMIT):
            while (await gateway.state())["replicas"][0]["in_flight"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
