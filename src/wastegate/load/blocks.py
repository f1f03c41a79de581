"""What a paired run was to be, and what it showed: turns, blocks, comparisons, whether it may be believed. Values in,
values out; nothing is run here."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from msgspec import Struct

from wastegate.core.comparison import Scale, compare, least_blocks
from wastegate.core.intervals import Estimate, Floats
from wastegate.core.judge import Measured
from wastegate.core.trial import MOST_DROPPED
from wastegate.load.host import Host, Rule
from wastegate.load.ladder import Crossing, crossings


class Design(Struct, frozen=True, kw_only=True):
    """What is run, fixed before it. ``rates``: the ladder, in requests per second, rising; empty for one rung at the
    trace's own times. ``seconds`` of sending in a turn, of which the first ``warmup`` do not count. ``spares``: blocks
    that may be run in place of dropped ones, on each rung. ``limit``: seconds that ``limit_metric`` may take, for the
    rate at equal latency."""

    rates: tuple[float, ...] = ()
    blocks: int = 6
    spares: int = 2
    seconds: float = 20.0
    warmup: float = 3.0
    seed: int = 0
    level: float = 0.95
    rule: Rule = Rule()
    quiet: float = 0.2
    """Seconds before each turn in which nothing is sent, to see whether others are at work here; 0 looks for nobody."""
    limit: float | None = None
    limit_metric: str = "e2e_p95"
    patience: float = 900.0
    """Seconds that one turn may take in all."""
    mirrored: bool = True
    """Each arm runs twice in a block, A B B A, which cancels a steady drift; else once, in an order that is drawn."""
    unit: str = "/s"
    """What stands behind a rung's number: its ladder may count something else than requests per second."""

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.spares < 0:
            raise ValueError(f"{self.blocks} blocks with {self.spares} spares: at least 1 block is needed")
        if not 0.0 <= self.quiet < math.inf:
            raise ValueError(f"{self.quiet} s of quiet before a turn: it must be 0 or more")
        if not 0.0 <= self.warmup < self.seconds:
            raise ValueError(f"a turn of {self.seconds:g} s with {self.warmup:g} s of warm-up: nothing would count")
        if any(rate <= 0 for rate in self.rates) or list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"the ladder {self.rates} must rise, from a rate above 0")
        if self.limit is not None and len(self.rates) < 2:
            raise ValueError("a rate at equal latency needs a ladder of two rates or more")

    @property
    def rungs(self) -> tuple[float | None, ...]:
        return self.rates or (None,)

    def at(self, rate: float | None) -> str:
        """The rung, to stand behind a sentence: " at 4/s"; empty where there is no ladder."""
        return "" if rate is None else f" at {rate:g}{self.unit}"


class Done(Struct, frozen=True, kw_only=True):
    """One turn as it went. ``began``: seconds after the run's start."""

    arm: str
    began: float
    took: float
    figures: dict[str, float]
    host: Host
    fault: str


class Block(Struct, frozen=True, kw_only=True):
    """One round of turns. ``dropped``: why it does not count; empty if it does."""

    rate: float | None
    number: int
    turns: tuple[Done, ...]
    dropped: str

    def figure(self, arm: str, metric: str) -> float:
        """The mean of the arm's turns; NaN where one lacks it."""
        found = [turn.figures.get(metric, math.nan) for turn in self.turns if turn.arm == arm]
        return sum(found) / len(found)


class Line(Struct, frozen=True, kw_only=True):
    """One metric of one arm on one rung against the baseline's: means over the kept blocks, and the comparison by
    block. ``why`` says what is missing where there is no estimate."""

    rate: float | None
    metric: str
    arm: str
    baseline: float
    value: float
    scale: Scale
    estimate: Estimate | None
    why: str = ""


class Run(Struct, frozen=True, kw_only=True):
    """What ran. The first of ``arms`` is the baseline."""

    arms: tuple[str, ...]
    design: Design
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    interrupted: bool
    seconds: float

    def kept(self, rate: float | None) -> tuple[Block, ...]:
        """The blocks of a rung that count, in order of time."""
        return tuple(block for block in self.blocks if block.rate == rate and not block.dropped)

    def series(self, arm: str, metric: str, rate: float | None = None) -> Floats:
        """(n,) a figure for each kept block; NaN where one is missing."""
        return np.array([block.figure(arm, metric) for block in self.kept(rate)], dtype=np.float64)

    def measured(self, arm: str, metric: str, rate: float | None = None, under: str = "") -> Measured:
        """The metric as a judge takes it; with ``under``, the ratio of the sums of two metrics."""
        base = self.arms[0]
        below = (self.series(base, under, rate), self.series(arm, under, rate)) if under else None
        return Measured(baseline=self.series(base, metric, rate), candidate=self.series(arm, metric, rate), under=below)


