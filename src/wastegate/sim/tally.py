"""What became of a simulated run, added up as its calls end: counts, and quantiles within 1 %, in memory that does not
grow with the run. Nothing is printed here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from wastegate.core.effects import Closed

_STEP = math.log(1.02)
"""Neighbouring buckets are 2 % apart, so a value is met within 1 %."""
_LEAST = 1e-5
_COLUMNS = 120
"""Columns of a run over time: between half of these and all of them."""


class Quantiles:
    """Amounts from 10 microseconds up, in buckets of equal ratio."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        bucket = round(math.log(max(value, _LEAST) / _LEAST) / _STEP)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def at(self, share: float) -> float | None:
        """The value that ``share`` of the others stay under; None without any."""
        left = share * self.count
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return _LEAST * math.exp(bucket * _STEP)
        return None


class Series:
    """Amounts over time in columns of equal width; twice as wide whenever there would be too many."""

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.begin: float | None = None
        self.columns: list[float] = []

    def add(self, at: float, amount: float) -> None:
        if self.begin is None:
            self.begin = at
        place = int(max(0.0, at - self.begin) / self.width)
        while place >= _COLUMNS:
            pairs = [*self.columns, 0.0] if len(self.columns) % 2 else self.columns
            self.columns = [one + two for one, two in zip(pairs[::2], pairs[1::2], strict=True)]
            self.width *= 2
            place //= 2
        self.columns += [0.0] * (place + 1 - len(self.columns))
        self.columns[place] += amount


class Figures(Struct, frozen=True):
    """Of one quantity, in seconds; None where no call had it."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, quantiles: Quantiles) -> Figures:
        at = [quantiles.at(share) for share in (0.5, 0.9, 0.95, 0.99)]
        return cls(quantiles.mean, *at)


class Tally:
    """Takes the place of a list of all calls: give :meth:`add` to a simulation as its sink."""

    def __init__(self, slo_ttft: float = math.inf, slo_tpot: float = math.inf) -> None:
        self.calls = self.retried = self.waited = self.good = 0
        self.outcomes: dict[str, int] = {}
        self.prompt = self.cached = self.output = 0
        self.ttft, self.tpot, self.e2e, self.queue = Quantiles(), Quantiles(), Quantiles(), Quantiles()
        self.arrivals, self.slow = Series(), Series()
        self.first = math.inf
        self.last = 0.0
        self._slo = slo_ttft, slo_tpot

    def add(self, closed: Closed) -> None:
        entry = closed.entry
        self.calls += 1
        self.outcomes[entry.outcome] = self.outcomes.get(entry.outcome, 0) + 1
        self.first, self.last = min(self.first, entry.arrived), max(self.last, entry.ended)
        self.retried += len(entry.attempts) > 1
        self.waited += any(reason.startswith("waits: ") for reason in entry.trail)
        for attempt in entry.attempts:
            self.prompt += attempt.prompt_tokens or 0
            self.cached += attempt.cached_tokens or 0
            self.output += attempt.output_tokens or 0
        if entry.outcome != "finished" or not entry.attempts:
            return
        last = entry.attempts[-1]
        self.e2e.add(entry.ended - entry.arrived)
        self.queue.add(last.claimed - entry.arrived)
        first = last.first_token if last.first_token is not None else last.ended
        ttft = first - entry.arrived
        tokens = last.output_tokens or 0
        tpot = (last.ended - first) / (tokens - 1) if tokens > 1 and last.first_token is not None else None
        self.ttft.add(ttft)
        if tpot is not None:
            self.tpot.add(tpot)
        self.good += ttft <= self._slo[0] and (tpot is None or tpot <= self._slo[1])
        self.arrivals.add(entry.arrived, 1.0)
        self.slow.add(entry.arrived, ttft)


def means(sums: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Column by column; 0 where nothing came."""
    return [total / count if count else 0.0 for total, count in zip(sums, counts, strict=False)]
