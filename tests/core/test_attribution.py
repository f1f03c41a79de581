"""Money is conserved to the nano-dollar, whatever the facts; and each call owes what its work was."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledgers import HOURLY, PLAIN, attempt, entry, record, run, span, spans, times, told_calls
from tests.ledgers import gaps as drawn_gaps
from wastegate.core.attribution import DEFAULT_WORK, WASTE, Charges, apportion, attribute, waste_of
from wastegate.core.facts import Attempts, Calls, Facts, Records, gather
from wastegate.core.ledger import EngineRecord, Entry, RecordGap, ReplicaSpan, Work
from wastegate.core.runs import QUANTUM, Told
from wastegate.core.sharing import Costs, loads
from wastegate.core.timeline import nanoseconds

INFINITE = float("inf")
NANO = 1_000_000_000
ROUNDED = 3
"""Nano-dollars that rounding may move: an amount has three parts, each within one of its value."""


Called = tuple[list[Entry], list[EngineRecord]]


def charge(
    entries: list[Entry],
    life: list[ReplicaSpan],
    start: float = -INFINITE,
    end: float = INFINITE,
    records: Iterable[EngineRecord] = (),
    gaps: Iterable[RecordGap] = (),
) -> Charges:
    return attribute(gather(entries, life, start, end, records, gaps))


def assert_conserved(charges: Charges) -> None:
    assert charges.bill == charges.requests + charges.idle + charges.overhead
    assert charges.requests == charges.amount.sum()
    for one in charges.replicas:
        assert one.bill == one.requests + one.idle + one.overhead
        assert one.idle >= 0
        assert one.overhead >= 0
        assert 0 <= one.busy <= one.up + 1e-9
    for part in (charges.prefill, charges.decode, charges.kv, charges.naive):
        assert (part >= 0).all()
    assert (charges.amount == charges.prefill + charges.decode + charges.kv).all()


# ---- properties


@settings(deadline=None)
@given(told_calls(), spans(), times, times, drawn_gaps())
def test_requests_idle_and_overhead_are_the_bill_on_any_window(
    told: Called, life: list[ReplicaSpan], start: float, length: float, gaps: list[RecordGap]
) -> None:
    for window in ((-INFINITE, INFINITE), (start, start + length), (start, INFINITE), (-INFINITE, start)):
        assert_conserved(charge(told[0], life, *window, told[1], gaps))


@settings(deadline=None, max_examples=40)
@given(told_calls(), spans(), times, times)
def test_what_an_engine_tells_changes_parts_and_never_the_bill(
    told: Called, life: list[ReplicaSpan], start: float, length: float
) -> None:
    alone, exact = (charge(told[0], life, start, start + length, records) for records in ((), told[1]))
    assert exact.bill == alone.bill
    for name in ("requests", "idle", "overhead"):  # each replica's are rounded once
        assert abs(getattr(exact, name) - getattr(alone, name)) <= len(exact.replicas)
    assert (exact.estimate == alone.amount).all()
    for one, other in zip(alone.replicas, exact.replicas, strict=True):
        assert (one.busy, one.bill, one.up) == (other.busy, other.bill, other.up)


@settings(deadline=None, max_examples=40)
@given(told_calls(), spans())
def test_energy_is_shared_and_no_more_than_was_used(told: Called, life: list[ReplicaSpan]) -> None:
    charges = charge(told[0], life, records=told[1])
    facts = gather(told[0], life)
    for bill in charges.replicas:
        rows = [facts.replicas[number] == bill.replica for number in facts.attempts.replica]
        joules = charges.joules[rows]
        if bill.joules is None:
            assert np.isnan(joules).all()
        else:
            assert (joules >= 0).all()
            assert joules.sum() <= bill.joules * (1 + 1e-9)


@settings(deadline=None)
@given(told_calls(), spans(), times)
def test_two_windows_that_meet_sum_to_the_whole(told: Called, life: list[ReplicaSpan], cut: float) -> None:
    entries, records = told
    whole = charge(entries, life, records=records)
    before, after = charge(entries, life, end=cut, records=records), charge(entries, life, cut, records=records)
    for name in ("amount", "naive"):
        parts = getattr(before, name) + getattr(after, name) - getattr(whole, name)
        assert (abs(parts) <= 3 * ROUNDED + getattr(whole, name) * 1e-9).all()
    for name in ("bill", "idle", "overhead"):
        assert abs(getattr(before, name) + getattr(after, name) - getattr(whole, name)) <= 3 * len(whole.replicas)


@settings(deadline=None)
@given(told_calls(), spans(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(told: Called, life: list[ReplicaSpan], chance: st.randoms) -> None:  # type: ignore[valid-type]
    facts = gather(told[0], life, records=told[1])
    tries = np.array(chance.sample(range(len(facts.attempts.call)), len(facts.attempts.call)), np.int64)  # type: ignore[attr-defined]
    rows = np.array(chance.sample(range(len(facts.calls.key)), len(facts.calls.key)), np.int64)  # type: ignore[attr-defined]
    place = np.argsort(rows)
    moved = {name: getattr(facts.attempts, name)[tries] for name in Attempts.__struct_fields__}
    moved["call"] = place[moved["call"]]
    records = {name: getattr(facts.records, name) for name in Records.__struct_fields__}
    records["attempt"] = np.argsort(tries)[records["attempt"]]
    shuffled = Facts(
        facts.start,
        facts.end,
        Attempts(**moved),
        Calls(**{name: getattr(facts.calls, name)[rows] for name in Calls.__struct_fields__}),
        facts.tags,
        facts.replicas,
        tuple(reversed(life)),
        facts.names,
        Records(**records),
    )
    one, other = attribute(facts), attribute(shuffled)
    for name in ("amount", "prefill", "decode", "kv", "naive", "priced", "waste", "recorded", "estimate"):
        assert (getattr(one, name)[tries] == getattr(other, name)).all()
    assert one.replicas == other.replicas


@settings(deadline=None)
@given(told_calls(), spans())
def test_it_agrees_with_reckoning_instant_by_instant(told: Called, life: list[ReplicaSpan]) -> None:
    facts = gather(told[0], life, records=told[1])
    charges = attribute(facts)
    for number, name in enumerate(facts.replicas):
        rows = np.flatnonzero(facts.attempts.replica == number)
        owed = reckon(facts, rows, sorted((s for s in life if s.replica == name), key=lambda s: (s.start, s.phase)))
        for row, exact in zip(rows, owed, strict=True):
            assert abs(int(charges.amount[row]) - exact) <= ROUNDED + exact / 10**9


def reckon(facts: Facts, rows: np.ndarray, life: list[ReplicaSpan]) -> list[Fraction]:
    """What each attempt owes, in exact fractions and without a trick: every stretch between two points on its own."""
    points = loads(facts.attempts, rows, Costs.of(life, DEFAULT_WORK), Told.of(facts.records, rows)).points
    edges = []
    for one in life:
        begin = int(nanoseconds(one.start))
        edges.append((begin, max(begin, int(nanoseconds(one.end if one.end is not None else one.seen)))))
    events = sorted({int(t) for t in points.time} | {t for pair in edges for t in pair})
    # A stretch of a chain that weighs something, from one point to its next.
    pieces = [
        (int(points.time[n]), int(points.time[n + 1]), int(points.owner[n]), own, int(points.fixed[n]))
        for n in range(len(points.time))
        if (own := int(points.prefill[n] + points.decode[n] + points.kv[n])) or points.fixed[n]
    ]
    owed = [Fraction(0)] * len(rows)
    for begin, stop in itertools.pairwise(events):
        price = 0
        for one, (low, high) in zip(life, edges, strict=True):
            if low <= begin < high:
                price = one.price
        here = [piece for piece in pieces if piece[0] <= begin < piece[1]]
        writers = max(sum(1 for *_, fixed in here if fixed), 1)
        weights = [(owner, own + Fraction(fixed, writers)) for _, _, owner, own, fixed in here]
        total = sum(weight for _, weight in weights)
        for owner, weight in weights:
            owed[owner] += Fraction(price * (stop - begin), 3600 * NANO) * weight / total
    return owed


@given(st.lists(st.floats(0.0, 1e12), min_size=1, max_size=50))
def test_apportioned_numbers_sum_and_stay_within_one(values: list[float]) -> None:
    array = np.array(values)
    total = round(float(array.sum()))
    whole = apportion(array, total)
    assert whole.sum() == total
    assert (whole >= 0).all()
    assert (abs(whole - array) <= 1.01).all()


# ---- by hand, at a dollar a second


def test_apportion_gives_what_is_left_to_the_largest_remainders_earlier_first() -> None:
    assert apportion(np.array([0.5, 1.5, 0.75, 0.25]), 3).tolist() == [1, 1, 1, 0]
    assert apportion(np.array([0.2, 0.2]), 0).tolist() == [0, 0]
    assert apportion(np.zeros(3), 0).tolist() == [0, 0, 0]


def test_what_floats_cannot_say_falls_to_the_largest() -> None:
    assert apportion(np.array([2.0**60, 3.0]), 2**60 + 200).sum() == 2**60 + 200


def test_two_that_overlap_share_and_are_not_billed_twice() -> None:
    first = entry("first", attempt(begin=0.0, end=6.0, prompt_tokens=1000))
    second = entry("second", attempt(begin=4.0, end=10.0, prompt_tokens=1000))
    charges = charge([first, second], [span(work=PLAIN)])
    assert charges.amount.tolist() == [5 * NANO, 5 * NANO]
    assert charges.naive.tolist() == [6 * NANO, 6 * NANO]
    assert (charges.idle, charges.bill, charges.basis) == (0, 10 * NANO, "GATEWAY")


def test_replicas_are_reckoned_apart() -> None:
    entries = [entry("x", attempt("a", 0.0, 1.0)), entry("y", attempt("b", 0.0, 2.0))]
    charges = charge(entries, [span("a"), span("b", price=HOURLY * 2), span("unused", end=3.0)])
    assert charges.amount.tolist() == [NANO, 4 * NANO]
    bills = {one.replica: (one.bill // NANO, one.requests // NANO, one.idle // NANO) for one in charges.replicas}
    assert bills == {"a": (10, 1, 9), "b": (20, 4, 16), "unused": (3, 0, 3)}


def test_without_a_price_nothing_is_charged_and_it_is_said() -> None:
    entries = [
        entry("x", attempt("a", 0.0, 1.0)),
        entry("y", attempt("b", 0.0, 2.0)),
        entry("z", attempt("a", 20.0, 21.0)),
        entry("instant", attempt("b", 3.0, 3.0)),
    ]
    charges = charge(entries, [span("a"), span("b", price=0)])
    (_instant, *others) = charges.priced.tolist()
    assert _instant, "it took no time, so it owes nothing at any price"
    assert others == [True, False, False]
    assert charges.amount.tolist() == [0, NANO, 0, 0]
    bill = {one.replica: one for one in charges.replicas}
    assert (bill["a"].outside, bill["b"].outside, bill["b"].unpriced) == (1.0, 2.0, 10.0)


def test_a_window_takes_its_part_of_a_long_call() -> None:
    charges = charge([entry("x", attempt(begin=0.0, end=10.0))], [span()], 2.0, 5.0)
    assert (charges.amount[0], charges.bill) == (3 * NANO, 3 * NANO)


def test_an_attempt_outside_the_window_owes_nothing_in_it() -> None:
    charges = charge([entry("x", attempt(begin=0.0, end=1.0))], [span()], 2.0, 5.0)
    assert (charges.amount[0], charges.priced[0], charges.idle) == (0, True, 3 * NANO)


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    for start, end in ((5.0, 2.0), (float("nan"), 2.0)):
        with pytest.raises(ValueError, match="ends"):
            charge([], [], start, end)


def test_waste_is_what_did_not_finish_or_was_replaced() -> None:
    retried = entry(
        "retried",
        attempt(outcome="failed", number=1),
        attempt("b", 1.0, 2.0, number=2, outcome="hung_up"),
        attempt("c", 2.0, 3.0, number=3),
    )
    entries = [retried, *(entry(f"s-{o}", attempt(outcome=o)) for o in ("failed", "finished", "hung_up", "lost"))]
    kinds = [WASTE[kind] for kind in waste_of(gather(entries).attempts)]
    assert kinds == ["superseded", "superseded", "", "failed", "", "hung_up", "lost"]


def test_no_facts_no_charges() -> None:
    charges = charge([], [])
    assert (charges.bill, charges.requests, charges.idle, charges.overhead, charges.replicas) == (0, 0, 0, 0, ())


def test_the_work_used_is_told_with_its_source() -> None:
    measured = charge([], [span("a", work=PLAIN), span("b")])
    assert [one.work.source for one in measured.replicas] == ["a test", DEFAULT_WORK.source]
    assert "not measured" in DEFAULT_WORK.source


def test_a_month_of_a_busy_replica_adds_up() -> None:
    """Many events, a long window, densities far apart: where floats would drift."""
    chance = np.random.default_rng(7)
    begins = np.sort(chance.uniform(0, 2_592_000, 20_000)) + 1.79e9
    entries = [
        entry(
            f"{number:06}",
            attempt(
                begin=float(begin),
                end=float(begin + length),
                first_token=float(begin + length * 0.1),
                prompt_tokens=int(chance.integers(1, 100_000)),
                output_tokens=int(chance.integers(1, 4_000)),
            ),
        )
        for number, (begin, length) in enumerate(zip(begins, chance.lognormal(1.0, 3.0, len(begins)), strict=True))
    ]
    life = [span(start=1.79e9, end=1.79e9 + 2_592_000, price=98_320_000_000)]
    charges = charge(entries, life)
    assert_conserved(charges)
    assert charges.bill == 98_320_000_000 * 720
    days = [charge(entries, life, 1.79e9 + day * 86_400, 1.79e9 + (day + 1) * 86_400) for day in range(30)]
    summed = sum(day.amount for day in days)
    assert (abs(summed - charges.amount) <= 31 * ROUNDED + charges.amount * 1e-9).all()


# ---- what engines tell, at a dollar a second


def pair(**second: Any) -> list[Entry]:
    """Two calls in flight together for ten seconds, of which the gateway sees the same."""
    seen: dict[str, Any] = {"begin": 0.0, "end": 10.0, "first_token": 1.0, "prompt_tokens": 100, "output_tokens": 100}
    return [entry("x", attempt(**seen)), entry("y", attempt(**{**seen, **second}))]


def test_the_time_in_the_engines_queue_is_not_charged_as_work() -> None:
    # y waited for nine seconds, of which the gateway saw nothing.
    records = [
        record("x.1", run(0.0, 10.0, 100, decode=100)),
        record("y.1", run(9.0, 10.0, 10, decode=10)),
    ]
    charges = charge(pair(), [span(work=PLAIN)], records=records)
    assert charge(pair(), [span(work=PLAIN)]).amount.tolist() == [5 * NANO, 5 * NANO]
    assert charges.amount / NANO == pytest.approx([9.5, 0.5], rel=2e-2)
    (bill,) = charges.replicas
    assert (bill.basis, bill.attempts, bill.recorded) == ("EXACT", 2, 2)
    assert bill.moved == pytest.approx(0.45, abs=0.01)
    assert charges.estimate.tolist() == [5 * NANO, 5 * NANO]


def test_a_steps_time_is_shared_by_the_work_in_it_however_long_it_takes() -> None:
    # Both decode in all of 20 steps; in the last of them, nine seconds long, y also has 90 prompt tokens computed.
    records = [
        record("x.1", run(0.0, 10.0, 20, decode=20)),
        record("y.1", run(0.0, 1.0, 19, decode=19), run(1.0, 10.0, 1, prefill=90, decode=1)),
    ]
    charges = charge(pair(), [span(work=PLAIN)], records=records)
    # One token decoded is 10 ms, 90 prompt tokens are 90: the last step is a tenth x's.
    last = 9.0 * 10 / (10 + 100)
    assert charges.amount[0] / NANO == pytest.approx(0.5 + last, rel=1e-2)


def test_cached_tokens_cost_nothing_to_compute_and_what_they_hold_is_paid() -> None:
    work = Work(prefill=0.001, decode=0.0, kv=0.001, source="a test")
    records = [
        record("x.1", run(0.0, 10.0, 1, prefill=100, kv=1000.0)),
        record("y.1", run(0.0, 10.0, 1, prefill=0, kv=1000.0), cached=100),
    ]
    charges = charge(pair(), [span(work=work)], records=records)
    assert charges.prefill / NANO == pytest.approx([10 / 3, 0.0], abs=3e-2)
    assert charges.kv / NANO == pytest.approx([10 / 3, 10 / 3], rel=1e-2)


def test_draft_tokens_are_paid_by_whom_they_were_verified_for() -> None:
    records = [
        record("x.1", run(0.0, 10.0, 10, decode=10)),
        record("y.1", run(0.0, 10.0, 10, decode=10, draft=100)),
    ]
    charges = charge(pair(), [span(work=PLAIN)], records=records)  # 10 ms decoded, 10 × 1 ms drafted a step
    assert charges.amount / NANO == pytest.approx([10 / 3, 20 / 3], rel=1e-2)


def test_every_choice_of_an_answer_is_its_calls() -> None:
    records = [record("x.1", run(0.0, 10.0, 10, decode=10))] * 2 + [record("y.1", run(0.0, 10.0, 10, decode=10))]
    charges = charge(pair(), [span(work=PLAIN)], records=records)
    assert charges.amount / NANO == pytest.approx([20 / 3, 10 / 3], rel=1e-2)


@pytest.mark.parametrize(
    ("records", "gap", "basis"),
    [
        (["x", "y"], None, "EXACT"),
        (["x"], None, "DEGRADED"),
        ([], None, "GATEWAY"),
        (["x", "y"], (2.0, 3.0), "DEGRADED"),
        (["x", "y"], (10.0, 30.0), "EXACT"),
    ],
)
def test_the_basis_says_whether_the_engine_told_all(
    records: list[str], gap: tuple[float, float] | None, basis: str
) -> None:
    told = [record(f"{name}.1", run(0.0, 10.0, 10, decode=10)) for name in records]
    gaps = [RecordGap("a", *gap, None), RecordGap("b", 0.0, 9.0, 1)] if gap else []
    charges = charge(pair(), [span(end=40.0)], records=told, gaps=gaps)
    assert (charges.replicas[0].basis, charges.basis) == (basis, basis)
    assert charges.recorded.tolist() == ["x" in records, "y" in records]


def test_records_of_times_alone_are_no_exact_basis() -> None:
    told = [record(f"{name}.1", run(0.0, 10.0, 0, prefill=10), measured="times") for name in "xy"]
    assert charge(pair(), [span()], records=told).basis == "DEGRADED"


def test_what_never_reached_the_engine_needs_no_record() -> None:
    refused = entry("z", attempt(begin=0.0, end=1.0, outcome="failed", status=503))
    told = [record(f"{name}.1", run(0.0, 10.0, 10, decode=10)) for name in "xy"]
    assert charge([*pair(), refused], [span()], records=told).basis == "EXACT"


def test_one_replica_without_records_makes_the_whole_a_gateways_estimate() -> None:
    told = [record(f"{name}.1", run(0.0, 10.0, 10, decode=10)) for name in "xy"]
    elsewhere = entry("z", attempt("b", 0.0, 1.0))
    charges = charge([*pair(), elsewhere], [span(), span("b"), span("c")], records=told)
    assert {one.replica: one.basis for one in charges.replicas} == {"a": "EXACT", "b": "GATEWAY", "c": "GATEWAY"}
    assert charges.basis == "GATEWAY"
    assert charge([], []).basis == "GATEWAY"


def test_records_count_for_nothing_where_nothing_is_charged() -> None:
    charges = charge(pair(), [span(price=0)], records=[record("x.1", run(0.0, 10.0, 10, decode=10))])
    assert charges.replicas[0].moved is None


def test_the_memory_share_of_the_usual_formula_is_the_kv_that_was_held() -> None:
    told = [record("x.1", run(0.0, 10.0, 10, decode=10, kv=5000.0))]
    charges = charge(pair(), [span(kv_capacity=1000)], records=told)
    assert charges.naive[0] == 5 * NANO
    assert charges.memory_known.tolist() == [True, True]


def test_energy_is_charged_as_the_money_is() -> None:
    life = [span(work=PLAIN, joules=400.0), span(start=10.0, end=20.0, joules=600.0)]
    charges = charge(pair(output_tokens=300), life)
    assert charges.joules.sum() == pytest.approx(400.0)
    assert charges.joules / 400 == pytest.approx(charges.amount / (10 * NANO), rel=1e-6)
    assert charges.replicas[0].joules == pytest.approx(1000.0)
    unmeasured = charge(pair(), [span()])
    assert np.isnan(unmeasured.joules).all()
    assert unmeasured.replicas[0].joules is None


# ---- the page that tells of it


def test_the_worked_example_of_the_page_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs/costs.md").read_text(encoding="utf-8")
    entries = [
        entry("A", attempt(begin=0.0, end=10.0, prompt_tokens=2000, output_tokens=400)),
        entry("B", attempt(begin=0.0, end=10.0, prompt_tokens=500, output_tokens=100)),
        entry("C", attempt(begin=10.0, end=20.0, prompt_tokens=500, output_tokens=100)),
    ]
    life = [
        span(start=-30.0, end=0.0, phase="loading", price=3_600_000_000, work=PLAIN),
        span(start=0.0, end=60.0, price=3_600_000_000, work=PLAIN),
    ]
    charges = charge(entries, life)
    assert_conserved(charges)
    for name, amount, naive in zip("ABC", charges.amount, charges.naive, strict=True):
        assert f"| {name} | {amount / NANO:.3f} | {naive / NANO:.3f} |" in page
    total = (charges.requests, charges.idle, charges.overhead, charges.bill)
    assert "requests {:.3f} + idle {:.3f} + overhead {:.3f} = bill {:.3f}".format(*(t / NANO for t in total)) in page
    assert f"{charges.naive.sum() / charges.requests:.2f} times" in page
    assert QUANTUM < 1e-6
