"""What leaves the ledger is each call once, with charges that sum to the bill, whatever the slices."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledgers import HOURLY, PLAIN, attempt, calls, entry, record, run, span, spans
from wastegate.core.attribution import WASTE, attribute
from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.core.records import Cursor, Heard
from wastegate.store.entries import Ledger
from wastegate.store.export import Call, Sweep


def swept(
    ledger: Ledger, size: int, start: float = -math.inf, end: float = math.inf, batch: int = 3
) -> tuple[dict[str, Call], Sweep]:
    sweep = Sweep(ledger, start, end, size, batch)
    some = [call for batch_ in sweep.calls() for call in batch_]
    assert len({call.entry.id for call in some}) == len(some), "a call left twice"
    return {call.entry.id: call for call in some}, sweep


def test_charges_are_those_of_the_attribution(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        known = {"prompt_tokens": 1000, "output_tokens": 100}
        ledger.add(
            [
                entry("x", attempt("a", 0, 10, first_token=2.0, **known)),
                entry("y", attempt("a", 5, 8, outcome="failed"), attempt("b", 8, 12, number=2, **known)),
                entry("z"),
            ]
        )
        ledger.save_spans([span("a", 0, 20, work=PLAIN), span("b", 0, 20, price=0)])
        found, sweep = swept(ledger, 100)
        facts = ledger.facts(-math.inf, math.inf)
        charges = attribute(facts)
    assert {name: len(call.charges) for name, call in found.items()} == {"x": 1, "y": 2, "z": 0}
    assert [charge.cost for name in "xy" for charge in found[name].charges] == charges.amount.tolist()
    assert [charge.waste for name in "xy" for charge in found[name].charges] == [WASTE[n] for n in charges.waste]
    assert [charge.priced for name in "xy" for charge in found[name].charges] == [True, True, False]
    assert [(bill.replica, bill.bill, bill.work) for bill in sweep.bills] == [
        ("a", 20_000_000_000, "a test"),
        ("b", 0, sweep.bills[1].work),
    ]
    assert sweep.bills[1].unpriced == 20.0


@settings(max_examples=40, deadline=None)
@given(calls(), spans(), st.integers(1, 4), st.tuples(st.floats(0, 10), st.floats(10, 40)))
def test_slices_change_no_charge_by_more_than_rounding(
    some: list[Entry], life: list[ReplicaSpan], size: int, window: tuple[float, float]
) -> None:
    with Ledger(Path(":memory:")) as ledger:
        ledger.add(some)
        ledger.save_spans(life)
        whole, one = swept(ledger, 1000, *window)
        cut, many = swept(ledger, size, *window)
    assert whole.keys() == cut.keys()
    slack = 4 * (len(some) + 2)
    for name, call in whole.items():
        assert call.entry == cut[name].entry
        for ours, theirs in zip(call.charges, cut[name].charges, strict=True):
            assert ours.cost == pytest.approx(theirs.cost, abs=slack, rel=1e-6)
            assert ours.naive == pytest.approx(theirs.naive, abs=slack, rel=1e-6)
            assert ours.waste == theirs.waste
            assert ours.cost == ours.prefill + ours.decode + ours.kv
    requests = sum(bill.requests for bill in many.bills)
    assert sum(charge.cost for call in cut.values() for charge in call.charges) == requests
    for bill, other in zip(one.bills, many.bills, strict=True):
        assert bill.replica == other.replica
        assert other.bill == other.requests + other.idle + other.overhead
        assert bill.bill == pytest.approx(other.bill, abs=slack)
        assert bill.busy == pytest.approx(other.busy, abs=1e-6)


def test_a_long_call_over_many_slices_leaves_once_with_all_its_cost(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        short = [entry(f"s{n}", attempt("b", n, n + 0.5)) for n in range(20)]
        ledger.add([entry("long", attempt("a", 0, 19.25)), *short])
        ledger.save_spans([span("a", 0, 20), span("b", 0, 20)])
        found, _ = swept(ledger, 2)
    assert len(found) == 21
    assert found["long"].charges[0].cost == pytest.approx(19.25e9, abs=20)


def test_a_part_without_a_price_makes_no_call_unpriced_that_cost_something(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.add([entry("x", attempt("a", 0, 10)), *(entry(f"s{n}", attempt("b", n, n + 0.5)) for n in range(10))])
        ledger.save_spans([span("a", 0, 3, price=0), span("a", 3, 10, price=HOURLY)])
        found, _ = swept(ledger, 2)
    assert found["x"].charges[0].priced
    assert not found["s1"].charges[0].priced


def test_what_engines_and_meters_told_leaves_too(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        calls = [entry(f"c{n}", attempt("a", n, n + 1.5, first_token=n + 0.5, output_tokens=5)) for n in range(8)]
        ledger.add([*calls, entry("other", attempt("b", 0, 8))])
        told = [record(f"c{n}.1", run(n, n + 1.5, steps=5, prefill=10, decode=4), arrived=float(n)) for n in range(4)]
        ledger.save_records([Heard("a", Cursor("boot", 4, 9.0), tuple(told))])
        ledger.save_spans([span("a", 0, 10, work=PLAIN, joules=200.0), span("b", 0, 10)])
        found, sweep = swept(ledger, 3)
        whole, _ = swept(ledger, 100)
    assert [found[f"c{n}"].charges[0].recorded for n in range(8)] == [True] * 4 + [False] * 4
    shares = [found[f"c{n}"].charges[0].joules for n in range(8)]
    assert all(share is not None for share in shares)
    assert shares == pytest.approx([whole[f"c{n}"].charges[0].joules for n in range(8)], rel=0.05)
    assert found["other"].charges[0].joules is None
    assert [(bill.replica, bill.basis) for bill in sweep.bills] == [("a", "GATEWAY"), ("b", "GATEWAY")]
    assert sweep.bills[0].joules == pytest.approx(200.0)
    assert sweep.bills[1].joules is None


def test_a_window_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger, pytest.raises(ValueError, match="before it starts"):
        Sweep(ledger, 2.0, 1.0)


def test_an_empty_ledger_has_nothing_to_give(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        assert swept(ledger, 5)[0] == {}


def test_what_is_written_meanwhile_is_not_seen_by_half(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger, Ledger(tmp_path / "l.db") as gateway:
        ledger.add([entry(f"c{n}", attempt("a", n, n + 1)) for n in range(6)])
        sweep = Sweep(ledger, -math.inf, math.inf, 2, 1)
        batches = sweep.calls()
        seen = next(batches)
        gateway.add([entry("new", attempt("a", 5.5, 6.5))])
        seen += [call for batch in batches for call in batch]
        assert "new" not in {call.entry.id for call in seen}
        assert len(seen) == 6
        assert ledger.count() == 7


def test_memory_does_not_grow_with_the_ledger(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        with Ledger(tmp_path / f"{count}.db") as ledger:
            ledger.add([entry(f"c{n}", attempt("a", n, n + 3, output_tokens=5)) for n in range(count)])
            ledger.save_spans([span("a", 0, count)])
            ledger.facts(0, 1)  # what is imported and cached once is not counted
            tracemalloc.start()
            left = sum(len(batch) for batch in Sweep(ledger, -math.inf, math.inf, 200, 50).calls())
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert left == count
            return most

    assert peak(4000) < 1.5 * peak(800)
