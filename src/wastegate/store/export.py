"""The ledger on its way out: each call with what its attempts cost, a bounded number at a time. What a file looks
like stands elsewhere; nothing is written here.

Charges need all calls that were in flight together, so the window is cut into slices of time, each is attributed by
itself, and a call's charges are summed over the slices that it touches. It leaves with the slice in which it was over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import WASTE, Charges, ReplicaBill, attribute
from wastegate.core.facts import Facts, Ints
from wastegate.core.ledger import Basis, Entry
from wastegate.store.entries import Ledger

SLICE = 100_000
"""Calls attributed at once: their columns take some 50 MB."""
BATCH = 2_000
"""Calls held whole at once."""

_SUMMED = ("bill", "requests", "idle", "overhead", "up", "busy", "serving", "unpriced", "outside")
_SURE: tuple[Basis, ...] = ("EXACT", "DEGRADED", "GATEWAY")


class Charge(Struct, frozen=True, gc=False):
    """What one attempt cost within the window, in whole nano-dollars."""

    cost: int
    prefill: int
    decode: int
    kv: int
    naive: int
    estimate: int
    """What ``cost`` would be by what the gateway alone saw."""
    joules: float | None
    """Energy; None where its replica's is not known."""
    recorded: bool
    """Its engine told what it did for it."""
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
    joules: float | None
    basis: Basis
    """The least sure of the slices in which it had attempts."""
    work: str
    """Where the figures come from by which its cost was shared."""


class Sweep:
    """The calls that touch [start, end), in batches; afterwards the replicas' bills. ``size`` calls in a slice."""

    def __init__(self, ledger: Ledger, start: float, end: float, size: int = SLICE, batch: int = BATCH) -> None:
        if not start <= end:
            raise ValueError(f"the window ends ({end}) before it starts ({start})")
        self._ledger, self._start, self._end, self._size, self._batch = ledger, start, end, size, batch
        self._open: dict[int, dict[int, _Part]] = {}
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
            number, part = int(facts.attempts.number[row]), _Part.of(charges, row)
            so_far[number] = part.joined(so_far.get(number))

    def _charges(self, key: int, facts: Facts, charges: Charges, rows: Ints) -> tuple[Charge, ...]:
        before = self._open.pop(key, {})
        made = []
        for row in rows:
            part = _Part.of(charges, row)
            if before:
                part = part.joined(before.get(int(facts.attempts.number[row])))
            made.append(part.charge(WASTE[charges.waste[row]]))
        return tuple(made)

    def _add(self, bill: ReplicaBill) -> None:
        old = self._bills.get(bill.replica)
        sums = {name: getattr(bill, name) for name in _SUMMED}
        joules, basis = bill.joules, bill.basis if bill.attempts else "EXACT"
        if old is not None:
            sums = {name: getattr(old, name) + amount for name, amount in sums.items()}
            joules = old.joules if joules is None else joules + (old.joules or 0.0)
            basis = max(old.basis, basis, key=_SURE.index)
        self._bills[bill.replica] = Bill(
            replica=bill.replica, **sums, joules=joules, basis=basis, work=bill.work.source
        )


class _Part(NamedTuple):
    """What an attempt cost within one slice, or within several."""

    prefill: int
    decode: int
    kv: int
    naive: int
    estimate: int
    joules: float
    """NaN where not known."""
    recorded: bool
    priced: bool

    @classmethod
    def of(cls, charges: Charges, row: int) -> _Part:
        return cls(
            int(charges.prefill[row]),
            int(charges.decode[row]),
            int(charges.kv[row]),
            int(charges.naive[row]),
            int(charges.estimate[row]),
            float(charges.joules[row]),
            bool(charges.recorded[row]),
            bool(charges.priced[row]),
        )

    def joined(self, other: _Part | None) -> _Part:
        if other is None:
            return self
        return _Part(
            self.prefill + other.prefill,
            self.decode + other.decode,
            self.kv + other.kv,
            self.naive + other.naive,
            self.estimate + other.estimate,
            # One slice of a replica may have no energy known, and then says nothing of the others.
            self.joules
            if math.isnan(other.joules)
            else other.joules + (0.0 if math.isnan(self.joules) else self.joules),
            self.recorded or other.recorded,
            self.priced and other.priced,
        )

    def charge(self, waste: str) -> Charge:
        cost = self.prefill + self.decode + self.kv
        return Charge(
            cost=cost,
            prefill=self.prefill,
            decode=self.decode,
            kv=self.kv,
            naive=self.naive,
            estimate=self.estimate,
            joules=None if math.isnan(self.joules) else self.joules,
            recorded=self.recorded,
            # What cost something was priced, though another slice of it may not have been.
            priced=cost > 0 or self.priced,
            waste=waste,
        )


def _rows_of(facts: Facts) -> list[Ints]:
    """For each call the rows of its attempts, by number."""
    order = np.lexsort((facts.attempts.number, facts.attempts.call))
    edges = np.searchsorted(facts.attempts.call[order], np.arange(1, len(facts.calls.key)))
    return np.split(order, edges) if len(facts.calls.key) else []
