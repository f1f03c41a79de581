"""The flags of ``wastegate simulate``. Nothing heavy is imported here: every command's help passes through it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

_ABOUT = """\
Run traffic, in made-up time, through the policy and the levers that the gateway itself runs,
against machines that a file describes: what it would cost, and how fast it would be.
docs/simulator.md tells how far to trust it."""

_EXAMPLES = """\
exit codes: 0 shown, 1 there is a reason not to trust the figures, 2 bad usage or input

examples:
  wastegate simulate azure.csv --config whatif.toml
  wastegate simulate azure.csv --config whatif.toml --sweep machines.0.count=4,6,8
  wastegate simulate --config whatif.toml --calls 100000 --html whatif.html
"""


def simulate(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[[argparse.Namespace], int]
) -> None:
    """Add the command; ``run`` is called with its flags."""
    parser = commands.add_parser(
        "simulate",
        help="what if: traffic against machines that need not exist",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("trace", nargs="?", type=Path, help="recorded traffic, as for replay (default: the file's [traffic])")
    add("--config", type=Path, required=True, metavar="FILE", help="machines and policy; see examples/whatif.toml")
    add("--calls", type=int, metavar="N", help="the first N calls only; of made traffic, N calls (default 1000)")
    add("--like", action="store_true", help="make traffic like the trace's: its rate, clumps and lengths")
    add("--speed", type=float, help="2 brings the trace in half its time")
    add("--rate", type=float, help="stretch the trace to this mean rate, calls per second")
    add("--sweep", action="append", default=[], metavar="PATH=VALUES",
        help="try each of these values in the file's place; may be repeated, for every combination")  # fmt: skip
    add("--processes", type=int, metavar="N", help="runs of a sweep at once (default: a process for each core)")
    add("--ray", metavar="ADDRESS", help="run a sweep on a Ray cluster; 'local' starts one here")
    add("--html", type=Path, metavar="FILE", help="write a page with charts as well")
    add("--json", action="store_true", help="print as JSON, in dollars, seconds and tokens")
    add("--no-progress", action="store_true")
    parser.set_defaults(run=run)
