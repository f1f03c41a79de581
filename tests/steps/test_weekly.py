"""The week's figures are the audit's; drivers sum to the change; a forecast is only made from enough weeks, and holds
as often as it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.ledgers import HOURLY, PLAIN, attempt, entry, span
from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.steps import audit
from wastegate.steps.audit import At
from wastegate.steps.weekly import LEAST_WEEKS, MOST_WEEKS, WEEK, Report, forecast, judge, run
from wastegate.store.entries import Ledger

T = 1_790_000_000.0
NOW = T + 2 * WEEK
CENT = HOURLY // 100 // 3600
"""Nano-dollars an hour that make an hour cost a cent."""


def at(folder: Path, entries: Sequence[Entry], life: Sequence[ReplicaSpan]) -> At:
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
    return At(folder / "ledger.db")


def call(name: str, begin: float, length: float = 100.0, **other: str) -> Entry:
    return entry(name, attempt("a", begin, begin + length, prompt_tokens=100, output_tokens=10), **other)


def two_weeks(folder: Path) -> At:
    """Last week one replica all week and a call; this week it costs double, another came, and calls grew."""
    life = [
        span("a", T, T + WEEK, price=CENT, work=PLAIN),
        span("a", T + WEEK, T + 2 * WEEK, price=2 * CENT, work=PLAIN),
        span("b", T + WEEK, T + WEEK + 36000, price=CENT),
    ]
    later = T + WEEK
    calls = [
        call("one", T + 1000, tenant="acme"),
        call("gone", T + 3000, tenant="gone"),
        call("two", later + 1000, tenant="acme"),
        call("three", later + 2000, tenant="acme"),
        call("four", later + 3000, tenant="new", route="mail"),
    ]
    return at(folder, calls, life)


def test_the_week_is_what_the_audit_says_of_it(tmp_path: Path) -> None:
    site = two_weeks(tmp_path)
    week = run(site, NOW).week
    bill = audit.run(site, NOW - WEEK, NOW).bill
    assert (week.bill, week.idle, week.waste) == (bill.total, bill.idle, bill.waste)
    assert week.useful + week.waste + week.idle + week.overhead == pytest.approx(week.bill)
    assert week.bill == pytest.approx(168 * 0.02 + 10 * 0.01)
    assert week.calls == 3
    assert week.per_thousand == pytest.approx(week.bill / 3 * 1000)
    assert week.dark == 0.0


def test_replicas_drive_the_bill_by_their_hours_and_their_prices(tmp_path: Path) -> None:
    report = run(two_weeks(tmp_path), NOW)
    assert report.before is not None
    dearer, new = report.replicas
    assert (dearer.replica, dearer.by_time) == ("a", 0.0)
    assert dearer.by_price == pytest.approx(1.68)
    assert (new.replica, new.hours, new.hours_before) == ("b", 10.0, 0.0)
    assert [new.by_time, new.by_price] == pytest.approx([0.1, 0.0])
    drivers = sum(one.by_time + one.by_price for one in report.replicas)
    assert drivers == pytest.approx(report.week.bill - report.before.bill)


def test_labels_drive_the_cost_of_requests_by_number_and_by_each(tmp_path: Path) -> None:
    report = run(two_weeks(tmp_path), NOW)
    assert report.before is not None
    tenants = {driver.name: driver for driver in report.labels if driver.by == "tenant"}
    acme, gone, new = tenants["acme"], tenants["gone"], tenants["new"]
    unit = 100 / 3600 / 100
    assert (acme.calls_before, acme.calls) == (1, 2)
    assert acme.by_calls == pytest.approx(unit)
    assert acme.by_each == pytest.approx(2 * unit)
    assert (gone.calls, gone.by_each) == (0, 0.0)
    assert gone.change == pytest.approx(-unit)
    assert (new.calls_before, new.by_each) == (0, 0.0)
    requests = report.week.useful - report.before.useful
    for by in ("tenant", "route", "model"):
        assert sum(one.change for one in report.labels if one.by == by) == pytest.approx(requests)
    assert report.labels[0].by == "route"


def test_without_a_whole_week_before_nothing_is_compared(tmp_path: Path) -> None:
    site = at(tmp_path, [call("x", NOW - 1000)], [span("a", NOW - 1.5 * WEEK, NOW, price=CENT)])
    report = run(site, NOW)
    assert (report.before, report.replicas, report.labels) == (None, (), ())
    assert report.known_from == NOW - 1.5 * WEEK
    assert report.forecast is None
    assert len(report.history) == 1


def test_an_empty_ledger_has_a_week_of_nothing(tmp_path: Path) -> None:
    report = run(at(tmp_path, [], []), NOW)
    assert report.known_from is None
    assert (report.week.bill, report.week.calls, report.week.per_thousand, report.week.dark) == (0.0, 0, None, WEEK)
    assert (report.history, report.forecast) == ((), None)
    assert judge(report).ruling == "hold"


def test_hours_in_which_nobody_was_up_are_counted(tmp_path: Path) -> None:
    life = [
        span("a", NOW - WEEK, NOW - WEEK + 3600, price=CENT),
        span("b", NOW - WEEK + 1800, None, seen=NOW - WEEK + 7200, price=CENT),
        span("a", NOW - 3600, NOW - 1800, price=CENT),
        span("c", NOW - WEEK - 50, NOW - WEEK - 20, price=CENT),
        span("d", NOW + 50, NOW + 90, price=CENT),
    ]
    assert run(at(tmp_path, [], life), NOW).week.dark == pytest.approx(WEEK - 7200 - 1800)


def weeks(folder: Path, hours: Sequence[float]) -> Report:
    """A ledger of so many whole weeks, the oldest first, each with so many hours up at a cent."""
    first = NOW - WEEK * len(hours)
    life = [span("a", first + n * WEEK, first + n * WEEK + up * 3600, price=CENT) for n, up in enumerate(hours) if up]
    return run(at(folder, [entry("first", arrived=first, ended=first)], life), NOW)


def test_a_forecast_rests_on_whole_weeks_alone(tmp_path: Path) -> None:
    report = weeks(tmp_path, [10, 12, 11, 9, 10])
    assert report.history == pytest.approx((0.10, 0.12, 0.11, 0.09, 0.10))
    ahead = report.forecast
    assert ahead is not None
    assert ahead.weeks == LEAST_WEEKS
    assert ahead.bill == pytest.approx(0.10)
    # Changes of 2, −1, −2 and 1 cents: their root mean square × t(0.95, 4) = 1.5811 × 2.1318.
    assert [ahead.low, ahead.high] == pytest.approx([0.10 - 0.033706, 0.10 + 0.033706], abs=1e-5)


def test_a_week_in_which_nothing_was_recorded_ends_the_history(tmp_path: Path) -> None:
    report = weeks(tmp_path, [10, 10, 0, 10, 10])
    assert report.history == pytest.approx((0.10, 0.10))
    assert report.forecast is None


def test_history_is_bounded(tmp_path: Path) -> None:
    assert len(weeks(tmp_path, [10] * (MOST_WEEKS + 4)).history) == MOST_WEEKS


def test_a_bill_is_never_forecast_below_nothing() -> None:
    ahead = forecast((1.0, 9.0, 0.5, 8.0, 1.0))
    assert ahead is not None
    assert ahead.low == 0.0
    assert forecast((1.0,) * (LEAST_WEEKS - 1)) is None


def wandering(chance: random.Random) -> list[float]:
    bills = [1000.0]
    for _ in range(8):
        bills.append(bills[-1] + chance.gauss(0, 30))
    return bills


def steady(chance: random.Random) -> list[float]:
    return [chance.gauss(1000, 30) for _ in range(9)]


def growing(chance: random.Random) -> list[float]:
    return [1000 + 40 * n + chance.gauss(0, 30) for n in range(9)]


@pytest.mark.parametrize("kind", [wandering, steady, growing])
def test_the_next_week_lies_within_the_interval_as_often_as_it_says(
    kind: Callable[[random.Random], list[float]],
) -> None:
    chance, hits, tries = random.Random(5), 0, 2000
    for _ in range(tries):
        *known, truth = kind(chance)
        ahead = forecast(known)
        assert ahead is not None
        hits += ahead.low <= truth <= ahead.high
    # Three standard errors of 2,000 tries below the level.
    assert hits / tries >= 0.9 - 0.02
