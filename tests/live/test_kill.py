"""kill -9 of the gateway, fifty times under load: no finished call is lost, and none is counted twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fake_replica import FakeReplica, Json, Reply, Sse
from tests.gateway.running import Answer, Wire, chat
from wastegate.core.ledger import Entry
from wastegate.store.entries import Ledger

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

KILLS = 50
CLIENTS = 12
UP_SECONDS = (0.05, 0.30)
"""How long a gateway serves before it is killed; drawn anew each time."""


class Gateway:
    """The process, as a user starts it; started again after each kill, at the same data."""

    def __init__(self, folder: Path, replicas: dict[str, FakeReplica]) -> None:
        rows = [f'[[replicas]]\nname = "{model}"\nurl = "{fake.url}"\n' for model, fake in replicas.items()]
        self.config = folder / "wastegate.toml"
        self.config.write_text("[probe]\nevery = 0.1\n" + "".join(rows))
        self.data = folder / "data"
        self.log = folder / "log"
        self.url = ""
        self.up = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = ["-m", "wastegate", "up", "--config", str(self.config), "--data", str(self.data)]
        addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *addresses, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            line = (await self._process.stdout.readline()).decode()
        assert line.startswith("ready "), f"it did not start: {self.log.read_text()[-2000:]}"
        self.url = line.split()[1]
        self.up.set()

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self.up.clear()
        self._process.send_signal(how)
        async with asyncio.timeout(20):
            return await self._process.wait()


class Seen:
    """What the clients saw, all of them together."""

    def __init__(self) -> None:
        self.complete: list[str] = []
        self.cut: list[str] = []
        """Ids of calls whose answers began and did not end."""
        self.unanswered = 0

    def note(self, answer: Answer) -> None:
        if answer.status == 503:  # a gateway that has not met its replicas yet
            return
        assert answer.status == 200, answer.body
        (self.complete if answer.complete else self.cut).append(answer.header("x-request-id"))


async def client(gateway: Gateway, number: int, seen: Seen, over: asyncio.Event) -> None:
    """Calls one after another, on one connection while it lasts; every second client streams."""
    body = chat(model="stream", stream=True) if number % 2 else chat(model="json")
    while not over.is_set():
        await gateway.up.wait()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with await Wire.connect(gateway.url) as wire:
                while not over.is_set():
                    seen.unanswered += 1
                    wire.post(body)
                    answer = await wire.answer()
                    seen.unanswered -= 1
                    seen.note(answer)
                    if not answer.complete:
                        break
        await asyncio.sleep(0)


async def test_fifty_kills_under_load_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    draw = random.Random(7)
    seen, over = Seen(), asyncio.Event()
    began = time.monotonic()
    async with (
        FakeReplica(Reply(body=Sse(chunks=4, gap=0.004)), models=("stream",)) as streams,
        FakeReplica(Reply(body=Json(delay=0.008)), models=("json",)) as jsons,
    ):
        gateway = Gateway(tmp_path, {"stream": streams, "json": jsons})
        clients = [asyncio.create_task(client(gateway, number, seen, over)) for number in range(CLIENTS)]
        for _ in range(KILLS):
            await gateway.start()
            for fake in (streams, jsons):  # once it serves, it may be killed
                await fake.wait_calls(len(fake.calls) + CLIENTS // 2, limit=20)
            await asyncio.sleep(draw.uniform(*UP_SECONDS))
            assert await gateway.end(signal.SIGKILL) == -signal.SIGKILL
        await gateway.start()
        over.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*clients)
        assert await gateway.end(signal.SIGTERM) == 0
        reached = {call.headers["x-request-id"] for fake in (streams, jsons) for call in fake.calls}
    check(gateway, seen, reached)
    took = time.monotonic() - began
    print(f"{took:.0f} s, {len(seen.complete)} complete, {len(seen.cut)} cut, {seen.unanswered} unanswered")


def check(gateway: Gateway, seen: Seen, reached: set[str]) -> None:
    """The ledger against what clients and replicas saw."""
    with Ledger(gateway.data / "ledger.db", create=False) as ledger:
        total = ledger.count()
        entries: dict[str, Entry] = {key: ledger.entry(key) for key in {tried.partition(".")[0] for tried in reached}}
    assert len(seen.complete) == len(set(seen.complete)) > KILLS * CLIENTS
    wrong = [(key, entries[key].outcome) for key in seen.complete if entries[key].outcome != "finished"]
    assert wrong == [], "a client has the whole answer, and the ledger does not say so"
    outcomes = Counter(entry.outcome for entry in entries.values())
    assert outcomes.keys() <= {"finished", "lost"}, outcomes
    assert outcomes["finished"] >= len(seen.complete)
    assert outcomes["lost"] >= KILLS, "the kills came while nothing was in flight: they have shown nothing"
    assert set(seen.cut) <= entries.keys()
    # Every try that reached a replica stands in exactly one entry, and no entry holds another.
    tries = [f"{entry.id}.{attempt.number}" for entry in entries.values() for attempt in entry.attempts]
    assert len(tries) == len(set(tries))
    assert reached <= set(tries)
    refused = total - len(entries)  # calls that came before a replica was known to be ready, and lost ones unsent
    assert 0 <= refused <= (KILLS + 1) * CLIENTS
    for entry in entries.values():
        if entry.outcome == "lost":
            assert entry.arrived <= entry.ended <= time.time()
            assert entry.attempts[-1].outcome == "lost"
    assert list((gateway.data / "journal").glob("*.damaged")) == []
