"""One replica's life as steps in time: its price, whether it was up, what for. Built from spans; no call enters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from wastegate.core.facts import Floats, Ints
from wastegate.core.ledger import ReplicaSpan

HORIZON = 4e9
"""Seconds; times beyond ±this (year 2096) count as this, so that differences in nanoseconds fit 63 bits."""
PARTS = 1_000_000_000
"""Probe shares are whole billionths, so that their steps sum back to exactly nothing."""
MOST_WATTS = 1e6
"""A replica that says it drew more than a megawatt has a counter that jumped."""
HOUR = 3600 * 1_000_000_000


def nanoseconds(seconds: Floats | float) -> Ints:
    """Whole nanoseconds since the epoch; ±infinity becomes the horizon."""
    whole: Ints = np.rint(np.clip(seconds, -HORIZON, HORIZON) * 1e9).astype(np.int64)
    return whole


class Timeline(NamedTuple):
    """Bounds and the step that each quantity takes there, in whole nanoseconds and nano-dollars an hour."""

    start: int
    end: int
    bounds: Ints
    price: Ints
    up: Ints
    serving: Ints
    probing: Ints
    """Share of a serving span's time that probes kept it busy, in billionths."""
    bill: int
    """Price × up time, rounded once."""
    up_time: int
    serving_time: int
    unpriced_time: int
    power: Ints
    """Microwatts, where a span says what energy it took."""
    joules: float
    """That energy within the window; 0 where no span says."""


def timeline(spans: Sequence[ReplicaSpan], start: float, end: float) -> Timeline:
    """Spans of one replica, sorted by start, cut to the window. Where two overlap, the later start holds: a second
    of up time is billed once. A span without an end lasts until it was last seen. One without a price is not up
    for the bill; its time is counted apart."""
    window = int(nanoseconds(start)), int(nanoseconds(end))
    edges = [_edges(span) for span in spans]
    bounds = np.clip(np.array(sorted({edge for pair in edges for edge in pair}), np.int64), *window)
    owner = np.full(max(len(bounds), 1), -1)
    for number, (begin, stop) in enumerate(edges):
        low, high = np.searchsorted(bounds, np.clip((begin, stop), *window))
        owner[low:high] = number
    length = np.diff(bounds, append=bounds[-1:])
    held = [spans[number] if number >= 0 else None for number in owner[: len(bounds)]]
    price = _row(max(span.price, 0) if span else 0 for span in held)
    up = (price > 0).astype(np.int64)
    serving = _row(int(span is not None and span.phase == "serving") for span in held) * up
    probing = _row(_probing(span) for span in held) * serving
    exact = sum(int(rate) * int(time) for rate, time in zip(price, length, strict=True))
    known = _row(int(span is not None) for span in held)
    power = _row(map(_power, held))
    return Timeline(
        *window,
        bounds=bounds,
        price=np.diff(price, prepend=0),
        up=np.diff(up, prepend=0),
        serving=np.diff(serving, prepend=0),
        probing=np.diff(probing, prepend=0),
        bill=(2 * exact + HOUR) // (2 * HOUR),
        up_time=int((length * up).sum()),
        serving_time=int((length * serving).sum()),
        unpriced_time=int((length * (known - up)).sum()),
        power=np.diff(power, prepend=0),
        joules=float((power * (length / 1e15)).sum()),
    )


def _row(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _edges(span: ReplicaSpan) -> tuple[int, int]:
    begin = int(nanoseconds(span.start))
    stop = span.end if span.end is not None else span.seen
    return begin, max(int(nanoseconds(stop)), begin)


def _probing(span: ReplicaSpan | None) -> int:
    if span is None:
        return 0
    begin, stop = _edges(span)
    return round(min(max(span.probe_seconds, 0.0) / ((stop - begin) / 1e9), 1.0) * PARTS)


def _power(span: ReplicaSpan | None) -> int:
    """Microwatts, even over the span; 0 where nobody knows."""
    if span is None or span.joules is None:
        return 0
    begin, stop = _edges(span)
    seconds = (stop - begin) / 1e9
    return round(min(max(span.joules, 0.0) / seconds, MOST_WATTS) * 1e6) if seconds > 0 else 0
