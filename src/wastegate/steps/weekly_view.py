"""The weekly report in words, for a terminal and for a page. Sentences and layout only: every figure comes from the
report."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.steps import page
from wastegate.steps.charts import Bar, Part, bars, plain
from wastegate.steps.verdict import Verdict
from wastegate.steps.weekly import LEAST_WEEKS, LabelDriver, ReplicaDriver, Report
from wastegate.steps.words import counted, dollars, instant, seconds, share

_PARTS = (
    ("useful", "requests that were of use"),
    ("waste", "waste: attempts that came to nothing"),
    ("idle", "idle: up, nobody in flight"),
    ("overhead", "overhead: loading, warm-up, draining, probes"),
)


def view(report: Report, verdict: Verdict) -> Group:
    """Everything to print."""
    parts: list[RenderableType] = [Text(_title(report), style="bold"), _said(summary(report))]
    if report.week.bill or report.before is not None:
        parts.append(_parts(report))
    if report.before is not None:
        parts += [_said(replicas(report)), _said(labels(report))]
    parts += [_said(outlook(report)), _trust(verdict)]
    return Group(*(part for part in parts if not (isinstance(part, Text) and not part.plain)))


def html(report: Report, verdict: Verdict) -> str:
    """The same as one page, with the weeks as bars."""
    rows = [
        Bar(_ago(len(report.history) - 1 - place), dollars(bill), (Part(dollars(bill), bill, "plain"),))
        for place, bill in enumerate(report.history)
    ]
    title = "The bill, week by week"
    charts = f'<main class="charts">{page.figure(title, bars(title, rows), wide=True)}</main>' if rows else ""
    head = f"<h1>{plain(_title(report))}</h1>"
    shown = page.shown(Group(*list(view(report, verdict).renderables)[1:]))
    return page.page(_title(report), [head, charts, shown])


def _title(report: Report) -> str:
    return f"The week from {instant(report.week.start)} to {instant(report.week.end)}"


def _said(lines: Iterator[str]) -> Text:
    return Text("\n".join(lines))


def _ago(weeks: int) -> str:
    return ("this week", "the week before")[weeks] if weeks < 2 else f"{weeks} weeks before"


def summary(report: Report) -> Iterator[str]:
    """The bill, its change, and what a thousand answers cost."""
    week, before = report.week, report.before
    if not week.calls:
        yield "No call ended in this week."
    if not week.bill:
        yield "There is no bill: no replica is known to have been up at a known price."
    elif before is None:
        yield f"The bill was {dollars(week.bill)}."
    else:
        yield f"The bill was {dollars(week.bill)}, {_against(week.bill, before.bill)} ({dollars(before.bill)})."
    if before is None:
        yield _no_comparison(report)
    if week.per_thousand is not None:
        change = ""
        if before is not None and before.per_thousand is not None:
            change = f", {_against(week.per_thousand, before.per_thousand)}"
        yield f"1,000 answered requests cost {dollars(week.per_thousand)} with everything around them{change}."
    if week.calls and before is not None:
        yield f"There were {counted(week.calls, 'call')}, after {before.calls:,} in the week before."
    if week.bill and week.dark >= 3600:
        yield f"In {seconds(week.dark)} of the week no replica is known to have been up: nothing ran, or nobody wrote."


def _no_comparison(report: Report) -> str:
    if report.known_from is None:
        return "Nothing is recorded yet, so there is nothing to compare it with."
    begins = f"the ledger begins on {instant(report.known_from)}"
    if report.known_from > report.week.start:
        known = seconds(max(report.week.end - report.known_from, 0.0))
        return f"It covers {known} only, and cannot be compared with a week before: {begins}."
    return f"It cannot be compared with a whole week before: {begins}."


def _against(now: float, before: float) -> str:
    """The change, in words."""
    change = now - before
    if abs(change) < 0.0005 * max(abs(before), abs(now)) or not change:
        return "the same as the week before"
    much = f"{dollars(abs(change))} {'more' if change > 0 else 'less'} than the week before"
    return f"{share(abs(change) / before)} or {much}" if before else much


def _parts(report: Report) -> Table:
    week, before = report.week, report.before
    table = Table(title="Where it went", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("this week", "of the bill", *(("the week before", "change") if before is not None else ())):
        table.add_column(name, justify="right")

    def row(name: str, read: str, style: str = "") -> None:
        now: float = getattr(week, read)
        cells = [dollars(now), share(now / week.bill if week.bill else None)]
        if before is not None:
            then: float = getattr(before, read)
            cells += [dollars(then), signed(now - then)]
        table.add_row(name, *cells, style=style)

    for read, name in _PARTS:
        row(name, read)
    table.add_section()
    row("price × up time", "bill", "bold")
    return table


def signed(amount: float) -> str:
    """+$1.20, −$0.35, $0."""
    return f"{'+' if amount > 0 else '−'}{dollars(abs(amount))}" if amount else "$0"


def replicas(report: Report) -> Iterator[str]:
    """Why the bill changed against the week before: hours and prices of replicas."""
    if not report.replicas:
        yield "No replica was up for longer or shorter, and no price changed."
        return
    yield "Why the bill changed:"
    yield from (f"  {_replica(driver)}" for driver in report.replicas)


def _replica(driver: ReplicaDriver) -> str:
    reasons = []
    if driver.by_time:
        if not driver.hours_before:
            reasons.append(f"{signed(driver.by_time)}, new, up for {_hours(driver.hours)}")
        elif not driver.hours:
            reasons.append(f"{signed(driver.by_time)}, gone; it was up for {_hours(driver.hours_before)}")
        else:
            more = driver.hours - driver.hours_before
            how = "longer" if more > 0 else "shorter"
            reasons.append(f"{signed(driver.by_time)}, up for {_hours(abs(more))} {how}")
    if abs(driver.by_price) >= 5e-10:
        reasons.append(f"{signed(driver.by_price)}, its price {'rose' if driver.by_price > 0 else 'fell'}")
    return f"{driver.replica}: {'; '.join(reasons)}"


def _hours(hours: float) -> str:
    return seconds(hours * 3600)


def labels(report: Report) -> Iterator[str]:
    """Whose requests cost more or less than before, and whether that is their number or each one's cost."""
    kind = ""
    for driver in report.labels:
        if driver.by != kind:
            kind = driver.by
            yield f"What requests cost, by {kind}, where it changed most:"
        yield f"  {_label(driver)}"


