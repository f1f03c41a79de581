"""Step times fitted to what was observed: steps that an engine told of, or calls in a ledger. It says how far it was
off, and what it has never seen. No file and no clock enters here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from wastegate.core.ledger import Attempt, EngineRecord
from wastegate.sim.timing import Load

Values = NDArray[np.float64]

_KNOTS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Where a further sequence may begin to cost more: while products are small, more of them cost next to nothing."""
_ENOUGH = 8
_FEWEST = 7
"""Steps of a call's decoding: of fewer the mean says little."""
_SHORTEST = 1e-3
_NEVER = 10.0
"""What was never seen at all counts as so many times beyond."""
_PER_REACH = 0.25
"""Relative error that each further time of what was seen may add, however well the seen was met."""
_EDGE = 1.1
"""Of what was seen at most: that far a fit may reach out without saying so."""


class Observation(Struct, frozen=True):
    """A step, or the mean of steps that followed one another."""

    load: Load
    seconds: float


class Fitted(Struct, frozen=True, forbid_unknown_fields=True):
    """Step times as a sum of parts, none below 0, that bends upwards where more sequences begin to cost more."""

    step_seconds: float
    per_prefill: float
    per_pair: float
    per_kv: float
    knots: tuple[float, ...]
    bends: tuple[float, ...]
    """Seconds for each sequence beyond the knot."""
    seen: Load
    """The most of each that was observed."""
    residual: float
    """Relative error that 9 of 10 observations stay under."""
    middle: float
    """The median one."""
    observations: int

    def step(self, load: Load) -> float:
        bent = 0.0
        for knot, bend in zip(self.knots, self.bends, strict=True):
            if load.decoding <= knot:
                break
            bent += bend * (load.decoding - knot)
        return (
            self.step_seconds
            + self.per_prefill * load.prefill
            + self.per_pair * load.pairs
            + self.per_kv * load.kv
            + bent
        )

    def doubt(self, load: Load) -> float:
        """Grows with the distance from what was seen: a line that goes on is a guess."""
        beyond = max(0.0, self._reach(load) - _EDGE)
        return self.residual * (1 + 2 * beyond) + _PER_REACH * beyond

    def inside(self, load: Load) -> bool:
        return self._reach(load) <= _EDGE

    def _reach(self, load: Load) -> float:
        """The largest part of the load, in terms of what was seen of it. Pairs follow from prompts' lengths."""
        seen = self.seen
        parts = ((load.prefill, seen.prefill), (load.decoding, seen.decoding), (load.kv, seen.kv))
        return max(part / most if most else _NEVER * (part > 0) for part, most in parts)


def fit(observations: Sequence[Observation]) -> Fitted:
    """Least squares of relative errors with parts that are not below 0. Raises ValueError for too few observations."""
    if len(observations) < _ENOUGH:
        raise ValueError(f"{len(observations)} observations: a fit needs at least {_ENOUGH}")
    seconds = np.array([one.seconds for one in observations])
    if not (seconds > 0).all():
        raise ValueError("an observation took no time")
    loads = [one.load for one in observations]
    seen = Load(*(float(max(getattr(load, name) for load in loads)) for name in Load.__struct_fields__))
    knots = (0.0, *(knot for knot in _KNOTS if knot < seen.decoding))
    columns = [[1.0] * len(loads)] + [[getattr(load, name) for load in loads] for name in ("prefill", "pairs", "kv")]
    columns += [[max(0.0, load.decoding - knot) for load in loads] for knot in knots]
    table = np.array(columns).T / seconds[:, None]
    found = _not_below_zero(table, np.ones(len(loads)))
    off = np.abs(table @ found - 1)
    spare = len(loads) / max(1, len(loads) - int((found > 0).sum()))  # parameters eat part of the error
    return Fitted(
        step_seconds=float(found[0]), per_prefill=float(found[1]), per_pair=float(found[2]), per_kv=float(found[3]),
        knots=knots, bends=tuple(map(float, found[4:])), seen=seen, residual=float(np.quantile(off, 0.9) * spare),
        middle=float(np.median(off)), observations=len(loads),
    )  # fmt: skip


def _not_below_zero(table: Values, wanted: Values) -> Values:
    """Least squares with x ≥ 0 by coordinate descent, on columns of equal length."""
    scale = np.sqrt((table**2).sum(axis=0))
    scale[scale == 0] = 1.0
    matrix = (table / scale).T @ (table / scale)
    target = (table / scale).T @ wanted
    x: Values = np.zeros(table.shape[1])
    for _ in range(20_000):
        before = x.copy()
        for index in range(len(x)):
            slope = target[index] - matrix[index] @ x
            x[index] = max(0.0, x[index] + slope / max(matrix[index, index], 1e-30))
        if np.abs(x - before).max() < 1e-10 * max(1.0, float(np.abs(x).max())):
            break
    found: Values = x / scale
    return found


