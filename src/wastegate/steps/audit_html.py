"""The audit as one page for a browser: charts above, and below them all that the terminal shows. Layout only: every
figure comes from the report and its series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from wastegate.core.attribution import attribute
from wastegate.core.stats import Summary
from wastegate.steps import audit, audit_view, page
from wastegate.steps.audit import Report, Where
from wastegate.steps.charts import Bar, Column, Part, Range, bars, columns, legend, plain, ranges
from wastegate.steps.figures import Split
from wastegate.steps.series import Slice, edges, slices
from wastegate.steps.verdict import Verdict
from wastegate.steps.words import counted, dollars, instant, seconds, share
from wastegate.store.entries import Ledger

KINDS = (("useful", "requests"), ("waste", "waste"), ("idle", "idle"), ("overhead", "overhead"))
LABELS = 10
"""Bars in one chart; the tables hold more."""
SPLITS = 12
"""Charts of labels: route, model, tenant, class, and the first tags."""
_SAID = {
    "pass": "These figures stand",
    "hold": "Take these figures with care",
    "fail": "These figures are wrong",
}


def run(site: Where, start: float = -math.inf, end: float = math.inf) -> tuple[Report, tuple[Slice, ...]]:
    """The audit of [start, end), as ``audit.run`` makes it, and its slices over time. Raises what that raises."""
    with Ledger(site.ledger, create=False) as ledger:
        facts = ledger.facts(start, end)
        report = audit.report(str(site.ledger), facts, attribute(facts), ledger)
    first, last = report.window.start, report.window.end
    if first is None or last is None:
        return report, ()
    local = datetime.fromtimestamp(first).astimezone().utcoffset()
    return report, slices(facts, edges(first, last, local.total_seconds() if local else 0.0))


def write(path: Path, site: Where, start: float = -math.inf, end: float = math.inf) -> Report:
    """Audit, and write the page. Raises what :func:`run` does, and OSError where the page cannot be written."""
    report, series = run(site, start, end)
    save(path, report, series)
    return report


def save(path: Path, report: Report, series: Sequence[Slice]) -> None:
    """Write the page. Raises OSError."""
    page.write(path, render(report, audit.judge(report), series))


def render(report: Report, verdict: Verdict, series: Sequence[Slice]) -> str:
    """The whole document; ``series`` are the slices of the report's window, in order."""
    charts = [chart for chart in _charts(report, series) if chart]
    body = [
        f"<header><h1>{plain(f'Audit of {report.ledger}')}</h1>{_when(report)}</header>",
        page.verdict(verdict.ruling, _SAID[verdict.ruling], verdict.reasons),
        page.tiles(_tiles(report)),
        f'<main class="charts">{"".join(charts)}</main>' if charts else "",
        "<h1>All figures</h1>",
        page.shown(audit_view.view(report, verdict)),
        "<footer>Made by wastegate from its ledger. It holds no prompt and fetches nothing.</footer>",
    ]
    return page.page(f"Audit of {report.ledger}", body)


def _when(report: Report) -> str:
    start, end = report.window.start, report.window.end
    if start is None or end is None:
        return '<p class="faint">Nothing is known of this window.</p>'
    words = f"{instant(start)} to {instant(end)} ({seconds(end - start)}), {counted(report.calls, 'call')}"
    return f'<p class="faint">{plain(words)}</p>'


def _tiles(report: Report) -> list[tuple[str, str]]:
    bill, latency = report.bill, report.latency

    def named(name: str, amount: float) -> tuple[str, str]:
        return (f"{name}, {share(amount / bill.total)}" if bill.total else name, dollars(amount))

    return [
        ("the bill", dollars(bill.total if report.replicas else None)),
        named("requests", bill.requests),
        named("of them waste", bill.waste),
        named("idle", bill.idle),
        ("1,000 requests, all included", dollars(report.per_thousand_loaded)),
        ("E2E, P95", seconds(latency.e2e.p95 if latency.e2e else None)),
    ]


def _charts(report: Report, series: Sequence[Slice]) -> list[str]:
    return [
        _money(report),
        _over_time(series),
        _replicas(report),
        _waste(report),
        *(_split(report, split) for split in report.splits[:SPLITS]),
        _latency(report),
        _dearest(report),
        _naive(report),
    ]


def _money(report: Report) -> str:
    bill = report.bill
    if not bill.total:
        return ""
    useful = bill.requests - bill.waste
    amounts = {"useful": useful, "waste": bill.waste, "idle": bill.idle, "overhead": bill.overhead}
    parts = tuple(
        Part(f"{word}: {dollars(amounts[kind])}, {share(amounts[kind] / bill.total)}", amounts[kind], kind)
        for kind, word in KINDS
    )
    key = legend([(part.kind, part.name) for part in parts])
    chart = bars("Where the money went", [Bar("the bill", dollars(bill.total), parts)], bill.total)
    return page.figure("Where the money went", key + chart, wide=True)


