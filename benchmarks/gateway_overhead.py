"""What a gateway costs: wastegate beside nginx, vllm-router, sglang-router and litellm, in one run.

    python benchmarks/gateway_overhead.py [--quick] [--reps 5] [--only NAME,…] [--tests NAME,…] [--json FILE]

Every peer relays to the same four mock replicas. In each repeat all peers are started afresh, each pinned to the
first core; load and mock share the second. Then test by test all peers are measured, one right after another, so
that a pair that is compared stands seconds apart; the order is turned round in every second repeat. Which
measurements are dropped, and how ratios and intervals are made: ``overhead/verdict.py``, written before the runs.

Tests (JSON at 300 requests/s, 64 KB at 100; streams 64 at a time, chunks 10 ms apart, unless said otherwise):
    hold                    memory with 1,000 open streams        json1 json8 json64   CPU and latency by prompt KB
    ttft                    300 streams/s, latency of the first   s16 s128 s256        CPU of streams by chunks
    max                     64 connections, each asks again once it is answered
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead import peers as catalogue
from benchmarks.overhead.load import Load, Measured
from benchmarks.overhead.meter import probe, stolen_seconds
from benchmarks.overhead.peers import DIRECT, KEY, OURS, MissingError, Peer, Running, pinned
from benchmarks.overhead.report import report
from benchmarks.overhead.verdict import Row, judge_rows

ROOT = Path(__file__).resolve().parents[1]
GAP = 0.010
"""Seconds between chunks: a decode step of a busy engine."""
TESTS = ("hold", "json1", "json8", "json64", "ttft", "s16", "s128", "s256", "max")
MOST_EXTRA = 2
"""Repeats added at most for those in which a measurement of ours was disturbed."""


def load_of(test: str, peer: Peer, quick: bool) -> tuple[Load, float]:
    """The load of a test, and the mock's gap meanwhile."""
    length = 0.2 if quick else 1.0
    pace = peer.pace
    if test == "hold":
        return Load("hold", 0, rate=400 * min(1, pace * 2), connections=1000, chunks=2, stream=True), 60.0
    if test.startswith("json"):
        size = int(test[4:])
        rate = (100 if size == 64 else 300) * pace
        return Load("open", 0, rate=rate, seconds=4 * length, prompt=size * 1024), 0.0
    if test == "ttft":
        seconds = 14.5 if peer.name in (DIRECT.name, OURS.name) else 4.0
        return Load("open", 0, rate=300 * pace, seconds=seconds * length, connections=64, chunks=4, stream=True), GAP
    if test == "max":
        return Load("closed", 0, seconds=4 * length, connections=64), 0.0
    chunks = int(test[1:])
    rounds = {16: 8, 128: 2, 256: 1}[chunks]
    streams = max(4, int(64 * pace))
    return Load(
        "closed", 0, seconds=60, rounds=max(1, round(rounds * (0.5 if quick else 1))), connections=streams,
        chunks=chunks, stream=True, gap=GAP,
    ), GAP  # fmt: skip


