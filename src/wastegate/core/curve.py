"""A server's curve of cost and speed against load: figures with intervals at each level, the knee, and where two curves
cross. Nothing is run or drawn here, and chance is handed in.

A *level* is what a sweep steps through: calls at once (closed loop), or requests offered a second (open loop). All
curves of a sweep have the same levels, and on each level the same blocks, so that they compare in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from wastegate.core.bootstrap import Chance, Statistic, bootstrap, whole_blocks
from wastegate.core.comparison import differences
from wastegate.core.intervals import Estimate, Floats, check_level, mean

DRAWS = 2000
_HOUR = 3600.0
_LARGEST_EXPONENT = 709.0


class Knee(Struct, frozen=True, kw_only=True):
    """Where load buys waiting rather than throughput. ``level`` and ``rate`` (requests per second there) are None where
    no knee can be concluded; ``why`` then says what is missing."""

    level: Estimate | None
    rate: Estimate | None
    why: str = ""


class Side(Struct, frozen=True, kw_only=True):
    """Two curves on one level. ``ratio``: the second over the first; ``lower``: the name of the one that is surely
    lower, empty where they cannot be told apart."""

    level: float
    ratio: Estimate | None
    lower: str


class Crossing(Struct, frozen=True, kw_only=True):
    """Two curves change places: ``below`` is the lower one up to the level ``last``, ``above`` from ``first`` on.
    ``level``: where they meet in between; None where even that cannot be bounded."""

    below: str
    above: str
    last: float
    first: float
    level: Estimate | None


class Meeting(Struct, frozen=True, kw_only=True):
    """Two curves held against each other, level by level. ``says`` is the conclusion, or the refusal, in words."""

    names: tuple[str, str]
    sides: tuple[Side, ...]
    crossings: tuple[Crossing, ...]
    says: str


def figure(blocks: Floats, level: float = 0.95) -> Estimate | None:
    """A figure's mean over blocks, (n,), by Student's t: of logarithms (the geometric mean) where all blocks are above
    0, so that no rate or time gets an end below 0. Without an interval (one block, or blocks that do not differ) its
    ends are infinite; it is infinite itself where a block's is, such as a latency when calls failed. None where a block
    has no figure, or there is none."""
    if not len(blocks) or np.isnan(blocks).any():
        return None
    if not np.isfinite(blocks).all():
        return unbounded(math.inf, level, len(blocks))
    if blocks.min() <= 0.0:
        return mean(blocks, level) or unbounded(float(blocks.mean()), level, len(blocks))
    logs = mean(np.log(blocks), level)
    if logs is None:
        return unbounded(float(np.exp(np.log(blocks).mean())), level, len(blocks))
    return _natural(logs, "Student's t over blocks' logarithms")


def _natural(logs: Estimate, method: str) -> Estimate:
    return Estimate(
        value=math.exp(logs.value),
        low=math.exp(logs.low),
        high=math.exp(logs.high) if logs.high < _LARGEST_EXPONENT else math.inf,
        level=logs.level,
        blocks=logs.blocks,
        method=method,
    )


def unbounded(value: float, level: float, blocks: int) -> Estimate:
    """A figure of which nothing is known but itself."""
    return Estimate(value=value, low=-math.inf, high=math.inf, level=level, blocks=blocks, method="no interval")


def dollars(price: float, rate: Estimate, units: float) -> Estimate:
    """What ``units`` cost, in dollars, where ``rate`` of them are made a second and an hour costs ``price``: 1,000
    requests, 1,000,000 tokens. An end at which nothing is made is infinite."""
    return Estimate(
        value=_cost(price, rate.value, units),
        low=_cost(price, rate.high, units) if math.isfinite(rate.high) else 0.0,
        high=_cost(price, rate.low, units),
        level=rate.level,
        blocks=rate.blocks,
        method=rate.method,
    )


def _cost(price: float, rate: float, units: float) -> float:
    return price * units / (_HOUR * rate) if rate > 0.0 else math.inf


def knee(
    levels: Sequence[float],
    rates: Sequence[Floats],
    waits: Sequence[Floats],
    chance: Chance = 0,
    confidence: float = 0.95,
) -> Knee:
    """The level of the greatest *power*, throughput over time in the system (Kleinrock, Power and deterministic rules
    of thumb, 1979). In a closed loop: beyond it, doubling what runs at once brings less than 1.41 times the
    throughput, and each call takes more than 1.41 times as long.

    ``levels``: (r,) rising, above 0. ``rates``: on each level the answered requests per second of each block (n,);
    ``waits``: their mean seconds from sending to the end. Between levels, the logarithm of power is taken as a parabola
    through the best and its neighbours; the interval is from resampled blocks. No knee is concluded where power is
    greatest at an end of the levels, or may be.
    """
    _check(levels, rates, waits)
    if len(levels) < 3:
        return Knee(level=None, rate=None, why="a knee needs three levels or more")
    if not all(map(len, rates)):
        return Knee(level=None, rate=None, why=f"no block was kept at {_first_empty(levels, rates):g}")
    power = [_log(rate) - _log(wait) for rate, wait in zip(rates, waits, strict=True)]
    generator = np.random.default_rng(chance)
    weights = np.hstack([whole_blocks(len(rung), DRAWS, generator) for rung in rates])
    steps = np.log(np.asarray(levels, dtype=np.float64))
    logs = [_log(rate) for rate in rates]

    def where(weights: Floats) -> Floats:
        return np.exp(_vertex(steps, _means(power, weights)))

    def how_fast(weights: Floats) -> Floats:
        return np.exp(_between(steps, _means(logs, weights), _vertex(steps, _means(power, weights))))

    fewest = min(map(len, rates))
    best = _means(power, np.ones((1, weights.shape[1])))[0].argmax()
    if best in (0, len(levels) - 1):
        way = "rises up to" if best else "falls from"
        advice = "go on higher" if best else "begin lower"
        return Knee(level=None, rate=None, why=f"throughput over waiting {way} {levels[best]:g}: {advice}")
    level = _surely(where, weights, fewest, confidence)
    rate = _surely(how_fast, weights, fewest, confidence)
    why = "" if level is not None and rate is not None else _no_interval(fewest, levels[best])
    return Knee(level=None if why else level, rate=None if why else rate, why=why)


def meet(
    names: tuple[str, str],
    levels: Sequence[float],
    one: Sequence[Floats],
    other: Sequence[Floats],
    chance: Chance = 0,
    confidence: float = 0.95,
) -> Meeting:
    """Where two curves cross: something that should be low, such as dollars per 1,000 requests.

    ``one``, ``other``: on each level the figure of each block (n,), above 0, the same blocks in both. A level is told
    apart by Student's t over the blocks' log ratios, at a confidence that holds for all levels at once (Bonferroni). A
    crossing needs a level where one is surely lower and a later one where the other surely is; where they overlap
    instead, nothing is concluded. Its place is where the mean log ratio is 0, from resampled blocks.
    """
    _check(levels, one, other)
    strict = 1.0 - check_level(confidence) / len(levels)
    sides = tuple(_side(names, *row, strict) for row in zip(levels, one, other, strict=True))
    known = [place for place, side in enumerate(sides) if side.lower]
    changes = [(left, right) for left, right in pairwise(known) if sides[left].lower != sides[right].lower]
    crossings = tuple(
        Crossing(
            below=sides[left].lower,
            above=sides[right].lower,
            last=levels[left],
            first=levels[right],
            level=_zero(levels[left : right + 1], one[left : right + 1], other[left : right + 1], chance, confidence),
        )
        for left, right in changes
    )
    return Meeting(names=names, sides=sides, crossings=crossings, says=_says(names, sides, crossings))


def _side(names: tuple[str, str], level: float, one: Floats, other: Floats, confidence: float) -> Side:
    both = np.concatenate((one, other))
    if len(one) < 2 or not np.isfinite(both).all() or both.min() <= 0.0:
        return Side(level=level, ratio=None, lower="")
    logs = mean(differences(one, other, "ratio"), confidence)
    if logs is None:  # the blocks do not differ, so nothing says how sure this is
        return Side(level=level, ratio=None, lower="")
    ratio = _natural(logs, "Student's t over blocks' log ratios, for all levels at once")
    lower = names[0] if ratio.low > 1.0 else names[1] if ratio.high < 1.0 else ""
    return Side(level=level, ratio=ratio, lower=lower)


def _zero(
    levels: Sequence[float], one: Sequence[Floats], other: Sequence[Floats], chance: Chance, confidence: float
) -> Estimate | None:
    """Where the mean log ratio passes 0, between the first of these levels and the last."""
    usable = [
        place
        for place, (left, right) in enumerate(zip(one, other, strict=True))
        if len(left) and np.isfinite(left).all() and np.isfinite(right).all() and min(left.min(), right.min()) > 0.0
    ]
    ratios = [differences(one[place], other[place], "ratio") for place in usable]
    steps = np.log(np.array([levels[place] for place in usable]))
    generator = np.random.default_rng(chance)
    weights = np.hstack([whole_blocks(len(ratio), DRAWS, generator) for ratio in ratios])

    def statistic(weights: Floats) -> Floats:
        return np.array([_passes(steps, row) for row in _means(ratios, weights)])

    return _surely(statistic, weights, min(map(len, ratios)), confidence)


def _passes(steps: Floats, row: Floats) -> float:
    """The level at which a row of log ratios first changes its sign; NaN if it does not."""
    for place in range(len(row) - 1):
        left, right = float(row[place]), float(row[place + 1])
        if (left > 0.0) != (right > 0.0):
            return math.exp(steps[place] + left / (left - right) * (steps[place + 1] - steps[place]))
    return math.nan


def _says(names: tuple[str, str], sides: Sequence[Side], crossings: Sequence[Crossing]) -> str:
    unsure = [f"{side.level:g}" for side in sides if not side.lower]
    overlap = f"at {', '.join(unsure)} they cannot be told apart" if unsure else ""
    if crossings:
        return "; ".join([_change(crossing) for crossing in crossings] + [overlap] * bool(overlap))
    lower = next((side.lower for side in sides if side.lower), "")
    if not lower:
        return f"{names[0]} and {names[1]} cannot be told apart on any level: nothing is concluded"
    where = ", ".join(f"{side.level:g}" for side in sides if side.lower)
    if not overlap:
        return f"{lower} is lower on every level: they do not cross between {sides[0].level:g} and {sides[-1].level:g}"
    return f"{lower} is lower at {where}; {overlap}, so no crossing is concluded"


def _change(crossing: Crossing) -> str:
    meets = f"somewhere between {crossing.last:g} and {crossing.first:g}"
    if crossing.level is not None:
        meets = f"at {crossing.level.value:.3g} ({crossing.level.low:.3g} to {crossing.level.high:.3g})"
    ends = f"up to {crossing.last:g}, {crossing.above} from {crossing.first:g} on"
    return f"{crossing.below} is lower {ends}; they meet {meets}"


def _vertex(steps: Floats, powers: Floats) -> Floats:
    """(draws,) the top of the parabola through the greatest power of each draw and its neighbours; the greatest itself
    where there is no such parabola, NaN at an end."""
    best = powers.argmax(axis=1)
    found = np.full(len(powers), math.nan)
    rows = np.flatnonzero((best > 0) & (best < len(steps) - 1))
    middle = best[rows]
    left, right = steps[middle] - steps[middle - 1], steps[middle + 1] - steps[middle]
    rise = powers[rows, middle] - powers[rows, middle - 1]
    fall = powers[rows, middle] - powers[rows, middle + 1]
    bent = np.isfinite(rise) & np.isfinite(fall) & (rise + fall > 0.0)
    shift = np.zeros(len(rows))
    left, right, rise, fall = left[bent], right[bent], rise[bent], fall[bent]
    shift[bent] = 0.5 * (right * right * rise - left * left * fall) / (right * rise + left * fall)
    found[rows] = steps[middle] + shift
    return found


def _between(steps: Floats, rows: Floats, places: Floats) -> Floats:
    """(draws,) each row's value at its place, straight between steps; NaN where the place is."""
    right = np.clip(np.searchsorted(steps, places), 1, len(steps) - 1)
    draws = np.arange(len(rows))
    low, high = rows[draws, right - 1], rows[draws, right]
    share = (places - steps[right - 1]) / (steps[right] - steps[right - 1])
    return np.asarray(low + share * (high - low))


