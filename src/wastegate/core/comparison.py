"""Two arms held against each other, block by block, when the number of blocks was fixed beforehand. How blocks are run,
and looks taken early, never enter here.

In one block both arms meet the same hour, host and traffic, so what the block adds to both cancels in its difference.
Within a block the arms stand mirrored (ABBA, so that a steady drift cancels too), and which arm begins is drawn: that
draw is what the interval rests on, not a belief about the noise.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from msgspec import Struct

from wastegate.core.bootstrap import Chance
from wastegate.core.distributions import normal_quantile, student_quantile
from wastegate.core.intervals import Estimate, Floats, Numbers, check_level, numbers, ratio_residuals

Scale = Literal["ratio", "difference"]
"""``ratio``: candidate / baseline, for times, rates and costs; 1 is "equal". ``difference``: candidate - baseline, for
shares and scores that may be 0; 0 is "equal"."""
Better = Literal["lower", "higher"]

_ALL = 12
"""Blocks up to which all 2^n sign changes are tried; beyond, as many are drawn."""
_DRAWN = 4095
_LARGEST_EXPONENT = 709.0
_ROUNDING = 1e-12


class Sums(Struct, frozen=True, kw_only=True):
    """A ratio metric of one arm, such as dollars over answered requests: (n,) sums, a pair for each block."""

    numerators: Floats
    denominators: Floats


def equal(scale: Scale) -> float:
    """What the scale calls no difference."""
    return 1.0 if scale == "ratio" else 0.0


def differences(baseline: Numbers, candidate: Numbers, scale: Scale) -> Floats:
    """(n,) the difference of each block: of logarithms on the ratio scale. Raises ValueError where the arms have not
    the same blocks, or a ratio meets a value that is not above 0."""
    base, other = numbers(baseline, "baseline"), numbers(candidate, "candidate")
    if base.shape != other.shape:
        raise ValueError(f"{len(base)} blocks of the baseline do not pair with {len(other)} of the candidate")
    if scale == "difference":
        return other - base
    if (base <= 0).any() or (other <= 0).any():
        raise ValueError('a value is not above 0, so it has no ratio: compare on the scale "difference"')
    return np.log(other) - np.log(base)


def compare(
    baseline: Numbers, candidate: Numbers, scale: Scale = "ratio", level: float = 0.95, chance: Chance = 0
) -> Estimate | None:
    """Candidate against baseline, paired by block: a value above :func:`equal` says that the candidate has more.

    ``baseline``, ``candidate``: (n,) one figure a block. On the ratio scale the value is the geometric mean of the
    blocks' ratios. The interval holds every effect that a sign-change test does not reject: it lies between two of
    the means of all subsets of the differences (Hartigan 1969, "typical values"; drawn when n > 12, which stays exact
    by Hemerik & Goeman 2018). It assumes that the effect is the same in each block and that the order of arms was
    drawn (or that differences are symmetric), and nothing of tails or of resemblance between blocks. None where there
    are too few blocks to be sure: below :func:`least_blocks`, 6 for 95 %.
    """
    alpha = check_level(level)
    found = differences(baseline, candidate, scale)
    n = len(found)
    if n < least_blocks(level):
        return None
    lows, highs = _subset_means(found, chance)
    out = int(alpha / 2.0 * (len(lows) + 1) + 1e-9)
    if not out:  # a level that would take more drawn subsets than there are
        return None
    low, high = float(lows[out - 1]), float(highs[len(highs) - out])
    return Estimate(
        value=natural(float(found.mean()), scale),
        low=natural(low, scale),
        high=natural(high, scale),
        level=level,
        blocks=n,
        method="paired by block, sign changes",
    )


def natural(found: float, scale: Scale) -> float:
    """A difference in the unit that people read: on the ratio scale candidate / baseline again."""
    if scale == "difference":
        return found
    return math.exp(found) if found < _LARGEST_EXPONENT else math.inf


def least_blocks(level: float = 0.95) -> int:
    """Blocks below which no outcome, however clear, can be told from chance at this level: 2^n ≥ 2 / (1 - level)."""
    return math.ceil(math.log2(2.0 / check_level(level)) - 1e-9)


def _subset_means(found: Floats, chance: Chance) -> tuple[Floats, Floats]:
    """The means of subsets, sorted: all but the empty one for few blocks. A drawn subset that is empty is compatible
    with every effect, so it is counted at the cautious end of both."""
    n = len(found)
    if n <= _ALL:
        members = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    else:
        members = np.random.default_rng(chance).integers(0, 2, (_DRAWN, n))
    sizes = members.sum(axis=1)
    sums = members @ found
    means = np.divide(sums, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    return np.sort(np.where(sizes > 0, means, -math.inf)), np.sort(np.where(sizes > 0, means, math.inf))


def compare_sums(baseline: Sums, candidate: Sums, level: float = 0.95) -> Estimate | None:
    """The ratio of two ratios of sums, such as the candidate's dollars per answered request over the baseline's.

    Student's t over the blocks' errors (delta method: Deng, Knoblich & Lu 2018). Assumes that blocks are independent.
    None below two blocks, where a sum is 0 (there is no ratio), or where blocks do not differ.
    """
    alpha = check_level(level)
    value, errors = sum_errors(baseline, candidate)
    n = len(errors)
    if n < 2 or not np.abs(errors).max() > _ROUNDING:
        return None
    reach = student_quantile(1.0 - alpha / 2.0, n - 1) * float(errors.std(ddof=1)) / math.sqrt(n)
    return Estimate(
        value=value,
        low=value * math.exp(-reach),
        high=value * math.exp(reach),
        level=level,
        blocks=n,
        method="ratio of sums, paired by block, delta method",
    )


def sum_errors(baseline: Sums, candidate: Sums) -> tuple[float, Floats]:
    """The ratio of the two ratios, and what each block contributes to the error of its logarithm (n,): what it adds to
    both arms is subtracted within the block. NaN and nothing where a sum is 0. Raises ValueError where the arms have
    not the same blocks."""
    if len(baseline.numerators) != len(candidate.numerators):
        raise ValueError(
            f"{len(baseline.numerators)} blocks of the baseline do not pair with {len(candidate.numerators)} of the "
            "candidate"
        )
    below, below_errors = ratio_residuals(baseline.numerators, baseline.denominators)
    above, above_errors = ratio_residuals(candidate.numerators, candidate.denominators)
    if not (below > 0.0 and above > 0.0):
        return math.nan, np.empty(0)
    return above / below, above_errors / above - below_errors / below


def is_shown(estimate: Estimate, bound: float, better: Better) -> bool:
    """The whole interval lies on the better side of the bound. With a bound at :func:`equal` this shows superiority;
    with one a margin away on the worse side, non-inferiority (Wellek, Testing Statistical Hypotheses of Equivalence
    and Noninferiority, 2010); with one on the better side, a saving of at least so much. The bound is chosen before
    anything is measured."""
    return estimate.high < bound if better == "lower" else estimate.low > bound


def is_broken(estimate: Estimate, bound: float, better: Better) -> bool:
    """The whole interval lies on the worse side of the bound."""
    return estimate.low > bound if better == "lower" else estimate.high < bound


def non_inferior(estimate: Estimate, margin: float, better: Better, scale: Scale = "ratio") -> bool:
    """The candidate is shown to be worse by less than ``margin``: on the ratio scale a share (0.1 for 10 %), else in
    the metric's unit. Raises ValueError for a margin that is not above 0."""
    return is_shown(estimate, margin_bound(margin, better, scale), better)


