"""Intervals around one figure of one arm, for a number of blocks that was fixed beforehand. Comparisons of arms, looks
taken early and chance itself never enter here.

A *block* is what is independent, or near enough: a turn of load, a slot of time. Calls are not: those that ran in one
batch slowed each other. An interval from a few blocks is wide, and one from a single block does not exist: None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from wastegate.core.distributions import binomial_cdf, student_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Numbers = Sequence[float] | Floats


_ROUNDING = 1e-12
"""Relative difference that floating-point sums of equal values may show."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A figure with its interval. Where the data cannot bound it, ``low`` is -inf or ``high`` is inf (null in JSON)."""

    value: float
    low: float
    high: float
    level: float
    """How often intervals made this way hold the truth: 0.95 for 19 times in 20."""
    blocks: int
    """What it rests on: blocks, or calls where these are taken to be independent."""
    method: str
    anytime: bool = False
    """It may be looked at after every block. One that is not holds only once, at the number of blocks planned."""

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def numbers(values: Numbers, name: str = "values") -> Floats:
    """The values as one row of floats. Raises ValueError for another shape, NaN or infinity: what was not measured
    must be left out or held, not guessed."""
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1:
        raise ValueError(f"{name} must be one row of numbers, not of shape {row.shape}")
    wrong = np.flatnonzero(~np.isfinite(row))
    if len(wrong):
        raise ValueError(
            f"{name}[{wrong[0]}] is {row[wrong[0]]}: {len(wrong)} of {len(row)} are not numbers. Leave out what was "
            "not measured, in every arm alike, or hold the judgement"
        )
    return row


