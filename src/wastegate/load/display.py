"""How a replay is shown to a person: a bar while it runs, a table when it ended. Nothing is measured here."""

from __future__ import annotations

import asyncio
from collections import Counter

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from wastegate.load.openloop import Progress
from wastegate.load.report import Lengths, Report, Spread, spread

BAR_SECONDS = 0.25
LINE_SECONDS = 5.0
RECENT = 1000
"""Results that live percentiles look back on: enough for a P99, few enough to be recent."""


async def show(progress: Progress, console: Console) -> None:
    """Show a run until cancelled: a live bar on a terminal, else a plain line now and then."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_SECONDS)
            console.print(
                f"{len(progress.results)}/{progress.total} {_state(progress)}", highlight=False, soft_wrap=True
            )
    bar = Bar(BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = bar.add_task("", total=progress.total)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            bar.update(task, total=progress.total, completed=len(progress.results))
            live.update(Group(bar, Text(_state(progress))), refresh=True)
            await asyncio.sleep(BAR_SECONDS)


def _state(progress: Progress) -> str:
    fates = Counter(result.fate for result in progress.results)
    parts = [f"in flight {progress.inflight}"]
    if fates["failed"]:
        parts.append(f"failed {fates['failed']}")
    if fates["hung_up"]:
        parts.append(f"hung up {fates['hung_up']}")
    recent = progress.results[-RECENT:]
    for name, values in (
        ("TTFT", [result.ttft for result in recent]),
        ("TPOT", [result.tpot for result in recent]),
    ):
        found = spread(values)
        if found is not None:
            parts.append(f"{name} p50 {duration(found.p50)} p95 {duration(found.p95)} p99 {duration(found.p99)}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Three digits with their unit: 12.3 ms, 4.56 s."""
    return f"{seconds * 1000:.3g} ms" if abs(seconds) < 0.9995 else f"{seconds:.3g} s"


def table(report: Report) -> RenderableType:
    """The report as it is printed."""
    head = Table(box=None, show_header=False, pad_edge=False)
    head.add_column()
    head.add_column(overflow="fold")
    for name, value in _facts(report):
        head.add_row(name, value)
    times = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("from intended send", "n", "mean", "P50", "P95", "P99", "max"):
        times.add_column(name, justify="left" if " " in name else "right", no_wrap=True)
    for name, found in (("TTFT", report.ttft), ("TPOT", report.tpot), ("E2E", report.e2e), ("drift", report.drift)):
        times.add_row(name, *_cells(found))
    title = Text(f"Replay of {report.trace} against {report.url} ({report.model})", style="bold")
    return Group(title, head, times, *(Text(f"· {note}") for note in report.notes), _verdict(report))


def _cells(found: Spread | None) -> list[str]:
    if found is None:
        return ["0", *["–"] * 5]
    return [
        f"{found.count:,}",
        *(duration(value) for value in (found.mean, found.p50, found.p95, found.p99, found.max)),
    ]


def _facts(report: Report) -> list[tuple[str, str]]:
    rates = report.rates
    rows = [
        ("rows read", f"{report.read:,}"),
        ("  sent", f"{report.sent:,}"),
        ("    answered", f"{report.ok:,}"),
        ("    hung up on purpose", f"{report.hung_up:,}"),
        ("    failed", _with_kinds(report.failed)),
        ("  skipped", _with_kinds(report.skipped)),
        ("  not reached", f"{report.not_reached:,}"),
        ("clipped to the context", f"{report.clipped:,}"),
        ("calls before the run, to calibrate", f"{report.calibration_calls:,}"),
        ("seconds", f"{report.seconds:,.1f}"),
        (
            "requests per s offered/sent/answered",
            " / ".join(map(_rate, (rates.offered, rates.achieved, rates.completed))),
        ),
        ("prompt tokens", _volume(report.input_tokens, report.input_per_second)),
        ("output tokens", _volume(report.output_tokens, report.output_per_second) + _counted_by(report)),
    ]
    if report.cached_tokens is not None:
        rows.append(("  of the prompt from the prefix cache", f"{report.cached_tokens:,}"))
    if report.lengths is not None:
        rows += _lengths(report.lengths)
    return rows


def _with_kinds(kinds: dict[str, int]) -> str:
    total = sum(kinds.values())
    return f"{total:,}" + (f" ({', '.join(f'{name}: {count}' for name, count in kinds.items())})" if total else "")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _volume(tokens: int, rate: float | None) -> str:
    return f"{tokens:,}" + (f" ({rate:,.1f} per s)" if rate is not None else "")


def _counted_by(report: Report) -> str:
    return {"counted": ", counted by pieces: a lower bound", "mixed": ", in part counted by pieces"}.get(
        report.usage, ""
    )


def _lengths(lengths: Lengths) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if lengths.compared:
        share = lengths.within / lengths.compared
        rows.append(
            (
                "prompts within 2 % or 2 tokens of their length",
                f"{share:.1%} of {lengths.compared:,} (worst {lengths.worst:+d} tokens, mean {lengths.mean_off:+.2%})",
            )
        )
    if lengths.outputs_compared:
        rows.append(("answers shorter than asked", f"{lengths.outputs_short:,} of {lengths.outputs_compared:,}"))
    return rows


def _verdict(report: Report) -> Text:
    if report.invalid:
        return Text("INVALID: " + "; ".join(report.invalid), style="bold red")
    if report.interrupted:
        return Text("interrupted: this is what ran until then", style="yellow")
    return Text("valid: the offered rate was held", style="green")