def margin_bound(margin: float, better: Better, scale: Scale = "ratio") -> float:
    """The bound that is ``margin`` worse than equal. On the ratio scale 10 % worse is 1.1 of what should be low and
    1/1.1 of what should be high, so that swapping the arms swaps the answer."""
    if not 0.0 < margin < math.inf:
        raise ValueError(f"the margin is {margin}; it must be above 0: how much worse would still be accepted?")
    if scale == "ratio":
        return 1.0 + margin if better == "lower" else 1.0 / (1.0 + margin)
    return margin if better == "lower" else -margin


def blocks_needed(spread: float, distance: float, level: float = 0.95, power: float = 0.8) -> int | None:
    """How many blocks in all would show an effect that is ``distance`` from the bound, with the chance ``power``.

    ``spread``: standard deviation of the blocks' differences, ``distance``: from the effect to the bound, both on the
    scale of :func:`differences`. Student's t with its own degrees of freedom (Chow, Shao & Wang, Sample Size
    Calculations in Clinical Research, 2008, 3.1). None where the effect is on the bound or past it: no number would do.
    """
    alpha = check_level(level)
    if distance <= 0.0:
        return None
    least = least_blocks(level)
    n = max(least, math.ceil(((normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)) * spread / distance) ** 2))
    while n < _shown_at(n, spread, distance, alpha, power):
        n += max(1, n // 50)
    return n


def _shown_at(n: int, spread: float, distance: float, alpha: float, power: float) -> float:
    reach = student_quantile(1.0 - alpha / 2.0, n - 1) + student_quantile(power, n - 1)
    return (reach * spread / distance) ** 2
