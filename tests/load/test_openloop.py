"""Rows go out at their own time, whatever became of those before; every row ends in one result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

import pytest

from wastegate.load.client import Answer, Shot
from wastegate.load.openloop import Loop, Progress, Result, Stop, run
from wastegate.load.rows import Row
from wastegate.load.schedule import Planned
from wastegate.openai.sse import Usage


def plan(*at: float, skip: Sequence[int] = ()) -> list[Planned]:
    return [
        Planned(number=number, row=Row(line=number), at=moment, skip="no" if number in skip else "")
        for number, moment in enumerate(at, 1)
    ]


class Server:
    """Answers after ``seconds``; one at a time if ``alone``."""

    def __init__(self, seconds: float = 0.0, *, alone: bool = False) -> None:
        self.seconds = seconds
        self.turn = asyncio.Semaphore(1 if alone else 10_000)
        self.arrived: list[str] = []
        self.busy = 0
        self.most = 0

    async def __call__(self, shot: Shot, answer: Answer) -> None:
        answer.sent = perf_counter()
        self.arrived.append(shot.path)
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            async with self.turn:
                await asyncio.sleep(self.seconds)
            answer.first = answer.ended = perf_counter()
            answer.succeed()
        finally:
            self.busy -= 1


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not reached():  # noqa: ASYNC110 - what is waited for is a plain counter
            await asyncio.sleep(0.005)


async def go(
    rows: list[Planned],
    server: Server,
    *,
    loop: Loop | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    return await run(
        rows,
        lambda planned: Shot(str(planned.number), b""),
        server,
        perf_counter,
        loop or Loop(),
        stop or Stop(),
        progress or Progress(len(rows)),
    )


def fates(results: list[Result]) -> list[str]:
    return [result.fate for result in results]


async def test_rows_go_out_at_their_times() -> None:
    times = [0.0, 0.05, 0.05, 0.2, 0.31]
    results = await go(plan(*times), Server())
    assert fates(results) == ["ok"] * 5
    for result in results:
        assert result.drift is not None
        assert -0.0005 <= result.drift < 0.1


async def test_a_slow_server_delays_nobody() -> None:
    """Twenty calls of 0.3 s each within 0.2 s: a closed loop of one would take six seconds."""
    server = Server(0.3)
    results = await go(plan(*(0.01 * number for number in range(20))), server)
    assert server.most > 10
    assert max(result.drift or 0.0 for result in results) < 0.15


async def test_a_stall_shows_in_the_latency_of_all_that_came_meanwhile() -> None:
    """The server handles one call at a time, at once, but for the first, which takes 0.5 s. A tool that waits for
    answers would send one call into the stall and report one slow call; here all that came due in it are slow."""
    server = Server(alone=True)
    server.seconds = 0.5
    rows = plan(*(0.05 * number for number in range(20)))
    flight = asyncio.create_task(go(rows, server))
    await until(lambda: bool(server.arrived))
    server.seconds = 0.0
    latencies = [result.e2e or 0.0 for result in await flight]
    assert latencies[0] >= 0.5
    for number in range(1, 8):  # each waited for the rest of the stall
        assert latencies[number] == pytest.approx(0.5 - 0.05 * number, abs=0.15)
    assert latencies[-1] < 0.15


async def test_a_send_held_back_by_the_bound_counts_from_its_intended_time() -> None:
    progress = Progress(4)
    server = Server(0.1)
    results = await go(plan(0.0, 0.0, 0.0, 0.0), server, loop=Loop(max_inflight=1), progress=progress)
    assert server.most == 1
    assert progress.held == 3
    assert [round(result.e2e or 0.0, 1) for result in results] == [0.1, 0.2, 0.3, 0.4]
    assert [round(result.drift or 0.0, 1) for result in results] == [0.0, 0.1, 0.2, 0.3]


async def test_requests_are_made_ahead_and_only_once() -> None:
    made: list[int] = []

    def make(planned: Planned) -> Shot:
        made.append(planned.number)
        return Shot("", b"")

    rows = plan(*(0.001 * number for number in range(300)), skip=[5])
    results = await run(rows, make, Server(), perf_counter, Loop(), Stop(), Progress(299))
    assert made == [number for number in range(1, 301) if number != 5]
    assert fates(results).count("ok") == 299
    assert results[4].fate == "skipped"
    assert results[4].drift is None


async def test_stopping_ends_the_sending_and_waits_for_what_is_out() -> None:
    stop = Stop()
    server = Server(0.2)
    flight = asyncio.create_task(go(plan(0.0, 0.05, 60.0, 90.0, skip=[4]), server, stop=stop))
    await until(lambda: len(server.arrived) == 2)
    stop.ask()
    assert fates(await flight) == ["ok", "ok", "not_reached", "skipped"]


async def test_what_does_not_end_in_time_after_a_stop_is_aborted_and_counted() -> None:
    stop = Stop()
    server = Server(60.0)
    flight = asyncio.create_task(go(plan(0.0, 60.0), server, stop=stop, loop=Loop(drain=0.05)))
    await until(lambda: bool(server.arrived))
    stop.ask()
    results = await flight
    assert fates(results) == ["failed", "not_reached"]
    assert results[0].answer.reason == "aborted"


async def test_asking_twice_aborts_at_once() -> None:
    stop = Stop()
    server = Server(60.0)
    flight = asyncio.create_task(go(plan(0.0, 60.0), server, stop=stop, loop=Loop(drain=60.0)))
    await until(lambda: bool(server.arrived))
    stop.ask()
    stop.ask()
    async with asyncio.timeout(5):
        assert fates(await flight) == ["failed", "not_reached"]


async def test_a_stop_ends_the_wait_for_a_place() -> None:
    stop, progress = Stop(), Progress(2)
    flight = asyncio.create_task(
        go(plan(0.0, 0.0), Server(60.0), stop=stop, loop=Loop(max_inflight=1, drain=0.05), progress=progress)
    )
    await until(lambda: progress.held == 1)
    stop.ask()
    assert fates(await flight) == ["failed", "not_reached"]


async def test_stopping_while_the_last_answers_are_awaited() -> None:
    stop, progress = Stop(), Progress(1)
    flight = asyncio.create_task(go(plan(0.0), Server(60.0), stop=stop, loop=Loop(drain=0.05), progress=progress))
    await until(lambda: progress.sending_ended is not None)
    stop.ask()
    assert fates(await flight) == ["failed"]


async def test_a_cancelled_run_leaves_no_request_behind() -> None:
    server = Server(60.0)
    flight = asyncio.create_task(go(plan(0.0, 0.0), server))
    await until(lambda: server.busy == 2)
    flight.cancel()
    await asyncio.wait((flight,))
    assert server.busy == 0


async def test_a_request_that_cannot_be_sent_is_a_failure_of_that_row_alone() -> None:
    async def broken(shot: Shot, answer: Answer) -> None:
        if shot.path == "1":
            raise ValueError("no such header")
        answer.succeed()

    rows = plan(0.0, 0.0)
    results = await run(rows, lambda row: Shot(str(row.number), b""), broken, perf_counter, Loop(), Stop(), Progress(2))
    assert fates(results) == ["failed", "ok"]
    assert (results[0].answer.reason, results[0].answer.detail) == ("client: ValueError", "no such header")


async def test_a_prompt_that_cannot_be_made_ends_the_run() -> None:
    def make(planned: Planned) -> Shot:
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        await run(plan(0.0), make, Server(), perf_counter, Loop(), Stop(), Progress(1))


async def test_nothing_to_send() -> None:
    assert fates(await go(plan(0.0, skip=[1]), Server())) == ["skipped"]
    assert await go([], Server()) == []


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="--max-inflight is 0"):
        Loop(max_inflight=0)


def result(fate: str = "ok", **answer: object) -> Result:
    return Result(
        planned=plan(2.0)[0],
        fate=fate,  # type: ignore[arg-type]
        start=100.0,
        answer=Answer(**answer),  # type: ignore[arg-type]
    )


def test_times_count_from_the_intended_send() -> None:
    one = result(sent=102.5, first=103.0, ended=105.0, usage=Usage(output_tokens=5))
    assert (one.drift, one.ttft, one.e2e, one.tpot) == (0.5, 1.0, 3.0, 0.5)


def test_a_call_that_failed_has_no_latency() -> None:
    one = result("failed", sent=102.5, first=103.0, ended=105.0)
    assert (one.drift, one.ttft, one.e2e, one.tpot) == (0.5, None, None, None)


def test_tokens_are_the_servers_and_else_the_pieces_seen() -> None:
    assert result(pieces=4, usage=Usage(output_tokens=9)).output_tokens == 9
    assert result(pieces=4, usage=Usage(prompt_tokens=3)).output_tokens == 4
    assert result().output_tokens is None
    assert result(sent=102.0, first=103.0, ended=105.0, pieces=1).tpot is None
