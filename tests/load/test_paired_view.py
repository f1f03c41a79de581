"""What a person sees of a paired run."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from tests.load.test_blocks import WOBBLE, block, ladder, pairs, run
from wastegate.load import paired_view
from wastegate.load.blocks import Report, report
from wastegate.load.paired import Progress
from wastegate.load.paired_view import figure, show, table
from wastegate.load.turns import Turn


def printed(shown: Report) -> str:
    file = io.StringIO()
    Console(file=file, width=150).print(table(shown))
    return file.getvalue()


def turn(**changes: object) -> Turn:
    asked = {"arm": "fast", "rate": 2.0, "block": 3, "place": 0, "seconds": 1.0, "warmup": 0.0, "seed": 0, "fresh": 0}
    return Turn(**{**asked, **changes})  # type: ignore[arg-type]


def test_a_difference_and_its_interval_are_told() -> None:
    text = printed(report(run(*pairs(failed_share=0.0, e2e_p95=0.25), blocks=8)))
    assert "fast against base, paired by block" in text
    assert (
        "at the trace's own times: 8 blocks; at most 0.0% stolen, 2% used by others, load generator 10% of a core"
        in text
    )
    words = " ".join(text.split())
    assert "p95 fast 1 0.5012 ×0.501 0.49" in words
    assert words.count("differs") == 1
    assert "failed_share fast 0 0 +0 +0 to +0" in words
    assert "e2e_p95 fast 250 ms 250 ms ×1.000" in words


def test_what_is_missing_is_said() -> None:
    found = report(
        run(*pairs(count=5), *(block(9, {}, {}, dropped="steal") for _ in range(3)), blocks=5, notes=("look",))
    )
    text = printed(found)
    assert "5 blocks are too few for an interval" in text
    assert "dropped: 3 blocks, since steal" in text
    assert "· look" in text
    assert "INVALID: 3 of 8 blocks were disturbed" in text
    assert "nan" not in printed(report(run(block(0, {"x": 1.0}, {}), blocks=1))).lower()


def climbed(base: float, quick: float) -> Report:
    slow, fast = ladder(base), ladder(quick)
    blocks = [
        block(n, {"e2e_p95": slow[rate] * WOBBLE[n]}, {"e2e_p95": fast[rate] * WOBBLE[-n]}, rate)
        for n in range(8)
        for rate in slow
    ]
    return report(run(*blocks, rates=[1.0, 2.0, 4.0], blocks=8, limit=0.5))


def test_rates_at_equal_latency_are_told_or_refused() -> None:
    text = printed(climbed(1.5, 2.0))
    assert "at 4 requests/s: 8 blocks" in text
    assert "base: e2e_p95 = 500 ms at 2.44/s (2.43 to 2.46)" in text
    assert "fast: e2e_p95 = 500 ms at 3.22/s (3.2 to 3.23), ×1.317 (1.304 to 1.330) of the baseline's" in text
    refused = printed(climbed(1.5, 100.0))
    assert "fast: e2e_p95 = 500 ms: no rate concluded: 0.1 s at most, up to 4/s" in refused
    lonely = printed(climbed(0.3, 2.0))
    assert "fast: e2e_p95 = 500 ms at 3.22/s (3.2 to 3.23): base has no such rate" in lonely


def test_units() -> None:
    assert figure("ttft_p95", 0.0123) == "12.3 ms"
    assert figure("answered", 1234.0) == "1234"
    assert figure("e2e_p95", float("inf")) == "–"


async def test_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_view, "LINE_SECONDS", 0.01)
    file = io.StringIO()
    progress = Progress()
    progress.total = 9
    task = asyncio.create_task(show(progress, Console(file=file)))
    await told(file, "turn 0/9 beginning")
    progress.turn = turn(block=-1, rate=None)
    await told(file, "warm-up, fast\n")
    progress.turn, progress.dropped = turn(), 2
    await told(file, "block 4, fast at 2/s, 2 blocks dropped")
    task.cancel()


async def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_view, "BAR_SECONDS", 0.01)
    file = io.StringIO()
    progress = Progress()
    progress.total, progress.turn = 9, turn()
    task = asyncio.create_task(show(progress, Console(file=file, force_terminal=True, width=100)))
    await told(file, "block 4, fast at 2/s")
    assert "0/9" in file.getvalue()
    task.cancel()


async def told(file: io.StringIO, text: str) -> None:
    async with asyncio.timeout(5):
        while text not in file.getvalue():  # noqa: ASYNC110 - what is waited for is plain text
            await asyncio.sleep(0.005)
