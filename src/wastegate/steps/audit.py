"""The audit: where the money went, over a window of the ledger. It reads and counts; it sends nothing, and how its
report is printed stands elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import Charges, ReplicaBill, attribute
from wastegate.core.facts import Facts
from wastegate.core.ledger import NANO, Basis
from wastegate.core.prefix_stability import RoutePrefixes
from wastegate.steps import figures
from wastegate.steps.figures import Latency, PerCall, Split, Told, Usage
from wastegate.steps.prefixes import prefixes
from wastegate.steps.verdict import Verdict
from wastegate.store.entries import Ledger

TOLERANCE = 1e-3
"""Requests + idle + overhead may differ from the bill by this part of it."""
UNPRICED_SHARE = 0.01
GUESSED_SHARE = 0.05
"""Parts above which the report is held: attempts without a price, and tokens that nobody counted."""


class Where(Protocol):
    """All that an audit must know of where it runs."""

    @property
    def ledger(self) -> Path: ...


class At(Struct, frozen=True):
    """A ledger that was named by its path."""

    ledger: Path


class Window(Struct, frozen=True):
    """Epoch seconds: what was asked for, cut to what the ledger knows. None where it knows nothing."""

    start: float | None
    end: float | None


class Bill(Struct, frozen=True):
    """US dollars. ``total`` is price × up time; ``requests + idle + overhead`` must be the same."""

    total: float
    requests: float
    idle: float
    overhead: float
    waste: float
    """Of ``requests``: attempts that did not finish or were replaced."""
    waste_by: dict[str, float]
    off_by: float
    """|total − requests − idle − overhead|, the three summed anew from every charge."""


class Replica(Struct, frozen=True):
    """One replica's part of the bill."""

    name: str
    dollars: float
    requests: float
    idle: float
    overhead: float
    up_seconds: float
    busy_seconds: float
    utilisation: float | None
    """Of its up time, the part with a call in flight; None where it was not up at a price."""
    unpriced_seconds: float
    """Up, but at no known price: on nobody's bill."""
    work: str
    """Where the figures come from by which its cost is shared among calls in flight together."""
    basis: Basis = "GATEWAY"
    """EXACT: its engine told of each attempt what it did, step by step; DEGRADED: not of all, or only its times;
    GATEWAY: of none, so that a call's part is what the gateway could see."""
    attempts: int = 0
    recorded: int = 0
    """Of them, those that its engine told of."""
    moved: float | None = None
    """Part of ``requests`` that the gateway by itself would have charged to other calls; None without records."""
    joules: float | None = None
    """Energy in the window, idle time too; None where nobody measured."""


class Unpriced(Struct, frozen=True):
    """What ran on replicas that were up at no known price: it costs something, and nobody knows what."""

    attempts: int
    calls: int
    replicas: tuple[str, ...]
    seconds: float
    """Attempt-seconds charged nothing: these, and parts of others outside their replica's known up time."""


class Naive(Struct, frozen=True):
    """The source article's formula, rate ÷ 3600 × duration × memory share, over the same attempts."""

    dollars: float
    ratio: float | None
    """To what the requests cost; above 1 it bills the same second of a replica to several calls."""
    memory_known: float | None
    """Part of the attempts whose memory share is KV held ÷ capacity; the others count as the whole replica."""


class Report(Struct, frozen=True):
    """Everything in US dollars, seconds and tokens."""

    ledger: str
    window: Window
    calls: int
    """That ended in the window."""
    outcomes: dict[str, int]
    bill: Bill
    basis: Basis
    per_call: PerCall
    per_thousand: float | None
    """The mean cost of 1,000 calls by themselves."""
    per_thousand_loaded: float | None
    """The whole bill, idle and overhead too, over the calls that finished at known prices, × 1,000."""
    splits: tuple[Split, ...]
    latency: Latency
    usage: tuple[Usage, ...]
    guessed_tokens: float | None
    """Part of the tokens that is an estimate; None where there are none."""
    uncounted: float | None
    """Part of the attempts that have no token count at all; None where there are none."""
    naive: Naive
    unpriced: Unpriced
    attempts: int
    replicas: tuple[Replica, ...]
    prefixes: tuple[RoutePrefixes, ...] = ()
    """What prompts of a route share, and what of it was computed anew; none where no prompt was measured."""
    told: tuple[Told, ...] = ()
    """Tokens by the engines' own count beside the gateway's."""


def run(site: Where, start: float = -math.inf, end: float = math.inf) -> Report:
    """Audit [start, end), in epoch seconds. Raises FileNotFoundError without a ledger, LedgerError for one that
    cannot be read, ValueError for a window that ends before it starts."""
    with Ledger(site.ledger, create=False) as ledger:
        facts = ledger.facts(start, end)
        charges = attribute(facts)
        return report(str(site.ledger), facts, charges, ledger)