def check_level(level: float) -> float:
    """The chance, 0 to 1, that the interval misses. Raises ValueError for a level that is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}; it must lie between 0 and 1, such as 0.95")
    return 1.0 - level


def varies(row: Floats) -> bool:
    """The values differ by more than rounding."""
    return len(row) > 0 and float(np.ptp(row)) > _ROUNDING * float(np.abs(row).max())


def mean(blocks: Numbers, level: float = 0.95) -> Estimate | None:
    """The mean of block means, by Student's t (Student 1908; for batch means of a simulation, Law & Carson 1979).

    ``blocks``: (n,) one mean a block, equal in size or nearly. Assumes that blocks are independent and their means
    about normal. None below two blocks, or where they do not differ at all: their spread is then not known.
    """
    alpha, row = check_level(level), numbers(blocks, "blocks")
    if len(row) < 2 or not varies(row):
        return None
    return _student(float(row.mean()), row, alpha, "Student's t over blocks")


def ratio(numerators: Numbers, denominators: Numbers, level: float = 0.95) -> Estimate | None:
    """A ratio of sums, such as dollars per answered request, by the delta method over blocks.

    ``numerators``, ``denominators``: (n,) sums of each block; denominators 0 or more. The value is Σ over Σ, not the
    mean of the blocks' ratios. Assumes independent blocks. Source: Cochran, Sampling Techniques (1977), chapter 6; for
    online experiments Deng, Knoblich & Lu (2018). None below two blocks, where nothing was counted below the line,
    or where the blocks do not differ.
    """
    alpha = check_level(level)
    value, residuals = ratio_residuals(numerators, denominators)
    if len(residuals) < 2 or not residuals.any():
        return None
    return _student(value, residuals, alpha, "ratio of sums, delta method over blocks")


def ratio_residuals(numerators: Numbers, denominators: Numbers) -> tuple[float, Floats]:
    """Σ numerators / Σ denominators, and what each block contributes to its error: (n,), their mean is 0. Without a
    sum below the line there is no ratio: NaN and no residuals. Raises ValueError where a denominator is negative."""
    above, below = numbers(numerators, "numerators"), numbers(denominators, "denominators")
    if above.shape != below.shape:
        raise ValueError(f"{len(above)} numerators do not go with {len(below)} denominators: one of each a block")
    if (below < 0).any():
        raise ValueError("a denominator is negative: it counts something, such as answered requests")
    if not below.sum():
        return math.nan, np.empty(0)
    value = float(above.sum() / below.sum())
    residuals = (above - value * below) / below.mean()
    residuals[np.abs(residuals) <= _ROUNDING * np.abs(above).max() / below.mean()] = 0.0
    return value, residuals


def quantile(values: Numbers, p: float, level: float = 0.95) -> Estimate | None:
    """The ``p`` quantile of independent values, between two order statistics: true of any distribution.

    ``values``: (n,), unit as given. How many values lie below the true quantile is binomial, which names the two that
    enclose it (David & Nagaraja, Order Statistics, 2003, 7.1). Needs values that are independent, so not the latencies
    of calls that shared a server: see :func:`quantile_over_blocks`. Ends are infinite where there are too few values
    (P95 needs 72 for an upper end at 95 %). None without values.
    """
    alpha, row = check_level(level), np.sort(numbers(values))
    _check_p(p)
    n = len(row)
    if not n:
        return None
    below = _first(n, p, alpha / 2.0)  # order statistics are counted from 1; 0 and n + 1 are the infinite ends
    above = _first(n, p, 1.0 - alpha / 2.0) + 1
    return Estimate(
        value=float(np.quantile(row, p)),
        low=float(row[below - 1]) if below else -math.inf,
        high=float(row[above - 1]) if above <= n else math.inf,
        level=level,
        blocks=n,
        method="order statistics",
    )


def quantile_over_blocks(values: Numbers, block_of: Ints, p: float, level: float = 0.95) -> Estimate | None:
    """The ``p`` quantile of values that depend on each other within blocks.

    ``values``: (n,), unit as given; ``block_of``: (n,) the number of each value's block. The share of values below
    the quantile is a ratio of sums over blocks with an error that is known; its ends are turned back into values
    (Woodruff 1952, for clusters Francisco & Fuller 1991). Assumes independent blocks. On series like a server's, with
    8 to 20 blocks, it holds what it promises more nearly than resampling blocks does. None below two blocks, or where
    all have the same share below the quantile.
    """
    alpha, row = check_level(level), numbers(values)
    _check_p(p)
    if len(block_of) != len(row):
        raise ValueError(f"{len(row)} values do not go with {len(block_of)} block numbers: one each")
    if not len(row):
        return None
    value = float(np.quantile(row, p))
    _, index = np.unique(block_of, return_inverse=True)
    sizes = np.bincount(index).astype(np.float64)
    below = np.bincount(index, row <= value).astype(np.float64)
    _, residuals = ratio_residuals(below, sizes)
    if len(sizes) < 2 or not residuals.any():
        return None
    share = _student(p, residuals, alpha, "")
    return Estimate(
        value=value,
        low=float(np.quantile(row, share.low, method="inverted_cdf")) if share.low > 0.0 else -math.inf,
        high=float(np.quantile(row, share.high, method="inverted_cdf")) if share.high < 1.0 else math.inf,
        level=level,
        blocks=len(sizes),
        method="quantile by its share below, over blocks",
    )


def batches(length: int, count: int) -> Ints:
    """(length,) the batch of each of ``length`` values in order of time: ``count`` runs of nearly equal length.

    A series whose neighbours resemble each other becomes nearly independent blocks when each batch is much longer
    than the resemblance lasts (Law & Carson 1979).
    """
    if not 1 <= count <= length:
        raise ValueError(f"{length} values cannot make {count} batches")
    return np.arange(length, dtype=np.int64) * count // length


def _student(value: float, row: Floats, alpha: float, method: str) -> Estimate:
    reach = student_quantile(1.0 - alpha / 2.0, len(row) - 1) * float(row.std(ddof=1)) / math.sqrt(len(row))
    return Estimate(
        value=value, low=value - reach, high=value + reach, level=1.0 - alpha, blocks=len(row), method=method
    )


def _check_p(p: float) -> None:
    if not 0.0 < p < 1.0:
        raise ValueError(f"p is {p}; a quantile lies between 0 and 1, such as 0.95")


def _first(n: int, p: float, chance: float) -> int:
    """How many of ``n`` values at least lie below the quantile with that chance: the first count whose binomial
    share is above it, less what may still be below."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_cdf(middle, n, p) > chance else (middle + 1, high)
    return low
