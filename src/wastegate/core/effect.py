"""What a lever did, in figures that every lever shares. Values only: how each lever counts is its own business."""

from __future__ import annotations

from msgspec import Struct

from wastegate.core.intervals import Estimate


class Effect(Struct, frozen=True, kw_only=True):
    """What the calls themselves say of a lever: an account, not a comparison. Whether it pays is judged by a trial."""

    lever: str
    unit: str
    """What ``saved`` is a share of, such as "tokens" or "seconds in line"."""
    saved: float | None
    """Share of the work that would have been done without the lever, 0 to 1; None where the calls do not tell."""
    harmed: float | None
    """Share of the calls that were worse off for it, 0 to 1: cut short, sent away, answered by less; None likewise."""
    n: int
    """Calls that this rests on."""
    interval: Estimate | None = None
    """Of ``saved``, over slots of time; None where there are too few, or no difference between them."""
    parts: dict[str, float] = {}
    """``saved`` taken apart by what did it: shares that sum to it."""
    notes: tuple[str, ...] = ()
    """What else is to be said, a sentence each; figures, never content."""
