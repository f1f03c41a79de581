"""From facts to charges: each replica's cost, instant by instant, shared among the calls in flight on it.

Money is conserved: per replica, requests + idle + overhead is price × up time to the nano-dollar. Pure and
re-runnable: nothing but facts may enter, so the same facts give the same charges tomorrow. The method is told in
``docs/costs.md``; ``core.timeline`` holds the replica's side of it and ``core.sharing`` the calls'.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from wastegate.core.facts import OUTCOMES, Attempts, Bytes, Facts, Flags, Floats, Ints
from wastegate.core.ledger import Basis, ReplicaSpan, Work
from wastegate.core.runs import Told
from wastegate.core.sharing import Costs, Shared, loads, share
from wastegate.core.timeline import timeline

DEFAULT_WORK = Work(
    prefill=1.0e-4,
    decode=1.0e-4,
    kv=9.0e-8,
    fixed=8.0e-3,
    source="default, not measured here: Llama-3-8B in BF16 on an A100, worked out from its data sheet",
)
"""Only the ratios matter. 16 GB of weights at 2 TB/s: 8 ms a step. 16 GFLOP a token at half of 312 TFLOP/s:
0.1 ms. 128 KiB of KV a token at 1.5 TB/s: 0.09 µs."""

WASTE = ("", "superseded", "failed", "hung_up", "lost", "refused")
"""Why an attempt's charge is waste; position 0: it is not."""


class ReplicaBill(Struct, frozen=True, gc=False):
    """One replica over the window: nano-dollars, and seconds. ``bill`` is requests + idle + overhead."""

    replica: str
    bill: int
    requests: int
    idle: int
    overhead: int
    up: float
    """Up at a known price: what the bill is for."""
    busy: float
    """Of that, with an attempt in flight."""
    serving: float
    unpriced: float
    """Up at no known price: on nobody's bill."""
    outside: float
    """Attempt-seconds in which it was not known to be up at a price: they are charged nothing."""
    work: Work
    """The cost of work last used for it; its source says whether it was measured."""
    basis: Basis = "GATEWAY"
    """EXACT: its engine told of every attempt that it answered here, step by step. DEGRADED: of some, or from their
    times alone, or with a gap. GATEWAY: of none."""
    attempts: int = 0
    """In the window."""
    recorded: int = 0
    """Of them, those that the engine told of."""
    moved: float | None = None
    """Part of ``requests`` that the gateway's own estimate puts on other attempts than the engine's records do; None
    without records."""
    joules: float | None = None
    """Energy in the window; None where nobody measured."""


class Charges(Struct, frozen=True, eq=False):
    """One row an attempt, in the order of ``Facts.attempts``, in whole nano-dollars."""

    amount: Ints
    """prefill + decode + kv."""
    prefill: Ints
    decode: Ints
    kv: Ints
    naive: Ints
    """The source article's formula: rate × duration × memory share."""
    memory_known: Flags
    """That share is KV held ÷ capacity; otherwise it is 1, the whole replica."""
    priced: Flags
    """False: it ran in this window, and at no time of it was its replica known to be up at a price."""
    waste: Bytes
    """Position in :data:`WASTE`."""
    recorded: Flags
    """The replica's engine told what it did for the attempt."""
    estimate: Ints
    """What the amount would be by what the gateway alone saw; the amount itself where no engine tells more."""
    joules: Floats
    """Energy, shared as the money is; NaN where the replica's is not known."""
    replicas: tuple[ReplicaBill, ...]

    @property
    def basis(self) -> Basis:
        """The least sure of the replicas that had attempts."""
        found = {replica.basis for replica in self.replicas if replica.attempts}
        return "EXACT" if found == {"EXACT"} else "DEGRADED" if found and "GATEWAY" not in found else "GATEWAY"

    @property
    def bill(self) -> int:
        return sum(replica.bill for replica in self.replicas)

    @property
    def requests(self) -> int:
        return sum(replica.requests for replica in self.replicas)

    @property
    def idle(self) -> int:
        return sum(replica.idle for replica in self.replicas)

    @property
    def overhead(self) -> int:
        return sum(replica.overhead for replica in self.replicas)


def attribute(facts: Facts, default: Work = DEFAULT_WORK) -> Charges:
    """Charge every attempt for its part of the window. ``default`` stands in where no work was measured.

    Raises ValueError where the window ends before it starts.
    """
    if not facts.start <= facts.end:
        raise ValueError(f"the window ends ({facts.end}) before it starts ({facts.start})")
    attempts = facts.attempts
    columns = _Columns.empty(len(attempts.call))
    # The order of rows must not matter, not even for who gets the last nano-dollar.
    order = np.lexsort((attempts.number, facts.calls.key[attempts.call], attempts.replica))
    edges = np.searchsorted(attempts.replica[order], np.arange(len(facts.replicas) + 1))
    rows = {name: order[edges[n] : edges[n + 1]] for n, name in enumerate(facts.replicas)}
    spans: dict[str, list[ReplicaSpan]] = {name: [] for name in facts.replicas}
    for span in sorted(facts.spans, key=lambda span: (span.start, span.phase)):
        spans.setdefault(span.replica, []).append(span)
    bills = [_charge(columns, facts, name, rows.get(name, order[:0]), spans[name], default) for name in sorted(spans)]
    return Charges(
        **columns._asdict(),
        amount=columns.prefill + columns.decode + columns.kv,
        waste=waste_of(attempts),
        replicas=tuple(bills),
    )