class Report(Run, frozen=True, kw_only=True):
    """What ran, and what it showed."""

    lines: tuple[Line, ...]
    crossings: tuple[Crossing, ...]
    dropped: dict[str, int]
    """How many blocks were dropped, by reason."""
    invalid: tuple[str, ...]
    """Why nothing may be concluded from it; empty if something may."""


def report(run: Run) -> Report:
    """Every metric of every arm against the baseline on every rung, and the rates at equal latency."""
    return Report(
        arms=run.arms,
        design=run.design,
        blocks=run.blocks,
        notes=run.notes + _notes(run),
        interrupted=run.interrupted,
        seconds=run.seconds,
        lines=tuple(line for rate in run.design.rungs for line in _lines(run, rate)),
        crossings=_crossings(run),
        dropped=dict(Counter(block.dropped for block in run.blocks if block.dropped)),
        invalid=_invalid(run),
    )


def _lines(run: Run, rate: float | None) -> list[Line]:
    kept = run.kept(rate)
    metrics = dict.fromkeys(metric for block in kept for turn in block.turns for metric in turn.figures)
    return [_line(run, rate, metric, arm) for metric in metrics for arm in run.arms[1:]]


def _line(run: Run, rate: float | None, metric: str, arm: str) -> Line:
    base, other = run.series(run.arms[0], metric, rate), run.series(arm, metric, rate)
    both = np.concatenate((base, other))
    scale: Scale = "ratio" if both.min() > 0 else "difference"
    blank = int((~np.isfinite(base) | ~np.isfinite(other)).sum())
    estimate, why = None, ""
    if blank:
        why = f"{blank} of {len(base)} blocks have no finite figure"
    else:
        estimate = compare(base, other, scale, run.design.level, run.design.seed)
        if estimate is None:
            why = f"{len(base)} blocks are too few for an interval: {least_blocks(run.design.level)} are needed"
    return Line(
        rate=rate,
        metric=metric,
        arm=arm,
        baseline=float(base.mean()),
        value=float(other.mean()),
        scale=scale,
        estimate=estimate,
        why=why,
    )


def _crossings(run: Run) -> tuple[Crossing, ...]:
    design = run.design
    if design.limit is None:
        return ()
    latencies = {
        arm: [_endless(run.series(arm, design.limit_metric, rate)) for rate in design.rates] for arm in run.arms
    }
    return crossings(design.rates, latencies, design.limit, design.limit_metric, design.seed, design.level)


def _endless(latencies: Floats) -> Floats:
    """A turn without a latency had no answer at all."""
    return np.where(np.isnan(latencies), math.inf, latencies)


def _invalid(run: Run) -> tuple[str, ...]:
    found = ["it was interrupted: what ran was not what had been planned"] if run.interrupted else []
    for rate in run.design.rungs:
        total = sum(block.rate == rate for block in run.blocks)
        dropped = total - len(run.kept(rate))
        if dropped > MOST_DROPPED * total:
            found.append(f"{dropped} of {total} blocks{run.design.at(rate)} were disturbed: wait for a quieter machine")
    return tuple(found)


def _notes(run: Run) -> tuple[str, ...]:
    found = [
        f"{len(run.kept(rate))} of {run.design.blocks} blocks were kept{run.design.at(rate)}"
        for rate in run.design.rungs
        if len(run.kept(rate)) < run.design.blocks
    ]
    turns = [turn for block in run.blocks for turn in block.turns]
    metric = run.design.limit_metric
    if run.design.limit is not None and turns and not any(metric in turn.figures for turn in turns):
        found.append(f"no turn has a figure called {metric}, so there is no rate at an equal one")
    if turns and all(turn.host.steal is None for turn in turns):
        found.append("this machine does not say what its host takes from it, so no block could be dropped for that")
    return tuple(found)
