"""What the local engine costs and gives at 1 to 64 calls at once: INT4 against FP16, and two sizes. Takes 12 minutes.

    .venv/bin/python benchmarks/cost_curve.py [--quick] [--json FILE] [--html FILE] [--repeats N]

Four variants of SmolLM2-135M-Instruct, made from the same GGUF: its 30 layers in 4 bits (as it comes) and spread out to
16-bit floats, and the first 12 of these layers in both. The cut models say nothing of use: they stand in for a smaller
model's SPEED ONLY. All four are up at once and take turns; whoever is not measured is stopped. Closed loop, seven
levels, 48 tokens in and 16 out, prompts that nobody has seen before; a level is measured once successive waves of
answers agree. This is `wastegate bench` with four targets; --html writes its page with all charts.

The article's claim: a small model is cheap below about 50 requests a second and dear above, shown by a small model in
FP16 against a large one in INT4. Here: the curves of these two, level by level, with intervals that hold for all levels
at once; and the cost of whole machines as demand rises, under both beliefs of how instances share one.

Bar: every variant is measured on six levels or more from 1 to 64 with two thirds of the blocks that were planned, each
has a knee with an interval or a reason why not, and each pair has a conclusion or a refusal. The bar is on the
instrument: which variant is cheapest is a finding, not a target. A quick run has two variants, 3 short levels and 2
blocks on a machine however busy: it shows that this works, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines.variants import write_variant
from wastegate import site
from wastegate.core.packing import BOTH, stretches
from wastegate.core.steady import Rule as Settle
from wastegate.load.blocks import Design
from wastegate.load.curve_chart import page
from wastegate.load.host import Rule
from wastegate.load.paired import PairedError
from wastegate.load.sweep import DOLLARS, Config, Curve, Price, Report, Sheet
from wastegate.load.sweep_arm import Asked, Shape
from wastegate.load.sweep_command import this_machine, watched
from wastegate.load.sweep_target import EngineError, Spec
from wastegate.load.sweep_view import along, dropped, spread, table
from wastegate.local.models import Library

MODEL = "smollm2-135m-instruct"
LAYERS = 12
CUT = f"first {LAYERS} layers: a stand-in for SPEED ONLY"
SMALL, LARGE = f"fp16-{LAYERS}", "int4-30"
"""The article's pair: a small model in FP16, a large one in INT4."""
ALL = (LARGE, "fp16-30", f"int4-{LAYERS}", SMALL)
CLAIMED = 50.0
LEVELS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
QUICK = (1.0, 2.0, 4.0)
DEMANDS = (5.0, CLAIMED, 200.0)
RISING = tuple(float(demand) for demand in np.geomspace(1.0, 1000.0, 121))
"""Requests per second at which the article's pair is held against each other."""
WIDTH = 100
"""Columns of the report in a terminal and on the page."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 levels, 2 blocks: shows that it works, nothing else")
    parser.add_argument("--repeats", type=int, default=5, help="blocks (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page with the charts here")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores; load average at the start {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as scratch:
        levels, names = (QUICK, (SMALL, LARGE)) if given.quick else (LEVELS, ALL)
        config = plan(variants(Path(scratch), names, max(levels)), levels, given.repeats, given.quick)
        console = Console(stderr=True)
        try:
            report = uvloop.run(watched(config, console if console.is_terminal else None))
        except (EngineError, PairedError, KeyboardInterrupt) as problem:
            print(f"bar: fail: {problem or 'interrupted'}")
            return 1
    if given.json:
        given.json.write_bytes(msgspec.json.encode(report))
    if given.html:
        given.html.write_text(page(report), encoding="utf-8")
    Console(width=WIDTH, highlight=False).print(table(report))
    return tell(report, given.quick)


def variants(folder: Path, names: Sequence[str], cap: float) -> tuple[Spec, ...]:
    """The models, written where they are not as they come."""
    source = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    found = []
    for name in names:
        cut = name.endswith(f"-{LAYERS}")
        path = source if name == LARGE else folder / f"{name}.gguf"
        if path != source:
            write_variant(source, path, f16=name.startswith("fp16"), layers=LAYERS if cut else None)
        flags = (("cap", f"{cap:g}"), ("kv-gb", "0.5"))
        found.append(Spec(name=name, model=str(path), flags=flags, remark=CUT if cut else ""))
    return tuple(found)


def plan(specs: Sequence[Spec], levels: tuple[float, ...], repeats: int, quick: bool) -> Config:
    device = this_machine()
    price = Price(dollars_per_hour=device.dollars_per_hour, source=f"list price of {os.cpu_count()} cores")
    return Config(
        targets=tuple(specs),
        shapes=(Shape(16, 4) if quick else Shape(48, 16),),
        asked=Asked(settle=Settle(seconds=0.2, most=5.0) if quick else Settle(seconds=2.0, most=25.0)),
        design=Design(
            rates=levels,
            blocks=2 if quick else repeats,
            spares=0 if quick else 1,
            seconds=60.0,
            warmup=0.0,
            rule=Rule(steal=1.0, others=1.0, own=None) if quick else Rule(),
            patience=180.0,
            mirrored=False,
            unit=" at once",
        ),
        prices={spec.name: price for spec in specs},
        device=device,
        demands=DEMANDS,
    )


def tell(report: Report, quick: bool) -> int:
    """What the claim comes to on this machine, and the bar; the exit code."""
    if not report.sheets:
        print("bar: fail: interrupted before anything was measured")
        return 1
    (sheet,) = report.sheets
    for line in claim(report, sheet):
        print(line)
    wrong = [*report.invalid, *(f"interrupted after {report.seconds:.0f} s" for _ in range(report.interrupted))]
    planned = 2 * report.config.design.blocks / 3
    for curve in sheet.curves:
        measured = [point for point in curve.points if point.blocks >= planned and point.figures.get("qps")]
        if len(measured) < (3 if quick else 6):
            wrong.append(f"{curve.target} was measured on {len(measured)} levels only")
        if curve.knee.level is None and not curve.knee.why:
            wrong.append(f"{curve.target} has neither a knee nor a reason")
    wrong += [f"nothing is said of {' and '.join(one.names)}" for pairs in sheet.meetings.values() for one in pairs
              if not one.says]  # fmt: skip
    print(f"{report.seconds:.0f} s; {'; '.join(dropped(report)) or 'no block dropped'}")
    knees = ", ".join(f"{curve.target} {knee_of(curve)}" for curve in sheet.curves)
    print(f"bar: {'fail: ' + '; '.join(wrong) if wrong else 'pass'}: knees: {knees}")
    return 1 if wrong else 0


def knee_of(curve: Curve) -> str:
    return f"at {spread(curve.knee.level)} calls at once" if curve.knee.level is not None else "not concluded"


def claim(report: Report, sheet: Sheet) -> list[str]:
    """The article's sentence, held against what was measured."""
    found = [f"\nthe claim: a small model is cheap below about {CLAIMED:g} requests a second, and dear above"]
    (meeting,) = [one for one in sheet.meetings[DOLLARS] if set(one.names) == {SMALL, LARGE}]
    found.append(f"  {SMALL} against {LARGE}, dollars per request at equal calls at once: {meeting.says}")
    rates = {curve.target: curve.capacity for curve in sheet.curves}
    for name in (SMALL, LARGE):
        kept = rates[name]
        if kept is not None:
            found.append(f"  {name}: at most {spread(kept.rate)} requests/s, at {kept.level:g} at once")
    reversed_ = [one for one in meeting.crossings if one.below == SMALL and one.above == LARGE]
    if reversed_:
        found.append("  the small one is cheap at few calls and dear at many: the claim's shape is seen here")
    elif meeting.crossings:
        found.append("  the small one is dear at few calls and cheap at many: the claim's opposite is seen here")
    else:
        found.append("  no reversal is seen here: whatever is cheaper is so, or is not told apart, on every level")
    if sheet.packing is not None:
        pair = [option for option in sheet.packing.options if option.name in (SMALL, LARGE)]
        for sharing, told in zip(BOTH, ("share a machine's speed", "are each as fast as one alone"), strict=True):
            along_pair = stretches(pair, sheet.packing.device, RISING, sharing)
            found.append(f"  the two on whole machines, if instances {told}: {along(along_pair)}")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
