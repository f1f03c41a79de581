"""The clients' side of one process: listening, and shutting down without losing what runs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import LIMIT, Running, chat, running
from wastegate.core import prefixes
from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules
from wastegate.core.world import Result
from wastegate.gateway.app import Gateway
from wastegate.gateway.claims import Asker
from wastegate.gateway.config import Config, StartError
from wastegate.gateway.reload import prepare
from wastegate.gateway.serve import Limits
from wastegate.levers import Config as Levers
from wastegate.levers import routing
from wastegate.store.entries import Ledger

STREAM = chat(stream=True)
HANG = Reply(body=Sse(chunks=9), fault=Fault("between_tokens", tokens=2))
"""Two tokens, then silence."""


def stop(gateway: Running) -> None:
    """What SIGTERM does."""
    gateway.gateway.stop()


async def draining(gateway: Running) -> None:
    front = gateway.gateway.front
    assert front is not None
    await gateway.until(lambda: front.gate.draining, "it drains")


# ---- shutting down


async def test_what_runs_finishes_and_is_written_down(tmp_path: Path) -> None:
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, replica) as gateway:
        wire = await gateway.connect()
        wire.post(STREAM)
        answer = await wire.head()
        await wire.piece(answer)
        stop(gateway)
        await draining(gateway)
        replica.release()
        while await wire.piece(answer):
            pass
        assert answer.complete
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await wire.ended()
        (entry,) = await gateway.closed(1)
    assert entry.outcome == "finished"


async def test_what_does_not_finish_gets_a_terminal_event_at_the_deadline(tmp_path: Path) -> None:
    limits = Limits(drain_seconds=0.3)
    async with FakeReplica(HANG) as replica, running(tmp_path, replica, limits=limits) as gateway:
        wire = await gateway.connect()
        wire.post(STREAM)
        answer = await wire.head()
        for _ in range(3):
            await wire.piece(answer)
        stop(gateway)
        while True:
            try:
                await wire.piece(answer)
            except asyncio.IncompleteReadError:
                break
        (entry,) = await gateway.closed(1)
        (call,) = replica.calls
        await call.wait("closed")
    assert not answer.complete
    assert b'"code":"shutdown"' in answer.pieces[-1]
    assert b"the answer is incomplete: shutdown" in answer.pieces[-1]
    assert (entry.outcome, entry.attempts[0].output_tokens) == ("failed", 2)
    assert call.closed_by == "peer"


async def test_a_call_that_has_no_answer_at_the_deadline_gets_a_503(tmp_path: Path) -> None:
    """Not a 504: no replica was slow, and the client may try again elsewhere."""
    hang = Reply(fault=Fault("before_first_byte"))
    limits = Limits(drain_seconds=0.2)
    async with FakeReplica(hang) as replica, running(tmp_path, replica, limits=limits) as gateway:
        wire = await gateway.connect()
        wire.post(chat())
        await replica.wait_calls(1)
        stop(gateway)
        answer = await wire.answer()
        (entry,) = await gateway.closed(1)
    assert (answer.status, answer.json()["error"]["code"], answer.header("retry-after")) == (503, "shutdown", "1")
    assert answer.header("connection") == "close"
    assert (entry.outcome, entry.status) == ("failed", 503)


async def test_a_shut_down_call_says_nothing_against_its_replica(tmp_path: Path) -> None:
    hang = Reply(fault=Fault("before_first_byte"))
    limits = Limits(drain_seconds=0.1)
    async with FakeReplica(hang) as replica, running(tmp_path, replica, limits=limits) as gateway:
        wire = await gateway.connect()
        wire.post(chat())
        await replica.wait_calls(1)
        stop(gateway)
        await wire.answer()
        assert gateway.world._health["r1"].failures == 0


async def test_who_waits_in_line_at_the_deadline_gets_a_503(tmp_path: Path) -> None:
    limits = Limits(drain_seconds=0.2)
    async with FakeReplica() as replica, running(tmp_path, replica, limits=limits, rules=Rules(hold=60)) as gateway:
        await replica.stop()
        await gateway.until(lambda: gateway.world.states[0].state == "down", "the replica is down")
        wire = await gateway.connect()
        wire.post(chat())
        await gateway.waiting(1)
        stop(gateway)
        answer = await wire.answer()
    assert answer.status == 503
    assert answer.header("retry-after") != ""


class LateSlots:
    """Slots whose answers take their time, as another process's may."""

    def __init__(self) -> None:
        self.backs: list[int] = []

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        asyncio.get_running_loop().call_later(0.4, asker.claimed, True, 1)

    def back(self, lease: int, result: Result) -> None:
        self.backs.append(lease)


