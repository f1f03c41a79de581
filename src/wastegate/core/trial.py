"""What is tried: two arms that differ in one setting, what is asked of the candidate, and which unit is in which arm. A
hash tells that, not chance; no measurement and no verdict enters here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from wastegate.core.comparison import Better, Scale, equal, least_blocks
from wastegate.core.distributions import binomial_cdf
from wastegate.core.intervals import check_level

Setting = str | int | float | bool | None

MOST_DROPPED = 1 / 3
"""Share of blocks that may be dropped as disturbed; beyond it what is left may no longer stand for the whole."""


class Arm(Struct, frozen=True, kw_only=True):
    """One way to run. ``settings`` names all that a trial may change."""

    name: str
    settings: dict[str, Setting] = {}


class Goal(Struct, frozen=True, kw_only=True):
    """What must be shown of one metric. ``bound`` is on the scale's own terms: with ``better="lower"`` on the ratio
    scale 1 asks for any saving, 0.5 for half, 1.1 for no more than 10 % worse (non-inferiority)."""

    metric: str
    better: Better = "lower"
    bound: float = 1.0
    scale: Scale = "ratio"

    def __post_init__(self) -> None:
        if not math.isfinite(self.bound) or (self.scale == "ratio" and self.bound <= 0.0):
            raise ValueError(f"{self.metric}: the bound is {self.bound}; a ratio's bound lies above 0")

    @property
    def tolerance(self) -> tuple[float, float]:
        """For an A/A trial: the band around equality that the difference must lie in."""
        if self.scale == "difference":
            return -abs(self.bound), abs(self.bound)
        return min(self.bound, 1.0 / self.bound), max(self.bound, 1.0 / self.bound)


class Trial(Struct, frozen=True, kw_only=True):
    """A candidate against a baseline, fixed before anything is measured.

    Raises ValueError where the arms differ in more than one setting, since the difference could then not be put down to
    either. Arms that differ in none make an A/A trial: it asks whether the instruments find a difference where there
    is none, and each goal's bound is then its tolerance.
    """

    baseline: Arm
    candidate: Arm
    goals: tuple[Goal, ...]
    blocks: int
    """Planned. Judged once: exactly these are judged. Judged at every look: where the intervals are narrowest."""
    looks: Literal["once", "every"] = "once"
    level: float = 0.95
    most_dropped: float = MOST_DROPPED

    def __post_init__(self) -> None:
        if len(self.changed) > 1:
            raise ValueError(
                f"{self.baseline.name} and {self.candidate.name} differ in {' and '.join(self.changed)}: a difference "
                "could not be put down to either. Change one setting a trial"
            )
        metrics = [goal.metric for goal in self.goals]
        if not metrics or len(set(metrics)) < len(metrics):
            raise ValueError(f"a trial needs goals, one a metric, and has {metrics}")
        if self.blocks < least_blocks(self.level):
            raise ValueError(
                f"{self.blocks} blocks can show nothing at a level of {self.level:g}: plan {least_blocks(self.level)} "
                "or more"
            )
        for goal in self.goals:
            if self.is_aa and goal.bound == equal(goal.scale):
                raise ValueError(
                    f"{goal.metric}: the arms are alike, so the bound is how far apart they may be found; it cannot be "
                    f"{goal.bound:g}"
                )

    @property
    def changed(self) -> tuple[str, ...]:
        """The settings in which the arms differ. One that only one arm names is one."""
        base, other = self.baseline.settings, self.candidate.settings
        return tuple(sorted(name for name in base.keys() | other.keys() if not _same(base, other, name)))

    @property
    def is_aa(self) -> bool:
        return not self.changed


def _same(base: Mapping[str, Setting], other: Mapping[str, Setting], name: str) -> bool:
    return name in base and name in other and base[name] == other[name] and type(base[name]) is type(other[name])


def arm_of(key: str, salt: str, share: float) -> Literal["baseline", "candidate"]:
    """The arm of a unit (a tenant, a conversation, a call), the same at each asking.

    ``share``, 0 to 1, of all keys are the candidate's; who is in stays in when the share grows. Another salt, one for
    each trial, is another draw.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}; it must lie between 0 and 1")
    secret = hashlib.blake2b(salt.encode(), digest_size=32).digest()
    place = int.from_bytes(hashlib.blake2b(key.encode(), key=secret, digest_size=8).digest(), "big")
    return "candidate" if place < share * 2**64 else "baseline"


def split_as_planned(candidates: int, units: int, share: float, level: float = 0.999) -> bool:
    """Whether so many of the units may be the candidate's by chance, if each is with the chance ``share``.

    If not, units were lost on one side, and the arms cannot be compared (Fabijan et al. 2019, "sample ratio
    mismatch"). Binomial, both tails.
    """
    tail = check_level(level) / 2.0
    return binomial_cdf(candidates, units, share) > tail and 1.0 - binomial_cdf(candidates - 1, units, share) > tail
