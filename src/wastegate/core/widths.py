"""What a token takes at each width of the batch, learnt from the steps as they come. Values only: nothing here changes
a cap."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from msgspec import Struct

ENOUGH = 8
"""Samples below which a width is not judged by its step time."""
_REMEMBERED = 256
"""Samples that a point's figure is about, at most."""
_LEVEL = 0.15
"""Past the knee a batch twice as wide brings less than 2^0.15, 11 % more tokens a second."""


class Point(Struct, frozen=True):
    """About what a token takes at one width of the batch."""

    batch: float
    seconds: float
    seen: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.batch / self.seconds


def learn(points: tuple[Point, ...], samples: Iterable[tuple[int, float]]) -> tuple[Point, ...]:
    """The points, ascending, with more samples (sequences decoding, seconds of the step): of each width the median, so
    that one odd step counts for little. Widths within a factor of √2 share a point."""
    new: dict[int, list[tuple[int, float]]] = {}
    for batch, seconds in samples:
        if batch > 0 and seconds > 0:
            new.setdefault(_width(batch), []).append((batch, seconds))
    if not new:
        return points
    known = {_width(point.batch): point for point in points}
    for width, rows in new.items():
        batch_now = sum(row[0] for row in rows) / len(rows)
        seconds_now = median(row[1] for row in rows)
        old = known.get(width, Point(batch_now, seconds_now, 0))
        weight = len(rows) / (old.seen + len(rows))
        known[width] = Point(
            old.batch + weight * (batch_now - old.batch),
            old.seconds + weight * (seconds_now - old.seconds),
            min(_REMEMBERED, old.seen + len(rows)),
        )
    return tuple(known[width] for width in sorted(known))


def _width(batch: float) -> int:
    return round(2 * math.log2(batch))


def knee(points: tuple[Point, ...]) -> Point | None:
    """The narrowest batch beyond which none that was seen brings much more tokens a second; None while all that is
    known still rises, or nothing twice as wide was seen: the curve of a real engine has steps in it."""
    known = [point for point in points if point.seen >= ENOUGH]
    for at, point in enumerate(known[:-1]):
        wider = known[at + 1 :]
        if wider[-1].batch >= 2 * point.batch and all(
            other.rate <= point.rate * (other.batch / point.batch) ** _LEVEL for other in wider
        ):
            return point
    return None