def _over_time(series: Sequence[Slice]) -> str:
    if not any(piece.total for piece in series):
        return ""
    rows = []
    for piece in series:
        hours = (piece.end - piece.start) / 3600
        amounts = (piece.useful, piece.waste, piece.idle, piece.overhead)
        said = [f"{word} {dollars(amount)}" for (_, word), amount in zip(KINDS, amounts, strict=True) if amount]
        text = f"{instant(piece.start)}, {seconds(piece.end - piece.start)}: {', '.join(said) or 'nothing'}; "
        parts = tuple(
            Part(word, max(amount, 0.0) / hours, kind) for (kind, word), amount in zip(KINDS, amounts, strict=True)
        )
        rows.append(Column(piece.start, piece.end, text + counted(piece.calls, "call"), parts))
    ends = (instant(series[0].start)[:16], instant(series[-1].end)[:16])
    title = "Dollars an hour, over time"
    chart = legend(KINDS) + columns(title, rows, ends, lambda amount: f"{dollars(amount)} an hour")
    return page.figure(title, chart, "Height × width is money: the whole area is the bill.", wide=True)


def _replicas(report: Report) -> str:
    paid = sorted((one for one in report.replicas if one.dollars), key=lambda one: -one.dollars)
    rows = [
        Bar(
            replica.name,
            f"{dollars(replica.dollars)}, busy {share(replica.utilisation)}",
            (
                Part(f"requests: {dollars(replica.requests)}", replica.requests, "useful"),
                Part(f"idle: {dollars(replica.idle)}", replica.idle, "idle"),
                Part(f"overhead: {dollars(replica.overhead)}", replica.overhead, "overhead"),
            ),
        )
        for replica in paid[:LABELS]
    ]
    if not rows:
        return ""
    kinds = [pair for pair in KINDS if pair[0] != "waste"]
    return page.figure("Idle, by replica", legend(kinds) + bars("Idle, by replica", rows), _more(len(paid)))


def _more(count: int) -> str:
    return f"{count - LABELS} more in the table below." if count > LABELS else ""


def _waste(report: Report) -> str:
    wasted = sorted(report.bill.waste_by.items(), key=lambda item: -item[1])
    rows = [
        Bar(
            audit_view.WASTE[kind],
            f"{dollars(amount)}, {share(amount / report.bill.total)}",
            (Part(audit_view.WASTE[kind], amount, "waste"),),
        )
        for kind, amount in wasted
        if amount
    ]
    title = "Waste: attempts that came to nothing, and their part of the bill"
    return page.figure(title, bars(title, rows)) if rows else ""


def _split(report: Report, split: Split) -> str:
    known = [row for row in split.rows if row.dollars]
    if not known:
        return ""
    rows = [
        Bar(
            row.name or "(none)",
            f"{dollars(row.dollars)}, {share(row.share)}",
            (
                Part(
                    f"{row.name or '(none)'}: {dollars(row.dollars)}, {counted(row.calls, 'call')}",
                    row.dollars,
                    "plain",
                ),
            ),
        )
        for row in known[:LABELS]
    ]
    title = f"Cost of requests, by {split.by}"
    return page.figure(title, bars(title, rows, report.bill.requests or None), _more(len(known)))


def _latency(report: Report) -> str:
    latency = report.latency
    some = [("TTFT, streamed", latency.ttft), ("TPOT, streamed", latency.tpot), ("E2E", latency.e2e)]
    rows = [_range(name, figures) for name, figures in some if figures is not None and figures.p50 > 0]
    if not rows:
        return ""
    title = "Latency of finished calls: P50, P95, P99"
    return page.figure(title, ranges(title, rows, seconds), "The axis is logarithmic.")


def _range(name: str, figures: Summary) -> Range:
    points = (("P50", figures.p50), ("P95", figures.p95), ("P99", figures.p99))
    return Range(name, " · ".join(seconds(value) for _, value in points), points)


def _dearest(report: Report) -> str:
    rows = [
        Bar(
            f"dearest {share(part)} of requests",
            f"{share(sum_)} of their cost",
            (Part(f"{share(sum_)} of the cost", sum_, "plain"),),
        )
        for part, sum_ in report.per_call.dearest
    ]
    title = "How the cost is spread over requests"
    return page.figure(title, bars(title, rows, 1.0)) if rows else ""


def _naive(report: Report) -> str:
    naive = report.naive
    if naive.ratio is None:
        return ""
    cost = report.bill.requests
    rows = [
        Bar("cost: sums to the bill", dollars(cost), (Part("cost", cost, "useful"),)),
        Bar("rate × duration × memory", dollars(naive.dollars), (Part("the usual formula", naive.dollars, "pale"),)),
    ]
    note = f"The usual formula bills the requests {naive.ratio:.2f} × what they cost" + (
        ": it counts a second once for each call in flight." if naive.ratio > 1 else "."
    )
    title = "What requests cost, and what the usual formula says"
    return page.figure(title, bars(title, rows), note)
