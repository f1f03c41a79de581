"""One upstream run for several clients, and the arm that holds answers back: through the real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events
from tests.gateway.running import LIMIT, Answer, Running, Wire, chat, running
from wastegate.core.call import Call
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Admission, Entry
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Result
from wastegate.gateway import twins
from wastegate.gateway.claims import Asker
from wastegate.gateway.flights import twin_of
from wastegate.gateway.serve import Limits
from wastegate.levers import Config as Levers
from wastegate.levers import streaming

SHARED = Levers(streaming=streaming.Config(one_flight=True))
BUFFERED = Levers(streaming=streaming.Config(answers="buffered"))
SAME = chat(stream=True, temperature=0)
SSE = Sse(chunks=6)
HALTS = Reply(body=SSE, fault=Fault("between_tokens", tokens=2))
"""Two of six tokens, then silence until the test lets it go on."""


@asynccontextmanager
async def sharing(
    path: Path, reply: Reply = HALTS, levers: Levers = SHARED, **members: Any
) -> AsyncIterator[tuple[FakeReplica, Running]]:
    async with FakeReplica(reply) as replica, running(path, replica, levers=levers, **members) as gateway:
        yield replica, gateway


async def ask(gateway: Running, body: bytes = SAME, until: bytes = b" there", **options: Any) -> tuple[Wire, Answer]:
    """A call of which so much has come."""
    wire = await gateway.connect()
    wire.post(body, **options)
    answer = await wire.head()
    while until not in answer.body:
        assert await wire.piece(answer)
    return wire, answer


async def rest(wire: Wire, answer: Answer) -> bytes:
    """The whole body, once it has ended properly."""
    while await wire.piece(answer):
        pass
    assert answer.complete
    wire.writer.close()
    return answer.body


async def let_go(gateway: Running, replica: FakeReplica) -> None:
    """Whatever has come to its halt, or comes to it only now, goes on until no call is in flight."""
    async with asyncio.timeout(LIMIT):
        while gateway.hub.flights:  # it is a state: nothing tells when it changes
            replica.release()
            await asyncio.sleep(0.005)


def by_id(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.arrived)


# ---- one flight


async def test_three_that_ask_the_same_are_answered_by_one_run(tmp_path: Path) -> None:
    async with sharing(tmp_path) as (replica, gateway):
        first = await ask(gateway)
        later = [await ask(gateway), await ask(gateway)]
        replica.release()
        bodies = [await rest(*one) for one in (first, *later)]
        leader, *followers = by_id(await gateway.closed(3))
        assert len(gateway.hub.twins) == gateway.hub.twins.kept == 0
    assert len(replica.calls) == 1
    assert bodies == [b"".join(events(SSE, usage=False))] * 3
    assert (leader.outcome, leader.flew, leader.attempts[0].output_tokens) == ("finished", None, 6)
    for entry in followers:
        assert (entry.outcome, entry.status, entry.finish_reason, entry.attempts) == ("finished", 200, "stop", ())
        assert entry.flew is not None
        assert (entry.flew.call, entry.flew.prompt_tokens, entry.flew.output_tokens) == (leader.id, 7, 6)
        assert entry.trail[-1] == f"streaming: flies along with {leader.id}, which asks the same"


async def test_a_whole_answer_is_shared_too(tmp_path: Path) -> None:
    reply = Reply(body=Json(), fault=Fault("before_first_byte"))
    body = chat(temperature=0)
    async with sharing(tmp_path, reply) as (replica, gateway):
        tasks = [asyncio.ensure_future(gateway.post(body)) for _ in range(3)]
        await gateway.until(lambda: len(gateway.hub.flights) == 3, "three in flight")
        await let_go(gateway, replica)
        answers = [await task for task in tasks]
        await gateway.closed(3)
    assert len(replica.calls) == 1
    assert {answer.body for answer in answers} == {answers[0].body}
    assert all(answer.complete and answer.header("content-length") for answer in answers)
    assert len({answer.header("x-request-id") for answer in answers}) == 3


async def test_once_it_has_ended_the_next_asks_anew(tmp_path: Path) -> None:
    async with sharing(tmp_path, Reply(body=SSE)) as (replica, gateway):
        await gateway.post(SAME)
        await gateway.post(SAME)
    assert len(replica.calls) == 2


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (chat(stream=True), {}),
        (chat(stream=True, temperature=0.7), {}),
        (chat("Other", stream=True, temperature=0), {}),
        (chat(stream=True, temperature=0, max_tokens=9), {}),
        (chat(stream=True, temperature=0, tools=[{"type": "function"}]), {}),
        (SAME, {"headers": {"x-wastegate-tenant": "other"}}),
        (SAME, {"headers": {"authorization": "Bearer other"}}),
    ],
    ids=["default temperature", "warm", "other words", "other bound", "tools", "other tenant", "other key"],
)
async def test_what_is_not_the_same_is_not_shared(tmp_path: Path, body: bytes, options: dict[str, Any]) -> None:
    async with sharing(tmp_path) as (replica, gateway):
        calls = [await ask(gateway), await ask(gateway, body, **options)]
        replica.release()
        for one in calls:
            await rest(*one)
        await gateway.closed(2)
    assert len(replica.calls) == 2


async def test_the_order_of_members_and_who_asks_do_not_matter_and_a_seed_will_do(tmp_path: Path) -> None:
    one = b'{"model":"fake","seed":7,"stream":true,"messages":[{"role":"user","content":"Hi"}],"user":"a"}'
    other = b'{"user":"b","stream":true,"messages":[{"content":"Hi","role":"user"}], "seed":7,"model":"fake"}'
    async with sharing(tmp_path) as (replica, gateway):
        calls = [await ask(gateway, one), await ask(gateway, other)]
        replica.release()
        assert await rest(*calls[0]) == await rest(*calls[1])
        await gateway.closed(2)
    assert len(replica.calls) == 1


async def test_a_lever_that_is_off_shares_nothing(tmp_path: Path) -> None:
    async with sharing(tmp_path, levers=Levers()) as (replica, gateway):
        calls = [await ask(gateway), await ask(gateway)]
        replica.release()
        for one in calls:
            await rest(*one)
    assert len(replica.calls) == 2


async def test_it_goes_on_without_the_client_that_it_began_for(tmp_path: Path) -> None:
    async with sharing(tmp_path) as (replica, gateway):
        first, _ = await ask(gateway)
        second = await ask(gateway)
        first.reset()
        await gateway.until(lambda: len(gateway.connections) == 1, "the first has gone")
        replica.release()
        assert await rest(*second) == b"".join(events(SSE, usage=False))
        leader, follower = by_id(await gateway.closed(2))
    assert (leader.outcome, leader.reason) == ("hung_up", "the client left; others stayed for the answer")
    assert leader.attempts[0].outcome == "finished"
    assert follower.outcome == "finished"


async def test_it_ends_when_all_have_left(tmp_path: Path) -> None:
    async with sharing(tmp_path) as (replica, gateway):
        (first, _), (second, _) = await ask(gateway), await ask(gateway)
        first.reset()
        await gateway.until(lambda: len(gateway.connections) == 1, "the first has gone")
        assert replica.calls[0].closed_at is None
        second.reset()
        await replica.calls[0].wait("closed")
        leader, follower = by_id(await gateway.closed(2))
    assert (leader.outcome, leader.attempts[0].outcome) == ("hung_up", "hung_up")
    assert (follower.outcome, follower.status, follower.reason) == ("hung_up", 200, "the client left")


async def test_nobody_joins_one_that_has_left_while_it_asked_for_its_slot(tmp_path: Path) -> None:
    """With several processes the answer to a claim comes later: until then the call cannot end."""

    class Slow:
        """A coordinator that answers when it is told to."""

        def __init__(self) -> None:
            self.askers: list[Asker] = []

        def claim(self, replica: str, number: int, asker: Asker) -> None:
            self.askers.append(asker)

        def back(self, lease: int, result: Result) -> None:
            pass

    async with sharing(tmp_path, Reply(body=SSE)) as (replica, gateway):
        gateway.hub.link = slow = Slow()
        leaver = await gateway.connect()
        leaver.post(SAME)
        await gateway.until(lambda: len(slow.askers) == 1, "a slot was asked for")
        leaver.reset()
        await gateway.until(lambda: not gateway.connections, "it has left")
        later = asyncio.ensure_future(gateway.post(SAME))
        await gateway.until(lambda: len(slow.askers) == 2, "the second asks for itself")
        for asker in slow.askers:
            asker.claimed(True, 1)
        assert (await later).body == b"".join(events(SSE, usage=False))
        await gateway.closed(2)
    assert len(replica.calls) == 1


async def test_a_follower_that_leaves_takes_nobody_with_it(tmp_path: Path) -> None:
    async with sharing(tmp_path) as (replica, gateway):
        first = await ask(gateway)
        second, _ = await ask(gateway)
        second.reset()
        await gateway.closed(1)
        replica.release()
        assert await rest(*first) == b"".join(events(SSE, usage=False))
        leader, follower = by_id(await gateway.closed(2))
    assert (leader.outcome, follower.outcome) == ("finished", "hung_up")


async def test_a_follower_that_leaves_before_the_first_byte_had_no_status(tmp_path: Path) -> None:
    async with sharing(tmp_path, Reply(body=SSE, fault=Fault("before_first_byte"))) as (replica, gateway):
        first, second = await gateway.connect(), await gateway.connect()
        first.post(SAME)
        await replica.wait_calls(1)
        second.post(SAME)
        await gateway.until(lambda: len(gateway.hub.flights) == 2, "two in flight")
        second.reset()
        (follower,) = await gateway.closed(1)
        first.reset()
        await gateway.closed(2)
    assert (follower.outcome, follower.status, follower.flew is not None) == ("hung_up", 499, True)


async def test_an_error_is_no_answer_to_share(tmp_path: Path) -> None:
    """The leader's replica says no: each of the others then asks for itself, as without the lever."""
    refuses = Reply(body=Json(status=400, body=b'{"error":{"message":"no"}}'), fault=Fault("before_first_byte"))
    async with sharing(tmp_path, refuses) as (replica, gateway):
        replica.script.extend([refuses, Reply(body=SSE), Reply(body=SSE)])
        tasks = [asyncio.ensure_future(gateway.post(SAME)) for _ in range(3)]
        await gateway.until(lambda: len(gateway.hub.flights) == 3, "three in flight")
        await let_go(gateway, replica)
        answers = [await task for task in tasks]
        entries = by_id(await gateway.closed(3))
    assert sorted(answer.status for answer in answers) == [200, 200, 400]
    assert len(replica.calls) == 3
    alone = f"{entries[0].id} gave no answer that could be shared: goes alone"
    assert [alone in entry.trail for entry in entries] == [False, True, True]
    assert [entry.flew for entry in entries] == [None] * 3


