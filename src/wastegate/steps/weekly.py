"""The week's bill for those who pay it: what it was, how it changed, what drove the change, and what the next one may
be. Figures only; how they are said stands elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import Charges, ReplicaBill, attribute
from wastegate.core.distributions import student_quantile
from wastegate.core.facts import Codes, Facts, gather
from wastegate.core.ledger import NANO, ReplicaSpan
from wastegate.steps import audit, figures
from wastegate.steps.audit import Where
from wastegate.steps.verdict import Verdict
from wastegate.store.entries import Ledger

WEEK = 7 * 86400.0
LEAST_WEEKS = 5
"""Whole weeks that a forecast needs: fewer than four changes from week to week say next to nothing of the fifth."""
MOST_WEEKS = 26
LEVEL = 0.9
SHOWN = 5
"""Drivers named for one label."""


class Week(Struct, frozen=True):
    """One week, in US dollars: ``useful + waste + idle + overhead`` is the bill."""

    start: float
    end: float
    bill: float
    useful: float
    """What the requests cost, without waste."""
    waste: float
    idle: float
    overhead: float
    calls: int
    """That ended in it."""
    per_thousand: float | None
    """The whole bill over the calls that finished at known prices, × 1,000."""
    dark: float
    """Seconds in which no replica is known to have been up."""


class ReplicaDriver(Struct, frozen=True):
    """Why one replica's bill changed: ``by_time + by_price`` dollars."""

    replica: str
    by_time: float
    """Hours up, more or fewer, at the old price (the new one where it was not there before)."""
    by_price: float
    hours: float
    """This week."""
    hours_before: float


class LabelDriver(Struct, frozen=True):
    """Why the cost of one label's requests changed: ``by_calls + by_each`` dollars."""

    by: str
    name: str
    by_calls: float
    """More or fewer calls, at what one cost before."""
    by_each: float
    """What one costs now against before, over this week's calls."""
    calls: int
    calls_before: int

    @property
    def change(self) -> float:
        return self.by_calls + self.by_each


class Forecast(Struct, frozen=True):
    """The next week's bill in dollars, if weeks go on differing as they have: between ``low`` and ``high`` in
    ``level`` of cases."""

    bill: float
    low: float
    high: float
    level: float
    weeks: int
    """Whole weeks that it rests on."""


class Report(Struct, frozen=True):
    """``before`` is None where the ledger does not reach back over the whole week before."""

    ledger: str
    known_from: float | None
    """When the ledger begins."""
    week: Week
    before: Week | None
    replicas: tuple[ReplicaDriver, ...]
    """The largest change first; nothing where there is no week before."""
    labels: tuple[LabelDriver, ...]
    history: tuple[float, ...]
    """The bills of whole weeks that are known, the oldest first, this week's last."""
    forecast: Forecast | None
    trust: Verdict
    """Of this week's figures, as the audit judges them."""


def run(site: Where, until: float) -> Report:
    """The seven days before ``until``, in epoch seconds. Raises what ``audit.run`` raises."""
    with Ledger(site.ledger, create=False) as ledger, ledger.still():
        facts = ledger.facts(until - WEEK, until)
        charges = attribute(facts)
        trust = audit.judge(audit.report(str(site.ledger), facts, charges, ledger))
        known_from = ledger.begins()
        week = _week(facts, charges)
        history = _history(facts.spans, until, known_from)
        before: Week | None = None
        replicas: tuple[ReplicaDriver, ...] = ()
        labels: tuple[LabelDriver, ...] = ()
        if known_from is not None and known_from <= until - 2 * WEEK:
            old = ledger.facts(until - 2 * WEEK, until - WEEK)
            paid = attribute(old)
            before = _week(old, paid)
            replicas = _replicas(paid.replicas, charges.replicas)
            labels = _labels(old, paid, facts, charges)
    return Report(str(site.ledger), known_from, week, before, replicas, labels, history, forecast(history), trust)


def judge(report: Report) -> Verdict:
    """Whether the week's figures can be trusted; a missing comparison or forecast is no reason to doubt them."""
    return report.trust


def forecast(history: Sequence[float], level: float = LEVEL) -> Forecast | None:
    """From whole weeks' bills, the oldest first; None where they are too few.

    The next week is taken to differ from this one as neighbouring weeks have differed so far: Student's interval on
    those changes, around no change at all. It holds for bills that wander and for bills that stay about the same
    (there it is a little wide); of a change that no week has seen, nothing can know.
    """
    if len(history) < LEAST_WEEKS:
        return None
    changes = np.diff(np.array(history))
    spread = float(np.sqrt((changes**2).mean()))
    reach = student_quantile((1 + level) / 2, len(changes)) * spread
    return Forecast(history[-1], max(history[-1] - reach, 0.0), history[-1] + reach, level, len(history))


