"""Requests per second at an equal P95: where each arm's latency, climbing a ladder of rates, reaches a limit that was
set beforehand. Values only: nothing is run here, and chance is handed in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from wastegate.core.bootstrap import Chance, Statistic, bootstrap, whole_blocks
from wastegate.core.intervals import Estimate, Floats

DRAWS = 2000


class Crossing(Struct, frozen=True, kw_only=True):
    """Where one arm reaches the limit. ``rate`` is requests per second, ``ratio`` that over the baseline's (None for
    the baseline itself). Where nothing can be concluded they are None, and ``why`` says what is missing."""

    arm: str
    metric: str
    limit: float
    """Seconds."""
    rate: Estimate | None
    ratio: Estimate | None
    why: str = ""


def crossings(
    rates: Sequence[float],
    latencies: Mapping[str, Sequence[Floats]],
    limit: float,
    metric: str,
    chance: Chance = 0,
    level: float = 0.95,
) -> tuple[Crossing, ...]:
    """For each arm (the first is the baseline) the rate at which its latency is ``limit`` seconds.

    ``rates``: (r,) rising; ``latencies``: for each arm and rung the latency of each kept block (n,), inf where too few
    calls were answered; a rung has the same blocks in each arm. The logarithm of latency, averaged over blocks and
    taken never to fall as the rate rises, is straight between rungs. The interval is from resampled blocks, the same
    ones for all arms. Nothing is concluded where a ladder does not reach from under the limit to above it, or not
    surely. Raises ValueError for rates or a limit that make no ladder.
    """
    if len(rates) < 2 or any(low >= high for low, high in pairwise(rates)):
        raise ValueError(
            f"a ladder needs two rates or more, rising, and has {', '.join(f'{rate:g}' for rate in rates)}"
        )
    if not 0.0 < limit < math.inf:
        raise ValueError(f"the limit is {limit} s; it must be above 0")
    first = next(iter(latencies))
    blocks = [len(rung) for rung in latencies[first]]
    for arm, rungs in latencies.items():
        if [len(rung) for rung in rungs] != blocks or len(rungs) != len(rates):
            raise ValueError(f"{arm} has not the same rungs and blocks as {first}")
    if not all(blocks):
        why = f"no block was kept at {rates[blocks.index(0)]:g}/s"
        return tuple(Crossing(arm=arm, metric=metric, limit=limit, rate=None, ratio=None, why=why) for arm in latencies)
    generator = np.random.default_rng(chance)
    weights = np.hstack([whole_blocks(count, DRAWS, generator) for count in blocks])
    curves = {arm: _curve(rates, rungs, limit) for arm, rungs in latencies.items()}
    found: list[Crossing] = []
    for arm, curve in curves.items():
        rate = _surely(bootstrap(curve, weights, min(blocks), level))
        ratio = None
        if arm != first:
            ratio = _surely(bootstrap(_over(curve, curves[first]), weights, min(blocks), level))
        why = _why(rates, latencies[arm], limit) if rate is None else ""
        if rate is not None and ratio is None and arm != first:
            why = f"{first} has no such rate to compare with, or not surely"
        found.append(Crossing(arm=arm, metric=metric, limit=limit, rate=rate, ratio=ratio, why=why))
    return tuple(found)


def _curve(rates: Sequence[float], rungs: Sequence[Floats], limit: float) -> Statistic:
    """Weights of all rungs' blocks, side by side → the rate at which the limit is reached; NaN where it is not, or
    somewhere between a rung and one without answers."""
    steps, goal = np.asarray(rates, dtype=np.float64), math.log(limit)
    ends = np.cumsum([len(rung) for rung in rungs])
    logs = [np.log(rung) for rung in rungs]

    def statistic(weights: Floats) -> Floats:
        levels = np.empty((len(weights), len(rungs)))
        for place, rung in enumerate(logs):
            part = weights[:, ends[place] - len(rung) : ends[place]]
            levels[:, place] = part @ rung / part.sum(axis=1) if np.isfinite(rung).all() else math.inf
        levels = np.maximum.accumulate(levels, axis=1)
        above = levels >= goal
        right = above.argmax(axis=1)
        left = np.maximum(right - 1, 0)
        rows = np.arange(len(weights))
        low, high = levels[rows, left], levels[rows, right]
        reached = above[:, -1] & ~above[:, 0] & np.isfinite(high)
        found = np.full(len(weights), math.nan)
        share = (goal - low[reached]) / (high[reached] - low[reached])
        found[reached] = steps[left[reached]] + share * (steps[right] - steps[left])[reached]
        return found

    return statistic


def _over(curve: Statistic, baseline: Statistic) -> Statistic:
    def statistic(weights: Floats) -> Floats:
        return curve(weights) / baseline(weights)

    return statistic


def _surely(estimate: Estimate | None) -> Estimate | None:
    return estimate if estimate is not None and estimate.bounded else None


def _why(rates: Sequence[float], rungs: Sequence[Floats], limit: float) -> str:
    """What the ladder lacks, for whoever runs it again."""
    levels = [float(np.exp(np.log(rung).mean())) for rung in rungs]
    if levels[0] >= limit:
        return f"{_seconds(levels[0])} at {rates[0]:g}/s is over the limit already: begin the ladder lower"
    if max(levels) < limit:
        return f"{_seconds(max(levels))} at most, up to {rates[-1]:g}/s: the limit is not reached; go on higher"
    place = next(place for place, level in enumerate(levels) if level >= limit)
    if math.isinf(levels[place]):
        return f"answers cease between {rates[place - 1]:g} and {rates[place]:g}/s: add rates between them"
    if min(len(rung) for rung in rungs) < 2:
        return "one block has no interval: run more"
    return (
        "blocks differ so much that the ladder does not surely enclose the limit: run more blocks, or a longer ladder"
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if math.isfinite(value) else "no answer"
