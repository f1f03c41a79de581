"""A replica that falls silent, dies, refuses or asks for rest: who waits, who is tried again, what the client is told.

Each test is a failure met in public (the number is its row in the list of failures), or a whole kind of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse, events, silent_port
from tests.fake_replies import Phase
from tests.faults.bench import Answer, Bench, Client, chat, errors, gateway, payloads, text
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker, RetryBudget

NO_HOLD = Rules(hold=0.3)
SHORT = 0.3
"""Seconds for a timer under test. All others are left long, so that only it can fire."""
LATE = 0.8
"""How much later than its time a timer may fire here, on a busy machine."""

HANG: dict[str, Phase] = {
    "first byte": "before_first_byte",
    "first token": "before_first_token",
    "idle": "between_tokens",
}


# ---- timers


async def test_connect_timer(tmp_path: Path) -> None:
    """gateways 11: nobody answers the connection."""
    settings: dict[str, Any] = {"timers": Timers(connect=SHORT), "rules": NO_HOLD}
    async with FakeReplica() as replica, gateway(tmp_path, replica, probe_seconds=30, **settings) as running:
        await replica.stop()
        async with silent_port(replica.port):
            start = time.monotonic()
            answer = await running.ask()
            waited = time.monotonic() - start
        entry = await running.entry(answer)
        assert (answer.status, entry.attempts[0].reason) == (504, "timeout: connect")
        assert "connect" in answer.error
        assert SHORT <= waited < SHORT + LATE
        await running.settled()


@pytest.mark.parametrize("phase", ["accepted", "headers_read", "before_first_byte", "in_head"])
@pytest.mark.parametrize("stream", [False, True])
async def test_first_byte_timer(phase: Phase, stream: bool, tmp_path: Path) -> None:
    """gateways 11: the connection is taken, the request too, then nothing."""
    reply = Reply(body=Sse() if stream else Json(), fault=Fault(phase))
    timers = Timers(first_byte=SHORT)
    async with FakeReplica() as replica, gateway(tmp_path, replica, timers=timers, probe_seconds=30) as running:
        replica.default = reply
        start = time.monotonic()
        answer = await running.ask(stream=stream)
        waited = time.monotonic() - start
        entry = await running.entry(answer)
        assert (answer.status, answer.complete, entry.outcome) == (504, True, "failed")
        assert "first byte" in answer.error
        assert entry.attempts[-1].reason == "timeout: first byte"
        assert SHORT <= waited < SHORT + LATE
        await running.settled()
        if phase != "accepted":
            await replica.calls[0].wait("closed", 1)


@pytest.mark.parametrize("phase", ["after_headers", "before_first_token"])
async def test_first_token_timer(phase: Phase, tmp_path: Path) -> None:
    """gateways 11: headers, even a role chunk, are no token."""
    reply = Reply(body=Sse(empty_deltas=1), fault=Fault(phase))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica, timers=Timers(first_token=SHORT)) as running:
        start = time.monotonic()
        answer = await running.ask(stream=True)
        assert SHORT <= time.monotonic() - start < SHORT + LATE
        _says_timeout(answer, "first token")
        attempt = (await running.entry(answer)).attempts[-1]
        assert (attempt.reason, attempt.first_token) == ("timeout: first token", None)  # costs 1: none is not 0
        await running.settled()
        await replica.calls[0].wait("closed", 1)


@pytest.mark.parametrize("phase", ["between_tokens", "before_end"])
async def test_idle_timer(phase: Phase, tmp_path: Path) -> None:
    reply = Reply(body=Sse(), fault=Fault(phase, tokens=2))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica, timers=Timers(idle=SHORT)) as running:
        start = time.monotonic()
        answer = await running.ask(stream=True)
        assert SHORT <= time.monotonic() - start < SHORT + LATE
        _says_timeout(answer, "idle")
        assert not answer.complete
        entry = await running.entry(answer)
        tokens = 2 if phase == "between_tokens" else 4
        assert (entry.attempts[-1].output_tokens, entry.attempts[-1].usage) == (tokens, "counted")
        await running.settled()
        await replica.calls[0].wait("closed", 1)


async def test_idle_timer_in_a_json_answer(tmp_path: Path) -> None:
    reply = Reply(fault=Fault("between_tokens"))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica, timers=Timers(idle=SHORT)) as running:
        answer = await running.ask()
        entry = await running.entry(answer)
        assert not (answer.status == 200 and answer.complete)
        assert entry.attempts[-1].reason == "timeout: idle"
        await running.settled()


async def test_total_timer(tmp_path: Path) -> None:
    """A stream that never falls silent, and never ends."""
    reply = Reply(body=Sse(chunks=1000, gap=0.02))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica, timers=Timers(total=0.5)) as running:
        start = time.monotonic()
        answer = await running.ask(stream=True)
        assert 0.5 <= time.monotonic() - start < 0.5 + LATE
        _says_timeout(answer, "total")
        await replica.calls[0].wait("closed", 1)
        await running.settled()


async def test_pings_keep_a_stream_from_being_idle(tmp_path: Path) -> None:
    """A replica that says it lives, lives."""
    reply = Reply(body=Sse(chunks=5, gap=0.2, ping=True))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica, timers=Timers(idle=0.5)) as running:
        assert (await running.ask(stream=True)).complete


@pytest.mark.parametrize("timer", ["first byte", "first token", "idle"])
async def test_others_are_served_while_one_replica_hangs(timer: str, tmp_path: Path) -> None:
    """gateways 11: one silent call holds nobody else up."""
    reply = Reply(body=Sse(), fault=Fault(HANG[timer]))
    async with FakeReplica(Reply(), [reply]) as replica, gateway(tmp_path, replica) as running:
        hanging = await running.connect()
        hanging.ask(chat(stream=True))
        await replica.wait_calls(1)
        start = time.monotonic()
        answers = await asyncio.gather(*(running.ask() for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert time.monotonic() - start < 2
        hanging.close()
        await running.settled()


async def test_after_done_the_end_is_not_waited_for_long(tmp_path: Path) -> None:
    """The client has its whole answer; a replica that never closes its message must not hold it."""
    reply = Reply(body=Sse(), fault=Fault("before_terminator"))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        start = time.monotonic()
        answer = await running.ask(stream=True)
        assert (answer.complete, payloads(answer)[-1]) == (True, "[DONE]")
        assert time.monotonic() - start < 3
        assert (await running.entry(answer)).outcome == "finished"


# ---- death


@pytest.mark.parametrize("do", ["fin", "reset"])
@pytest.mark.parametrize("phase", ["accepted", "headers_read", "before_first_byte", "in_head"])
async def test_death_before_the_answer_is_a_502(phase: Phase, do: Literal["fin", "reset"], tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, probe_seconds=30) as running:
        replica.default = Reply(fault=Fault(phase, do))
        answer = await running.ask(stream=True)
        entry = await running.entry(answer)
        assert (answer.status, answer.complete, entry.outcome) == (502, True, "failed")
        assert "r1" in answer.error
        await running.settled()


@pytest.mark.parametrize("do", ["fin", "reset"])
@pytest.mark.parametrize("phase", ["before_first_token", "between_tokens", "before_end"])
async def test_death_after_200_is_a_terminal_error_event(
    phase: Phase, do: Literal["fin", "reset"], tmp_path: Path
) -> None:
    """gateways 10: never a clean finish; what came is charged."""
    reply = Reply(body=Sse(), fault=Fault(phase, do, 2))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True, tools=[])
        entry = await running.entry(answer)
        tokens = {"before_first_token": 0, "between_tokens": 2, "before_end": 4}[phase]
        assert (answer.status, answer.complete) == (200, False)
        assert "[DONE]" not in payloads(answer)
        assert len(errors(answer)) == 1
        assert answer.body.startswith(b"".join(events(Sse())[: 1 + tokens]))
        assert entry.outcome == "failed"
        assert entry.attempts[-1].reason.startswith("cut")
        assert (entry.attempts[-1].output_tokens, entry.attempts[-1].usage) == (tokens, "counted")
        await running.settled()


async def test_half_an_event_is_not_relayed(tmp_path: Path) -> None:
    """The error event must not be glued to the torn beginning of another."""
    whole = len(b"".join(events(Sse())[:2]))
    body = b"".join(events(Sse()))[: whole + 30]
    reply = Reply(
        body=Json(body=body, content_type="text/event-stream"), framing="close", fault=Fault("after_end", "reset")
    )
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
    assert text(answer) == "Hello"
    assert len(errors(answer)) == 1


@pytest.mark.parametrize("do", ["fin", "reset"])
async def test_death_within_a_json_answer_is_no_whole_answer(do: Literal["fin", "reset"], tmp_path: Path) -> None:
    async with FakeReplica(Reply(fault=Fault("between_tokens", do))) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask()
        entry = await running.entry(answer)
        assert not (answer.status == 200 and answer.complete)
        assert entry.outcome == "failed"
        await running.settled()


@pytest.mark.parametrize("do", ["fin", "reset"])
async def test_death_after_done_is_a_whole_answer(do: Literal["fin", "reset"], tmp_path: Path) -> None:
    reply = Reply(body=Sse(), fault=Fault("before_terminator", do))
    async with FakeReplica(reply) as replica, gateway(tmp_path, replica) as running:
        answer = await running.ask(stream=True)
        assert (answer.complete, payloads(answer)[-1]) == (True, "[DONE]")
        assert (await running.entry(answer)).outcome == "finished"


# ---- kept-alive connections


async def test_stale_connection_is_replaced_silently(tmp_path: Path) -> None:
    """The replica drops a reused connection on its next request: the caller never knows."""
    async with FakeReplica(Reply(after="drop_reuse")) as replica, gateway(tmp_path, replica) as running:
        answers = [await running.ask() for _ in range(10)]
        entries = [await running.entry(answer) for answer in answers]
    assert {answer.status for answer in answers} == {200}
    assert {len(entry.attempts) for entry in entries} == {1}
    assert any(call.reused for call in replica.calls)


async def test_idle_connections_closed_by_the_replica_are_not_used(tmp_path: Path) -> None:
    async with FakeReplica(Reply(after="close_idle", idle=0.02)) as replica, gateway(tmp_path, replica) as running:
        for pause in (0.0, 0.01, 0.015, 0.02, 0.025, 0.05):
            assert (await running.ask()).status == 200
            await asyncio.sleep(pause)


async def test_a_replica_that_drops_every_connection_is_not_redialled_for_ever(tmp_path: Path) -> None:
    async with FakeReplica(Reply()) as replica, gateway(tmp_path, replica, probe_seconds=30) as running:
        await running.ask()
        replica.default = Reply(fault=Fault("before_first_byte", "reset"))
        before = len(replica.calls)
        assert (await running.ask()).status == 502
        assert len(replica.calls) - before <= 2


# ---- another replica


@asynccontextmanager
async def two(
    data: Path, first: Reply, rules: Rules = NO_HOLD, **settings: Any
) -> AsyncIterator[tuple[Bench, FakeReplica, FakeReplica]]:
    """Two replicas of which ``r1`` is always the first choice: ``r2`` is kept busy with a call of its own model."""
    busy = Reply(fault=Fault("before_first_byte"))
    async with (
        FakeReplica() as one,
        FakeReplica(Reply(), [busy], models=("fake", "other")) as other,
        gateway(data, one, other, rules=rules, probe_seconds=30, **settings) as running,
    ):
        one.default = first  # now that the probes are through
        client = await running.connect()
        client.ask(chat(model="other"))
        await other.wait_calls(1)
        yield running, one, other


FAILS = [
    pytest.param(Reply(body=Json(status=500)), id="500"),
    pytest.param(Reply(body=Json(status=502, body=b"<html>", content_type="text/html")), id="502"),
    pytest.param(Reply(body=Json(status=503)), id="503"),
    pytest.param(Reply(body=Json(status=504)), id="504"),
    pytest.param(Reply(fault=Fault("accepted", "reset")), id="reset on accept"),
    pytest.param(Reply(fault=Fault("headers_read", "fin")), id="closed on headers"),
    pytest.param(Reply(fault=Fault("before_first_byte", "reset")), id="reset before the first byte"),
    pytest.param(Reply(fault=Fault("in_head", "fin")), id="closed within the head"),
    pytest.param(Reply(body=Sse(), fault=Fault("after_headers", "reset")), id="reset before the first event"),
    pytest.param(Reply(headers=(("x-huge", "h" * 100_000),)), id="not HTTP"),
]


@pytest.mark.parametrize("first", FAILS)
async def test_a_failure_before_the_first_byte_is_tried_on_another_replica(first: Reply, tmp_path: Path) -> None:
    async with two(tmp_path, first) as (running, one, other):
        answer = await running.ask(stream=isinstance(first.body, Sse))
        entry = await running.entry(answer)
        assert (answer.status, answer.complete, entry.outcome) == (200, True, "finished")
        assert [attempt.replica for attempt in entry.attempts] == ["r1", "r2"]
        assert [attempt.outcome for attempt in entry.attempts] == ["failed", "finished"]
        assert [call.headers["x-request-id"] for call in (*one.calls, other.calls[-1])][-2:] == [
            f"{entry.id}.{number}" for number in ((1, 2) if one.calls else (2,))
        ]


async def test_a_refused_connection_is_tried_on_another_replica(tmp_path: Path) -> None:
    async with two(tmp_path, Reply()) as (running, one, _):
        await one.stop()
        answer = await running.ask()
        assert answer.status == 200
        assert [attempt.replica for attempt in (await running.entry(answer)).attempts][-1] == "r2"


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429])
async def test_a_4xx_is_never_tried_again(status: int, tmp_path: Path) -> None:
    async with two(tmp_path, Reply(body=Json(status=status, body=b"no"))) as (running, one, other):
        answer = await running.ask()
        assert (answer.status, answer.body) == (status, b"no")
        assert (len(one.calls), len(other.calls)) == (1, 1)


async def test_nothing_is_tried_again_once_the_client_has_bytes(tmp_path: Path) -> None:
    """gateways 10: tools and guided decoding cannot be continued elsewhere."""
    cut = Reply(body=Sse(), fault=Fault("between_tokens", "reset"))
    async with two(tmp_path, cut) as (running, _, other):
        answer = await running.ask(stream=True, response_format={"type": "json_object"})
        assert len(errors(answer)) == 1
        assert len(other.calls) == 1


async def test_a_silent_replica_is_not_followed_by_another_wait(tmp_path: Path) -> None:
    """The client has waited enough: after a timer other than connect comes a 504."""
    hang = Reply(fault=Fault("before_first_byte"))
    async with two(tmp_path, hang, timers=Timers(first_byte=SHORT)) as (running, _, other):
        assert (await running.ask()).status == 504
        assert len(other.calls) == 1


async def test_retries_stop_at_the_budget(tmp_path: Path) -> None:
    """gateways 22: when all fails, retries must not multiply the load."""
    fails = Reply(body=Json(status=500))
    calls = 60
    async with FakeReplica(fails) as one, FakeReplica(fails) as other:
        settings: dict[str, Any] = {"budget": RetryBudget(share=0.1, reserve=3), "breaker": Breaker(failures=10_000)}
        async with gateway(tmp_path, one, other, rules=NO_HOLD, probe_seconds=30, **settings) as running:
            for _ in range(calls):
                assert (await running.ask()).status == 500
    assert calls < len(one.calls) + len(other.calls) <= calls * 1.1 + 3


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    """gateways 22: a replica that asked for rest gets none of the next calls, and the client hears of it."""
    rest = Reply(body=Json(status=429, body=b"slow down"), headers=(("retry-after", "30"),))
    async with two(tmp_path, rest) as (running, one, _):
        answer = await running.ask()
        assert (answer.status, answer.header("retry-after")) == (429, "30")
        assert 20 < running.replica().resting_until - running.running.hub.now() <= 30
        for _ in range(6):
            assert (await running.ask()).status == 200
        assert len(one.calls) == 1


async def test_all_resting_is_a_503_with_retry_after(tmp_path: Path) -> None:
    rest = Reply(body=Json(status=503), headers=(("retry-after", "30"),))
    async with FakeReplica(rest) as replica, gateway(tmp_path, replica, rules=NO_HOLD) as running:
        await running.ask()
        answer = await running.ask()
        assert answer.status == 503
        assert int(answer.header("retry-after")) >= 1
        assert "rest" in answer.error
        assert len(replica.calls) == 1


# ---- breaker


async def test_a_burst_of_4xx_opens_no_breaker(tmp_path: Path) -> None:
    """gateways 21."""
    settings: dict[str, Any] = {"breaker": Breaker(failures=3), "rules": NO_HOLD}
    async with FakeReplica(Reply(body=Json(status=400))) as replica, gateway(tmp_path, replica, **settings) as running:
        assert {(await running.ask()).status for _ in range(12)} == {400}
        assert running.replica().breaker == "closed"


async def test_failures_open_the_breaker_and_a_4xx_does_not_close_it(tmp_path: Path) -> None:
    """gateways 21: half-open is decided by an answer that says something about the replica."""
    async with FakeReplica(Reply(body=Json(status=500))) as replica:
        settings: dict[str, Any] = {"breaker": Breaker(failures=3, rest=0.3), "rules": Rules(hold=0.05, max_attempts=1)}
        async with gateway(tmp_path, replica, probe_seconds=30, **settings) as running:
            for _ in range(3):
                await running.ask()
            assert running.replica().breaker == "open"
            assert (await running.ask()).status == 503
            assert len(replica.calls) == 3
            replica.default = Reply(body=Json(status=400))
            await running.until("breaker", "half_open")
            assert (await running.ask()).status == 400
            assert running.replica().breaker != "closed"
            replica.default = Reply()
            await running.until("breaker", "half_open")
            assert (await running.ask()).status == 200
            assert running.replica().breaker == "closed"


async def test_half_open_lets_one_call_through(tmp_path: Path) -> None:
    async with FakeReplica(Reply(body=Json(status=500))) as replica:
        settings: dict[str, Any] = {"breaker": Breaker(failures=2, rest=0.2), "rules": Rules(hold=5, max_attempts=1)}
        async with gateway(tmp_path, replica, probe_seconds=30, **settings) as running:
            for _ in range(2):
                await running.ask()
            replica.script.append(Reply(fault=Fault("before_first_byte")))
            replica.default = Reply()
            answers = [asyncio.create_task(running.ask()) for _ in range(8)]
            await replica.wait_calls(3)
            await asyncio.sleep(0.2)  # long enough for a second one to slip through
            assert len(replica.calls) == 3
            replica.release()
            assert {answer.status for answer in await asyncio.gather(*answers)} == {200}


async def test_a_trial_whose_client_leaves_does_not_lock_the_breaker(tmp_path: Path) -> None:
    """gateways 12: whatever ends the one trial call, the next one gets its turn."""
    async with FakeReplica(Reply(body=Json(status=500))) as replica:
        settings: dict[str, Any] = {"breaker": Breaker(failures=2, rest=0.2), "rules": Rules(hold=5, max_attempts=1)}
        async with gateway(tmp_path, replica, probe_seconds=30, **settings) as running:
            for _ in range(2):
                await running.ask()
            replica.script.append(Reply(fault=Fault("before_first_byte")))
            replica.default = Reply()
            client = await running.connect()
            client.ask(chat())
            await replica.wait_calls(3)
            client.close()
            assert (await running.ask()).status == 200


# ---- while the last replica is replaced


async def test_calls_are_held_while_the_last_replica_comes_back(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, rules=Rules(hold=5)) as running:
        await replica.stop()
        await running.until("state", "down")
        waiting = asyncio.create_task(running.ask())
        await running.until("waiting", 1)
        await replica.start()
        assert (await waiting).status == 200
        await running.settled()


async def test_after_the_hold_comes_a_503_with_retry_after(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, rules=Rules(hold=SHORT)) as running:
        await replica.stop()
        await running.until("state", "down")
        start = time.monotonic()
        answer = await running.ask()
        assert SHORT <= time.monotonic() - start < SHORT + LATE
        assert (answer.status, int(answer.header("retry-after")) >= 1) == (503, True)
        assert "no replica" in answer.error
        assert (await running.entry(answer)).outcome == "refused"
        await running.settled()


async def test_a_client_that_leaves_the_line_is_gone(tmp_path: Path) -> None:
    async with FakeReplica() as replica, gateway(tmp_path, replica, rules=Rules(hold=5)) as running:
        await replica.stop()
        await running.until("state", "down")
        client = await running.connect()
        client.ask(chat())
        await running.until("waiting", 1)
        client.close()
        await running.settled()
        (entry,) = await running.entries(1)
        assert (entry.outcome, entry.status, entry.attempts) == ("hung_up", 499, ())
        await replica.start()
        assert (await running.ask()).status == 200
        assert len(replica.calls) == 1


async def test_a_replica_that_was_killed_mid_stream_and_comes_back(tmp_path: Path) -> None:
    hang = Reply(body=Sse(), fault=Fault("between_tokens"))
    rules = Rules(hold=5)
    async with FakeReplica(Reply(), [hang, hang]) as replica, gateway(tmp_path, replica, rules=rules) as running:
        clients = [await _streaming(running) for _ in range(2)]
        await replica.stop()
        for client in clients:
            assert b'"error"' in await client.until(b"upstream_failed")
        await replica.start()
        assert (await running.ask()).status == 200
        await running.settled()


# ---- small steps


def _says_timeout(answer: Answer, timer: str) -> None:
    """A stream that has begun ends in an error event that names the timer; one that has not, in a 504."""
    if answer.status == 504:
        assert timer in answer.error
    else:
        assert (answer.status, answer.complete, len(errors(answer))) == (200, False, 1)
        assert timer in errors(answer)[0]["message"]
        assert "[DONE]" not in payloads(answer)


async def _streaming(running: Bench) -> Client:
    client = await running.connect()
    client.ask(chat(stream=True))
    await client.until(b"Hello")
    return client
