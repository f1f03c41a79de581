"""Resampling of whole blocks, for figures that no formula covers. Chance is handed in; calls are never resampled one
by one, since neighbours are alike and a resample that parts them would look more certain than it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from wastegate.core.distributions import normal_cdf, student_quantile
from wastegate.core.intervals import Estimate, Floats, Ints, Numbers, check_level, numbers

Chance = int | np.random.Generator
"""A seed, or a generator that is under way."""
Statistic = Callable[[Floats], Floats]
"""Weights (draws, n) → the figure for each draw (draws,). A weight says how often a block counts."""

_CELLS = 4_000_000
"""Numbers held at once while weighted quantiles are found: 32 MB."""


def whole_blocks(blocks: int, draws: int, chance: Chance) -> Floats:
    """(draws, blocks) how often each of the independent blocks is drawn: the cluster bootstrap (Davison & Hinkley,
    Bootstrap Methods and their Application, 1997, 3.8)."""
    if blocks < 1 or draws < 1:
        raise ValueError(f"{draws} draws of {blocks} blocks: both must be at least 1")
    generator = np.random.default_rng(chance)
    return generator.multinomial(blocks, np.full(blocks, 1.0 / blocks), draws).astype(np.float64)


def moving_blocks(length: int, block: int, draws: int, chance: Chance) -> Floats:
    """(draws, length) how often each value of a series in order of time is drawn, in runs of ``block`` neighbours that
    start anywhere and go round the end (the circular block bootstrap: Künsch 1989, Politis & Romano 1992).

    ``block`` must be much longer than neighbours resemble each other, and much shorter than the series: below ten
    blocks its intervals are too narrow, however they are made.
    """
    if not 1 <= block <= length or draws < 1:
        raise ValueError(f"{draws} draws of a series of {length} in blocks of {block}: 1 <= block <= length is needed")
    generator = np.random.default_rng(chance)
    runs = math.ceil(length / block)
    sizes = np.full(runs, block)
    sizes[-1] = length - block * (runs - 1)  # so that every draw is as long as the series
    starts = generator.integers(0, length, (draws, runs))
    rows = np.arange(draws)[:, None]
    edges = np.zeros((draws, 2 * length + 1))
    np.add.at(edges, (rows, starts), 1.0)
    np.add.at(edges, (rows, starts + sizes), -1.0)
    counts = np.cumsum(edges, axis=1)
    return np.asarray(counts[:, :length] + counts[:, length : 2 * length])


def bootstrap(statistic: Statistic, weights: Floats, blocks: float, level: float = 0.95) -> Estimate | None:
    """The interval of ``statistic`` from draws of blocks: percentiles, spread as Student's t asks of so few blocks
    (Hesterberg 2015, the expanded percentile interval).

    ``weights``: (draws, n) from one of the functions above; ``blocks``: how many independent ones the data has (for
    moving blocks length/block). A draw whose figure is NaN counts as beyond both ends, so that an interval becomes
    infinite rather than narrow when too many have none. None below two blocks, where the figure of the data itself is
    NaN, or where no draw differs from another.
    """
    alpha = check_level(level)
    value = float(statistic(np.ones((1, weights.shape[1])))[0])
    if blocks < 2 or math.isnan(value):
        return None
    drawn = statistic(weights)
    spread = student_quantile(1.0 - alpha / 2.0, blocks - 1.0) * math.sqrt(blocks / (blocks - 1.0))
    tail = normal_cdf(-spread)
    lows, highs = np.nan_to_num(drawn, nan=-math.inf), np.nan_to_num(drawn, nan=math.inf)
    if lows.min() == highs.max():
        return None
    return Estimate(
        value=value,
        low=float(np.quantile(lows, tail, method="inverted_cdf")),
        high=float(np.quantile(highs, 1.0 - tail, method="inverted_cdf")),
        level=level,
        blocks=int(blocks),
        method=f"block bootstrap, {len(weights)} draws",
    )


def ratio_of_sums(numerators: Numbers, denominators: Numbers) -> Statistic:
    """Σ over Σ, for blocks with these sums (n,): the figure that :func:`intervals.ratio` has a formula for."""
    above, below = numbers(numerators, "numerators"), numbers(denominators, "denominators")

    def statistic(weights: Floats) -> Floats:
        sums = weights @ below
        found = np.full(len(sums), math.nan)
        np.divide(weights @ above, sums, out=found, where=sums > 0)
        return found

    return statistic


def quantile_of(values: Numbers, block_of: Ints, p: float) -> Statistic:
    """The ``p`` quantile of all values, where block i of ``block_of`` (n,) counts as often as weight i says.

    For :func:`moving_blocks` each value is a block of its own: ``np.arange(n)``. Where a few blocks decide a high
    quantile, its interval is too narrow (86 % for 95 %, of a P95 in 20 blocks that differ by 30 %):
    :func:`intervals.quantile_over_blocks` is truer there.
    """
    row = numbers(values)
    if len(block_of) != len(row) or not len(row):
        raise ValueError(f"{len(row)} values do not go with {len(block_of)} block numbers: one each, and at least one")
    order = np.argsort(row, kind="stable")
    ordered, owner = row[order], np.asarray(block_of)[order]

    def statistic(weights: Floats) -> Floats:
        step = max(1, _CELLS // len(ordered))
        parts = [_weighted(weights[start : start + step]) for start in range(0, len(weights), step)]
        return np.concatenate(parts)

    def _weighted(weights: Floats) -> Floats:
        below = np.cumsum(weights[:, owner], axis=1)
        total = below[:, -1]
        found = ordered[(below >= p * total[:, None]).argmax(axis=1)]
        return np.where(total > 0, found, math.nan)

    return statistic