async def test_a_call_that_waits_for_its_slot_at_the_deadline_is_written_down_too(tmp_path: Path) -> None:
    hang = Reply(fault=Fault("before_first_byte"))
    limits = Limits(drain_seconds=0.1)
    async with FakeReplica(hang) as replica, running(tmp_path, replica, limits=limits) as gateway:
        gateway.hub.link = slots = LateSlots()
        wire = await gateway.connect()
        wire.post(chat())
        await gateway.until(lambda: len(gateway.hub.flights) == 1, "it has asked")
        stop(gateway)
        answer = await wire.answer()
        (entry,) = await gateway.closed(1)
    assert (answer.status, entry.status, slots.backs) == (503, 503, [1])


async def test_no_new_call_is_taken(tmp_path: Path) -> None:
    """On no new connection, and on none that is kept alive; what was sent ahead is not served either."""
    async with FakeReplica(script=[HANG]) as replica, running(tmp_path, replica) as gateway:
        idle, busy = await gateway.connect(), await gateway.connect()
        idle.post(chat(), "/v1/nowhere")
        assert (await idle.answer()).status == 404
        busy.post(STREAM)
        busy.post(STREAM)
        answer = await busy.head()
        stop(gateway)
        await draining(gateway)
        assert await idle.ended()
        with pytest.raises(ConnectionRefusedError):
            await gateway.connect()
        replica.release()
        while await busy.piece(answer):
            pass
        assert await busy.ended()
        await gateway.closed(1)
    assert len(replica.calls) == 1


async def test_a_request_that_arrives_during_the_drain_is_told(tmp_path: Path) -> None:
    """Its connection was busy when the drain began, so that it was not closed."""
    async with FakeReplica(Reply(body=Json())) as replica, running(tmp_path, replica) as gateway:
        front = gateway.gateway.front
        assert front is not None
        async with await gateway.connect() as wire:
            wire.post(chat(), "/v1/nowhere")
            await wire.answer()
            front.gate.draining = True
            wire.post(chat())
            answer = await wire.answer()
            assert await wire.ended()
        assert (await gateway.get("/ready")).status == 503
        assert (await gateway.get("/health")).status == 200
        front.gate.draining = False
    assert (answer.status, answer.header("retry-after"), answer.header("connection")) == (503, "2", "close")
    assert "shutting down" in answer.error
    assert replica.calls == []


async def test_the_last_bytes_leave_before_the_gateway_does(tmp_path: Path) -> None:
    """The end of an answer lies in a buffer that would go with the process."""
    async with FakeReplica(Reply(body=Json(body=b"x" * 8_000_000))) as replica, running(tmp_path, replica) as gateway:
        wire = await gateway.connect(receive_buffer=4096)
        wire.post(chat())
        answer = await wire.head()
        stop(gateway)
        read = 0
        while gateway.hub.flights:
            read += len(await wire.reader.read(65536))
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)  # what is tested is that nothing happens
        assert gateway.task is not None
        assert not gateway.task.done()
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        read += len(await wire.rest())
        async with asyncio.timeout(LIMIT):
            await gateway.task
    assert read == int(answer.header("content-length")) == 8_000_000


async def test_the_ledger_is_complete_at_the_end(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Sse(chunks=2))) as replica, running(tmp_path, replica) as gateway:
        await asyncio.gather(*(gateway.post(STREAM) for _ in range(50)))
        await gateway.closed(50)
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        assert ledger.count() == 50
        spans = ledger.spans()
    assert list((tmp_path / "journal").iterdir()) == []
    assert spans
    assert all(span.end is not None for span in spans)


# ---- starting


async def fails(config: Config) -> str:
    with pytest.raises(StartError) as caught:
        async with asyncio.timeout(LIMIT):
            await Gateway(config).run(lambda: None)
    return str(caught.value)


def config(data: Path, listen: str = "127.0.0.1:0") -> Config:
    return Config(data=data, listen=listen, replicas=(Replica("r1", "http://127.0.0.1:9"),))


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = await fails(config(tmp_path, address))
    assert f"cannot listen on {address}" in said
    assert "is another gateway running there?" in said


async def test_a_ledger_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"no database" * 1000)
    said = await fails(config(tmp_path))
    assert "calls cannot be written down" in said
    assert "ledger.db" in said


async def test_a_data_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "calls cannot be written down" in await fails(config(tmp_path / "file" / "data"))