def _week(facts: Facts, charges: Charges) -> Week:
    wasted = int(charges.amount[charges.waste > 0].sum())
    answered = figures.answered(facts, charges)
    return Week(
        start=facts.start,
        end=facts.end,
        bill=charges.bill / NANO,
        useful=(charges.requests - wasted) / NANO,
        waste=wasted / NANO,
        idle=charges.idle / NANO,
        overhead=charges.overhead / NANO,
        calls=int(figures.ended_inside(facts).sum()),
        per_thousand=charges.bill / NANO / answered * 1000 if answered and charges.bill else None,
        dark=_dark(facts.spans, facts.start, facts.end),
    )


def _dark(spans: Sequence[ReplicaSpan], start: float, end: float) -> float:
    """Seconds of [start, end) that no span covers."""
    dark, reached = 0.0, start
    for begin, stop in sorted((span.start, span.end if span.end is not None else span.seen) for span in spans):
        if stop > reached and begin < end:
            dark += max(begin - reached, 0.0)
            reached = max(reached, stop)
    return dark + max(end - reached, 0.0)


def _history(spans: Sequence[ReplicaSpan], until: float, known_from: float | None) -> tuple[float, ...]:
    """Bills of whole weeks back from ``until``, up to one that the ledger does not cover or in which nothing ran:
    a week that nobody recorded is no week that cost nothing. The bill needs no calls."""
    bills: list[float] = []
    for number in range(MOST_WEEKS):
        start, end = until - (number + 1) * WEEK, until - number * WEEK
        if known_from is None or start < known_from:
            break
        bill = attribute(gather((), spans, start, end)).bill
        if not bill:
            break
        bills.append(bill / NANO)
    return tuple(reversed(bills))


def _replicas(before: Sequence[ReplicaBill], now: Sequence[ReplicaBill]) -> tuple[ReplicaDriver, ...]:
    old, new = ({bill.replica: bill for bill in bills} for bills in (before, now))
    drivers = []
    for name in old.keys() | new.keys():
        (cost, hours), (cost_before, hours_before) = _paid(new.get(name)), _paid(old.get(name))
        price = cost_before / hours_before if hours_before else cost / hours if hours else 0.0
        by_time = (hours - hours_before) * price
        drivers.append(ReplicaDriver(name, by_time, cost - cost_before - by_time, hours, hours_before))
    drivers = [driver for driver in drivers if driver.by_time or driver.by_price]
    return tuple(sorted(drivers, key=lambda one: (-abs(one.by_time + one.by_price), one.replica)))


def _paid(bill: ReplicaBill | None) -> tuple[float, float]:
    """Dollars, and hours up at a price."""
    return (bill.bill / NANO, bill.up / 3600) if bill is not None else (0.0, 0.0)


def _labels(before: Facts, paid: Charges, now: Facts, charges: Charges) -> tuple[LabelDriver, ...]:
    drivers: list[LabelDriver] = []
    for by in ("route", "model", "tenant"):
        old = _by_label(before, paid, getattr(before.calls, by))
        new = _by_label(now, charges, getattr(now.calls, by))
        names = {**before.names, **now.names}
        some = [_label(by, names[code], old.get(code, (0.0, 0)), new.get(code, (0.0, 0))) for code in old.keys() | new]
        some = [driver for driver in some if driver.change]
        drivers += sorted(some, key=lambda one: (-abs(one.change), one.name))[:SHOWN]
    return tuple(drivers)


def _by_label(facts: Facts, charges: Charges, labels: Codes) -> Mapping[int, tuple[float, int]]:
    """Dollars and calls, by the label's number."""
    codes, place = np.unique(labels, return_inverse=True)
    cost = np.bincount(place, weights=figures.by_call(facts, charges.amount), minlength=len(codes)) / NANO
    calls = np.bincount(place, weights=figures.ended_inside(facts), minlength=len(codes))
    return {int(code): (float(cost[n]), int(calls[n])) for n, code in enumerate(codes)}


def _label(by: str, name: str, before: tuple[float, int], now: tuple[float, int]) -> LabelDriver:
    (cost_before, calls_before), (cost, calls) = before, now
    change = cost - cost_before
    by_calls = (calls - calls_before) * cost_before / calls_before if calls_before else change
    if math.isclose(by_calls, change, rel_tol=1e-9, abs_tol=1e-12):
        by_calls = change
    return LabelDriver(by, name, by_calls, change - by_calls, calls, calls_before)
