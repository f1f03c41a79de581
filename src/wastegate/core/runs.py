"""What engines tell of attempts, as chains of weighted points in time. Weights only: whose money they share is
``core.sharing``'s, and no record is read or kept here.

A step's time belongs to those that were in it, in proportion to their work in it. So a run weighs what it worked in
one step, and however the steps' lengths vary while others come and go, each instant is shared as its step was."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wastegate.core.facts import Flags, Floats, Ints, Records
from wastegate.core.timeline import nanoseconds

QUANTUM = 1e-9
CEILING = 1e3
"""No weight counts as more than this many seconds of work, a second or a step: a phase of a microsecond must not drown
the rest, and sums must stay below 2**63."""
START, END, STEPS, PREFILL, DECODE, DRAFT, KV = range(7)
"""Columns of a run."""


def quanta(seconds: Floats) -> Ints:
    """Whole multiples of QUANTUM, from none to CEILING."""
    whole: Ints = np.rint(np.clip(seconds, 0.0, CEILING) / QUANTUM).astype(np.int64)
    return whole


class Chains(NamedTuple):
    """Points in time: from each to the next one of its chain its weights hold. A chain belongs to one attempt, and its
    last point weighs nothing. Built with shape (chains, points of each), used flat, chain after chain."""

    time: Ints
    """Nanoseconds."""
    owner: Ints
    """Which of the attempts, from 0."""
    inside: Ints
    """1 while the attempt is in flight, in its own chain."""
    prefill: Ints
    decode: Ints
    kv: Ints
    fixed: Ints
    """In quanta, these four. On any one replica all are seconds of work a second, or all are seconds of work a step:
    those in a step together share its time by either."""

    def then(self, other: Chains) -> Chains:
        """All chains of both, flat."""
        if not len(other.time):
            return Chains(*(one.ravel() for one in self))
        return Chains(*(np.concatenate((one.ravel(), two.ravel())) for one, two in zip(self, other, strict=True)))


class Told(NamedTuple):
    """What a replica's engine tells of the attempts on it."""

    rows: Flags
    """An attempt: there is a record of it."""
    whole: Flags
    """An attempt: its records were measured step by step."""
    held: Floats
    """An attempt: token-seconds of KV."""
    runs: Floats
    """As in ``facts.Records``."""
    owner: Ints
    """Of each run, its attempt, from 0."""
    step: float
    """Mean seconds of a step: what turns work a second into work a step. 1 where no engine tells of steps."""

    @classmethod
    def nothing(cls, count: int) -> Told:
        none, never = np.zeros(0), np.zeros(count, np.bool_)
        return cls(never, never, np.zeros(count), none.reshape(0, 7), none.astype(np.int64), 1.0)

    @classmethod
    def of(cls, records: Records, rows: Ints) -> Told:
        """Of the attempts ``rows``, ascending or not, each at most once."""
        if not len(records.attempt):
            return cls.nothing(len(rows))
        order = np.argsort(rows)
        place = np.minimum(np.searchsorted(rows, records.attempt, sorter=order), max(len(rows) - 1, 0))
        mine = rows[order[place]] == records.attempt if len(rows) else np.zeros(len(place), np.bool_)
        owner = order[place] if len(rows) else place
        said, partly = np.zeros((2, len(rows)), np.bool_)
        said[owner[mine]] = True
        partly[owner[mine & ~records.whole]] = True
        chosen = mine[records.record]
        runs, of_run = records.runs[chosen], owner[records.record[chosen]]
        # The order of rows must not matter, and sums of floats are in order.
        tidy = np.lexsort((*runs.T[::-1], of_run))
        runs, of_run = runs[tidy], of_run[tidy]
        steps = float(runs[:, STEPS].sum())
        lasted = float(np.maximum(runs[:, END] - runs[:, START], 0.0)[runs[:, STEPS] > 0].sum())
        held = np.bincount(of_run, weights=runs[:, KV], minlength=len(rows)).astype(np.float64)
        return cls(said, said & ~partly, held, runs, of_run, lasted / steps if steps and lasted else 1.0)

    def chains(self, begin: Ints, end: Ints, work: Floats) -> Chains:
        """A run is a chain of two points; what sticks out of its attempt is cut off."""
        a, b, c, f = work[self.owner].T
        runs = np.maximum(self.runs, 0.0)
        low, high = begin[self.owner], end[self.owner]
        start = np.clip(nanoseconds(self.runs[:, START]), low, high)
        stop = np.clip(nanoseconds(self.runs[:, END]), start, high)
        lasted = np.maximum(runs[:, END] - runs[:, START], 1e-9)
        # Where steps were not counted, its time says how many there may have been.
        steps = np.where(runs[:, STEPS] > 0, runs[:, STEPS], np.maximum(lasted / self.step, 1e-9))
        prefill, decode, draft = runs[:, PREFILL], runs[:, DECODE], runs[:, DRAFT]
        nothing = np.zeros_like(start)

        def pair(amount: Floats) -> Ints:
            return np.stack((quanta(amount), nothing), 1)

        return Chains(
            np.stack((start, stop), 1),
            np.stack((self.owner, self.owner), 1),
            np.zeros((len(start), 2), np.int64),
            pair(a * prefill / steps),
            pair((b * decode + a * draft) / steps),  # a draft token is computed as a prompt's is: many in one step
            pair(c * runs[:, KV] / lasted),
            pair(f * (decode > 0)),
        )