class Ground:
    """The mock on its core, and the cores."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("two cores are needed: one for the gateway, one for load and mock")
        self.gateway_core, self.load_core = cores[:2]
        self.replicas = [catalogue.free_port() for _ in range(4)]
        argv = [sys.executable, "-m", "benchmarks.overhead.mock", *map(str, self.replicas)]
        os.chdir(ROOT)
        self._mock = pinned(self.load_core, argv, stdout=subprocess.PIPE, pipe=True)
        self._hear("ready")

    def gap(self, seconds: float) -> None:
        assert self._mock.stdin is not None
        line = f"gap {seconds * 1000:g}"
        self._mock.stdin.write(line.encode() + b"\n")
        self._mock.stdin.flush()
        self._hear(line)

    def _hear(self, line: str) -> None:
        assert self._mock.stdout is not None
        if self._mock.stdout.readline().decode().strip() != line:
            raise SystemExit("the mock replicas did not start or went away; see above")

    def load(self, running: Running, load: Load) -> Measured:
        load = msgspec.structs.replace(load, port=running.port, pid=running.pid, key=KEY)
        argv = [sys.executable, "-m", "benchmarks.overhead.load", msgspec.json.encode(load).decode()]
        process = pinned(self.load_core, argv, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=300)
        if process.returncode and running.ended:
            raise MissingError(running.ended)
        if process.returncode:
            raise SystemExit(f"the load process failed:\n{out.decode()}")
        return msgspec.json.decode(out, type=Measured)

    def measure(self, running: Running, test: str, repeat: int, quick: bool) -> Row:
        load, gap = load_of(test, running.peer, quick)
        self.gap(gap)
        before = probe(self.gateway_core)
        stolen, start = stolen_seconds(), time.monotonic()
        measured = self.load(running, load)
        share = (stolen_seconds() - stolen) / (time.monotonic() - start) / (os.cpu_count() or 1)
        return Row(running.peer.name, repeat, test, measured, share, max(before, probe(self.gateway_core)))

    def warm(self, running: Running, quick: bool) -> None:
        self.gap(0)
        seconds = 0.5 if quick else 1.0
        self.load(running, Load("closed", 0, seconds=seconds, connections=4 if running.peer.pace < 1 else 16))
        self.load(running, Load("closed", 0, seconds=seconds / 2, connections=4, prompt=8192, stream=True))

    def close(self) -> None:
        self._mock.terminate()
        self._mock.wait()


def one_repeat(
    ground: Ground, chosen: list[Peer], tests: list[str], repeat: int, quick: bool, folder: Path, screen: Console
) -> list[Row]:
    """All tests of all peers, freshly started; peers that cannot be had are said and left out for good."""
    running: list[Running] = []
    rows: list[Row] = []
    try:
        for peer in list(chosen):
            if peer.repeats is not None and repeat > peer.repeats:
                continue
            try:
                ground.gap(0)
                running.append(Running(peer, ground.replicas, folder / f"{peer.name}-{repeat}", ground.gateway_core))
                running[-1].wait_ready()
                ground.warm(running[-1], quick)
            except MissingError as reason:
                screen.print(f"[yellow]left out: {peer.name}: {reason}", highlight=False)
                if peer.name == OURS.name:
                    print("bar: fail: wastegate itself did not start")
                    raise SystemExit(1) from None
                chosen.remove(peer)
                if running and running[-1].peer is peer:
                    running.pop().stop()
        for test in tests:
            for each in list(running if repeat % 2 else running[::-1]):
                if test == "hold" and each.pid == 0:
                    continue
                try:
                    rows.append(ground.measure(each, test, repeat, quick))
                    screen.print(_line(rows[-1]), highlight=False)
                except MissingError as reason:
                    screen.print(f"[red]lost in repeat {repeat}, {test}: {reason}", highlight=False)
                    running.remove(each)
    finally:
        for each in running:
            each.stop()
    return rows


def _line(row: Row) -> str:
    measured = row.measured
    parts = [f"{row.repeat} {row.test:7s}{row.peer:20s}"]
    if measured.cpu is not None:
        parts.append(f"{measured.cpu * 1e6:9.1f} µs")
    if measured.memory_open is not None and measured.memory_before is not None:
        parts.append(f"{measured.memory_before:.0f} → {measured.memory_open:.0f} MiB, {measured.opened} open")
    parts.append(f"{measured.rate:8.0f}/s" if measured.rate else "")
    if measured.latency_p50 is not None and measured.latency_p99 is not None:
        parts.append(f"p50 {measured.latency_p50 * 1e3:.2f} p99 {measured.latency_p99 * 1e3:.2f} ms")
    if measured.errors:
        parts.append(f"errors {measured.errors}")
    return "  ".join(parts)


def undisturbed(rows: list[Row]) -> int:
    """In how many repeats every measurement of ours was left in peace."""
    disturbed = {row.repeat for row in judge_rows(rows) if row.disturbed and row.peer == OURS.name}
    return len({row.repeat for row in rows} - disturbed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help=f"under a minute: one short repeat of {', '.join(catalogue.QUICK)}"
    )
    parser.add_argument("--reps", type=int, help="undisturbed repeats (default 5; quick 1)")
    parser.add_argument("--only", default="", help="peers, comma-separated; 'direct' is always in")
    parser.add_argument("--tests", default="", help=f"of {','.join(TESTS)}")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND",
                        help="one more peer; {port}, {ports} and {folder} are filled in")  # fmt: skip
    parser.add_argument("--routing", metavar="POLICY", help="wastegate with this routing policy, such as prefix_aware")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement and bar there")
    return parser.parse_args()


def choose(args: argparse.Namespace) -> list[Peer]:
    extra = [Peer(name, catalogue.command(text)) for name, _, text in (each.partition("=") for each in args.peer)]
    everyone = [*catalogue.PEERS, *extra]
    if args.routing:
        routed = catalogue.wastegate(settings=f'[levers.routing]\npolicy = "{args.routing}"\n')
        everyone = [Peer(OURS.name, routed) if peer is OURS else peer for peer in everyone]
    names = args.only.split(",") if args.only else [p.name for p in everyone]
    if args.quick and not args.only:
        names = [*catalogue.QUICK, *(peer.name for peer in extra)]
    if unknown := set(names) - {peer.name for peer in everyone}:
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in everyone)}")
    return [peer for peer in everyone if peer.name in names or peer is DIRECT]


def main() -> int:
    args = arguments()
    tests = args.tests.split(",") if args.tests else list(TESTS)
    if unknown := set(tests) - set(TESTS):
        raise SystemExit(f"no such test: {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    repeats = args.reps or (1 if args.quick else 5)
    chosen = choose(args)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    screen = Console(file=sys.stdout, width=180 if not sys.stdout.isatty() else None)
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="wastegate-overhead-"))
    ground = Ground()
    try:
        repeat = 0
        while undisturbed(rows) < repeats and repeat < repeats + (0 if args.quick else MOST_EXTRA):
            repeat += 1
            rows += one_repeat(ground, chosen, tests, repeat, args.quick, folder, screen)
    finally:
        ground.close()
        shutil.rmtree(folder, ignore_errors=True)
    rows = judge_rows(rows)
    for row in rows:
        if row.disturbed:
            screen.print(f"dropped: repeat {row.repeat}, {row.test}, {row.peer}: {row.disturbed}", highlight=False)
    part = bool(args.quick or args.only or args.tests or args.routing)
    return report(rows, chosen, OURS.name, screen, quick=args.quick, part=part, file=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
