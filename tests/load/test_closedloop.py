"""So many callers, no more and no fewer, until what they see has settled."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from time import perf_counter

import pytest

from wastegate.core.steady import Rule
from wastegate.load.client import Answer, Shot
from wastegate.load.closedloop import BREATH, ClosedLoop
from wastegate.load.openloop import Loop, Progress, Result, Stop
from wastegate.load.rows import Row
from wastegate.load.schedule import Planned

RULE = Rule(seconds=0.2, most=30.0, tolerance=0.5)
PLAN = [Planned(number=7, row=Row(line=7), at=99.0), Planned(number=8, row=Row(line=8), at=99.0)]


class Server:
    """Takes ``seconds`` for a call, and counts who is inside."""

    def __init__(self, seconds: float, refuses: bool = False) -> None:
        self.seconds = seconds
        self.refuses = refuses
        self.inside = self.most = self.cancelled = 0
        self.numbers: list[int] = []

    def make(self, planned: Planned) -> Shot:
        self.numbers.append(planned.number)
        return Shot("/p", b"", id=str(planned.number))

    async def send(self, shot: Shot, answer: Answer) -> None:
        answer.sent = perf_counter()
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(0.0 if self.refuses else self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        answer.first = answer.ended = perf_counter()
        if self.refuses:
            answer.fail("status 503")
        else:
            answer.succeed()


async def run(loop: ClosedLoop, server: Server, stop: Stop | None = None) -> list[Result]:
    return await loop.run(PLAN, server.make, server.send, perf_counter, Loop(), stop or Stop(), Progress(0))


async def test_callers_are_always_so_many() -> None:
    server, loop = Server(0.05), ClosedLoop(6, RULE)
    results = await run(loop, server)
    assert server.most == 6
    assert loop.window is not None
    assert loop.window.settled
    counted = [one for one in results if loop.window.holds((one.answer.ended or 0.0) - one.start)]
    assert len(counted) % 6 == 0, "whole waves"
    rate = len(counted) / loop.window.seconds
    assert rate <= 6 / 0.05 * 1.05, "no call is shorter than the server takes"
    waits = [one.e2e for one in counted if one.e2e is not None]
    assert rate * sum(waits) / len(waits) == pytest.approx(6, rel=0.3), "Little's law"
    assert server.inside == 0
    assert server.cancelled >= 5, "who is under way at the end is given up"


async def test_rows_are_taken_in_turn_with_numbers_of_their_own() -> None:
    server = Server(0.02)
    results = await run(ClosedLoop(2, RULE), server)
    assert server.numbers == list(range(1, len(server.numbers) + 1))
    assert [one.planned.row.line for one in sorted(results, key=lambda one: one.planned.number)][:4] == [7, 8, 7, 8]
    at = [one.planned.at for one in sorted(results, key=lambda one: one.planned.number)]
    assert at[0] < 1.0
    assert all(early <= late for early, late in pairwise(at))
    assert all(one.e2e is not None and 0.019 <= one.e2e < 2.0 for one in results), "latency counts from sending"


async def test_calls_under_way_may_be_waited_for() -> None:
    server = Server(0.05)
    results = await run(ClosedLoop(4, RULE, drain=5.0), server)
    assert server.cancelled == 0
    assert len(results) == len(server.numbers)


async def test_what_never_settles_is_cut_off() -> None:
    ever = count(1)

    class Slower(Server):
        async def send(self, shot: Shot, answer: Answer) -> None:
            self.seconds = 0.02 * 1.5 ** next(ever)
            await super().send(shot, answer)

    loop = ClosedLoop(1, Rule(seconds=0.2, most=0.8, tolerance=0.1, least_calls=1))
    await run(loop, Slower(0.0))
    assert loop.window is not None
    assert not loop.window.settled
    assert 0.0 < loop.window.begin < loop.window.end < 5.0


async def test_a_stop_ends_it() -> None:
    stop, server = Stop(), Server(0.01)
    asyncio.get_running_loop().call_later(0.1, stop.ask)
    loop = ClosedLoop(2, Rule(seconds=60.0, most=60.0))
    began = perf_counter()
    results = await run(loop, server, stop)
    assert perf_counter() - began < 30.0
    assert results
    assert loop.window is not None
    assert not loop.window.settled


async def test_a_server_that_refuses_is_not_asked_in_a_tight_loop() -> None:
    loop = ClosedLoop(2, Rule(seconds=0.3, most=0.3, tolerance=0.01))
    server = Server(0.0, refuses=True)
    results = await run(loop, server)
    assert {one.fate for one in results} == {"failed"}
    assert 2 <= len(results) <= 2 * (2.0 / BREATH + 1)


async def test_a_request_that_cannot_be_sent_is_a_failure_and_no_end() -> None:
    class Broken(Server):
        async def send(self, shot: Shot, answer: Answer) -> None:
            answer.ended = perf_counter()
            raise OSError("no socket")

    results = await run(ClosedLoop(1, Rule(seconds=0.2, most=0.2)), Broken(0.0))
    assert {(one.fate, one.answer.reason) for one in results} == {("failed", "client: OSError")}


async def test_no_rows_no_calls() -> None:
    skipped = [Planned(number=1, row=Row(line=1), at=0.0, skip="too long")]
    server, loop = Server(0.0), ClosedLoop(1, RULE)
    assert await loop.run(skipped, server.make, server.send, perf_counter, Loop(), Stop(), Progress(0)) == []
    assert loop.window is None


def test_somebody_must_call() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ClosedLoop(0, RULE)
