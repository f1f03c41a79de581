"""Figures from many values. What has no answer (nothing measured) is None, never 0 and never NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class Summary(Struct, frozen=True, gc=False):
    """Of ``count`` values: their mean and percentiles. Each percentile lies between the two values around it,
    in proportion (numpy's "linear"); with few values P99 is little more than the largest."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


def known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Those that are numbers: NaN stands for "did not happen"."""
    return values[~np.isnan(values)]


def summary(values: npt.NDArray[np.float64]) -> Summary | None:
    """None where no value is known."""
    some = known(values)
    if not len(some):
        return None
    p50, p95, p99 = (float(value) for value in np.quantile(some, (0.50, 0.95, 0.99)))
    return Summary(len(some), float(some.mean()), p50, p95, p99)


def dearest(values: npt.NDArray[np.int64], shares: Sequence[float]) -> list[tuple[float, float]]:
    """(share, part): the dearest ``share`` (0 to 1) of the values make up that part of their sum. Only shares that
    are at least one value; nothing where the sum is 0."""
    total = int(values.sum())
    if total <= 0:
        return []
    running = np.cumsum(np.sort(values)[::-1])
    counts = [(share, round(share * len(values))) for share in shares]
    return [(share, float(running[count - 1] / total)) for share, count in counts if count]