async def test_after_a_start_that_failed_another_succeeds(tmp_path: Path) -> None:
    """What was opened before the fault has been closed: the journal's lock, the database, the sockets."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        await fails(config(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}"))
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway:
        assert (await gateway.post(chat())).status == 200
        await gateway.closed(1)


# ---- routing


def about(topic: str, question: int) -> bytes:
    """A prompt of some blocks about a topic, with a question of its own."""
    return chat(f"{topic} " * 600 + f"question {question}", stream=True)


def routed(policy: routing.Policy) -> Levers:
    return Levers(routing=routing.Config(policy=policy))


async def test_prompts_that_begin_alike_go_where_their_beginning_is(tmp_path: Path) -> None:
    async with (
        FakeReplica() as one,
        FakeReplica() as two,
        running(tmp_path, one, two, levers=routed("prefix_aware")) as gateway,
    ):
        for question in range(4):
            for topic in "abcdef":
                assert (await gateway.post(about(topic, question))).status == 200
        entries = await gateway.closed(24)
        homes: dict[str, set[str]] = {}
        for entry in entries:
            homes.setdefault(entry.blocks[:8].hex(), set()).add(entry.attempts[0].replica)
        assert len(homes) == 6
        assert all(len(replicas) == 1 for replicas in homes.values())
        first, later = entries[0].trail, entries[-1].trail
        assert first[0].startswith("routing: ")
        assert "is home to its beginning" in first[0]
        assert "is the best of its cache and its wait" in later[0]


async def test_what_a_replica_held_is_forgotten_when_it_goes_down(tmp_path: Path) -> None:
    async with (
        FakeReplica() as one,
        FakeReplica() as two,
        running(tmp_path, one, two, levers=routed("prefix_aware")) as gateway,
    ):
        await gateway.post(about("a", 0))
        (entry,) = await gateway.closed(1)
        name = entry.attempts[0].replica
        holder = one if name == "r1" else two
        await holder.stop()
        await gateway.until(
            lambda: any(state.state == "down" for state in gateway.hub.world.states), "its holder is seen to be down"
        )
        await holder.start()
        await gateway.ready(2)
        await gateway.post(about("a", 1))
        entry = (await gateway.closed(2))[-1]
        assert "is home to its beginning" in entry.trail[0]
        assert entry.trail[0].count("has 0 of") == 2


async def test_a_policy_is_switched_on_changed_and_off_by_reload(tmp_path: Path) -> None:
    here: list[Config] = []
    async with (
        FakeReplica() as one,
        FakeReplica() as two,
        running(tmp_path, one, two, load=lambda: here[-1]) as gateway,
    ):
        assert gateway.gateway.front is not None
        before = gateway.gateway.front._config
        said = []
        for policy in ("off", "prefix_aware", "round_robin", "off"):
            here.append(replace(before, levers=routed(policy)))
            status, _ = await gateway.admin("/admin/reload", method="POST")
            assert status == 200
            known = gateway.hub.world.reuse
            assert (known is None) == (policy == "off")
            for question in range(2):
                assert (await gateway.post(about("a", question))).status == 200
            entries = await gateway.closed(2 * len(here))
            said.append(entries[-1].trail[0].split(":")[0:2])
            if policy == "round_robin":
                assert {entry.attempts[0].replica for entry in entries[-2:]} == {"r1", "r2"}
        assert [words[0] for words in said] == ["baseline", "routing", "routing", "baseline"]
        assert said[2][1] == " round robin"


async def test_simhash_is_computed_only_where_a_route_goes_by_it(tmp_path: Path) -> None:
    async with (
        FakeReplica() as one,
        FakeReplica() as two,
        running(tmp_path, one, two, levers=routed("simhash")) as gateway,
    ):
        for _ in range(3):
            await gateway.post(about("a", 1))
        entries = await gateway.closed(3)
        assert "no prompt like it in memory" in entries[0].trail[0]
        assert "a prompt much like it went to" in entries[2].trail[0]
        assert len({entry.attempts[0].replica for entry in entries}) == 1


async def test_another_bound_begins_another_index(tmp_path: Path) -> None:
    async with FakeReplica() as one, running(tmp_path, one, levers=routed("prefix_aware")) as gateway:
        front = gateway.gateway.front
        assert front is not None
        old = gateway.hub.world.reuse
        small = routing.Config(policy="prefix_aware", index=prefixes.Config(max_bytes=1 << 16))
        for levers, kept in ((routed("least_inflight"), True), (Levers(routing=small), False)):
            config = replace(front._config, levers=levers)
            front.take(prepare(config))
            assert (gateway.hub.world.reuse is old) == kept
