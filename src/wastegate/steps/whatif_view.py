"""What-ifs as a terminal and as a page show them. Layout only: no figure is made here."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.sim.tally import Figures
from wastegate.steps import page
from wastegate.steps.charts import Bar, Column, Part, Range, bars, columns, plain, ranges
from wastegate.steps.verdict import Verdict
from wastegate.steps.whatif import Report


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"


def dollars(value: float | None) -> str:
    return "–" if value is None else f"${value:,.2f}" if value >= 0.1 else f"${value:.4f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def view(report: Report, verdict: Verdict) -> RenderableType:
    """One run."""
    return Group(_head(report), _latency(report), _machines(report), _notes(report, verdict))


def _head(report: Report) -> Table:
    table = Table(title=f"What if: {report.traffic}", title_justify="left", show_header=False, box=None)
    outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(report.outcomes.items()))
    rows = [
        ("calls", f"{report.calls:,} in {report.seconds:,.0f} s ({outcomes})"),
        ("within the goal", share(report.good)),
        ("tokens", f"{report.prompt_tokens:,} in ({report.cached_tokens:,} cached), {report.output_tokens:,} out"),
        ("output", f"{report.output_rate:,.1f} tokens/s"),
        ("waited, retried", f"{report.waited:,}, {report.retried:,}"),
        ("cost", f"{dollars(report.dollars)}; {dollars(report.per_thousand)} for 1,000 calls, "
                 f"{dollars(report.per_million_output)} for a million output tokens"),
        ("step times", f"±{report.doubt:.0%}, {report.outside:.1%} of the busy time outside what is known"),
        ("simulated in", seconds(report.took)),
    ]  # fmt: skip
    for name, text in rows:
        table.add_row(Text(name, "dim"), Text(text))
    return table


def _latency(report: Report) -> Table:
    table = Table(title="Latency", title_justify="left")
    table.add_column("")
    for name in ("mean", "P50", "P90", "P95", "P99"):
        table.add_column(name, justify="right")
    for name, figures in (("TTFT", report.ttft), ("TPOT", report.tpot), ("E2E", report.e2e), ("in line", report.queue)):
        values = (figures.mean, figures.p50, figures.p90, figures.p95, figures.p99)
        table.add_row(name, *map(seconds, values))
    return table


def _machines(report: Report) -> Table:
    table = Table(title="Machines", title_justify="left")
    table.add_column("")
    for name in ("busy", "cached", "KV peak", "preempted", "outside", "step ±"):
        table.add_column(name, justify="right")
    for one in report.machines:
        table.add_row(
            Text(one.name), share(one.busy), share(one.cached), share(one.kv_peak), f"{one.preempted:,}",
            share(one.outside), share(one.doubt),
        )  # fmt: skip
    return table


def _notes(report: Report, verdict: Verdict) -> Text:
    lines = [*report.notes, *(f"{verdict.ruling}: {reason}" for reason in verdict.reasons)]
    return Text("\n".join(lines))


def many(reports: Sequence[Report], verdicts: Sequence[Verdict]) -> RenderableType:
    """A sweep, a row a run."""
    table = Table(title=f"What if: {reports[0].traffic}", title_justify="left")
    goal = any(report.good is not None for report in reports)
    table.add_column("changed", overflow="fold", min_width=12)
    for name in ("answered", *(("good",) if goal else ()), "TTFT P50", "TTFT P95", "TPOT", "E2E P95", "$/1,000"):
        table.add_column(name, justify="right", no_wrap=True)
    for report, verdict in zip(reports, verdicts, strict=True):
        doubt = "" if verdict.ruling == "pass" else f" ({verdict.ruling})"
        table.add_row(
            Text(report.label + doubt), f"{report.outcomes.get('finished', 0):,}",
            *((share(report.good),) if goal else ()), seconds(report.ttft.p50), seconds(report.ttft.p95),
            seconds(report.tpot.mean), seconds(report.e2e.p95), dollars(report.per_thousand),
        )  # fmt: skip
    reasons = {reason for verdict in verdicts for reason in verdict.reasons}
    return Group(table, Text("\n".join(sorted(reasons))))


def html(reports: Sequence[Report], verdicts: Sequence[Verdict]) -> str:
    """The same as one page with charts."""
    first = reports[0]
    single = len(reports) == 1
    rows = [row for report in reports for row in _lines(report, single)]
    charts = [page.figure("Latency, P50 to P99", ranges("Latency", rows, seconds), wide=True)] if rows else []
    priced = [report for report in reports if report.per_thousand is not None]
    if len(priced) > 1:
        charts.append(page.figure("Cost of 1,000 answered calls", bars("Cost", [_cost(report) for report in priced])))
    if single:
        charts += _over_time(first)
    body = [f"<h1>{plain(f'What if: {first.traffic}')}</h1>", f'<div class="charts">{"".join(charts)}</div>']
    shown = view(first, verdicts[0]) if single else many(reports, verdicts)
    return page.page("wastegate: what if", [*body, page.shown(shown)])


def _lines(report: Report, single: bool) -> list[Range]:
    names = (("TTFT", report.ttft), ("TPOT", report.tpot), ("E2E", report.e2e))
    return [
        Range(name if single else f"{name} {report.label}", seconds(figures.p50), points)
        for name, figures in names[: 3 if single else 1]
        if (points := _points(figures))
    ]


def _points(figures: Figures) -> tuple[tuple[str, float], ...]:
    named = (("P50", figures.p50), ("P90", figures.p90), ("P95", figures.p95), ("P99", figures.p99))
    return tuple((name, value) for name, value in named if value is not None and value > 0)


def _cost(report: Report) -> Bar:
    amount = report.per_thousand or 0.0
    return Bar(report.label, dollars(amount), (Part("cost", amount, "plain"),))


def _over_time(report: Report) -> list[str]:
    width = report.column_seconds
    made = []
    for title, values, write in (
        ("Calls that came, by time", [each / width for each in report.arrivals], lambda value: f"{value:.3g}/s"),
        ("Mean TTFT, by time of arrival", report.mean_ttft, seconds),
    ):
        rows = [
            Column(place * width, (place + 1) * width, write(value), (Part(write(value), value, "plain"),))
            for place, value in enumerate(values)
        ]
        if rows:
            ends = "0 s", f"{len(rows) * width:,.0f} s"
            made.append(page.figure(title, columns(title, rows, ends, write)))
    return made
