"""The ledger on its way out: each call with what its attempts cost, a bounded number at a time. What a file looks
like stands elsewhere; nothing is written here.

Charges need all calls that were in flight together, so the window is cut into slices of time, each is attributed by
itself, and a call's charges are summed over the slices that it touches. It leaves with the slice in which it was over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from wastegate.core.attribution import WASTE, Charges, ReplicaBill, attribute
from wastegate.core.facts import Facts, Ints
from wastegate.core.ledger import Entry
from wastegate.store.entries import Ledger

SLICE = 100_000
"""Calls attributed at once: their columns take some 50 MB."""
BATCH = 2_000
"""Calls held whole at once."""

Money = tuple[int, int, int, int]
"""Prefill, decode, KV and naive, in nano-dollars."""


class Charge(Struct, frozen=True, gc=False):
    """What one attempt cost within the window, in whole nano-dollars."""

    cost: int
    prefill: int
    decode: int
    kv: int
    naive: int
    priced: bool
    """False: it ran in this window, and never while its replica was known to be up at a price."""
    waste: str
    """Why its cost is waste; empty: it is not."""


class Call(Struct, frozen=True, gc=False):
    """A call and the charges of its attempts, in their order."""

    entry: Entry
    charges: tuple[Charge, ...]


class Bill(Struct, frozen=True, gc=False):
    """What one replica cost within the window, in whole nano-dollars, and its seconds, as in ``ReplicaBill``."""

    replica: str
    bill: int
    requests: int
    idle: int
    overhead: int
    up: float
    busy: float
    serving: float
    unpriced: float
    outside: float
    work: str
    """Where the figures come from by which its cost was shared."""


class Sweep:
    """The calls that touch [start, end), in batches; afterwards the replicas' bills. ``size`` calls in a slice."""

    def __init__(self, ledger: Ledger, start: float, end: float, size: int = SLICE, batch: int = BATCH) -> None:
        if not start <= end:
            raise ValueError(f"the window ends ({end}) before it starts ({start})")
        self._ledger, self._start, self._end, self._size, self._batch = ledger, start, end, size, batch
        self._open: dict[int, dict[int, tuple[Money, bool]]] = {}
        self._bills: dict[str, Bill] = {}

    def calls(self) -> Iterator[list[Call]]:
        """Every call once. The whole is of one instant, though a gateway writes meanwhile. Raises LedgerError."""
        with self._ledger.still():
            cuts = (self._start, *self._ledger.cuts(self._start, self._end, self._size), self._end)
            for begin, end in pairwise(cuts):
                yield from self._slice(begin, end)

    @property
    def bills(self) -> tuple[Bill, ...]:
        """By replica: complete once all calls have passed. Their sums are what the audit shows, to a nano-dollar for
        each slice."""
        return tuple(self._bills[name] for name in sorted(self._bills))

    def _slice(self, begin: float, end: float) -> Iterator[list[Call]]:
        facts = self._ledger.facts(begin, end)
        charges = attribute(facts)
        for bill in charges.replicas:
            self._add(bill)
        rows = _rows_of(facts)
        last = facts.calls.ended.copy()
        np.maximum.at(last, facts.attempts.call, facts.attempts.ended)
        over = last < end if end < self._end else np.ones(len(last), np.bool_)
        for call in np.flatnonzero(~over):
            self._carry(int(facts.calls.key[call]), facts, charges, rows[call])
        leaving = np.flatnonzero(over)
        for first in range(0, len(leaving), self._batch):
            some = leaving[first : first + self._batch]
            place = {int(facts.calls.key[call]): int(call) for call in some}
            yield [
                Call(entry, self._charges(key, facts, charges, rows[place[key]]))
                for key, entry in zip(place, self._ledger.read(list(place)), strict=True)
            ]

    def _carry(self, key: int, facts: Facts, charges: Charges, rows: Ints) -> None:
        """Remember what a call that goes on has cost so far."""
        so_far = self._open.setdefault(key, {})
        for row in rows:
            number = int(facts.attempts.number[row])
            before, priced = so_far.get(number, ((0, 0, 0, 0), True))
            now = _money(charges, row)
            sums = (before[0] + now[0], before[1] + now[1], before[2] + now[2], before[3] + now[3])
            so_far[number] = (sums, priced and bool(charges.priced[row]))

    def _charges(self, key: int, facts: Facts, charges: Charges, rows: Ints) -> tuple[Charge, ...]:
        before = self._open.pop(key, {})
        made = []
        for row in rows:
            earlier, priced = before.get(int(facts.attempts.number[row]), ((0, 0, 0, 0), True))
            prefill, decode, kv, naive = (sum(pair) for pair in zip(earlier, _money(charges, row), strict=True))
            cost = prefill + decode + kv
            # What cost something was priced, though another slice of it may not have been.
            known = cost > 0 or (priced and bool(charges.priced[row]))
            made.append(Charge(cost, prefill, decode, kv, naive, known, WASTE[charges.waste[row]]))
        return tuple(made)

    def _add(self, bill: ReplicaBill) -> None:
        fields = {name: value for name, value in asdict(bill).items() if name in Bill.__struct_fields__}
        new = Bill(**{**fields, "work": bill.work.source})
        old = self._bills.get(bill.replica)
        if old is not None:
            sums = {name: getattr(old, name) + getattr(new, name) for name in Bill.__struct_fields__[1:-1]}
            new = replace(new, **sums)
        self._bills[bill.replica] = new


def _money(charges: Charges, row: int) -> Money:
    columns = (charges.prefill, charges.decode, charges.kv, charges.naive)
    prefill, decode, kv, naive = (int(column[row]) for column in columns)
    return prefill, decode, kv, naive


def _rows_of(facts: Facts) -> list[Ints]:
    """For each call the rows of its attempts, by number."""
    order = np.lexsort((facts.attempts.number, facts.attempts.call))
    edges = np.searchsorted(facts.attempts.call[order], np.arange(1, len(facts.calls.key)))
    return np.split(order, edges) if len(facts.calls.key) else []