async def test_what_the_gateway_refuses_is_no_answer_to_share(tmp_path: Path) -> None:
    hangs = Reply(fault=Fault("before_first_byte", "reset"))
    async with sharing(tmp_path, hangs, rules=Rules(max_attempts=1)) as (replica, gateway):
        replica.script.extend([Reply(body=SSE, fault=Fault("before_first_byte")), Reply(body=SSE)])
        tasks = [asyncio.ensure_future(gateway.post(SAME)) for _ in range(2)]
        await gateway.until(lambda: len(gateway.hub.flights) == 2, "two in flight")
        await replica.wait_calls(1)
        for connection in tuple(replica.open):
            await connection.end("reset")
        answers = [await task for task in tasks]
        await gateway.closed(2)
    assert sorted(answer.status for answer in answers) == [200, 502]


async def test_a_stream_that_breaks_breaks_for_all(tmp_path: Path) -> None:
    breaks = Reply(body=SSE, fault=Fault("between_tokens", "hang", tokens=2))
    async with sharing(tmp_path, breaks, rules=Rules(max_attempts=1)) as (replica, gateway):
        calls = [await ask(gateway), await ask(gateway)]
        for connection in tuple(replica.open):
            await connection.end("reset")
        for wire, answer in calls:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await rest(wire, answer)
            assert b"the answer is incomplete" in answer.body
        entries = await gateway.closed(2)
    assert [entry.outcome for entry in entries] == ["failed", "failed"]
    assert {entry.reason for entry in entries} == {entries[0].reason}


