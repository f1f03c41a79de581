"""Arms that take turns on the same fleet, slot by slot, for levers whose calls treat each other: which slot is whose,
and which calls count. No clock enters here; which of two arms begins is drawn with chance that is handed in."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from wastegate.core.bootstrap import Chance
from wastegate.core.intervals import Floats, Ints, Numbers, numbers


class Slots(Struct, frozen=True, kw_only=True):
    """A plan of slots, two and two: in each pair both arms have one slot, and which comes first was drawn.

    ``seconds``: length of a slot; ``washout``: seconds at its beginning that do not count, so that batches, queues
    and caches of the arm before have left; ``candidate``: (2 · pairs,) whether the slot is the candidate's.
    """

    seconds: float
    washout: float
    candidate: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not 0.0 < self.seconds < math.inf or not 0.0 <= self.washout < self.seconds:
            raise ValueError(
                f"slots of {self.seconds} s with {self.washout} s of wash-out: 0 <= wash-out < slot is needed"
            )
        firsts, seconds = self.candidate[::2], self.candidate[1::2]
        if len(firsts) != len(seconds) or any(a == b for a, b in zip(firsts, seconds, strict=True)):
            raise ValueError("slots come in pairs, one of the baseline and one of the candidate")

    def slot_of(self, elapsed: Numbers) -> Ints:
        """(n,) the slot that each moment counts in; -1 during wash-out and outside the plan.

        ``elapsed``: (n,) seconds since the first slot began. For a call that is the moment of its arrival.
        """
        row = numbers(elapsed, "elapsed")
        slot = np.floor(row / self.seconds)
        counts = (row >= 0) & (slot < len(self.candidate)) & (row - slot * self.seconds >= self.washout)
        return np.where(counts, slot, -1).astype(np.int64)

    def is_candidate(self, elapsed: float) -> bool | None:
        """Which arm has the fleet at a moment, wash-out or not; None outside the plan."""
        slot = math.floor(elapsed / self.seconds)
        return self.candidate[slot] if 0 <= slot < len(self.candidate) else None


def draw_slots(pairs: int, seconds: float, washout: float, chance: Chance) -> Slots:
    """A plan of ``pairs`` pairs, the order within each by the toss of a coin.

    ``washout`` must be as long as an arm's effect lasts after it has left: the carry-over of Bojinov, Simchi-Levi &
    Zhao (2023, "Design and analysis of switchback experiments"). A pair is a block: :func:`comparison.compare` of the
    rows that :func:`paired` gives is their randomisation inference for this plan.
    """
    if pairs < 1:
        raise ValueError(f"{pairs} pairs of slots: at least 1 is needed")
    firsts = np.random.default_rng(chance).integers(0, 2, pairs).astype(bool).tolist()
    candidate = tuple(first if place == 0 else not first for first in firsts for place in (0, 1))
    return Slots(seconds=seconds, washout=washout, candidate=candidate)


def slot_means(slots: Slots, elapsed: Numbers, values: Numbers) -> Floats:
    """(2 · pairs,) the mean of each slot's values; NaN where a slot has none.

    ``elapsed``, ``values``: (n,) each call's arrival in seconds since the first slot began, and its figure.
    """
    row, slot = numbers(values), slots.slot_of(elapsed)
    if row.shape != slot.shape:
        raise ValueError(f"{len(row)} values do not go with {len(slot)} moments: one each")
    counted = slot >= 0
    sums = np.bincount(slot[counted], row[counted], minlength=len(slots.candidate))
    counts = np.bincount(slot[counted], minlength=len(slots.candidate))
    found = np.full(len(sums), math.nan)
    np.divide(sums, counts, out=found, where=counts > 0)
    return found


def paired(slots: Slots, figures: Floats) -> tuple[Floats, Floats]:
    """Baseline and candidate (pairs,), (pairs,) from one figure a slot (2 · pairs,), NaN where there is none."""
    if figures.shape != (len(slots.candidate),):
        raise ValueError(f"{figures.shape} figures do not go with {len(slots.candidate)} slots: one each")
    pairs = figures.reshape(-1, 2)
    second = np.array(slots.candidate[1::2])
    return np.where(second, pairs[:, 0], pairs[:, 1]), np.where(second, pairs[:, 1], pairs[:, 0])
