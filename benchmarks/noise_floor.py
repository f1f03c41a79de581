"""How far two runs of one and the same thing are apart on this machine: the noise floor under every other claim.

    .venv/bin/python benchmarks/noise_floor.py [--quick] [--json FILE] [--comparisons N]

The local engine is compared with itself: one engine, two arms that are alike, six mirrored blocks of turns, at random
arrivals that both arms share and with prompts that nobody has seen before. Whatever is found is noise. This is done 20
times. For each metric: how far the 20 ratios lie from 1 (the greatest is the floor: a smaller difference, claimed from
one such comparison, is not to be believed without its interval), how wide their intervals are, and how many of them
call the arms different, which 1 in 20 may.

Bar: no metric is called different more often than chance explains (999 times in 1000), and no more than a third of the
comparisons is spoilt by the machine. A quick run has 3 comparisons of 3 blocks at a level of 75 %, on a machine however
busy: it shows that this works, and nothing of the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from msgspec import Struct
from rich.console import Console

from wastegate.core.distributions import binomial_cdf
from wastegate.load.blocks import Design, Report
from wastegate.load.host import Rule
from wastegate.load.paired import Progress, run
from wastegate.load.paired_view import show
from wastegate.load.replay import Config
from wastegate.load.turns import Replayed, lengths

MODEL = "smollm2-135m-instruct"
METRICS = (
    "ttft_p50",
    "ttft_p95",
    "tpot_p50",
    "tpot_p95",
    "e2e_p50",
    "e2e_p95",
    "answered_per_s",
    "output_tokens_per_s",
)
"""Named beforehand."""
RATE, PROMPT, OUTPUT = 4.0, 110, 32
"""Requests per second and tokens: about half of what two cores sustain."""
SPOILT = 1 / 3


class Floor(Struct, frozen=True):
    """One metric over all comparisons. Shares: 0.03 is 3 %."""

    metric: str
    comparisons: int
    typical: float
    """Median distance of the ratio from 1."""
    greatest: float
    width: float
    """Median half-width of the intervals."""
    called_different: int
    allowed: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 short comparisons: shows that it works, not the floor")
    parser.add_argument("--comparisons", type=int, default=20, help="how many (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    arguments = parser.parse_args()
    count = 3 if arguments.quick else arguments.comparisons
    design = Design(rates=(RATE,), blocks=6, seconds=6.0, warmup=1.0)
    if arguments.quick:
        design = Design(rates=(2 * RATE,), blocks=3, spares=1, seconds=0.5, warmup=0.0, level=0.75,
                        quiet=0.1, rule=Rule(steal=1.0, others=1.0))  # fmt: skip
    print(f"{os.cpu_count()} cores; load average at the start {os.getloadavg()[0]:.2f}")
    try:
        with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as scratch, engine(Path(scratch)) as url:
            reports = uvloop.run(compare_often(url, count, design, 4 if arguments.quick else OUTPUT))
    except RuntimeError as problem:
        print(f"bar: fail: {problem}")
        return 1
    floors = [floor(metric, reports, 1.0 - design.level) for metric in METRICS]
    spoilt = sum(bool(report.invalid) for report in reports)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.encode({"floors": floors, "reports": reports}))
    return tell(floors, reports, spoilt)


async def compare_often(url: str, count: int, design: Design, output: int) -> list[Report]:
    """The null comparison, so many times, each with words and arrivals of its own."""
    config = Config(trace=Path("made"), url=url, ignore_eos="always", temperature=0.0)
    trace = lengths(PROMPT, output, math.ceil(2 * (design.rates[0] * design.seconds + 1)))
    console = Console(stderr=True)
    reports: list[Report] = []
    for number in range(count):
        progress = Progress()
        shown = asyncio.create_task(show(progress, console)) if console.is_terminal else None
        arms = {"one": Replayed(config, trace), "the same": Replayed(config, trace)}
        report = await run(arms, msgspec.structs.replace(design, seed=number), progress)
        if shown is not None:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
        ratios = " ".join(f"{metric} {ratio(report, metric):.3f}" for metric in METRICS[1::2])
        print(f"{number + 1:2}: {len(report.kept(design.rates[0]))} blocks, {ratios}", flush=True)
        reports.append(report)
    return reports


def ratio(report: Report, metric: str) -> float:
    """Geometric mean of the blocks' ratios; NaN where a figure is missing."""
    arms = [report.series(arm, metric, report.design.rates[0]) for arm in report.arms]
    return float(np.exp(np.mean(np.log(arms[1]) - np.log(arms[0])))) if len(arms[0]) else math.nan


