"""What a person sees of a run."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from tests.load.test_report import report, result
from wastegate.load import display
from wastegate.load.display import duration, show, table
from wastegate.load.openloop import Progress
from wastegate.load.report import Report
from wastegate.openai.sse import Usage


def printed(shown: Report) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(table(shown))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_the_table_accounts_for_every_row() -> None:
    usage = Usage(prompt_tokens=1200, output_tokens=4, cached_tokens=600)
    text = printed(
        report(
            result(1, 0.0, wanted=(1200, 4), usage=usage),
            result(2, 1.0, "failed", reason="status 503", detail="full"),
            result(3, 2.0, "hung_up"),
            result(4, 3.0, "skipped"),
            result(5, 4.0, "not_reached"),
            source="tokenizer",
        )
    )
    for line in ("rows read 5", "sent 3", "answered 1", "hung up on purpose 1", "failed 1 (status 503: 1)"):
        assert line in " ".join(text.split())
    assert "skipped 1 (too long: 1)" in " ".join(text.split())
    assert "100.0% of 1 (worst +0 tokens, mean +0.00%)" in text
    assert "first 'status 503', row 2: full" in text
    assert "from the prefix cache" in text
    assert "P99" in text


def test_the_verdict_is_said() -> None:
    assert "valid: the offered rate was held" in printed(report(result()))
    assert "interrupted: this is what ran until then" in printed(report(result(), interrupted=True))
    assert "INVALID: no request was sent" in printed(report(result(fate="skipped")))


def test_nothing_measured_is_a_dash() -> None:
    text = printed(report(result(fate="skipped")))
    assert "–" in text
    assert "nan" not in text.lower()


def test_pieces_are_said_to_be_a_lower_bound() -> None:
    assert "a lower bound" in printed(report(result(pieces=3)))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 ms"), (0.01234, "12.3 ms"), (0.9999, "1 s"), (4.56, "4.56 s"), (-0.002, "-2 ms")]
)
def test_durations_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def shown(progress: Progress, *, terminal: bool, wanted: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What stands on the console once ``wanted`` has been printed."""
    monkeypatch.setattr(display, "LINE_SECONDS", 0.01)
    file = io.StringIO()
    task = asyncio.create_task(show(progress, Console(file=file, force_terminal=terminal, width=200)))
    async with asyncio.timeout(5):
        while wanted not in file.getvalue():  # noqa: ASYNC110 - a buffer cannot be awaited
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait((task,))
    return file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
async def test_a_running_replay_shows_counts_and_percentiles(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(9)
    progress.sent = 4
    progress.results = [
        result(1, usage=Usage(output_tokens=6)),
        result(2, fate="failed", reason="cut"),
        result(3, fate="hung_up"),
    ]
    text = await shown(progress, terminal=terminal, wanted="TPOT p50", monkeypatch=monkeypatch)
    assert "3/9" in text
    assert "in flight 1 · failed 1 · hung up 1 · TTFT p50 500 ms p95 500 ms p99 500 ms · TPOT p50 100 ms" in text
    assert ("\x1b[" in text) is terminal


async def test_before_the_first_answer_only_counts_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = await shown(Progress(9), terminal=False, wanted="in flight 0", monkeypatch=monkeypatch)
    assert "TTFT" not in text
