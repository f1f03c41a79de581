"""From the measurements of a run to ratios, intervals and bars. Pure; the rules below are fixed before any run.

Which measurements count: a measurement is *disturbed*, and dropped, if while it ran the host gave more than
STOLEN of the machine's CPU time to others, or if the fixed piece of work that is timed on the gateway's core just
before and after it took more than SLOWED times its median over the run. What was dropped is counted and printed.
A measurement in which requests of ours failed is kept, and fails a bar of its own.

How a ratio is made: in each repeat, our figure over the rival's in the same repeat; of these the median, with a
95 % interval by bootstrap over the repeats. The rival is the Rust router (of those in the run) whose own median
over the repeats is the lowest for that measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from benchmarks.overhead.load import Measured

STOLEN = 0.03
SLOWED = 1.25
RESAMPLES = 10_000


class Row(msgspec.Struct, frozen=True):
    """One measurement of one peer in one repeat."""

    peer: str
    repeat: int
    test: str
    measured: Measured
    stolen: float
    probe: float
    """CPU seconds of the fixed piece of work, the dearer of before and after."""
    disturbed: str = ""


class Spread(msgspec.Struct, frozen=True):
    """A median over repeats and its 95 % interval."""

    median: float
    low: float
    high: float
    n: int


class Bar(msgspec.Struct, frozen=True):
    what: str
    against: str
    seen: Spread | None
    limit: float
    """Passed if the interval's upper end is at most ``limit`` (``least``: its lower end at least)."""
    least: bool = False
    unit: str = "×"

    @property
    def passed(self) -> bool | None:
        """None: not measured in this run."""
        if self.seen is None:
            return None
        return self.seen.low >= self.limit if self.least else self.seen.high <= self.limit


def judge_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows, each marked with what disturbed it, if anything did."""
    usual = float(np.median([row.probe for row in rows])) if rows else 0.0
    return [msgspec.structs.replace(row, disturbed=_disturbance(row, usual)) for row in rows]


def _disturbance(row: Row, usual: float) -> str:
    if row.stolen > STOLEN:
        return f"the host took {row.stolen:.1%} of the CPU time"
    if row.probe > SLOWED * usual:
        return f"the core was {row.probe / usual:.2f} times as slow as usual"
    return ""


def spread(values: Sequence[float]) -> Spread | None:
    """Median and bootstrap interval; None without values."""
    if not values:
        return None
    sample = np.asarray(values, dtype=float)
    draws = np.random.default_rng(0).choice(sample, (RESAMPLES, len(sample)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return Spread(float(np.median(sample)), float(low), float(high), len(sample))


Figure = Callable[[dict[str, Measured]], float | None]
"""From one peer's measurements in one repeat, by test, to a number."""


class Table:
    """The undisturbed measurements, by peer and repeat."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._cells: dict[str, dict[int, dict[str, Measured]]] = {}
        for row in rows:
            if not row.disturbed:
                self._cells.setdefault(row.peer, {}).setdefault(row.repeat, {})[row.test] = row.measured

    def each(self, peer: str, figure: Figure) -> dict[int, float]:
        """repeat → figure, where it was measured."""
        found = {repeat: figure(tests) for repeat, tests in self._cells.get(peer, {}).items()}
        return {repeat: value for repeat, value in found.items() if value is not None}

    def spread(self, peer: str, figure: Figure) -> Spread | None:
        return spread(list(self.each(peer, figure).values()))

    def ratio(self, peer: str, rival: str, figure: Figure) -> Spread | None:
        ours, theirs = self.each(peer, figure), self.each(rival, figure)
        return spread([ours[repeat] / theirs[repeat] for repeat in ours.keys() & theirs.keys()])

    def added(self, peer: str, figure: Figure) -> Spread | None:
        ours, direct = self.each(peer, figure), self.each("direct", figure)
        return spread([ours[repeat] - direct[repeat] for repeat in ours.keys() & direct.keys()])

    def cheapest(self, peers: Sequence[str], figure: Figure) -> str:
        known = {peer: found.median for peer in peers if (found := self.spread(peer, figure)) is not None}
        return min(known, key=known.__getitem__, default="")


def cpu(test: str) -> Figure:
    """CPU microseconds a request or stream."""
    return lambda tests: _scaled(tests, test, "cpu", 1e6)


def value(test: str, field: str, scale: float = 1.0) -> Figure:
    return lambda tests: _scaled(tests, test, field, scale)


def cpu_chunk(tests: dict[str, Measured]) -> float | None:
    """CPU microseconds a relayed chunk: the slope from streams of 16 to streams of 256."""
    short, long = _scaled(tests, "s16", "cpu", 1e6), _scaled(tests, "s256", "cpu", 1e6)
    return (long - short) / 240 if short is not None and long is not None else None


def memory_added(tests: dict[str, Measured]) -> float | None:
    """MiB that 1,000 open streams add."""
    held = tests.get("hold")
    if held is None or held.memory_open is None or held.memory_before is None or held.opened < held.requests:
        return None
    return held.memory_open - held.memory_before


def _scaled(tests: dict[str, Measured], test: str, field: str, scale: float) -> float | None:
    measured = tests.get(test)
    found = getattr(measured, field) if measured is not None and measured.requests else None
    return found * scale if found is not None else None


def bars(rows: Sequence[Row], ours: str, rust: Sequence[str], *, samples: int = 20_000) -> list[Bar]:
    """Every bar that is set for ``ours``. ``samples``: how many streams the TTFT must rest on."""
    table = Table(rows)
    cheap: list[tuple[str, Figure, float]] = [
        ("CPU, 1 KB request", cpu("json1"), 1.10),
        ("CPU, 8 KB request", cpu("json8"), 1.10),
        ("CPU, 64 KB request", cpu("json64"), 1.50),
        ("CPU, stream of 128 chunks", cpu("s128"), 1.10),
        ("CPU, one chunk", cpu_chunk, 1.10),
    ]
    out = [
        Bar(what, rival := table.cheapest(rust, figure), table.ratio(ours, rival, figure), limit)
        for what, figure, limit in cheap
    ]
    rate = value("max", "rate")
    for rival, limit in (("vllm-router rr", 1.0), ("vllm-router cache", 4.0)):
        out.append(Bar("most requests/s on a core", rival, table.ratio(ours, rival, rate), limit, least=True))
    for share, limit in (("p50", 0.8), ("p99", 5.0)):
        added = table.added(ours, value("ttft", f"ttft_{share}", 1e3))
        out.append(Bar(f"added TTFT {share}", "direct", added, limit, unit="ms"))
    seen = sum(table.each(ours, value("ttft", "requests")).values())
    counted = Spread(seen, seen, seen, 1) if seen else None
    out.append(Bar("TTFT samples", "", counted, samples, least=True, unit=""))
    out.append(Bar("memory for 1,000 streams", "at rest", table.spread(ours, memory_added), 60, unit="MiB"))
    failed = float(sum(sum(row.measured.errors.values()) for row in rows if row.peer == ours))
    tried = any(row.peer == ours for row in rows)
    out.append(Bar("failed requests", "", Spread(failed, failed, failed, 1) if tried else None, 0, unit=""))
    reads = table.spread(ours, value("s128", "reads"))
    out.append(Bar("reads a stream of 128 chunks", "", reads, 126, least=True, unit=""))
    return out