def floor(metric: str, reports: Sequence[Report], alpha: float) -> Floor:
    """What the comparisons that were not spoilt say of one metric."""
    good = [report for report in reports if not report.invalid]
    away = [abs(ratio(report, metric) - 1.0) for report in good]
    found = [line.estimate for report in good for line in report.lines if line.metric == metric and line.estimate]
    allowed = next(count for count in range(len(found) + 1) if binomial_cdf(count, len(found), alpha) >= 0.999)
    return Floor(
        metric=metric,
        comparisons=len(away),
        typical=float(np.median(away)) if away else math.nan,
        greatest=max(away, default=math.nan),
        width=float(np.median([(one.high - one.low) / 2 for one in found])) if found else math.nan,
        called_different=sum(not one.holds(1.0) for one in found),
        allowed=allowed,
    )


def tell(floors: Sequence[Floor], reports: Sequence[Report], spoilt: int) -> int:
    dropped = Counter[str]()
    for report in reports:
        dropped.update(report.dropped)
    ran = sum(len(report.blocks) for report in reports)
    own = max((turn.host.own for report in reports for block in report.blocks for turn in block.turns), default=0.0)
    print(f"\n{'metric':20} {'median':>8} {'greatest':>9} {'interval':>9}  called different (allowed)")
    for one in floors:
        figures = f"{one.typical:8.2%} {one.greatest:9.2%} {one.width:9.2%}"
        print(f"{one.metric:20} {figures}  {one.called_different} of {one.comparisons} ({one.allowed})")
    why = f" ({', '.join(f'{reason}: {count}' for reason, count in dropped.items())})" if dropped else ""
    print(f"{ran} blocks, {dropped.total()} dropped{why}; the load generator used at most {own:.0%} of a core")
    wrong = [f"{one.metric} was called different {one.called_different} times" for one in floors
             if one.called_different > one.allowed]  # fmt: skip
    if spoilt > SPOILT * len(reports):
        wrong.append(f"{spoilt} of {len(reports)} comparisons were spoilt by the machine")
    if any(not one.comparisons or math.isnan(one.typical) for one in floors):
        wrong.append("a metric was not measured")
    greatest = max((one.greatest for one in floors), default=math.nan)
    said = f"of {len(reports)} null comparisons the greatest ratio is {greatest:.1%} from 1"
    print(f"bar: {'fail: ' + '; '.join(wrong) if wrong else 'pass'}: {said}")
    return 1 if wrong else 0


@contextmanager
def engine(scratch: Path) -> Iterator[str]:
    """The local engine as users start it; its address. Raises RuntimeError if it does not start."""
    wastegate = [sys.executable, "-m", "wastegate"]
    fetched = subprocess.run([*wastegate, "models", "pull", MODEL], capture_output=True, text=True, timeout=600)
    if fetched.returncode:
        raise RuntimeError(f"the model cannot be fetched: {fetched.stderr.strip()[-200:]}")
    log = scratch / "engine.log"
    with log.open("w") as errors:
        child = subprocess.Popen(
            [*wastegate, "engine", "--port", "0"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert child.stdout is not None
        ready = next((line for line in child.stdout if line.startswith("ready ")), None)
        if ready is None:
            raise RuntimeError(f"the engine did not start: {log.read_text()[-500:]}")
        yield ready.split()[1]
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(60)


if __name__ == "__main__":
    raise SystemExit(main())
