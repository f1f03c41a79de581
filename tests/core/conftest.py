"""Series such as replicas make: blocks that resemble their neighbours, tails, drift. Seeded, so that a test that passes
passes again."""

from __future__ import annotations

import math

import numpy as np

from wastegate.core.intervals import Floats


def resembling(chance: np.random.Generator, rows: int, length: int, phi: float) -> Floats:
    """(rows, length) series of variance 1 in which each value keeps ``phi`` of the one before: AR(1), settled."""
    noise = chance.normal(size=(rows, length))
    series = np.empty((rows, length))
    series[:, 0] = noise[:, 0]
    for place in range(1, length):
        series[:, place] = phi * series[:, place - 1] + math.sqrt(1 - phi * phi) * noise[:, place]
    return series


def mirrored_p95(chance: np.random.Generator, rows: int, blocks: int, effect: float = 0.0) -> tuple[Floats, Floats]:
    """P95 latencies of two arms, (rows, blocks) each, as paired runs find them in a noisy place.

    Each block is ABBA or BAAB, by chance. Turns resemble their neighbours (0.8), slow down by 1 % each, and hold 40
    calls of a log-t distribution with 3 degrees of freedom: tails that have no mean. ``effect`` is added to the
    candidate's logarithm.
    """
    turns = 0.15 * resembling(chance, rows, 4 * blocks, 0.8) + 0.01 * np.arange(4 * blocks)
    calls = 0.4 * chance.standard_t(3, (rows, 4 * blocks, 40))
    p95 = (turns + np.quantile(calls, 0.95, axis=2)).reshape(rows, blocks, 4)
    outer, inner = p95[:, :, [0, 3]].mean(axis=2), p95[:, :, [1, 2]].mean(axis=2)
    first = chance.integers(0, 2, (rows, blocks)).astype(bool)
    return np.exp(np.where(first, outer, inner)), np.exp(np.where(first, inner, outer) + effect)


def at_most(rows: int, share: float) -> float:
    """How often a thing of that chance happens in so many tries, less than one time in a thousand more often."""
    return rows * share + 3.1 * math.sqrt(rows * share * (1 - share))
