from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from tests.running_engine import until
from wastegate.core.admission import Limits
from wastegate.local import child as room
from wastegate.local.child import Call, Child, LoopError
from wastegate.local.messages import LoopConfig, Piece, Refused, Sampling
from wastegate.local.metrics import Metrics

PROMPT = np.arange(20, 60, dtype=np.int64).tobytes()
SHORT = Sampling(5, temperature=0.0, ignore_eos=True)
LONG = Sampling(450, temperature=0.0, ignore_eos=True)


async def state(child: Child, wanted: str) -> None:
    async with asyncio.timeout(60):
        while child.state != wanted:
            child.changed.clear()
            await child.changed.wait()


@contextlib.asynccontextmanager
async def serving(model: Path, limits: Limits | None = None) -> AsyncIterator[Child]:
    """A child with a loop that serves; both are gone afterwards."""
    child = Child(LoopConfig(str(model), limits or Limits(), 512, 256), Metrics())
    task = asyncio.create_task(child.run())
    try:
        await state(child, "ready")
        yield child
    finally:
        await child.stop()
        await task
        assert child.pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)


def submit(child: Child, sampling: Sampling = SHORT, n: int = 1) -> Call:
    return child.submit(PROMPT, sampling, n, 0, time.perf_counter())


async def end(call: Call) -> list[Piece | Refused]:
    """Everything that is said of a call, to its end."""
    news: list[Piece | Refused] = []
    while call.open or not news:
        async with asyncio.timeout(30):
            news += await call.news()
    return news


async def test_a_call_gets_its_pieces_and_its_times(tiny: Path) -> None:
    async with serving(tiny) as child:
        call = submit(child, n=2)
        news = await end(call)
        pieces = [piece for piece in news if isinstance(piece, Piece)]
        assert sorted((piece.index, piece.tokens) for piece in pieces) == [
            (index, tokens) for index in (0, 1) for tokens in range(1, 6)
        ]
        assert call.queued is not None
        assert child.ready is not None
        text = child._metrics.text(ready=True, restarts=0, cap=1, queue=1, kv_capacity=1)
        assert "wastegate_engine_prompt_tokens_total 40\n" in text
        assert "wastegate_engine_prompt_tokens_cached_total 0\n" in text
        assert "wastegate_engine_time_to_first_token_seconds_count 1\n" in text
        assert "wastegate_engine_inter_token_seconds_count 8\n" in text


async def test_before_it_serves_a_call_is_refused(tiny: Path) -> None:
    child = Child(LoopConfig(str(tiny), Limits(), 512, 64), Metrics())
    (refused,) = await submit(child).news()
    assert isinstance(refused, Refused)
    assert (refused.status, refused.message) == (503, "the engine is loading; try again shortly")


async def test_more_calls_than_can_run_and_wait_are_refused_at_once(tiny: Path) -> None:
    async with serving(tiny, Limits(cap=1, queue=1)) as child:
        calls = [submit(child, LONG) for _ in range(3)]
        assert [call.open for call in calls] == [True, True, False]
        (refused,) = await calls[2].news()
        assert isinstance(refused, Refused)
        assert "2 calls are in it, of 1 that run and 1 that may wait" in refused.message
        for call in calls:
            child.drop(call)
            child.drop(call)
        assert await end(submit(child))


async def test_a_lowered_cap_still_lets_its_line_be_used(tiny: Path) -> None:
    async with serving(tiny, Limits(cap=4, queue=1)) as child:
        calls = [submit(child, LONG) for _ in range(4)]
        for call in calls:
            await call.news()
        child.resize(Limits(cap=1, queue=1))
        waiting = submit(child)
        assert waiting.open
        for call in calls:
            child.drop(call)
        assert isinstance((await end(waiting))[-1], Piece)


async def test_a_loop_that_is_killed_fails_its_calls_and_another_takes_its_place(tiny: Path) -> None:
    async with serving(tiny) as child:
        running, first = submit(child, LONG), child.pid
        await running.news()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        refused = (await end(running))[-1]
        assert isinstance(refused, Refused)
        assert (refused.status, refused.fresh) == (503, False)
        assert "signal 9" in refused.message
        assert child.state == "restarting"
        (early,) = await submit(child).news()
        assert isinstance(early, Refused)
        assert early.fresh
        await state(child, "ready")
        assert child.restarts == 1
        assert child.pid != first
        assert isinstance((await end(submit(child)))[-1], Piece)


async def test_new_limits_outlive_the_loop(tiny: Path) -> None:
    async with serving(tiny) as child:
        child.resize(Limits(cap=1, queue=5))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await state(child, "restarting")
        await state(child, "ready")
        calls = [submit(child), submit(child)]
        await end(calls[1])
        assert child._metrics.batch._counts[1] == 0, "two sequences ran at once"


async def test_a_loop_that_hangs_is_killed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STALLED", 0.5)
    async with serving(tiny) as child:
        call = submit(child, LONG)
        await call.news()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        refused = (await end(call))[-1]
        assert isinstance(refused, Refused)
        assert "no step ended within" in refused.message


async def test_a_model_that_cannot_be_loaded_is_not_tried_again(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    child = Child(LoopConfig(str(bad), Limits(), 512, 64), Metrics())
    with pytest.raises(LoopError, match=r"bad\.gguf"):
        await child.run()


async def test_it_can_be_stopped_while_it_loads(tiny: Path) -> None:
    child = Child(LoopConfig(str(tiny), Limits(), 512, 64), Metrics())
    task = asyncio.create_task(child.run())

    async def started() -> bool:
        return child.pid is not None

    await until(started)
    await child.stop()
    async with asyncio.timeout(10):
        await task
    assert child.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_a_call_that_is_left_is_dropped_by_the_loop(tiny: Path) -> None:
    async with serving(tiny) as child:
        call = submit(child, LONG)
        await call.news()
        child.drop(call)

        async def gone() -> bool:
            return not child._metrics.running

        await until(gone)
        assert child._metrics.output_tokens < 450
