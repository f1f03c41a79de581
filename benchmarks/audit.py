"""The audit of a large ledger: seconds and memory of `wastegate audit` over 1,000,000 calls.

    .venv/bin/python benchmarks/audit.py [--quick] [--json FILE] [--keep DIR]

A ledger is made first, through `Ledger.add`: a day of four replicas, with overlap, retries, calls left
by their clients, tags, and a trail each. Then the command runs as a user would run it, in a process of its own, a few
times. Beside it stands the least that could be asked of the same file: the usual formula (rate × duration) summed by
route in SQL, which shares nothing and conserves nothing.

Bar: every run under 10 s and under 1 GB at its peak. With --quick the ledger has 50,000 calls and the bars shrink with
it: the interpreter's own start and memory are left as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from wastegate.core.call import length_class
from wastegate.core.ledger import Attempt, Entry, Outcome, ReplicaSpan, Work
from wastegate.store.entries import Ledger

CALLS = 1_000_000
SECONDS, MEGABYTES = 10.0, 1000.0
START_SECONDS, START_MEGABYTES = 1.0, 150.0
"""What a run needs before it has read anything, generously; the rest of the bar shrinks with --quick."""
DAY = 86_400.0
BEGAN = 1_790_000_000.0
REPLICAS = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
WORK = Work(prefill=1e-4, decode=2e-4, kv=1e-7, fixed=8e-3, source="made up")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50,000 calls, one run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the ledger here, and use it if it is there")
    arguments = parser.parse_args()
    calls, repeats = (CALLS // 20, 1) if arguments.quick else (CALLS, 3)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        path = folder / f"ledger-{calls}.db"
        if not path.exists():
            made = make(path, calls)
            print(f"made a ledger of {calls:,} calls in {made:.1f} s ({made / calls * 1e6:.1f} µs a call)")
        print(f"{path.stat().st_size / 1e6:,.0f} MB on disk; {repeats} runs")
        sql = in_sql(path)
        runs = [audit(path) for _ in range(repeats)]
    return tell(calls, runs, sql, arguments.json)


def make(path: Path, calls: int) -> float:
    """Write the ledger; seconds that it took."""
    began = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".making")
    beside.unlink(missing_ok=True)
    with Ledger(beside) as ledger:
        batch: list[Entry] = []
        for entry in entries(calls):
            batch.append(entry)
            if len(batch) == 10_000:
                ledger.add(batch)
                batch.clear()
        ledger.add(batch)
        for name in REPLICAS:
            ledger.save_spans(
                [
                    ReplicaSpan(name, "loading", BEGAN - 60, BEGAN, 4_200_000_000),
                    ReplicaSpan(
                        name, "serving", BEGAN, BEGAN + DAY + 600, 4_200_000_000, work=WORK, kv_capacity=200_000
                    ),
                ]
            )
    beside.rename(path)
    return time.perf_counter() - began


def entries(calls: int) -> Iterator[Entry]:
    """A day of traffic: the same every time."""
    chance = random.Random(1)
    for number in range(calls):
        arrived = BEGAN + DAY * number / calls + chance.random()
        prompt = int(chance.lognormvariate(6.0, 1.0)) + 1
        output = int(chance.lognormvariate(5.0, 0.8)) + 1
        draw = chance.random()
        outcome: Outcome = "hung_up" if draw < 0.02 else "failed" if draw < 0.03 else "finished"
        tries: list[Attempt] = []
        at = arrived + 0.001
        for count in (1, 2) if draw > 0.99 else (1,):
            last = count == 2 or draw <= 0.99
            first = at + 0.05 + prompt * 1e-4 * (1 + chance.random())
            ended = first + output * 0.02 * (0.5 + chance.random())
            tries.append(
                Attempt(
                    number=count,
                    replica=REPLICAS[chance.randrange(4)],
                    claimed=at,
                    sent=at + 0.0005,
                    first_byte=first - 0.001,
                    first_token=first,
                    ended=ended,
                    outcome=outcome if last else "failed",
                    status=200,
                    prompt_tokens=prompt,
                    cached_tokens=prompt // 3,
                    output_tokens=output,
                    usage="engine" if outcome == "finished" else "counted",
                )
            )
            at = ended + 0.001
        yield Entry(
            id=f"{chance.getrandbits(80):020x}",
            arrived=arrived,
            ended=tries[-1].ended + 0.0005,
            route=("chat", "search", "mail")[chance.randrange(3)],
            path="/v1/chat/completions",
            model="llama",
            tenant=f"tenant-{chance.randrange(50)}",
            length_class=length_class(prompt, output),
            stream=chance.random() < 0.8,
            outcome=outcome,
            status=200,
            finish_reason="stop",
            attempts=tuple(tries),
            trail=("baseline: gpu-1 with 12 in flight over gpu-3 with 15", "sent"),
            tags=(("team", f"team-{chance.randrange(20)}"),),
            client_id=f"client-{number}",
            traceparent=f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01",
        )


def audit(path: Path) -> tuple[float, float]:
    """(seconds, peak MB) of the command in a process of its own."""
    command = [sys.executable, "-m", "wastegate", "audit", "--ledger", str(path), "--json"]
    began = time.perf_counter()
    reading, writing = os.pipe()
    child = os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)])
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the audit ended with {os.waitstatus_to_exitcode(status)}")
    report = json.loads(said)["report"]
    bill = report["bill"]
    print(
        f"  {seconds:.2f} s, {usage.ru_maxrss / 1000:.0f} MB: {report['calls']:,} calls, bill ${bill['total']:.2f} = "
        f"requests ${bill['requests']:.2f} + idle ${bill['idle']:.2f} + overhead ${bill['overhead']:.2f}"
    )
    return seconds, usage.ru_maxrss / 1000


def in_sql(path: Path) -> float:
    """Seconds for rate × duration summed by route, by SQLite alone."""
    began = time.perf_counter()
    with sqlite3.connect(path) as db:
        rows = db.execute(
            """SELECT text, sum(attempt.ended - sent) * 4.2 / 3600 FROM attempt JOIN entry ON entry = seq
               JOIN label ON label.id = route GROUP BY route"""
        ).fetchall()
    db.close()
    seconds = time.perf_counter() - began
    print(f"  the usual formula in SQL: {seconds:.2f} s, ${sum(amount for _, amount in rows):,.2f}")
    return seconds


def tell(calls: int, runs: list[tuple[float, float]], sql: float, file: Path | None) -> int:
    part = calls / CALLS
    most_seconds = START_SECONDS + (SECONDS - START_SECONDS) * part
    most_megabytes = START_MEGABYTES + (MEGABYTES - START_MEGABYTES) * part
    seconds, megabytes = max(run[0] for run in runs), max(run[1] for run in runs)
    passed = seconds < most_seconds and megabytes < most_megabytes
    middle = statistics.median(run[0] for run in runs)
    figures = {
        "calls": calls,
        "seconds": [run[0] for run in runs],
        "peak_megabytes": [run[1] for run in runs],
        "sql_seconds": sql,
        "bar_seconds": most_seconds,
        "bar_megabytes": most_megabytes,
        "passed": passed,
    }
    if file is not None:
        beside = file.with_suffix(file.suffix + ".part")
        beside.write_text(json.dumps(figures, indent=1))
        beside.rename(file)
    print(f"median {middle:.2f} s, {middle / sql:.1f} × the usual formula in SQL; {calls / middle:,.0f} calls a second")
    print(
        f"bar: {'pass' if passed else 'fail'}: {calls:,} calls in at most {seconds:.2f} s (bar {most_seconds:.2f}) and "
        f"{megabytes:.0f} MB (bar {most_megabytes:.0f})"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
