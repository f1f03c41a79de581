"""The bill cut into slices of time: each slice is an attribution of its own, and together they are the whole bill.
Sums only; nothing is read from a file and nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from wastegate.core.attribution import attribute
from wastegate.core.facts import Attempts, Facts, Floats
from wastegate.core.ledger import NANO

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
STEPS = (
    *(1.0, 2.0, 5.0, 10.0, 30.0),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 7 * DAY, 30 * DAY, 90 * DAY),
)
"""Widths that a reader can name."""
MOST = 48
"""Slices in one chart: about the columns that a phone's width can show apart."""


class Slice(Struct, frozen=True):
    """US dollars within [start, end): ``useful + waste + idle + overhead`` is price × up time."""

    start: float
    end: float
    useful: float
    """What the requests cost, without waste."""
    waste: float
    idle: float
    overhead: float
    calls: int
    """That ended in it."""

    @property
    def total(self) -> float:
        return self.useful + self.waste + self.idle + self.overhead


def edges(start: float, end: float, offset: float = 0.0, most: int = MOST) -> tuple[float, ...]:
    """Instants that cut [start, end] (finite, epoch seconds) at round times, at most ``most`` slices. ``offset``: how
    many seconds local time is ahead of UTC. Empty where the window has no length."""
    if end <= start:
        return ()
    step = next((width for width in STEPS if (end - start) / width <= most - 1), (end - start) / (most - 1))
    first = (start + offset) // step * step + step - offset
    inner = first + step * np.arange(max(int(np.ceil((end - first) / step)), 0))
    return (start, *(float(edge) for edge in inner if start < edge < end), end)


def slices(facts: Facts, cuts: Sequence[float]) -> tuple[Slice, ...]:
    """What each slice between two neighbouring ``cuts`` cost."""
    last = _last(facts)
    return tuple(_slice(facts, last, begin, end) for begin, end in pairwise(cuts))


def _last(facts: Facts) -> Floats:
    """When the last of each call, or of an attempt of it, was over."""
    last = facts.calls.ended.copy()
    np.maximum.at(last, facts.attempts.call, facts.attempts.ended)
    return last


def _slice(facts: Facts, last: Floats, begin: float, end: float) -> Slice:
    # Whole calls, not single attempts: which attempt was superseded shows only beside its later ones.
    touching = (last >= begin) & (facts.calls.arrived < end)
    rows = touching[facts.attempts.call]
    some = Attempts(**{name: column[rows] for name, column in asdict(facts.attempts).items()})
    charges = attribute(replace(facts, start=begin, end=end, attempts=some, records=facts.records.among(rows)))
    wasted = int(charges.amount[charges.waste > 0].sum())
    return Slice(
        start=begin,
        end=end,
        useful=(charges.requests - wasted) / NANO,
        waste=wasted / NANO,
        idle=charges.idle / NANO,
        overhead=charges.overhead / NANO,
        calls=int(((facts.calls.ended >= begin) & (facts.calls.ended < end)).sum()),
    )
