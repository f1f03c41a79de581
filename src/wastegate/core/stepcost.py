"""What a step costs, taken apart: seconds for each prompt token, decoding sequence and token of KV held, fitted to
the steps that an engine measured. The newest steps count, older ones are forgotten; no engine is known here."""

from __future__ import annotations

from collections import deque
from itertools import combinations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

KEPT = 2048
"""Steps that are remembered: at tens of milliseconds each, the last minute or so under load."""
ENOUGH = 128
"""Steps below which no figures are given."""
ENOUGH_OF_EACH = 16
"""Steps with prompt tokens, and steps without, that there must be: else the parts cannot be told apart."""
OUTLIER = 4.0
"""Median absolute deviations beyond which a step says more of its machine than of its work."""


class StepCost(Struct, frozen=True):
    """Seconds of a step's time, by what caused them; what a step takes is about
    ``fixed + prefill × prompt tokens + decode × sequences decoding + kv × tokens of KV held``.

    All are None until enough steps were seen; ``samples`` says how many were.
    """

    prefill: float | None
    decode: float | None
    kv: float | None
    fixed: float | None
    samples: int


class StepTimes:
    """The newest steps, and what they cost."""

    def __init__(self) -> None:
        self._rows: deque[tuple[float, float, float, float]] = deque(maxlen=KEPT)

    def add(self, seconds: float, prefill: int, decoding: int, kv_tokens: float) -> None:
        """Remember a step, and what was done in it. One that took no time says nothing."""
        if seconds > 0:
            self._rows.append((seconds, prefill, decoding, kv_tokens))

    def cost(self) -> StepCost:
        """The figures now: least squares of the relative error, none below zero."""
        samples = len(self._rows)
        rows = np.array(self._rows, dtype=np.float64).reshape(samples, 4)
        with_prompt = int(np.count_nonzero(rows[:, 1]))
        if samples < ENOUGH or min(with_prompt, samples - with_prompt) < ENOUGH_OF_EACH:
            return StepCost(None, None, None, None, samples)
        # Relative error: else a few long prompt steps would drown what a decoding step costs.
        work = np.column_stack([rows[:, 1:], np.ones(samples)]) / rows[:, :1]
        found = least_squares_above_zero(work, np.ones(samples))
        off = np.abs(work @ found - 1)
        near = off <= OUTLIER * max(float(np.median(off)), 1e-9)
        found = least_squares_above_zero(work[near], np.ones(int(near.sum())))
        prefill, decode, kv, fixed = (float(value) for value in found)
        return StepCost(prefill, decode, kv, fixed, samples)


def least_squares_above_zero(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x ≥ 0 with the least ``|matrix x − target|``, by trying which of the few columns take part.

    ``matrix`` has shape (rows, columns), few columns; ``target`` (rows,).
    """
    columns = matrix.shape[1]
    gram, right = matrix.T @ matrix, matrix.T @ target
    best = np.zeros(columns)
    least = float(target @ target)
    for size in range(1, columns + 1):
        for chosen in combinations(range(columns), size):
            part = np.ix_(chosen, chosen)
            some, *_ = np.linalg.lstsq(gram[part], right[list(chosen)], rcond=None)
            if (some < 0).any():
                continue
            error = float(target @ target - 2 * some @ right[list(chosen)] + some @ gram[part] @ some)
            if error < least - 1e-12:
                least = error
                best = np.zeros(columns)
                best[list(chosen)] = some
    return best
