"""Arms take turns in mirrored blocks; disturbed blocks are dropped and made up for; real servers are told apart."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.load.conftest import ToyServer
from wastegate.load.blocks import Design
from wastegate.load.host import Rule
from wastegate.load.openloop import Stop
from wastegate.load.paired import PairedError, Progress, collect, run
from wastegate.load.replay import Config
from wastegate.load.turns import Replayed, Sample, Turn, lengths

CALM = Rule(steal=1.0, others=1.0, own=None)
"""Whatever the machine that runs the tests is up to."""


class Player:
    """An arm that remembers its turns, in the list that all arms share."""

    def __init__(self, told: list[Turn], figure: float = 1.0) -> None:
        self.told = told
        self.figure = figure
        self.faults: set[tuple[int, int]] = set()
        """(block, place) of turns that go wrong."""

    async def __call__(self, turn: Turn) -> Sample:
        self.told.append(turn)
        fault = "sent late" if (turn.block, turn.place) in self.faults else ""
        return Sample(figures={"p95": self.figure}, fault=fault, notes=("played",))


def design(**changes: object) -> Design:
    return Design(**{"seconds": 0.25, "warmup": 0.05, "quiet": 0.0, "rule": CALM, **changes})  # type: ignore[arg-type]


async def test_blocks_are_mirrored_and_either_arm_begins() -> None:
    told: list[Turn] = []
    found = await run({"a": Player(told), "b": Player(told, 0.5)}, design(blocks=12, spares=0))
    warm, told = told[:2], told[2:]
    assert [(turn.arm, turn.block) for turn in warm] == [("a", -1), ("b", -1)]
    rounds = ["".join(turn.arm for turn in told[place : place + 4]) for place in range(0, 48, 4)]
    assert set(rounds) == {"abba", "baab"}
    assert [turn.place for turn in told[:4]] == [0, 1, 2, 3]
    assert len({turn.fresh for turn in (*warm, *told)}) == 50, "no words twice"
    for number in range(12):
        assert len({turn.seed for turn in told if turn.block == number}) == 1, "one block, one set of arrivals"
    assert len({turn.seed for turn in told}) == 12
    assert found.lines[0].estimate is not None
    assert found.lines[0].estimate.value == pytest.approx(0.5)
    assert found.notes.count("played") == 1
    assert [turn.arm for turn in found.blocks[0].turns] == list(rounds[0])


async def test_a_block_that_is_not_mirrored_has_a_turn_of_each_arm() -> None:
    told: list[Turn] = []
    progress = Progress()
    arms = {"a": Player(told), "b": Player(told)}
    found = await collect(arms, design(blocks=12, spares=0, mirrored=False), progress)
    rounds = ["".join(turn.arm for turn in told[place : place + 2]) for place in range(2, 26, 2)]
    assert set(rounds) == {"ab", "ba"}
    assert (progress.total, len(progress.done), len(found.blocks)) == (26, 26, 12)


async def test_one_arm_can_be_run_where_nothing_is_compared() -> None:
    told: list[Turn] = []
    found = await collect({"only": Player(told)}, design(rates=(1.0, 2.0), blocks=2, mirrored=False))
    assert [(turn.rate, turn.block) for turn in told[1:]] == [(1.0, 0), (2.0, 0), (1.0, 1), (2.0, 1)]
    assert found.series("only", "p95", 2.0).tolist() == [1.0, 1.0]


async def test_a_ladder_may_count_what_runs_at_once() -> None:
    def broken(turn: Turn) -> dict[str, float]:
        raise OSError("gone")

    with pytest.raises(PairedError, match="a at 8 at once, warm-up turn: OSError: gone"):
        await collect({"a": broken}, design(rates=(8.0,), unit=" at once"))


async def test_three_arms_and_a_ladder() -> None:
    told: list[Turn] = []
    arms = {name: Player(told) for name in "abc"}
    found = await run(arms, design(rates=(1.0, 2.0), blocks=2))
    assert [(turn.rate, turn.block) for turn in told[3::6]] == [(1.0, 0), (2.0, 0), (1.0, 1), (2.0, 1)]
    first = [turn.arm for turn in told[3:9]]
    assert first == first[::-1]
    assert [(line.rate, line.arm) for line in found.lines] == [(1.0, "b"), (1.0, "c"), (2.0, "b"), (2.0, "c")]


async def test_the_seed_settles_the_order() -> None:
    orders = []
    for seed in (1, 1, 2):
        told: list[Turn] = []
        await run({"a": Player(told), "b": Player(told)}, design(blocks=16, spares=0, seed=seed))
        orders.append([(turn.arm, turn.fresh) for turn in told])
    assert orders[0] == orders[1] != orders[2]


async def test_a_faulty_block_is_dropped_whole_and_made_up_for() -> None:
    told: list[Turn] = []
    bad = Player(told)
    bad.faults = {(1, 0), (1, 1), (2, 0), (2, 1)}
    progress = Progress()
    found = await run({"a": Player(told), "b": bad}, design(blocks=3, spares=1), progress)
    assert [block.dropped for block in found.blocks] == ["", "sent late", "sent late", ""]
    assert (found.dropped, progress.dropped) == ({"sent late": 2}, 2)
    assert "2 of 3 blocks were kept" in found.notes
    assert found.invalid == ("2 of 4 blocks were disturbed: wait for a quieter machine",)


async def test_a_busy_generator_is_seen_by_the_rule() -> None:
    def busy(_: Turn) -> dict[str, float]:
        return {"p95": float(sum(range(300_000)))}

    found = await run({"a": busy, "b": busy}, design(blocks=1, spares=0, rule=Rule(steal=1.0, own=0.05)))
    assert found.dropped == {"the load generator had no CPU time to spare": 1}
    assert found.blocks[0].turns[0].host.own > 0.05


async def test_others_at_work_are_seen_while_nothing_of_ours_runs() -> None:
    """A process that spins holds one core of however many there are."""
    spinning = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
    try:
        rule = Rule(steal=1.0, others=0.5 / (os.cpu_count() or 1))
        told: list[Turn] = []
        found = await run({"a": Player(told), "b": Player(told)}, design(blocks=1, spares=0, quiet=0.3, rule=rule))
    finally:
        spinning.kill()
        await spinning.wait()
    if found.blocks[0].turns[0].host.others is None:
        pytest.skip("this machine does not keep count")
    assert found.dropped == {"others on this machine were at work": 1}


async def test_plain_functions_run_beside_the_loop() -> None:
    """Two plain functions that wait for something the event loop does: in the loop they would wait for ever."""
    loop = asyncio.get_running_loop()

    def plain(_: Turn) -> dict[str, float]:
        return {"p95": asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 1.0), loop).result(5)}

    async def coroutine(_: Turn) -> dict[str, float]:
        return {"p95": 2.0}

    found = await run({"a": plain, "b": coroutine, "c": lambda turn: coroutine(turn)}, design(blocks=1))
    assert [line.value for line in found.lines] == [2.0, 2.0]
    assert found.lines[0].baseline == 1.0


async def test_progress_tells_where_a_run_is() -> None:
    told: list[Turn] = []
    progress = Progress()
    seen: list[tuple[int, int]] = []

    async def watched(turn: Turn) -> dict[str, float]:
        assert progress.turn == turn
        seen.append((len(progress.done), progress.total))
        return {}

    await run({"a": watched, "b": Player(told)}, design(blocks=2, spares=0), progress)
    assert seen[0] == (0, 10)
    assert len(progress.done) == progress.total == 10


@pytest.mark.parametrize(("turns", "kept"), [(1, 0), (5, 0), (6, 1), (7, 1)])
async def test_a_stop_ends_between_turns_and_half_a_block_does_not_count(turns: int, kept: int) -> None:
    stop, done = Stop(), count(1)

    async def one(_: Turn) -> dict[str, float]:
        if next(done) == turns:
            stop.ask()
        return {"p95": 1.0}

    found = await run({"a": one, "b": one}, design(blocks=3), stop=stop)
    assert (len(found.blocks), found.interrupted) == (kept, True)
    assert "interrupted" in found.invalid[0]


async def test_a_stop_after_the_last_turn_interrupts_nothing() -> None:
    stop, done = Stop(), count(1)

    async def one(_: Turn) -> dict[str, float]:
        if next(done) == 6:
            stop.ask()
        return {"p95": 1.0}

    assert not (await run({"a": one, "b": one}, design(blocks=1, spares=0), stop=stop)).interrupted


async def test_a_turn_that_cannot_be_run_is_named() -> None:
    async def broken(turn: Turn) -> dict[str, float]:
        if turn.block == 0:
            raise TimeoutError("its own")
        return {}

    async def stuck(_: Turn) -> dict[str, float]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(PairedError, match=r"a at 2/s, block 0, turn \d: TimeoutError: its own"):
        await run({"a": broken, "b": broken}, design(rates=(2.0,)))
    with pytest.raises(PairedError, match=r"a, warm-up turn did not end within 0\.05 s"):
        await run({"a": stuck, "b": stuck}, design(patience=0.05))
    with pytest.raises(ValueError, match="two arms or more"):
        await run({"a": stuck}, design())


@pytest.fixture
async def other() -> AsyncIterator[ToyServer]:
    async for server in ToyServer().serve():
        yield server


async def test_a_slower_server_is_found_out_over_real_sockets(toy: ToyServer, other: ToyServer) -> None:
    toy.delay, other.delay = (lambda: 0.02), (lambda: 0.08)
    arms = {
        name: Replayed(Config(trace=Path("made"), url=server.url), lengths(30, 2, 60))
        for name, server in (("quick", toy), ("slow", other))
    }
    found = await run(arms, design(rates=(40.0,), blocks=3, spares=3, level=0.75))
    lines = {line.metric: line for line in found.lines}
    p50 = lines["ttft_p50"].estimate
    assert p50 is not None
    assert 2.0 < p50.low < p50.value < 6.0
    assert lines["sent"].estimate is not None
    assert lines["sent"].estimate.value == 1.0, "the same arrivals"
    assert lines["failed_share"].value == 0.0
