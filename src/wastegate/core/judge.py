"""What the measurements of a trial say: accept, reject or hold, with the reasons in words. Nothing is measured here,
and nothing is decided for reasons that a trial did not name beforehand.

Missing data holds. A trial is judged once, after all of its blocks, or at every look, and with intervals that are true
of that; there is no third way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from wastegate.core.bootstrap import Chance
from wastegate.core.comparison import (
    Sums,
    blocks_needed,
    compare,
    compare_sums,
    differences,
    equal,
    is_broken,
    is_shown,
    sum_errors,
)
from wastegate.core.intervals import Estimate, Floats, check_level
from wastegate.core.sequential import blocks_until_shown, compare_so_far
from wastegate.core.trial import Goal, Trial

Ruling = Literal["accept", "reject", "hold"]


class Measured(Struct, frozen=True, kw_only=True):
    """One metric in both arms, block by block in order of time: (n,) figures, NaN where one is missing. Of a ratio of
    sums, such as dollars per answered request, these are the sums above the line and ``under`` those below it, of the
    baseline and of the candidate."""

    baseline: Floats
    candidate: Floats
    under: tuple[Floats, Floats] | None = None

    @property
    def blocks(self) -> int:
        return len(self.baseline)

    def first(self, blocks: int) -> Measured:
        under = (self.under[0][:blocks], self.under[1][:blocks]) if self.under else None
        return Measured(baseline=self.baseline[:blocks], candidate=self.candidate[:blocks], under=under)

    def figures(self) -> Measured:
        """Each block's own ratio in place of its sums; NaN where nothing stands below the line."""
        if self.under is None:
            return self
        return Measured(
            baseline=_divided(self.baseline, self.under[0]), candidate=_divided(self.candidate, self.under[1])
        )


def _divided(above: Floats, below: Floats) -> Floats:
    found = np.full(len(above), math.nan)
    np.divide(above, below, out=found, where=below > 0)
    return found


class Finding(Struct, frozen=True, kw_only=True):
    """What was found of one goal. ``estimate`` is None where nothing can be said. ``more``: about how many blocks are
    still needed if they go on like this; for a trial that is over, how many a new one needs. None if none would do."""

    metric: str
    ruling: Ruling
    reason: str
    estimate: Estimate | None = None
    more: int | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """``accept``: every goal is shown. ``reject``: one is shown to be missed. ``hold``: neither, or too little is
    known: leave things as they are. It is an answer, not a failure."""

    ruling: Ruling
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def judge(trial: Trial, measured: Mapping[str, Measured], dropped: int = 0, chance: Chance = 0) -> Verdict:
    """What the blocks so far say. ``dropped``: blocks that were left out as disturbed, by a rule fixed beforehand.

    ``accept`` needs every goal, so each may be judged at the trial's own level (intersection-union: Berger 1982);
    ``reject`` needs only one, so each is judged at its part of the error (Bonferroni).
    """
    findings = tuple(_find(trial, goal, measured.get(goal.metric), chance) for goal in trial.goals)
    reasons = tuple(finding.reason for finding in findings)
    kept = max((one.blocks for one in measured.values()), default=0)
    if dropped > trial.most_dropped * (dropped + kept):
        why = f"{dropped} of {dropped + kept} blocks were disturbed and dropped: the rest may not stand for the whole"
        return Verdict(ruling="hold", reasons=(why, *reasons), findings=findings)
    rulings = {finding.ruling for finding in findings}
    ruling: Ruling = "reject" if "reject" in rulings else "hold" if "hold" in rulings else "accept"
    return Verdict(ruling=ruling, reasons=reasons, findings=findings)


def _find(trial: Trial, goal: Goal, measured: Measured | None, chance: Chance) -> Finding:
    if measured is None:
        return _held(goal, "not measured")
    blocks = measured.first(trial.blocks) if trial.looks == "once" else measured
    if trial.looks == "every" or goal.scale == "difference":
        blocks = blocks.figures()
    missing = _missing(goal, blocks)
    if missing:
        return _held(goal, missing)
    if trial.looks == "once" and blocks.blocks < trial.blocks:
        why = f"{blocks.blocks} of {trial.blocks} blocks; it is judged once, with all of them"
        return _held(goal, why, trial.blocks - blocks.blocks)
    estimate = _estimate(trial, goal, blocks, trial.level, chance)
    if estimate is None:
        return _held(goal, f"{blocks.blocks} blocks are too few, or too much alike, for an interval")
    strict = _estimate(trial, goal, blocks, 1.0 - check_level(trial.level) / len(trial.goals), chance)
    ruling, why = _alike(goal, estimate, strict) if trial.is_aa else _ruled(goal, estimate, strict)
    more = _more(trial, goal, blocks, estimate) if ruling == "hold" and not trial.is_aa else None
    reason = f"{goal.metric}: {words(estimate, goal)}; {why}{_advice(trial, more) if more else ''}"
    return Finding(metric=goal.metric, ruling=ruling, reason=reason, estimate=estimate, more=more)