def _means(rungs: Sequence[Floats], weights: Floats) -> Floats:
    """(draws, rungs) the weighted mean of each rung's blocks, which stand side by side in ``weights``."""
    ends = np.cumsum([len(rung) for rung in rungs])
    found = np.empty((len(weights), len(rungs)))
    for place, rung in enumerate(rungs):
        part = weights[:, ends[place] - len(rung) : ends[place]]
        finite = np.isfinite(rung).all()
        found[:, place] = part @ rung / part.sum(axis=1) if finite else -math.inf
    return found


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _surely(statistic: Statistic, weights: Floats, blocks: int, confidence: float) -> Estimate | None:
    found = bootstrap(statistic, weights, blocks, confidence)
    return found if found is not None and found.bounded else None


def _no_interval(blocks: int, best: float) -> str:
    if blocks < 2:
        return f"it may be at {best:g}, but one block has no interval: run more"
    return f"it may be at {best:g}, but blocks differ too much to be sure that it is not at an end of the levels"


def _first_empty(levels: Sequence[float], rungs: Sequence[Floats]) -> float:
    return next(level for level, rung in zip(levels, rungs, strict=True) if not len(rung))


def _check(levels: Sequence[float], one: Sequence[Floats], other: Sequence[Floats]) -> None:
    """Raises ValueError where these are no curves of one sweep."""
    if not levels or levels[0] <= 0 or any(low >= high for low, high in pairwise(levels)):
        raise ValueError(f"levels must rise, from above 0: {', '.join(f'{level:g}' for level in levels) or 'none'}")
    if [len(rung) for rung in one] != [len(rung) for rung in other] or len(one) != len(levels):
        raise ValueError("two curves need the same levels, and on each level the same blocks")