def report(name: str, facts: Facts, charges: Charges, ledger: Ledger) -> Report:
    """The figures of facts and their charges; ``ledger`` names the tags' values."""
    outcomes = figures.outcomes(facts)
    per_call = figures.per_call(facts, charges)
    answered = figures.answered(facts, charges)
    usage = figures.usage(facts)
    tokens = sum(row.tokens for row in usage)
    guessed = sum(row.tokens for row in usage if row.source == "estimated")
    attempts = sum(row.attempts for row in usage)
    uncounted = sum(row.attempts for row in usage if row.source == "none")
    calls = facts.calls
    labels = (
        ("route", calls.route),
        ("model", calls.model),
        ("tenant", calls.tenant),
        ("class", calls.length_class),
    )
    return Report(
        ledger=name,
        window=_window(facts),
        calls=int(figures.ended_inside(facts).sum()),
        outcomes=outcomes,
        bill=_bill(charges),
        basis=charges.basis,
        per_call=per_call,
        per_thousand=per_call.cost.mean * 1000 if per_call.cost is not None else None,
        per_thousand_loaded=charges.bill / NANO / answered * 1000 if answered and charges.bill else None,
        splits=(
            *(figures.split(facts, charges, by, column, lambda _: facts.names) for by, column in labels),
            *figures.tag_splits(facts, charges, lambda codes: ledger.names(codes.tolist())),
        ),
        latency=figures.latency(facts),
        usage=usage,
        guessed_tokens=guessed / tokens if tokens else None,
        uncounted=uncounted / attempts if attempts else None,
        naive=_naive(charges),
        unpriced=_unpriced(facts, charges),
        attempts=len(charges.amount),
        replicas=tuple(_replica(bill) for bill in charges.replicas if bill.up or bill.unpriced or bill.outside),
        prefixes=prefixes(ledger, facts, charges),
        told=figures.told(facts),
    )


def _window(facts: Facts) -> Window:
    starts = [span.start for span in facts.spans]
    ends = [span.end if span.end is not None else span.seen for span in facts.spans]
    if len(facts.calls.key):
        starts, ends = [*starts, float(facts.calls.arrived.min())], [*ends, float(facts.calls.ended.max())]
    if not starts:
        return Window(None, None)
    first, last = max(facts.start, min(starts)), min(facts.end, max(ends))
    return Window(first, last) if first <= last else Window(None, None)


def _bill(charges: Charges) -> Bill:
    by_kind = figures.waste(charges)
    summed = int(charges.amount.sum()) + charges.idle + charges.overhead
    return Bill(
        total=charges.bill / NANO,
        requests=charges.requests / NANO,
        idle=charges.idle / NANO,
        overhead=charges.overhead / NANO,
        waste=sum(by_kind.values()),
        waste_by=by_kind,
        off_by=abs(charges.bill - summed) / NANO,
    )


def _naive(charges: Charges) -> Naive:
    naive, count = int(charges.naive.sum()), len(charges.naive)
    return Naive(
        dollars=naive / NANO,
        ratio=naive / charges.requests if charges.requests else None,
        memory_known=float(charges.memory_known.mean()) if count else None,
    )


def _unpriced(facts: Facts, charges: Charges) -> Unpriced:
    rows = ~charges.priced
    return Unpriced(
        attempts=int(rows.sum()),
        calls=len(np.unique(facts.attempts.call[rows])),
        replicas=tuple(facts.replicas[number] for number in np.unique(facts.attempts.replica[rows])),
        seconds=sum(bill.outside for bill in charges.replicas),
    )


def _replica(bill: ReplicaBill) -> Replica:
    return Replica(
        name=bill.replica,
        dollars=bill.bill / NANO,
        requests=bill.requests / NANO,
        idle=bill.idle / NANO,
        overhead=bill.overhead / NANO,
        up_seconds=bill.up,
        busy_seconds=bill.busy,
        utilisation=bill.busy / bill.up if bill.up else None,
        unpriced_seconds=bill.unpriced,
        work=bill.work.source,
        basis=bill.basis,
        attempts=bill.attempts,
        recorded=bill.recorded,
        moved=bill.moved,
        joules=bill.joules,
    )


def judge(report: Report) -> Verdict:
    """Whether the report's figures can be trusted."""
    bill = report.bill
    failures = []
    if bill.off_by > TOLERANCE * bill.total:
        failures.append(f"requests + idle + overhead miss the bill by ${bill.off_by:.6f}: this is a fault of wastegate")
    doubts = []
    if not report.calls:
        doubts.append("no call ended in this window")
    if not report.replicas:
        doubts.append("no replica is known to have been up in this window, so there is no bill")
    elif not bill.total:
        doubts.append("no replica was up at a known price: give it price_per_hour or an accelerator")
    elif report.unpriced.attempts > UNPRICED_SHARE * report.attempts:
        doubts.append(
            f"{report.unpriced.attempts} of {report.attempts} attempts have no price "
            f"(on {', '.join(report.unpriced.replicas)})"
        )
    if (report.guessed_tokens or 0.0) > GUESSED_SHARE:
        doubts.append(f"{report.guessed_tokens:.0%} of the tokens are estimates")
    if (report.uncounted or 0.0) > GUESSED_SHARE:
        doubts.append(f"{report.uncounted:.0%} of the attempts have no token count")
    return Verdict.of(failures, doubts)
