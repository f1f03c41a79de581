"""How fast the simulator is, and whether its memory stays flat.

    .venv/bin/python benchmarks/simulator.py [--quick] [--json FILE]

The 19,366 calls of the Azure conversation trace on 8 replicas, every lever that is built on, on one core: five runs,
the median and its ends. Then made traffic of the same shape, streamed: 100,000 and 1,000,000 calls, each in a process
of its own, which tells its processor time and its largest resident memory. Beside ours stands the same model without
skipping ahead, a step at a time as engines do it and most simulators of them, on the trace's first calls.

The trace is read from the shared traces; without it, traffic made in its likeness is used, and the output says so.

Bar: the trace in at most 20 s; a call of a million costs at most 1.25 × a call of a hundred thousand; memory grows by
at most 20 % between the two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from wastegate.sim import flight
from wastegate.sim.batch import BatchedReplica
from wastegate.sim.phase import Sequence
from wastegate.steps import whatif
from wastegate.steps.whatif import Report, Where

TRACE = Path(__file__).resolve().parent.parent.parent / "shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv"
CALLS = 19_366
LIMIT_SECONDS, LINEAR, FLAT = 20.0, 1.25, 1.2
FILE: dict[str, Any] = {
    "machines": [
        {
            "name": "l40s", "count": 8, "cap": 64,
            "roofline": {"hardware": "l40s", "model": "llama-3.1-8b", "precision": "fp8"},
            "settings": {"step_tokens": 2048},
        }
    ],
    "levers": {
        "routing": {"policy": "prefix_aware"},
        "batching": {"on": True, "max_wait": 30.0},
        "streaming": {"one_flight": True, "most_tokens": 4096},
    },
    "traffic": {
        "pattern": "gamma", "rate": 5.5, "cv": 1.09, "prompt": 1155.0, "prompt_cv": 0.96, "output": 211.0,
        "output_cv": 0.77, "longest": 14_000,
    },
}  # fmt: skip


class Stepwise(BatchedReplica):
    """A step at a time."""

    def _steps(self, parts: list[tuple[Sequence, int]], left: int, running: int, gain: float) -> int:
        return min(1, super()._steps(parts, left, running, gain))


def job(trace: str, calls: int) -> Where:
    return Where("benchmark", FILE, trace=trace, calls=calls)


def child(calls: int) -> int:
    """One run of made traffic; its figures as a line of JSON."""
    import resource

    began = time.process_time()
    report = whatif.run(job("", calls))
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"calls": report.calls, "seconds": seconds, "mib": peak}))
    return 0


def apart(calls: int) -> dict[str, float]:
    """The same in a process of its own, bound to one core."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, str(Path(__file__)), "--child", str(calls)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=3600,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def timed(trace: str, calls: int) -> tuple[float, Report]:
    """Reading the trace counts too."""
    began = time.perf_counter()
    report = whatif.run(job(trace, calls))
    return time.perf_counter() - began, report


def beside(trace: str, calls: int) -> tuple[float, float]:
    """Seconds of the first calls, skipping ahead and a step at a time; both must say the same."""
    ours, report = timed(trace, calls)
    vars(flight)["BatchedReplica"] = Stepwise
    try:
        theirs, stepped = timed(trace, calls)
    finally:
        vars(flight)["BatchedReplica"] = BatchedReplica
    if report.output_tokens != stepped.output_tokens or report.outcomes != stepped.outcomes:
        raise RuntimeError("skipping ahead changed what came out")
    return ours, theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run, and made traffic of 10,000 and 40,000 calls")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.child)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    trace = str(TRACE) if TRACE.exists() else ""
    print(f"traffic: {'the Azure conversation trace' if trace else 'made in the likeness of the Azure trace'}")
    runs = [timed(trace, CALLS)[0] for _ in range(1 if arguments.quick else 5)]
    middle = statistics.median(runs)
    print(f"{CALLS:,} calls on 8 replicas, all levers: {middle:.1f} s [{min(runs):.1f} … {max(runs):.1f}], "
          f"{middle / CALLS * 1e6:.0f} µs a call")  # fmt: skip
    ours, theirs = beside(trace, 500 if arguments.quick else 3_000)
    print(f"skipping ahead {ours:.2f} s, a step at a time {theirs:.2f} s: {theirs / ours:.1f} ×, the same outcome")
    few, many = (10_000, 40_000) if arguments.quick else (100_000, 1_000_000)
    small, large = apart(few), apart(many)
    for one in (small, large):
        each, took = one["seconds"] / one["calls"] * 1e6, one["seconds"]
        print(f"{one['calls']:,.0f} calls, streamed: {took:.1f} s of CPU, {each:.0f} µs a call, {one['mib']:.0f} MiB")
    linear = large["seconds"] / large["calls"] / (small["seconds"] / small["calls"])
    flat = large["mib"] / small["mib"]
    if arguments.json:
        figures = {"runs": runs, "ours": ours, "stepwise": theirs, "small": small, "large": large}
        arguments.json.write_text(json.dumps(figures, indent=1))
    passed = middle <= LIMIT_SECONDS and linear <= LINEAR and flat <= FLAT
    print(
        f"bar: {'pass' if passed else 'fail'}: {middle:.1f} s (≤ {LIMIT_SECONDS:g}), a call of {many:,} costs "
        f"{linear:.2f} × one of {few:,} (≤ {LINEAR}), memory {flat:.2f} × (≤ {FLAT})"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
