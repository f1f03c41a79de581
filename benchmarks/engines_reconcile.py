"""Four engines' own counters beside the ledger, conservation for each, the plugin's cap, and two routes' bases.

    .venv/bin/python benchmarks/engines_reconcile.py [--quick] [--minutes N] [--json FILE]

vLLM's CPU build with the plugin, llama.cpp's server and two local engines, all of the same small model, stand behind
one gateway. A trace of conversations with shared beginnings goes to vLLM, one of independent ones to the others, both
shrunk to what two cores can do; now and then a client leaves in the middle. Half way the plugin's cap is changed under
a burst. The traces are not part of this project: $WASTEGATE_TRACES names their folder.

Bar: for every replica, requests + idle + overhead within 0.1 % of price × up time; tokens in and out, calls finished
and aborted, and cached tokens where an engine tells of them, within 1 % of the ledger's sums; the running batch follows
the cap up and down; charges on vLLM are EXACT and on the others GATEWAY. --quick is one minute and drops nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, to_builtins

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.reconcile import counters, traffic
from benchmarks.reconcile.counters import Figure
from benchmarks.reconcile.fleet import Fleet, fleet, get
from wastegate.core.attribution import Charges, attribute
from wastegate.core.facts import Facts
from wastegate.core.ledger import NANO
from wastegate.store.entries import Ledger

ROOT = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("WASTEGATE_TRACES", ROOT.parent / "shared" / "traces"))
CONSERVED, RECONCILED = 0.001, 0.01
SETTLE_SECONDS = 60.0


class RouteCost(Struct, frozen=True):
    """What one route's calls cost, and how that is known."""

    route: str
    calls: int
    bases: tuple[str, ...]
    per_thousand: float
    """Dollars."""
    off: float | None
    """How far the gateway's own estimate of a call is from its charge, at the median; None where it is the charge."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one minute of traffic")
    parser.add_argument("--minutes", type=float, default=10.0, help="of traffic (default %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep ledger and logs here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engines are ended too
    missing = [trace for trace in (traffic.AZURE, traffic.MOONCAKE) if not (TRACES / trace).is_file()]
    if missing:
        print(f"skipped: {', '.join(missing)} not in {TRACES} (set WASTEGATE_TRACES)")
        print("bar: pass: skipped, the traces are not at hand")
        return 0
    with tempfile.TemporaryDirectory(prefix="wastegate-reconcile-") as folder:
        scratch = arguments.keep.resolve() if arguments.keep else Path(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            return measure(scratch, 60.0 if arguments.quick else arguments.minutes * 60, arguments.json)
        except RuntimeError as problem:
            for log in sorted(scratch.glob("*.log")):
                print(f"-- the end of {log.name}", *log.read_text(errors="replace").splitlines()[-8:], sep="\n")
            print(f"bar: fail: {problem}")
            return 1


def measure(scratch: Path, seconds: float, out: Path | None) -> int:
    """Run it all; the exit code."""
    with fleet(scratch) as running:
        before = {name: counters.scrape(name, engine.url) for name, engine in running.engines.items()}
        print(f"traffic for {seconds:.0f} s …", flush=True)
        seen, left, said = asyncio.run(send(running, seconds))
        settle(running)
        after = {name: counters.scrape(name, engine.url) for name, engine in running.engines.items()}
    with Ledger(running.ledger, create=False) as ledger:
        facts = ledger.facts(-np.inf, np.inf)
        charges = attribute(facts)
        ids = {row: entry.id for row, entry in enumerate(ledger.read(facts.calls.key.tolist()))}
        figures = counters.reconcile(facts, ledger, ids, before, after)
    conserved = counters.conservation(facts, charges)
    routes = by_route(facts, charges)
    worked, how = traffic.effect(seen)
    bases = {bill.replica: bill.basis for bill in charges.replicas}
    tell(figures, conserved, charges, routes)
    print(f"\nthe plugin's cap: {how}")
    print(f"clients who left: {left}; rows sent by the replays: {[report.get('sent') for report in said]}")
    wrong = judge(figures, conserved, bases, worked)
    if out:
        out.write_text(json.dumps(to_builtins({
            "seconds": seconds, "figures": figures, "conserved": conserved, "bases": bases, "routes": routes,
            "cap": seen, "left": left, "replays": said, "wrong": wrong,
        }), indent=1))  # fmt: skip
    worst = max(figures, key=lambda one: one.off)
    print(
        f"bar: {'fail: ' + '; '.join(wrong) if wrong else 'pass'}: conserved within {max(conserved.values()):.5%}, "
        f"counters within {worst.off:.2%} ({worst.replica}, {worst.what}), vLLM {bases['vllm']}"
    )
    return 1 if wrong else 0


async def send(running: Fleet, seconds: float) -> tuple[list[traffic.Seen], int, list[dict[str, object]]]:
    """All traffic; the cap's episode begins at half time."""
    url = running.url
    replays = [
        traffic.replay(url, TRACES / traffic.MOONCAKE, "exact", 0.12, seconds, "--token-scale", "1/16",
                       "--endpoint", "completions"),
        traffic.replay(url, TRACES / traffic.AZURE, "m", 0.5, seconds, "--token-scale", "1/16", "--endpoint", "chat"),
    ]  # fmt: skip
    paths = (("/v1/completions", "exact"), ("/v1/chat/completions", "m"))
    leaving = asyncio.ensure_future(traffic.leave(url, paths, max(seconds / 15, 20.0), seconds))
    try:
        await asyncio.sleep(seconds / 2)
        seen = await traffic.episode(url, running.engines["vllm"].url)
        said = await asyncio.to_thread(traffic.reports, replays, seconds + 300)
        return seen, await leaving, said
    finally:
        leaving.cancel()
        for process in replays:
            if process.poll() is None:
                process.kill()