async def test_an_error_in_the_stream_goes_to_all(tmp_path: Path) -> None:
    body = Sse(chunks=4, error=b'{"error":{"message":"broke"}}', error_after=2)
    reply = Reply(body=body, fault=Fault("before_first_token"))
    async with sharing(tmp_path, reply) as (replica, gateway):
        calls = [await ask(gateway, until=b"assistant"), await ask(gateway, until=b"assistant")]
        replica.release()
        bodies = [await rest(*one) for one in calls]
        entries = await gateway.closed(2)
    assert bodies[0] == bodies[1]
    assert b"broke" in bodies[0]
    assert [entry.outcome for entry in entries] == ["failed", "failed"]
    assert len(replica.calls) == 1


async def test_a_followers_own_time_runs_out(tmp_path: Path) -> None:
    late = Timers(total=0.6)
    async with sharing(tmp_path, Reply(body=SSE, fault=Fault("before_first_byte")), timers=late) as (replica, gateway):
        first = asyncio.ensure_future(gateway.post(SAME))
        await replica.wait_calls(1)
        (leader,) = gateway.hub.flights
        leader._timers = Timers()  # it would else end first, and the follower go alone
        second = await gateway.post(SAME)
        (entry,) = await gateway.closed(1)
        await let_go(gateway, replica)
        assert (await first).status == 200
        await gateway.closed(2)
    assert second.status == 504
    assert "whose answer this one shared, did not bring it: timeout: total" in second.error
    assert (entry.outcome, entry.status, entry.reason) == ("failed", 504, "timeout: total")


