"""Made traffic in the likeness of recorded: when calls come, how long they are. Values only: no clock and no network;
chance is a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from wastegate.load.rows import Trace

Pattern = Literal["poisson", "gamma", "diurnal", "bursts"]
_DAY = 86_400.0


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traffic to be made. Lengths are log-normal, by their mean and coefficient of variation (CV)."""

    pattern: Pattern = "poisson"
    rate: float = 1.0
    """Calls a second, on average."""
    cv: float = 1.0
    """Of the gaps between calls, for "gamma": 1 is Poisson, above 1 comes in clumps."""
    peak_to_trough: float = 7.0
    """For "diurnal": how much busier the busiest hour is than the quietest."""
    period: float = _DAY
    """Seconds of a "diurnal" day."""
    burst_every: float = 300.0
    burst_seconds: float = 15.0
    burst_factor: float = 8.0
    """For "bursts": how much busier than between them."""
    prompt: float = 1000.0
    prompt_cv: float = 1.0
    output: float = 200.0
    output_cv: float = 0.8
    longest: int = 32_768
    """Neither prompt nor output is longer."""

    def __post_init__(self) -> None:
        for name in ("rate", "cv", "period", "burst_every", "burst_seconds", "prompt", "output", "longest"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("peak_to_trough", "burst_factor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: the busy time cannot be quieter than the quiet one")
        if min(self.prompt_cv, self.output_cv) < 0:
            raise ValueError("a coefficient of variation cannot be below 0")
        if self.burst_seconds >= self.burst_every:
            raise ValueError("a burst must be over before the next one")


class Made(Struct, frozen=True, gc=False):
    """One call. ``at`` is seconds after the beginning."""

    at: float
    prompt: int
    output: int


def make(shape: Shape, count: int, seed: int = 0) -> Iterator[Made]:
    """``count`` calls in the order of their times, made as they are asked for."""
    chance = np.random.default_rng([seed, 7])
    operational = 0.0  # time by which the calls are evenly busy; `at` is the real one
    at = 0.0
    done = 0
    while done < count:
        size = min(4096, count - done)
        gaps = _gaps(shape, chance, size)
        prompts = _lengths(shape.prompt, shape.prompt_cv, shape.longest, chance, size)
        outputs = _lengths(shape.output, shape.output_cv, shape.longest, chance, size)
        for gap, prompt, output in zip(gaps, prompts, outputs, strict=True):
            operational += float(gap)
            at = _real(shape, operational, at)
            yield Made(at, int(prompt), int(output))
        done += size


def _gaps(shape: Shape, chance: np.random.Generator, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    cv = shape.cv if shape.pattern == "gamma" else 1.0
    order = 1 / cv**2
    return chance.gamma(order, 1 / (order * shape.rate), size)


def _lengths(
    mean: float, cv: float, longest: int, chance: np.random.Generator, size: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    spread = math.sqrt(math.log(1 + cv**2))
    return np.clip(np.rint(chance.lognormal(math.log(mean) - spread**2 / 2, spread, size)), 1, longest)


def _real(shape: Shape, operational: float, after: float) -> float:
    """The instant until which ``operational`` seconds' worth of average traffic has come; never before ``after``."""
    if shape.pattern not in ("diurnal", "bursts"):
        return operational
    low, high = after, max(after, operational) + shape.period + shape.burst_every
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share(shape, middle) < operational else (low, middle)
        if high - low < 1e-6:
            break
    return high


def _share(shape: Shape, at: float) -> float:
    """Seconds of average traffic until ``at``: the integral of the rate over the mean rate."""
    if shape.pattern == "diurnal":
        swing = (shape.peak_to_trough - 1) / (shape.peak_to_trough + 1)
        turn = 2 * math.pi / shape.period
        return at - swing * math.sin(turn * at) / turn  # it begins at the quietest hour
    whole, rest = divmod(at, shape.burst_every)
    quiet = shape.burst_every - shape.burst_seconds
    weight = quiet + shape.burst_seconds * shape.burst_factor
    inside = min(rest, quiet) + max(0.0, rest - quiet) * shape.burst_factor
    return shape.burst_every * (whole + inside / weight)


def fitted(trace: Trace) -> Shape:
    """Traffic like a trace's: its rate, how clumped it is, its lengths. Raises ValueError for a trace without times or
    lengths."""
    times = np.sort([row.at for row in trace.rows if row.at is not None])
    prompts = np.array([row.input_tokens for row in trace.rows if row.input_tokens], float)
    outputs = np.array([row.output_tokens for row in trace.rows if row.output_tokens], float)
    if len(times) < 3 or times[-1] <= times[0]:
        raise ValueError(f"{trace.path}: a trace needs at least three rows with times to be imitated")
    if not len(prompts) or not len(outputs):
        raise ValueError(f"{trace.path}: a trace needs lengths of prompts and answers to be imitated")
    gaps = np.diff(times)
    cv = float(gaps.std() / gaps.mean())
    return Shape(
        pattern="poisson" if abs(cv - 1) < 0.05 else "gamma", rate=float(1 / gaps.mean()), cv=max(cv, 1e-3),
        prompt=float(prompts.mean()), prompt_cv=float(prompts.std() / prompts.mean()),
        output=float(outputs.mean()), output_cv=float(outputs.std() / outputs.mean()),
        longest=int(max(prompts.max(), outputs.max())),
    )  # fmt: skip