def settle(running: Fleet) -> None:
    """Until nothing is in flight, and what vLLM told of it has been read and written down."""
    until, quiet = time.monotonic() + SETTLE_SECONDS, 0
    count = -1
    while quiet < 4 and time.monotonic() < until:
        time.sleep(1.0)
        busy = sum(int(str(one["in_flight"])) for one in get(running.admin + "/admin/state")["replicas"])
        with Ledger(running.ledger, create=False) as ledger:
            facts = ledger.facts(-np.inf, np.inf)
        now = len(facts.attempts.call) + len(facts.records.attempt)
        quiet = quiet + 1 if not busy and now == count else 0
        count = now


def by_route(facts: Facts, charges: Charges) -> list[RouteCost]:
    attempts = facts.attempts
    basis = np.array([{bill.replica: bill.basis for bill in charges.replicas}[name] for name in facts.replicas])
    found = []
    for code in np.unique(facts.calls.route):
        rows = facts.calls.route[attempts.call] == code
        if facts.names[int(code)] not in ("vllm", "others"):
            continue  # the replay asked how many tokens its prompts are
        calls = len(np.unique(attempts.call[rows]))
        told = rows & charges.recorded & (charges.amount > 0)
        off = np.abs(charges.estimate[told] - charges.amount[told]) / charges.amount[told]
        found.append(
            RouteCost(
                facts.names[int(code)],
                calls,
                tuple(sorted(set(basis[attempts.replica[rows]].tolist()))),
                float(charges.amount[rows].sum()) / NANO / calls * 1000,
                float(np.median(off)) if len(off) else None,
            )
        )
    return found


def tell(figures: list[Figure], conserved: Mapping[str, float], charges: Charges, routes: list[RouteCost]) -> None:
    print(f"\n{'replica':10} {'':11} {'engine':>9} {'ledger':>9} {'off':>7}   gateway alone")
    for one in figures:
        more = f" (and at most {one.unknown:,} of calls that were left)" if one.unknown else ""
        print(f"{one.replica:10} {one.what:11} {one.engine:9,} {one.ledger:9,} {one.off:7.2%}   {one.gateway:,}{more}")
    print(f"\n{'replica':10} {'bill, $':>9} {'requests':>9} {'idle':>9} {'overhead':>9} {'off':>9}  basis, records")
    for bill in charges.replicas:
        parts = (bill.bill, bill.requests, bill.idle, bill.overhead)
        print(
            f"{bill.replica:10} "
            + " ".join(f"{part / NANO:9.6f}" for part in parts)
            + f" {conserved[bill.replica]:9.5%}  {bill.basis}, {bill.recorded} of {bill.attempts}"
            + (f"; the gateway alone would have moved {bill.moved:.1%}" if bill.moved is not None else "")
        )
    print(f"\n{'route':10} {'calls':>6} {'$ a 1,000':>10}  basis; the gateway's own estimate of a call")
    for route in routes:
        off = "is its charge" if route.off is None else f"is {route.off:.1%} off at the median"
        print(f"{route.route:10} {route.calls:6} {route.per_thousand:10.4f}  {', '.join(route.bases)}; {off}")


def judge(figures: list[Figure], conserved: Mapping[str, float], bases: Mapping[str, str], worked: bool) -> list[str]:
    wrong = [f"{name} misses its bill by {off:.3%}" for name, off in conserved.items() if off > CONSERVED]
    wrong += [f"{one.replica}: {one.what} {one.engine} and {one.ledger}" for one in figures if one.off > RECONCILED]
    silent = {name for name in bases if not any(one.replica == name and one.engine for one in figures)}
    wrong += [f"{name} had no traffic" for name in sorted(silent)]
    expected = {name: "EXACT" if name == "vllm" else "GATEWAY" for name in bases}
    wrong += [f"{name} is {bases[name]}, not {expected[name]}" for name in bases if bases[name] != expected[name]]
    return wrong if worked else [*wrong, "the running batch did not follow the cap"]


if __name__ == "__main__":
    sys.exit(main())