def _held(goal: Goal, why: str, more: int | None = None) -> Finding:
    return Finding(metric=goal.metric, ruling="hold", reason=f"{goal.metric}: {why}", more=more)


def _missing(goal: Goal, measured: Measured) -> str:
    """Why the figures cannot be judged; empty if they can."""
    rows = [("baseline", measured.baseline), ("candidate", measured.candidate)]
    rows += [("baseline", measured.under[0]), ("candidate", measured.under[1])] if measured.under else []
    if len({row.shape for _, row in rows}) > 1:
        return f"the arms have {len(measured.baseline)} and {len(measured.candidate)} blocks, so they do not pair"
    if not measured.blocks:
        return "no block yet"
    for name, row in rows:
        blank = int((~np.isfinite(row)).sum())
        if blank:
            return f"{blank} of {len(row)} blocks have no figure for the {name}"
    if goal.scale == "ratio" and measured.under is None and min(row.min() for _, row in rows) <= 0:
        return "a figure is not above 0, so it has no ratio"
    return ""


def _estimate(trial: Trial, goal: Goal, measured: Measured, level: float, chance: Chance) -> Estimate | None:
    base, other = measured.baseline, measured.candidate
    if trial.looks == "every":
        return compare_so_far(base, other, goal.scale, level, trial.blocks)
    if measured.under is None:
        return compare(base, other, goal.scale, level, chance)
    return compare_sums(*_sums(measured, measured.under), level)


def _ruled(goal: Goal, estimate: Estimate, strict: Estimate | None) -> tuple[Ruling, str]:
    good, bad = ("below", "above") if goal.better == "lower" else ("above", "below")
    if is_shown(estimate, goal.bound, goal.better):
        return "accept", f"{good} {goal.bound:g}, as asked"
    if strict is not None and is_broken(strict, goal.bound, goal.better):
        return "reject", f"{bad} {goal.bound:g}, which it must not be"
    return "hold", f"not shown to be {good} {goal.bound:g}"


def _alike(goal: Goal, estimate: Estimate, strict: Estimate | None) -> tuple[Ruling, str]:
    low, high = goal.tolerance
    band = f"{low:.4g} to {high:.4g}"
    if strict is not None and not strict.holds(equal(goal.scale)):
        return "reject", "a difference between arms that are alike: these instruments are not to be trusted"
    if low < estimate.low and estimate.high < high:
        return "accept", f"alike within {band}"
    return "hold", f"no difference found, but one outside {band} is not ruled out"


def _more(trial: Trial, goal: Goal, measured: Measured, estimate: Estimate) -> int | None:
    """Blocks still needed, or needed anew where a trial is over; None where the figure is on the wrong side."""
    distance = math.log(goal.bound / estimate.value) if goal.scale == "ratio" else goal.bound - estimate.value
    distance = distance if goal.better == "lower" else -distance
    if measured.under is None:
        errors = differences(measured.baseline, measured.candidate, goal.scale)
    else:
        errors = sum_errors(*_sums(measured, measured.under))[1]
    spread = float(errors.std(ddof=1))
    if trial.looks == "once":
        return blocks_needed(spread, distance, trial.level)
    wanted = blocks_until_shown(spread, distance, trial.level, trial.blocks)
    return None if wanted is None else max(1, wanted - measured.blocks)


def _sums(measured: Measured, under: tuple[Floats, Floats]) -> tuple[Sums, Sums]:
    return (
        Sums(numerators=measured.baseline, denominators=under[0]),
        Sums(numerators=measured.candidate, denominators=under[1]),
    )


def _advice(trial: Trial, more: int) -> str:
    if trial.looks == "once":
        return f". This trial is over: a new one needs about {more} blocks, if the figures stay as they are"
    return f". About {more} more blocks, if the figures stay as they are"


def words(estimate: Estimate, goal: Goal) -> str:
    """The estimate as people read it: 0.812 of the baseline (0.78 to 0.84, 95 %)."""
    sign, unit = ("", "of") if goal.scale == "ratio" else ("+", "against")
    value, low, high = (format(one, f"{sign}.4g") for one in (estimate.value, estimate.low, estimate.high))
    return f"{value} {unit} the baseline ({low} to {high}, {100.0 * estimate.level:.3g} %)"
