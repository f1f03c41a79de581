"""The audit of a load test on a terminal. Layout only: every figure comes from the report."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.steps.loadtest import Report, Tested
from wastegate.steps.verdict import Verdict
from wastegate.steps.words import NOTHING, counted, dollars, seconds

UNREAD = 10
"""Files named that could not be read."""


def view(report: Report, verdict: Verdict) -> Group:
    """Everything to print."""
    parts: list[RenderableType] = [Text(_heading(report), style="bold")]
    for run in report.runs:
        parts.append(_table(run, priced=report.price is not None))
        said = [
            f"  {finding.kind} ({_stages(finding.stages)}): {finding.text}"
            for finding in report.findings
            if finding.run == run.name
        ]
        parts.append(Text("\n".join(said)))
    parts += [_unread(report), _verdict(verdict)]
    return Group(*(part for part in parts if not (isinstance(part, Text) and not part.plain)))


def _heading(report: Report) -> str:
    price = f", at {dollars(report.price)} an hour" if report.price is not None else ""
    return f"{counted(report.read, 'report')} of {counted(len(report.runs), 'run')}{price}"


def _stages(numbers: Sequence[int]) -> str:
    """ "stage 3", "stages 0–6", "stages 1, 4"."""
    if len(numbers) == 1:
        return f"stage {numbers[0]}"
    in_a_row = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"stages {numbers[0]}–{numbers[-1]}" if in_a_row else f"stages {', '.join(map(str, numbers))}"


def _table(run: Tested, priced: bool) -> Table:
    table = Table(
        title=Text(f"{run.name}: at most {run.most:.1f} requests a second"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    names = ("stage", "asked /s", "answered /s", "requests", "TTFT P95", "E2E P95", "in flight")
    for name in (*names, *(("$ / 1,000", "$ / M out") if priced else ())):
        table.add_column(name, justify="right")
    for row in run.rows:
        table.add_row(
            str(row.number),
            NOTHING if row.asked is None else f"{row.asked:.1f}",
            f"{row.rate:.1f}",
            f"{row.count:,}",
            seconds(row.ttft_p95),
            seconds(row.p95),
            NOTHING if row.in_flight is None else f"{row.in_flight:.0f}",
            *((dollars(row.per_thousand), dollars(row.million_out)) if priced else ()),
        )
    return table


def _unread(report: Report) -> Text:
    lines = [f"  {fault.where}: {fault.reason}: {fault.detail}" for fault in report.unread[:UNREAD]]
    if not lines:
        return Text("")
    more = len(report.unread) - UNREAD
    tail = [f"  and {more} more"] if more > 0 else []
    return Text("\n".join((f"{counted(len(report.unread), 'file')} not read:", *lines, *tail)))


def _verdict(verdict: Verdict) -> Text:
    if verdict.ruling == "pass":
        return Text("nothing here contradicts itself", style="bold green")
    return Text(
        "\n".join(("take these reports with care", *(f"  {reason}" for reason in verdict.reasons))), style="yellow"
    )
