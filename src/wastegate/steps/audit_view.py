"""The audit's report on a terminal. Layout only: every figure comes from the report."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.core.attribution import DEFAULT_WORK
from wastegate.core.stats import Summary
from wastegate.steps.audit import Replica, Report
from wastegate.steps.prefixes_view import prefixes_view
from wastegate.steps.verdict import Verdict
from wastegate.steps.words import NOTHING, counted, dollars, instant, joules, seconds, share

WASTE = {
    "superseded": "tried again elsewhere",
    "failed": "failed",
    "hung_up": "left by the client",
    "lost": "lost when the gateway died",
    "refused": "refused by the replica",
}
_OUTCOMES = {
    "finished": "finished",
    "failed": "failed",
    "refused": "never sent to a replica",
    "hung_up": "left by the client",
    "lost": "lost when the gateway died",
}
_SOURCES = {
    "engine": "counted by the engine",
    "counted": "counted in the stream",
    "estimated": "estimated from bytes",
    "none": "without a count",
}
_COLOURS = {"pass": "green", "hold": "yellow", "fail": "red"}


def view(report: Report, verdict: Verdict) -> Group:
    """Everything to print, from the bill down."""
    parts: list[RenderableType] = [_heading(report)]
    if report.bill.total:
        parts.append(_bill(report))
    if report.replicas:
        parts.append(_replicas(report))
    if report.calls:
        parts += [_per_call(report), _latency(report), _splits(report), _outcomes(report)]
    if report.prefixes:
        parts.append(prefixes_view(report.prefixes))
    parts += [_notes(report), _verdict(verdict)]
    return Group(*parts)


def _heading(report: Report) -> Text:
    start, end = report.window.start, report.window.end
    text = Text(f"Audit of {report.ledger}\n", style="bold")
    if start is not None and end is not None:
        text.append(f"{instant(start)} to {instant(end)} ({seconds(end - start)})", style="not bold")
    if not report.calls:
        text.append("\nNo call ended in this window, so there is no cost per request to show.", style="not bold")
    return text


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """The first ``left`` columns are words, the others figures."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    return table


def _bill(report: Report) -> Table:
    bill = report.bill
    table = _table("The bill", "", "dollars", "of the bill")

    def row(name: str, amount: float, style: str = "") -> None:
        table.add_row(name, dollars(amount), share(amount / bill.total), style=style)

    row("requests", bill.requests)
    for kind, amount in sorted(bill.waste_by.items(), key=lambda item: -item[1]):
        row(f"  of it wasted: {WASTE[kind]}", amount, "dim")
    row("idle: up, nobody in flight", bill.idle)
    row("overhead: loading, warm-up, draining, probes", bill.overhead)
    table.add_section()
    row("price × up time", bill.total, "bold")
    return table


def _replicas(report: Report) -> Table:
    unpriced = any(replica.unpriced_seconds for replica in report.replicas)
    energy = any(replica.joules is not None for replica in report.replicas)
    columns = ("", "dollars", "requests", "idle", "overhead", "up", "busy", *(["unpriced"] if unpriced else []),
               *(["kWh"] if energy else []), "basis")  # fmt: skip
    table = _table("Replicas", *columns)
    for replica in report.replicas:
        parts = (replica.dollars, replica.requests, replica.idle, replica.overhead)
        table.add_row(
            Text(replica.name),
            *(dollars(part if replica.up_seconds or not replica.unpriced_seconds else None) for part in parts),
            seconds(replica.up_seconds),
            share(replica.utilisation),
            *([seconds(replica.unpriced_seconds)] if unpriced else []),
            *([NOTHING if replica.joules is None else f"{replica.joules / 3.6e6:.4g}"] if energy else []),
            replica.basis if replica.attempts else NOTHING,
        )
    return table


def _summary(name: str, figures: Summary | None, write: Callable[[float], str]) -> tuple[str, ...]:
    if figures is None:
        return (name, "not measured")
    parts = (figures.mean, figures.p50, figures.p95, figures.p99)
    return (name, *(write(part) for part in parts), f"{figures.count:,}")


def _per_call(report: Report) -> Group:
    costs = report.per_call
    table = _table("Cost per request", "", "mean", "P50", "P95", "P99", "calls")
    table.add_row(*_summary("by itself", costs.cost, dollars))
    if costs.energy is not None:
        table.add_row(*_summary("its energy", costs.energy, joules))
    lines = [
        f"1,000 requests: {dollars(report.per_thousand)} by themselves; {dollars(report.per_thousand_loaded)} with "
        "idle, overhead and waste spread over those that finished",
        f"a million tokens in: {dollars(costs.million_in)} (their prefill; {costs.tokens_in:,} tokens, cached too)",
        f"a million tokens out: {dollars(costs.million_out)} (their decode and KV; {costs.tokens_out:,} tokens)",
        *(f"the dearest {share(part)} of requests cost {share(sum_)}" for part, sum_ in costs.dearest),
    ]
    naive = report.naive
    if naive.ratio is not None:
        lines.append(
            f"rate × duration × memory share would bill the requests {dollars(naive.dollars)}: {naive.ratio:.2f} × "
            f"their cost ({_memory(naive.memory_known)})"
        )
    return Group(table, Text("\n".join(lines)))


