"""How a run is told: the table, the bars, the last line, the file. It measures and judges nothing."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.overhead.peers import Peer
from benchmarks.overhead.verdict import Bar, Row, Spread, Table, bars, cpu, cpu_chunk, memory_added, value


def report(
    rows: list[Row],
    chosen: list[Peer],
    ours: str,
    screen: Console,
    *,
    quick: bool,
    part: bool,
    file: Path | None,
) -> int:
    """Print table, bars and the last line, write ``file``; the exit code. ``part``: not every peer and test ran, so
    a bar that was not measured does not fail."""
    show(rows, [peer.name for peer in chosen], screen)
    judged = bars(rows, ours, [peer.name for peer in chosen if peer.rust], samples=500 if quick else 20_000)
    for bar in judged:
        screen.print(describe(bar), highlight=False)
    failed = [bar for bar in judged if bar.passed is False or (bar.passed is None and not part)]
    nothing = all(bar.passed is None for bar in judged)
    if file is not None:
        write(file, rows, judged, quick)
    named = "; ".join(f"{bar.what} {bar.seen.median:.3g} {bar.unit}".strip() for bar in failed or judged if bar.seen)
    if nothing:
        named = f"nothing of {ours} was measured undisturbed"
    note = " (quick: no interval)" if quick else " (part of the bars)" if part else ""
    print(f"bar: {'fail' if failed or nothing else 'pass'}{note}: {named}")
    return 1 if failed or nothing else 0


def write(file: Path, rows: list[Row], judged: list[Bar], quick: bool) -> None:
    machine = {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version()}
    told = [{**msgspec.to_builtins(bar), "passed": bar.passed} for bar in judged]
    whole = {"command": " ".join(["python", *sys.argv]), "machine": machine, "quick": quick, "bars": told, "rows": rows}
    beside = file.with_name(file.name + ".part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(whole)))
    beside.replace(file)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(rows: list[Row], names: list[str], screen: Console) -> None:
    table = Table(rows)
    grid = Grid(title="medians over the undisturbed repeats")
    columns = ("gateway", "CPU µs 1 KB", "8 KB", "64 KB", "µs/stream 128", "µs/chunk", "added ms 1 KB p50/p99",
               "added TTFT ms p50/p99", "most req/s", "MiB rest", "+1,000 streams")  # fmt: skip
    for name in columns:
        grid.add_column(name, justify="left" if name == "gateway" else "right")
    for name in names:
        added = [
            " / ".join(_number(table.added(name, value(test, f"{kind}_{share}", 1e3)), 2) for share in ("p50", "p99"))
            for test, kind in (("json1", "latency"), ("ttft", "ttft"))
        ]
        grid.add_row(
            name,
            *(_number(table.spread(name, cpu(test)), 0) for test in ("json1", "json8", "json64", "s128")),
            _number(table.spread(name, cpu_chunk), 1),
            *added,
            _number(table.spread(name, value("max", "rate")), 0),
            _number(table.spread(name, value("hold", "memory_before")), 0),
            _number(table.spread(name, memory_added), 0),
        )
    screen.print(grid)


def _number(seen: Spread | None, digits: int) -> str:
    return "-" if seen is None else f"{seen.median:,.{digits}f}"


def describe(bar: Bar) -> str:
    state = {True: "pass", False: "FAIL", None: "not measured"}[bar.passed]
    figure = (
        "" if bar.seen is None else f"{bar.seen.median:.4g} [{bar.seen.low:.4g}, {bar.seen.high:.4g}], n={bar.seen.n}"
    )
    sign = "≥" if bar.least else "≤"
    against = f" against {bar.against}" if bar.against else ""
    return f"{state:12s} {bar.what}{against}: {figure} {sign} {bar.limit:g} {bar.unit}"