async def test_whoever_waits_for_a_slot_can_be_joined(tmp_path: Path) -> None:
    """Identical calls in a full house: one of them takes a place in the line, the others none."""
    async with FakeReplica(HALTS) as replica:
        one = Replica("r1", replica.url, cap=1)
        async with running(tmp_path, one, levers=SHARED) as gateway:
            busy = await ask(gateway, chat("Busy", stream=True))
            tasks = [asyncio.ensure_future(gateway.post(SAME)) for _ in range(3)]
            await gateway.until(lambda: len(gateway.hub.flights) == 4, "four in flight")
            assert gateway.hub.waiting == 1
            replica.default = Reply(body=SSE)
            replica.release()  # the one that is busy has said two words, so it halts by now
            await rest(*busy)
            for task in tasks:
                assert (await task).complete
            await gateway.closed(4)
    assert len(replica.calls) == 2


async def test_a_gateway_that_stops_ends_leaders_and_followers(tmp_path: Path) -> None:
    async with sharing(tmp_path, limits=Limits(drain_seconds=0.1)) as (_, gateway):
        calls = [await ask(gateway), await ask(gateway)]
        gateway.gateway.stop()
        for wire, answer in calls:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await rest(wire, answer)
        entries = await gateway.closed(2)
    assert [(entry.outcome, entry.reason) for entry in entries] == [("failed", "shutdown")] * 2