def from_calls(attempts: Sequence[Attempt], step_tokens: int, front: float = 0.0) -> list[Observation]:
    """Mean steps of one replica from its streamed attempts: what each call's tokens waited for. ``front``: seconds that
    a request takes to reach its engine.

    Between a call's first and last token there was a step for each token; what else was in these steps follows from
    the other calls' times. Prompts are taken to be computed evenly between sending and first token, in the order sent.
    """
    calls = [one for one in attempts if _usable(one)]
    if not calls:
        return []
    sent, first, ended = (np.array([getattr(one, name) for one in calls]) for name in ("sent", "first_token", "ended"))
    fresh = np.array([max(1, (one.prompt_tokens or 0) - (one.cached_tokens or 0)) for one in calls], dtype=float)
    whole = np.array([one.prompt_tokens or 0 for one in calls], dtype=float)
    output = np.array([one.output_tokens or 0 for one in calls], dtype=float)
    # A prompt's computing begins when those sent before it have their first tokens, or when it arrives.
    order = np.argsort(sent)
    behind = np.empty_like(sent)
    behind[order] = np.maximum.accumulate(np.concatenate([[-np.inf], first[order][:-1]]))
    begun = np.minimum(np.maximum(sent + front, behind), first - 1e-6)
    span = first - begun
    running = _Integral(first, ended, np.ones(len(calls)))
    prefill = _Integral(begun, first, fresh / span)
    pairs = _Integral(begun, first, fresh * (whole - fresh / 2) / span)
    kv = _Integral(first, ended, whole + output / 2)
    found = []
    for at, count in enumerate(output):
        spans = [(first[at], ended[at], count - 1)] if count > _FEWEST else []
        if begun[at] > behind[at] and running.over(begun[at], first[at]) == 0:
            # Alone its time is its prompt's. Others would make it wait for a step of which nobody knows the rest.
            spans.append((begun[at], first[at], -(-fresh[at] // step_tokens)))
        for begin, end, steps in spans:
            if end - begin > _SHORTEST:
                load = Load(
                    prefill.over(begin, end) / steps, pairs.over(begin, end) / steps,
                    running.over(begin, end) / (end - begin), kv.over(begin, end) / (end - begin),
                )  # fmt: skip
                found.append(Observation(load, (end - begin) / steps))
    return found


def from_records(records: Sequence[EngineRecord]) -> list[Observation]:
    """Mean steps of one replica by its engine's own account: of each stretch of steps in which a request did the same,
    with what the other requests did meanwhile. Records without steps give none."""
    runs, done = [], []
    for record in records:
        computed = record.cached
        for run in record.runs:
            if run.steps and run.end > run.start and record.measured == "steps":
                runs.append(run)
                done.append(computed + run.prefill / 2)
            computed += run.prefill
    if not runs:
        return []
    start, end, steps = (np.array([getattr(run, name) for run in runs], float) for name in ("start", "end", "steps"))
    fresh = np.array([run.prefill for run in runs], float)
    span = end - start
    parts = {
        "prefill": _Integral(start, end, fresh / span),
        "pairs": _Integral(start, end, fresh * np.array(done) / span),
        "decoding": _Integral(start, end, np.array([run.decode + run.draft for run in runs]) / span),
        "kv": _Integral(start, end, np.array([run.kv for run in runs]) / span),
    }
    found = []
    for begin, finish, count in zip(start, end, steps, strict=True):
        amount = {name: part.over(begin, finish) / count for name, part in parts.items()}
        amount["kv"] *= count / (finish - begin)  # held all the time, not once a step
        found.append(Observation(Load(**amount), float((finish - begin) / count)))
    return found


def _usable(one: Attempt) -> bool:
    times = one.sent is not None and one.first_token is not None
    counts = one.prompt_tokens is not None and one.output_tokens is not None
    return one.outcome == "finished" and times and counts and one.usage == "engine"


class _Integral:
    """The integral over time of heights that hold between two times each."""

    def __init__(self, begins: Values, ends: Values, heights: Values) -> None:
        at = np.concatenate([begins, ends])
        step = np.concatenate([heights, -heights])
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        height = np.cumsum(step[order])
        self._sum = np.concatenate([[0.0], np.cumsum(height[:-1] * np.diff(self._at))])

    def over(self, begin: float, end: float) -> float:
        low, high = np.interp([begin, end], self._at, self._sum)
        return float(high - low)
