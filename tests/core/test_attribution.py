"""Money is conserved to the nano-dollar, whatever the facts; and each call owes what its work was."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledgers import HOURLY, PLAIN, attempt, calls, entry, span, spans, times
from wastegate.core.attribution import DEFAULT_WORK, WASTE, Charges, apportion, attribute, waste_of
from wastegate.core.facts import Attempts, Calls, Facts, gather
from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.core.sharing import QUANTUM, Costs, loads
from wastegate.core.timeline import nanoseconds

INFINITE = float("inf")
NANO = 1_000_000_000
ROUNDED = 3
"""Nano-dollars that rounding may move: an amount has three parts, each within one of its value."""


def charge(entries: list[Entry], life: list[ReplicaSpan], start: float = -INFINITE, end: float = INFINITE) -> Charges:
    return attribute(gather(entries, life, start, end))


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


@given(calls(), spans(), times, times)
def test_requests_idle_and_overhead_are_the_bill_on_any_window(
    entries: list[Entry], life: list[ReplicaSpan], start: float, length: float
) -> None:
    for window in ((-INFINITE, INFINITE), (start, start + length), (start, INFINITE), (-INFINITE, start)):
        assert_conserved(charge(entries, life, *window))


@given(calls(), spans(), times)
def test_two_windows_that_meet_sum_to_the_whole(entries: list[Entry], life: list[ReplicaSpan], cut: float) -> None:
    whole, before, after = charge(entries, life), charge(entries, life, end=cut), charge(entries, life, cut)
    for name in ("amount", "naive"):
        parts = getattr(before, name) + getattr(after, name) - getattr(whole, name)
        assert (abs(parts) <= 3 * ROUNDED + getattr(whole, name) * 1e-9).all()
    for name in ("bill", "idle", "overhead"):
        assert abs(getattr(before, name) + getattr(after, name) - getattr(whole, name)) <= 3 * len(whole.replicas)


@given(calls(), spans(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(entries: list[Entry], life: list[ReplicaSpan], chance: st.randoms) -> None:  # type: ignore[valid-type]
    facts = gather(entries, life)
    tries = np.array(chance.sample(range(len(facts.attempts.call)), len(facts.attempts.call)), np.int64)  # type: ignore[attr-defined]
    rows = np.array(chance.sample(range(len(facts.calls.key)), len(facts.calls.key)), np.int64)  # type: ignore[attr-defined]
    place = np.argsort(rows)
    moved = {name: getattr(facts.attempts, name)[tries] for name in Attempts.__struct_fields__}
    moved["call"] = place[moved["call"]]
    shuffled = Facts(
        facts.start,
        facts.end,
        Attempts(**moved),
        Calls(**{name: getattr(facts.calls, name)[rows] for name in Calls.__struct_fields__}),
        facts.tags,
        facts.replicas,
        tuple(reversed(life)),
        facts.names,
    )
    one, other = attribute(facts), attribute(shuffled)
    for name in ("amount", "prefill", "decode", "kv", "naive", "priced", "waste"):
        assert (getattr(one, name)[tries] == getattr(other, name)).all()
    assert one.replicas == other.replicas


@given(calls(), spans())
def test_it_agrees_with_reckoning_instant_by_instant(entries: list[Entry], life: list[ReplicaSpan]) -> None:
    facts = gather(entries, life)
    charges = attribute(facts)
    for number, name in enumerate(facts.replicas):
        rows = np.flatnonzero(facts.attempts.replica == number)
        owed = reckon(facts, rows, sorted((s for s in life if s.replica == name), key=lambda s: (s.start, s.phase)))
        for row, exact in zip(rows, owed, strict=True):
            assert abs(int(charges.amount[row]) - exact) <= ROUNDED + exact / 10**9


def reckon(facts: Facts, rows: np.ndarray, life: list[ReplicaSpan]) -> list[Fraction]:
    """What each attempt owes, in exact fractions and without a trick: every stretch between two events on its own."""
    load = loads(facts.attempts, rows, Costs.of(life, DEFAULT_WORK))
    edges = []
    for one in life:
        begin = int(nanoseconds(one.start))
        edges.append((begin, max(begin, int(nanoseconds(one.end if one.end is not None else one.seen)))))
    events = sorted({int(t) for t in (*load.begin, *load.first, *load.end)} | {t for pair in edges for t in pair})
    owed = [Fraction(0)] * len(rows)
    for begin, stop in itertools.pairwise(events):
        price = 0
        for one, (low, high) in zip(life, edges, strict=True):
            if low <= begin < high:
                price = one.price
        weights: dict[int, Fraction] = {}
        fixed: dict[int, int] = {}
        for n in range(len(rows)):
            if load.begin[n] <= begin < load.end[n]:
                prefilling = begin < load.first[n]
                own = int(load.prefill[n]) if prefilling else 0
                if not prefilling or not load.split[n]:
                    own += int(load.decode[n] + load.kv[n])
                    fixed[n] = int(load.fixed[n])
                weights[n] = Fraction(own)
        writers = sum(1 for amount in fixed.values() if amount)
        for n, amount in fixed.items():
            weights[n] += Fraction(amount, max(writers, 1))
        for n, weight in weights.items():
            owed[n] += Fraction(price * (stop - begin), 3600 * NANO) * weight / sum(weights.values())
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