async def test_one_that_does_not_read_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others get all of it; the one that is too far behind is cut off."""
    monkeypatch.setattr(twins, "MOST_BEHIND", 256 * 1024)
    long = Sse(chunks=30_000, merge=200)
    reply = Reply(body=long, fault=Fault("before_first_token"))
    async with sharing(tmp_path, reply) as (replica, gateway):
        reading = await ask(gateway, until=b"assistant")
        deaf = await gateway.connect(receive_buffer=4096)
        deaf.post(SAME)
        await gateway.until(lambda: len(gateway.hub.flights) == 2, "two in flight")
        replica.release()
        body = await rest(*reading)
        leader, follower = by_id(await gateway.closed(2))
        deaf.reset()
    assert len(replica.calls) == 1
    assert body.count(b"\n\n") > 30_000
    assert leader.outcome == "finished"
    assert (follower.outcome, follower.reason) == ("failed", "the client read too slowly to share an answer")


async def test_a_leader_that_does_not_read_is_cut_off_from_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "MOST_BEHIND", 256 * 1024)
    reply = Reply(body=Sse(chunks=30_000, merge=200), fault=Fault("before_first_token"))
    async with sharing(tmp_path, reply) as (replica, gateway):
        deaf = await gateway.connect(receive_buffer=4096)
        deaf.post(SAME)
        await replica.wait_calls(1)
        reading = await ask(gateway, until=b"assistant")
        replica.release()
        await rest(*reading)
        leader, follower = by_id(await gateway.closed(2))
        deaf.reset()
    assert (leader.outcome, follower.outcome) == ("hung_up", "finished")


async def test_when_nobody_reads_nothing_is_read_from_the_replica(tmp_path: Path) -> None:
    reply = Reply(body=Sse(chunks=60_000, merge=200), fault=Fault("before_first_token"))
    async with sharing(tmp_path, reply) as (replica, gateway):
        wires = [await gateway.connect(receive_buffer=4096) for _ in range(2)]
        for wire in wires:
            wire.post(SAME)
        await gateway.until(lambda: len(gateway.hub.flights) == 2, "two in flight")
        leader = next(flight for flight in gateway.hub.flights if flight._plan is not None)
        await gateway.until(lambda: leader._begun, "the answer has begun")
        replica.release()
        await gateway.until(lambda: leader._held, "the leader is held")
        answers = [await wire.head() for wire in wires]
        bodies = await asyncio.gather(*(rest(wire, answer) for wire, answer in zip(wires, answers, strict=True)))
        await gateway.closed(2)
    assert bodies[0] == bodies[1]
    assert len(replica.calls) == 1


async def test_a_long_answer_is_shared_only_by_those_who_came_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "MOST_KEPT", 300)
    async with sharing(tmp_path) as (replica, gateway):
        early = await ask(gateway)
        late = await ask(gateway)
        replica.release()
        assert await rest(*early) == await rest(*late)
        await gateway.closed(2)
    assert len(replica.calls) == 2


async def test_a_kill_leaves_a_trace_of_followers(tmp_path: Path) -> None:
    """A follower is admitted, as number 0: it holds no slot, but its client waits."""
    async with sharing(tmp_path) as (replica, gateway):
        admitted: list[Admission] = []
        admit = gateway.hub.recorder.admit

        def seen(admission: Admission) -> None:
            admitted.append(admission)
            admit(admission)

        gateway.hub.recorder.admit = seen  # type: ignore[method-assign]
        calls = [await ask(gateway), await ask(gateway)]
        replica.release()
        for one in calls:
            await rest(*one)
        await gateway.closed(2)
    assert [(one.number, one.replica) for one in admitted] == [(1, "r1"), (0, "")]


def test_the_key_keeps_tenants_paths_and_keys_apart() -> None:
    call = Call("c", 0.0, "chat", "/v1/chat/completions", "m")
    keys = {
        twin_of(call, SAME, b""),
        twin_of(call, SAME, b"Bearer a"),
        twin_of(Call("c", 0.0, "chat", "/v1/completions", "m"), SAME, b""),
        twin_of(Call("c", 0.0, "chat", "/v1/chat/completions", "m", tenant="t"), SAME, b""),
    }
    assert len(keys) == 4
    assert twin_of(call, b"not JSON", b"") == b""


# ---- buffered answers, for comparison


async def test_a_buffered_answer_comes_whole_at_its_end(tmp_path: Path) -> None:
    async with sharing(tmp_path, levers=BUFFERED) as (replica, gateway):
        wire = await gateway.connect()
        wire.post(SAME)
        await replica.wait_calls(1)
        await gateway.until(lambda: any(f._answer.first_token for f in gateway.hub.flights), "the first token")
        assert not wire.reader._buffer  # type: ignore[attr-defined]
        replica.release()
        answer = await wire.answer()
        (entry,) = await gateway.closed(1)
        wire.writer.close()
    assert answer.body == b"".join(events(SSE, usage=False))
    assert answer.header("content-length") == str(len(answer.body))
    assert (entry.outcome, entry.attempts[0].output_tokens) == ("finished", 6)


async def test_a_replica_works_on_for_a_client_that_has_left_a_buffered_answer(tmp_path: Path) -> None:
    async with sharing(tmp_path, levers=BUFFERED) as (replica, gateway):
        wire = await gateway.connect()
        wire.post(SAME)
        (call,) = await replica.wait_calls(1)
        wire.reset()
        await gateway.until(lambda: not gateway.connections, "the client has gone")
        assert call.closed_at is None
        replica.release()
        (entry,) = await gateway.closed(1)
    assert (entry.outcome, entry.reason) == ("hung_up", "the client left; its answer was made for nobody")
    assert (entry.attempts[0].outcome, entry.attempts[0].output_tokens) == ("hung_up", 6)


async def test_a_buffered_call_that_fails_is_told_so(tmp_path: Path) -> None:
    async with sharing(tmp_path, Reply(body=Json(status=400)), levers=BUFFERED) as (replica, gateway):
        assert (await gateway.post(SAME)).status == 400
        assert (await gateway.post(chat(model="none"))).status == 404
        replica.default = Reply(body=SSE, fault=Fault("between_tokens", "reset", tokens=2))
        broken = await gateway.post(chat(stream=True))
        await gateway.closed(3)
    assert not broken.complete
    assert b"the answer is incomplete" in broken.body


async def test_a_buffered_answer_beyond_all_bounds_goes_out_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wastegate.gateway.flights.MOST_BUFFERED", 300)
    async with sharing(tmp_path, levers=BUFFERED) as (replica, gateway):
        call = await ask(gateway)
        replica.release()
        assert await rest(*call) == b"".join(events(SSE, usage=False))
        await gateway.closed(1)


# ---- bounds on answers


async def test_a_bound_goes_into_the_request(tmp_path: Path) -> None:
    levers = Levers(streaming=streaming.Config(default_tokens=50, most_tokens=100))
    async with sharing(tmp_path, Reply(body=SSE), levers=levers) as (replica, gateway):
        bounds: tuple[dict[str, Any], ...] = (
            {},
            {"max_tokens": 80},
            {"max_tokens": 500},
            {"max_completion_tokens": 500},
        )
        for bound in bounds:
            await gateway.post(chat(stream=True, **bound))
        entries = await gateway.closed(4)
    sent = [call.json() for call in replica.calls]
    assert [call.get("max_tokens") for call in sent] == [50, 80, 100, None]
    assert sent[3]["max_completion_tokens"] == 100
    assert all(call["messages"] == [{"role": "user", "content": "Hello"}] for call in sent)
    assert entries[0].trail[-1] == "streaming: at most 50 tokens: the call names no max_tokens"
    assert entries[2].trail[-1] == "streaming: at most 100 tokens: the call asked for 500"
    assert len(entries[1].trail) == 1


# ---- where prompts part


async def test_where_prompts_part_goes_into_the_ledger(tmp_path: Path) -> None:
    levers = Levers(streaming=streaming.Config(watch_prefixes=True))
    rules = "Be brief. " * 40
    async with sharing(tmp_path, Reply(body=SSE), levers=levers) as (_, gateway):
        for minute in (10, 11):
            await gateway.post(chat(f"Now: 2026-11-30T22:{minute}:00Z. {rules}", stream=True))
        first, second = await gateway.closed(2)
    assert first.divergence is None
    assert second.divergence is not None
    assert (second.divergence.by, second.divergence.again > 350) == ("time", True)