def _memory(known: float | None) -> str:
    if not known:
        return "memory share taken as 1: no replica says how much KV it holds"
    return (
        f"memory share known for {share(known)} of attempts, taken as 1 for the others"
        if known < 1
        else "memory share: KV held ÷ capacity"
    )


def _latency(report: Report) -> Table:
    table = _table("Latency of finished calls", "", "mean", "P50", "P95", "P99", "calls")
    table.add_row(*_summary("TTFT, streamed", report.latency.ttft, seconds))
    table.add_row(*_summary("TPOT, streamed", report.latency.tpot, seconds))
    table.add_row(*_summary("E2E", report.latency.e2e, seconds))
    return table


def _splits(report: Report) -> Table:
    unpriced = any(row.unpriced for split in report.splits for row in split.rows)
    columns = ("by", "", "calls", *(["unpriced"] if unpriced else []), "dollars", "of requests")
    table = _table("What requests cost, by label", *columns, left=2)
    for split in report.splits:
        for number, row in enumerate(split.rows):
            known = row.dollars > 0 or not row.unpriced
            table.add_row(
                Text("" if number else split.by),
                Text(row.name or "(none)"),  # a label may hold what rich takes for markup
                f"{row.calls:,}",
                *([f"{row.unpriced:,}"] if unpriced else []),
                dollars(row.dollars if known else None),
                share(row.share if known else None),
            )
        table.add_section()
    return table


def _outcomes(report: Report) -> Text:
    ended = [f"{count:,} {_OUTCOMES[name]}" for name, count in report.outcomes.items()]
    counts = [
        f"{counted(row.attempts, 'attempt')} {_SOURCES[row.source]} ({row.tokens:,} tokens)" for row in report.usage
    ]
    lines = [f"{counted(report.calls, 'call')}: {', '.join(ended)}"]
    if counts:
        lines.append(f"token counts: {', '.join(counts)}")
    return Text("\n".join(lines))


def _notes(report: Report) -> Text:
    """What must not be taken for more than it is."""
    notes = []
    guessed = [replica for replica in report.replicas if replica.attempts and replica.basis == "GATEWAY"]
    if report.bill.requests and guessed:
        where = (
            f" on {', '.join(replica.name for replica in guessed)}" if report.basis != "GATEWAY" or report.told else ""
        )
        notes.append(
            f"Calls in flight together{where} share a replica's cost by the work that they make, seen from the gateway "
            "only: the total is exact, each call's part is an estimate."
        )
    notes += [_told(report, replica) for replica in report.replicas if replica.recorded]
    default = [replica.name for replica in report.replicas if replica.work == DEFAULT_WORK.source]
    if default and report.bill.requests:
        notes.append(f"Work on {', '.join(default)} is weighed by {DEFAULT_WORK.source}.")
    if report.unpriced.attempts:
        notes.append(
            f"Unpriced: {counted(report.unpriced.attempts, 'attempt')} of {counted(report.unpriced.calls, 'call')} on "
            f"{', '.join(report.unpriced.replicas)} ran at no known price. They are in no figure of dollars."
        )
    if report.unpriced.seconds >= 0.001:
        notes.append(
            f"{seconds(report.unpriced.seconds)} of attempts fell outside the known, priced up time of their replica."
        )
    if report.guessed_tokens:
        notes.append(f"{share(report.guessed_tokens)} of the tokens are estimates, not counts.")
    return Text("\n".join(notes), style="dim")


def _told(report: Report, replica: Replica) -> str:
    """How far the engine's own account goes, and how far from it the gateway would have been."""
    said = (
        f"{replica.name} ({replica.basis}): its engine tells of {replica.recorded:,} of {replica.attempts:,} attempts"
    )
    if replica.moved is not None:
        said += f"; the gateway alone would have charged {share(replica.moved)} of their cost to other calls"
    for counts in report.told:
        if counts.replica == replica.name:
            pairs = [("in", counts.prompt), ("cached", counts.cached), ("out", counts.output)]
            said += "; tokens by gateway and engine: " + ", ".join(
                f"{name} {pair[0]:,} and {pair[1]:,}" for name, pair in pairs if pair is not None
            )
    return said + "."


def _verdict(verdict: Verdict) -> Text:
    said = {"pass": "these figures stand", "hold": "take these figures with care", "fail": "these figures are wrong"}
    text = Text(said[verdict.ruling], style=f"bold {_COLOURS[verdict.ruling]}")
    for reason in verdict.reasons:
        text.append(f"\n  {reason}", style="not bold")
    return text
