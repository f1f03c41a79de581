"""Intervals that may be looked at after every block, and that may end a trial: all of them together hold the truth with
the chance promised. How a trial is run, and what ends it, never enter here.

The price is width: at the number of blocks that they are tuned for, about 1.6 times an interval that is looked at
once.
"""

from __future__ import annotations

import math

import numpy as np

from wastegate.core.comparison import Scale, differences, natural
from wastegate.core.intervals import Estimate, Floats, Numbers, check_level, numbers, varies

_MOST = 1_000_000
"""Blocks beyond which nobody will wait."""


def mean_sequence(values: Numbers, level: float = 0.95, best_at: int = 20) -> tuple[Floats, Floats]:
    """Lower and upper ends (n,), (n,): element i is the interval after i + 1 blocks; infinite while nothing can
    be said.

    ``values``: (n,) block means or differences, in order of time. Assumes that they are independent and about normal
    around one mean, with a spread that need not be known; with tails heavier than that, symmetric ones are safe.
    ``best_at``: the number of blocks at which it should be narrowest. Student's t mixed over a normal prior of effect
    sizes (Lai 1976; Wang & Ramdas 2024, "Anytime-valid t-tests"): by Ville's inequality the whole sequence misses with
    a chance of at most 1 - level. Blocks that do not differ leave the interval infinite: their spread is not known.
    """
    alpha, row = check_level(level), numbers(values)
    n = np.arange(1, len(row) + 1, dtype=np.float64)
    if not varies(row):
        return np.full(len(row), -math.inf), np.full(len(row), math.inf)
    shifted = row - row[0]  # keeps the sum of squares from drowning in a large mean
    means = np.cumsum(shifted) / n
    squares = np.maximum(np.cumsum(shifted**2) - n * means**2, 0.0)
    squares[squares <= 1e-24 * float(np.abs(row).max()) ** 2 * n] = math.nan
    reach = np.sqrt(squares / n) * _unit_reach(n, alpha, _prior(alpha, best_at))
    reach = np.nan_to_num(reach, nan=math.inf, posinf=math.inf)
    return row[0] + means - reach, row[0] + means + reach


def _prior(alpha: float, best_at: int) -> float:
    """The prior's variance, in units of the blocks' own: about where a normal mixture is narrowest at that count
    (Howard, Ramdas, McAuliffe & Sekhon 2021, 3.5)."""
    if best_at < 2:
        raise ValueError(f"best_at is {best_at}; a spread is not known before 2 blocks")
    surprise = -2.0 * math.log(alpha)
    return (surprise + math.log1p(surprise)) / best_at


def _unit_reach(n: Floats, alpha: float, prior: float) -> Floats:
    """Half the width in units of the blocks' standard deviation (divided by n, not n - 1).

    With u = t²/(n - 1) the mixture is (1 + n·prior)^(-1/2) · ((1 + u)/(1 + u/(1 + n·prior)))^(n/2); it reaches
    1/alpha at the u that is solved for here. No u does while the data are too few: infinite.
    """
    room = 1.0 + n * prior
    bar = np.exp((math.log(1.0 / alpha) + 0.5 * np.log(room)) * 2.0 / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = (bar - 1.0) / (1.0 - bar / room)
    return np.sqrt(np.where(bar < room, square, math.inf))


def bounded_sequence(
    values: Numbers, low: float = 0.0, high: float = 1.0, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Lower and upper ends (n,), (n,) for values that lie between ``low`` and ``high`` for certain, such as scores,
    shares, or whether an answer passed.

    Assumes only that each value's expectation, given those before it, is the same: no shape, no independence. Each
    value is weighed by how uncertain those before it were (Waudby-Smith & Ramdas 2024, "Estimating means of bounded
    random variables by betting", theorem 2: empirical Bernstein). Ends are never outside the bounds. Raises ValueError
    for a value outside them.
    """
    alpha, row = check_level(level), numbers(values)
    if not low < high or (row < low).any() or (row > high).any():
        raise ValueError(f"values must lie between low = {low} and high = {high}, with low < high")
    unit = (row - low) / (high - low)
    n = np.arange(1, len(unit) + 1, dtype=np.float64)
    means = (0.5 + np.cumsum(unit)) / (n + 1.0)  # one value in the middle stands in for what is not known yet
    spreads = (0.25 + np.cumsum((unit - means) ** 2)) / (n + 1.0)
    mean_before = np.concatenate(([0.5], means))[: len(unit)]
    spread_before = np.concatenate(([0.25], spreads))[: len(unit)]
    surprise = math.log(2.0 / alpha)
    bets = np.minimum(np.sqrt(2.0 * surprise / (spread_before * n * np.log1p(n))), 0.5)
    paid = np.cumsum((unit - mean_before) ** 2 * (-np.log1p(-bets) - bets))
    weight = np.cumsum(bets)
    middle, reach = np.cumsum(bets * unit) / weight, (surprise + paid) / weight
    span = high - low
    return low + span * np.clip(middle - reach, 0.0, 1.0), low + span * np.clip(middle + reach, 0.0, 1.0)


def compare_so_far(
    baseline: Numbers, candidate: Numbers, scale: Scale = "ratio", level: float = 0.95, best_at: int = 20
) -> Estimate | None:
    """Candidate against baseline, paired by block, at this look and every other: :func:`mean_sequence` of the blocks'
    differences (of logarithms on the ratio scale). None while its ends are infinite."""
    found = differences(baseline, candidate, scale)
    lows, highs = mean_sequence(found, level, best_at)
    if not len(found) or not math.isfinite(lows[-1]):
        return None
    return Estimate(
        value=natural(float(found.mean()), scale),
        low=natural(float(lows[-1]), scale),
        high=natural(float(highs[-1]), scale),
        level=level,
        blocks=len(found),
        method="paired by block, t mixture, at every look",
        anytime=True,
    )


def blocks_until_shown(spread: float, distance: float, level: float = 0.95, best_at: int = 20) -> int | None:
    """After how many blocks in all :func:`mean_sequence` would be narrower than ``distance`` on each side, if blocks
    went on as they were. ``spread``: their standard deviation. None where ``distance`` is not above 0, or more than a
    million blocks would be needed."""
    alpha = check_level(level)
    if distance <= 0.0:
        return None
    counts = np.unique(np.geomspace(2, _MOST, 2000).astype(np.int64)).astype(np.float64)
    reach = spread * np.sqrt((counts - 1.0) / counts) * _unit_reach(counts, alpha, _prior(alpha, best_at))
    enough = np.flatnonzero(reach < distance)
    return int(counts[enough[0]]) if len(enough) else None