class _Columns(NamedTuple):
    """The columns of Charges that are filled in replica by replica."""

    prefill: Ints
    decode: Ints
    kv: Ints
    naive: Ints
    memory_known: Flags
    priced: Flags
    recorded: Flags
    estimate: Ints
    joules: Floats

    @classmethod
    def empty(cls, count: int) -> _Columns:
        money = np.zeros((5, count), np.int64)
        known, recorded = np.zeros((2, count), np.bool_)
        unmeasured = np.full(count, np.nan)
        prefill, decode, kv, naive, estimate = money
        return cls(prefill, decode, kv, naive, known, np.ones(count, np.bool_), recorded, estimate, unmeasured)


def _charge(
    columns: _Columns, facts: Facts, name: str, rows: Ints, spans: list[ReplicaSpan], default: Work
) -> ReplicaBill:
    """Fill in the rows of one replica."""
    line = timeline(spans, facts.start, facts.end)
    costs = Costs.of(spans, default)
    told = Told.of(facts.records, rows)
    load = loads(facts.attempts, rows, costs, told)
    shared = share(line, load)
    whole = _whole(shared, line.bill)
    columns.prefill[rows], columns.decode[rows], columns.kv[rows] = whole[:-2].reshape(3, -1)
    columns.naive[rows] = np.rint(shared.naive).astype(np.int64)
    columns.memory_known[rows] = load.memory_known
    columns.priced[rows] = (shared.covered > 0) | (shared.present == 0)
    columns.recorded[rows] = told.rows
    amounts = columns.prefill[rows] + columns.decode[rows] + columns.kv[rows]
    if told.rows.any():  # what the gateway alone would have said
        apart = _whole(share(line, loads(facts.attempts, rows, costs)), line.bill)
        columns.estimate[rows] = apart[:-2].reshape(3, -1).sum(0)
    else:
        columns.estimate[rows] = amounts
    if line.joules:
        columns.joules[rows] = shared.joules
    here = shared.present > 0
    requests = int(whole[:-2].sum())
    return ReplicaBill(
        replica=name,
        bill=line.bill,
        requests=requests,
        idle=int(whole[-2]),
        overhead=int(whole[-1]),
        up=line.up_time / 1e9,
        busy=shared.busy / 1e9,
        serving=line.serving_time / 1e9,
        unpriced=line.unpriced_time / 1e9,
        outside=int((shared.present - shared.covered).sum()) / 1e9,
        work=costs.last,
        basis=_basis(facts, name, rows[here], told.rows[here], told.whole[here]),
        attempts=int(here.sum()),
        recorded=int(told.rows[here].sum()),
        moved=_moved(amounts, columns.estimate[rows]) if told.rows.any() else None,
        joules=line.joules or None,
    )


def _whole(shared: Shared, bill: int) -> Ints:
    """Each attempt's prefill, decode and KV, then idle and overhead, as whole nano-dollars that sum to the bill."""
    exact = np.concatenate((shared.prefill, shared.decode, shared.kv, (shared.idle, shared.overhead)))
    return apportion(exact, bill)


def _moved(amounts: Ints, estimate: Ints) -> float | None:
    total = int(amounts.sum())
    return float(np.abs(amounts - estimate).sum()) / 2 / total if total else None


def _basis(facts: Facts, name: str, rows: Ints, recorded: Flags, whole: Flags) -> Basis:
    """Of a replica, by its attempts in the window."""
    if not recorded.any():
        return "GATEWAY"
    attempts = facts.attempts
    answered = (attempts.outcome[rows] == OUTCOMES.index("finished")) & (attempts.output[rows] > 0)
    complete = bool((whole | ~(answered | recorded)).all())
    gap = any(
        bool(((attempts.claimed[rows] < one.end) & (attempts.ended[rows] > one.start)).any())
        for one in facts.gaps
        if one.replica == name
    )
    return "EXACT" if complete and not gap else "DEGRADED"


def waste_of(attempts: Attempts) -> Bytes:
    """Position in WASTE a row: an attempt that a later one replaced, or that did not finish."""
    last = np.zeros(int(attempts.call.max(initial=-1)) + 1, np.int32)
    np.maximum.at(last, attempts.call, attempts.number)
    kinds = np.array([WASTE.index(name) if name in WASTE else 0 for name in OUTCOMES], np.int8)
    waste: Bytes = kinds[attempts.outcome]
    waste[attempts.number < last[attempts.call]] = WASTE.index("superseded")
    return waste


def apportion(values: Floats, total: int) -> Ints:
    """Whole numbers that sum to ``total``, each within 1 of its value, by largest remainder.

    ``values`` (not empty) are ≥ 0 and sum to ``total`` but for rounding; ties go to the earlier one.
    """
    exact = float(values.sum())
    scaled = values * (total / exact) if exact > 0 else values
    floor = np.floor(scaled)
    whole: Ints = floor.astype(np.int64)
    left = total - int(whole.sum())
    extra = min(max(left, 0), len(values))
    whole[np.argsort(floor - scaled, kind="stable")[:extra]] += 1
    # Above 2**53 a float is coarser than 1: what it cannot say goes where it is felt least.
    whole[int(np.argmax(values))] += left - extra
    return whole