def _label(driver: LabelDriver) -> str:
    name = driver.name or "(none)"
    if not driver.calls_before:
        return f"{name}: {signed(driver.change)}, new with {counted(driver.calls, 'call')}"
    if not driver.calls:
        return f"{name}: {signed(driver.change)}, no calls any more (there were {driver.calls_before:,})"
    more = driver.calls - driver.calls_before
    number = f"{counted(abs(more), 'more call' if more > 0 else 'fewer call')} ({signed(driver.by_calls)})"
    each = f"each {'dearer' if driver.by_each > 0 else 'cheaper'} ({signed(driver.by_each)} in all)"
    reasons = [*([number] if more else []), *([each] if driver.by_each else [])]
    return f"{name}: {signed(driver.change)}: {', '.join(reasons)}"


def outlook(report: Report) -> Iterator[str]:
    """The next week's bill, or why nobody can say."""
    known, ahead = len(report.history), report.forecast
    if ahead is None:
        yield (
            f"There is too little history to forecast the next week: {counted(known, 'whole week')} "
            f"with a bill {'is' if known == 1 else 'are'} known, and it takes {LEAST_WEEKS}."
        )
        return
    yield (
        f"Next week's bill: about {dollars(ahead.bill)}, and between {dollars(ahead.low)} and {dollars(ahead.high)} in "
        f"{ahead.level * 10:.0f} of 10 cases, if weeks go on differing as the last {ahead.weeks} did."
    )


def _trust(verdict: Verdict) -> Text:
    if verdict.ruling == "pass":
        return Text("")
    head = "These figures are wrong:" if verdict.ruling == "fail" else "Take these figures with care:"
    return Text("\n".join((head, *(f"  {reason}" for reason in verdict.reasons))), style="yellow")
