"""How a paired run is shown to a person: where it is while it runs, its comparisons when it ended. Nothing is measured
or concluded here."""

from __future__ import annotations

import asyncio
import math

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from wastegate.core.comparison import equal
from wastegate.core.intervals import Estimate
from wastegate.load.blocks import Line, Report
from wastegate.load.display import BAR_SECONDS, LINE_SECONDS, duration
from wastegate.load.ladder import Crossing
from wastegate.load.paired import Progress

TIMES = ("ttft_", "e2e_", "tpot_")
"""Figures that are seconds begin like this."""


async def show(progress: Progress, console: Console) -> None:
    """Show a run until cancelled: a live bar on a terminal, else a plain line now and then."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_SECONDS)
            console.print(f"turn {len(progress.done)}/{progress.total} {_state(progress)}", highlight=False)
    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=progress.total)
        while True:
            bar.update(task, total=progress.total, completed=len(progress.done), description=_state(progress))
            await asyncio.sleep(BAR_SECONDS)


def _state(progress: Progress) -> str:
    turn = progress.turn
    if turn is None:
        return "beginning"
    rate = "" if turn.rate is None else f" at {turn.rate:g}{progress.unit}"
    where = "warm-up" if turn.block < 0 else f"block {turn.block + 1}"
    return f"{where}, {turn.arm}{rate}" + (f", {progress.dropped} blocks dropped" if progress.dropped else "")


def table(report: Report) -> RenderableType:
    """The report as it is printed: a table a rung, the rates at equal latency, what may not be believed."""
    parts: list[RenderableType] = [Text(f"{' against '.join(reversed(report.arms))}, paired by block", style="bold")]
    for rate in report.design.rungs:
        parts.append(Text(_rung(report, rate)))
        parts.append(_comparisons([line for line in report.lines if line.rate == rate], report.design.level))
    parts += [Text(_crossing(crossing)) for crossing in report.crossings]
    parts += [Text(f"dropped: {count} blocks, since {why}") for why, count in report.dropped.items()]
    parts += [Text(f"· {note}") for note in report.notes]
    parts += [Text(f"INVALID: {why}", style="bold red") for why in report.invalid]
    return Group(*parts)


def _rung(report: Report, rate: float | None) -> str:
    at = "at the trace's own times" if rate is None else f"at {rate:g} requests/s"
    turns = [turn for block in report.kept(rate) for turn in block.turns]
    own = max((turn.host.own for turn in turns), default=0.0)
    steal = max((turn.host.steal or 0.0 for turn in turns), default=0.0)
    others = max((turn.host.others or 0.0 for turn in turns), default=0.0)
    seen = f"at most {steal:.1%} stolen, {others:.0%} used by others, load generator {own:.0%} of a core"
    return f"{at}: {len(report.kept(rate))} blocks; {seen}"


def _comparisons(lines: list[Line], level: float) -> Table:
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("metric", "arm", "baseline", "value", "against baseline", f"{level:.0%} interval", ""):
        found.add_column(name, justify="left" if name in ("metric", "arm", "") else "right", no_wrap=True)
    for line in lines:
        change, interval = ("–", line.why) if line.estimate is None else _told(line, line.estimate)
        values = (figure(line.metric, line.baseline), figure(line.metric, line.value))
        found.add_row(line.metric, line.arm, *values, change, interval, _differs(line))
    return found


def _told(line: Line, estimate: Estimate) -> tuple[str, str]:
    if line.scale == "ratio":
        return f"×{estimate.value:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.value:+.3g}", f"{estimate.low:+.3g} to {estimate.high:+.3g}"


def _differs(line: Line) -> str:
    """One comparison in twenty says so of arms that are alike."""
    if line.estimate is None or line.estimate.holds(equal(line.scale)):
        return ""
    return "differs"


def figure(metric: str, value: float) -> str:
    """A figure with its unit, as far as its name tells."""
    if not math.isfinite(value):
        return "–"
    return duration(value) if metric.startswith(TIMES) else f"{value:.4g}"


def _crossing(crossing: Crossing) -> str:
    begin = f"{crossing.arm}: {crossing.metric} = {duration(crossing.limit)}"
    if crossing.rate is None:
        return f"{begin}: no rate concluded: {crossing.why}"
    rate = f"{begin} at {crossing.rate.value:.3g}/s ({crossing.rate.low:.3g} to {crossing.rate.high:.3g})"
    if crossing.ratio is None:
        return f"{rate}{': ' if crossing.why else ''}{crossing.why}"
    ratio = crossing.ratio
    return f"{rate}, ×{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) of the baseline's"
