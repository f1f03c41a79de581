"""The flags of `wastegate bench`, and the help that teaches them. Nothing is imported that would slow
`wastegate --help` down."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[argparse.Namespace], int]

_EXAMPLES = """\
targets:
  NAME=URL                          any OpenAI-compatible server that is up
  NAME=engine:MODEL[,FLAG=VALUE…]   an engine that bench starts, with flags of `wastegate engine`;
                                    it stands still while another target is measured

examples:
  wastegate bench                   the local engine at 1 to 64 calls at once
  wastegate bench u8=engine:m.gguf f16=engine:m.gguf,kv-precision=f16 --html curve.html
  wastegate bench vllm=http://gpu1:8000 sglang=http://gpu2:8000 --price l4 --lengths 512:128
  wastegate bench vllm=http://gpu1:8000 --rate 1,2,4,8,16 --slo-ttft 0.5 --slo-tpot 0.05 \\
      --device l4:24:0.80 --memory vllm=9.5 --demand 20,50,200

exit codes: 0 measured, 1 nothing may be concluded from it (the report says why), 2 bad usage or
a target that cannot be used, 130 interrupted (what ran is shown)
"""


def bench(commands: Any, run: Run) -> None:
    """Add `wastegate bench` to argparse's ``commands``."""
    parser = commands.add_parser(
        "bench",
        help="a server's cost and speed against load: its curve, its knee, and what is cheapest",
        description="Sweep targets through levels of load, turn about, and show what each level gives: requests\n"
        "per second, TTFT, TPOT, E2E, goodput within an SLO, dollars per 1,000 requests and per million\n"
        "output tokens, with intervals; where the knee is, where two curves cross (or that it cannot be\n"
        "told), and which target is cheapest on a device at a demand. docs/bench.md tells how to read it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: local=engine:smollm2-135m-instruct")
    _load(parser.add_argument_group("load"))
    _run(parser.add_argument_group("how it is run"))
    _money(parser.add_argument_group("service levels and money"))
    _output(parser.add_argument_group("output"))


def _load(group: Any) -> None:
    add = group.add_argument
    levels = group.add_mutually_exclusive_group()
    levels.add_argument("--concurrency", default="1,2,4,8,16,32,64", metavar="LIST",
        help="closed loop: so many callers; each sends again when its answer ends (default: %(default)s)")  # fmt: skip
    levels.add_argument("--rate", metavar="LIST", help="open loop: requests offered a second, arriving at random")
    add("--lengths", default="110:32", metavar="IN:OUT[,…]", help="tokens of prompt and answer (default: %(default)s)")
    add("--model", default="", help="what to ask servers for (default: the only model that each lists)")
    add("--api-key-env", metavar="NAME", help="the environment variable that holds the servers' key")
    add("--timeout", type=float, default=300.0, help="seconds that a call may take (default: %(default)g)")


def _run(group: Any) -> None:
    add = group.add_argument
    add("--repeats", type=int, default=6, help="turns of each target on each level, interleaved (default: %(default)s)")
    add("--spares", type=int, default=2, help="repeats in place of disturbed ones (default: %(default)s)")
    add("--seconds", type=float, metavar="S",
        help="closed loop: a level is measured for so long at least, once it has settled (default: 2); open loop: it "
        "is offered for so long (default: 20)")  # fmt: skip
    add(
        "--most",
        type=float,
        default=60.0,
        metavar="S",
        help="closed loop: a level that has not settled by then is cut off, and marked (default: %(default)g)",
    )
    add("--warmup", type=float, default=3.0, metavar="S",
        help="open loop: calls sent in the first seconds do not count (default: %(default)g)")  # fmt: skip
    add("--drain", type=float, default=30.0, metavar="S",
        help="closed loop: seconds that calls under way get at the end of a level, on servers not started here "
        "(default: %(default)g)")  # fmt: skip
    add("--seed", type=int, default=0, help="of prompts, arrivals and the order of turns (default: %(default)s)")
    add("--level", type=float, default=0.95, help="of the intervals (default: %(default)s)")
    add("--keep-disturbed", action="store_true",
        help="count turns although others were at work on this machine; the report says so")  # fmt: skip


def _money(group: Any) -> None:
    add = group.add_argument
    add("--slo-ttft", type=float, metavar="S", help="a good call has its first token within so many seconds")
    add("--slo-tpot", type=float, metavar="S", help="and takes no more for each further token")
    add("--slo-e2e", type=float, metavar="S", help="and for the whole answer")
    add("--enough", type=float, default=0.95, metavar="SHARE",
        help="a level keeps the SLO if so many of its calls are good (default: %(default)s)")  # fmt: skip
    add("--price", action="append", default=[], metavar="[NAME=]PRICE",
        help="dollars for an hour of an instance, or an accelerator such as l4 or 2xh100; may be repeated (default: "
        "the list price of the cores, for engines started here)")  # fmt: skip
    add("--memory", action="append", default=[], metavar="NAME=GB",
        help="what an instance takes (default: as seen, for engines started here)")  # fmt: skip
    add("--device", metavar="NAME:GB:PRICE", help="where instances would be packed (default: this machine)")
    add("--demand", default="", metavar="LIST", help="requests per second at which to say which target is cheapest")
    add(
        "--remark",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="what must be known of a target; shown with it",
    )


def _output(group: Any) -> None:
    add = group.add_argument
    add("--json", type=Path, metavar="FILE", help="all figures of all turns")
    add("--html", type=Path, metavar="FILE", help="one page with tables and charts, which needs no network")
    add("--svg", type=Path, metavar="FILE", help="the cost curve alone")
    add("--no-progress", action="store_true")
