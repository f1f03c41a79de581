"""What a second worker adds: the most requests a second of `wastegate up --workers 2` against one process.

    .venv/bin/python benchmarks/two_workers.py [--quick] [--reps N] [--json FILE]

Two cores have no room for two busy workers beside load and replicas. So each process that serves clients is held to a
fixed share of a core by the kernel (a cgroup's CPU quota; needs root): then the load has room, and the ratio says what
coordination costs. Fresh start per repeat, order turned round in every second one, measurements that the host disturbed
are dropped by the rule in benchmarks/overhead/verdict.py. Beside it: nginx with one worker under the same quota.

Bar: the median ratio over at least five repeats is 1.7 or more at its interval's lower end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gateway_overhead import MOST_EXTRA, Ground
from benchmarks.overhead.load import Load
from benchmarks.overhead.meter import probe, stolen_seconds, tree
from benchmarks.overhead.peers import MissingError, Peer, Running, nginx, wastegate
from benchmarks.overhead.verdict import Row, Spread, judge_rows, spread
from wastegate import __name__ as ours

SHARE = 0.25
"""Of a core, for each process that serves clients."""
PERIOD = 20_000
"""Microseconds: short, so that a process is not stopped for long at a time."""
LEAST = 1.7
ONE, TWO = "one process", "two workers"
PEERS = (
    Peer(ONE, wastegate()),
    Peer(TWO, wastegate("--workers", "2")),
    Peer("nginx", nginx),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: two short repeats")
    parser.add_argument("--reps", type=int, help="undisturbed repeats (default 6; quick 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    arguments = parser.parse_args()
    repeats = arguments.reps or (2 if arguments.quick else 6)
    if (why := missing()) is not None:
        print(f"bar: pass: skipped, {why}")
        return 0
    ground = Ground()
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="wastegate-workers-") as folder:
            repeat = 0
            while undisturbed(rows) < repeats and repeat < repeats + MOST_EXTRA:
                repeat += 1
                for peer in PEERS if repeat % 2 else PEERS[::-1]:
                    rows += measure(ground, peer, repeat, Path(folder), 1.5 if arguments.quick else 4.0)
    finally:
        ground.close()
    return tell(judge_rows(rows), arguments.json)


def measure(ground: Ground, peer: Peer, repeat: int, folder: Path, seconds: float) -> list[Row]:
    running = Running(peer, ground.replicas, folder / f"{peer.name.replace(' ', '-')}-{repeat}", ground.gateway_core)
    try:
        running.wait_ready()
        with ExitStack() as quotas:
            for pid in serving(running.pid, peer.name):
                quotas.enter_context(quota(pid))
            ground.load(running, Load("closed", 0, seconds=0.5, connections=16))
            before, stolen = probe(ground.gateway_core), stolen_seconds()
            measured = ground.load(running, Load("closed", 0, seconds=seconds, connections=64))
            share = (stolen_seconds() - stolen) / measured.seconds / (os.cpu_count() or 1)
            row = Row(peer.name, repeat, "max", measured, share, max(before, probe(ground.gateway_core)))
    except MissingError as error:
        print(f"left out: {peer.name}: {error}")
        return []
    finally:
        running.stop()
    print(f"{repeat} {peer.name:12s} {measured.rate:7.0f}/s  {dict(measured.errors) or ''}", flush=True)
    return [row]


def serving(root: int, name: str) -> list[int]:
    """The processes that serve clients: a chief's workers, nginx's worker, or the one process that there is."""
    pids = tree(root)
    if name == TWO:
        return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pids[1:] if name == "nginx" else pids[:1]


# ---- the kernel's quota, in either version of cgroups


def cpu_root() -> Path | None:
    for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.procs").exists() and os.access(path, os.W_OK):
            return path
    return None


def missing() -> str | None:
    """Why this cannot be measured here; None if it can."""
    if cpu_root() is None:
        return "no CPU quota can be set here (needs root and cgroups)"
    try:
        with quota(os.getpid()):
            return None
    except OSError as error:
        return f"no CPU quota can be set here ({error})"


@contextmanager
def quota(pid: int) -> Iterator[None]:
    """Hold one process to SHARE of a core meanwhile."""
    root = cpu_root()
    assert root is not None
    group = root / f"{ours}-bench-{pid}"
    group.mkdir()
    try:
        limit = round(SHARE * PERIOD)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(limit))
        else:
            (group / "cpu.max").write_text(f"{limit} {PERIOD}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


# ---- the result


def undisturbed(rows: list[Row]) -> int:
    """Repeats in which both of ours were left in peace."""
    good = [{row.repeat for row in judge_rows(rows) if row.peer == name and not row.disturbed} for name in (ONE, TWO)]
    return len(good[0] & good[1])


def rates(rows: list[Row], name: str) -> dict[int, float]:
    return {row.repeat: row.measured.rate for row in rows if row.peer == name and not row.disturbed}


def tell(rows: list[Row], file: Path | None) -> int:
    one, two, rival = rates(rows, ONE), rates(rows, TWO), rates(rows, "nginx")
    failed = [row for row in rows if row.measured.errors and row.peer in (ONE, TWO)]
    ratio = spread([two[repeat] / one[repeat] for repeat in sorted(one.keys() & two.keys())])
    print(f"\nrequests a second with {SHARE:.0%} of a core for each process that serves; 1 KB prompts, 64 connections")
    for name, found in ((ONE, one), (TWO, two), ("nginx", rival)):
        print(f"  {name:12s} {line(spread(list(found.values())), '{:,.0f}')}")
    print(f"  ratio        {line(ratio, '{:.2f}')}  ({sum(bool(row.disturbed) for row in rows)} disturbed, dropped)")
    print(f"reproduce: {Path(sys.executable).name} benchmarks/{Path(__file__).name}")
    if file is not None:
        interval = None if ratio is None else [ratio.median, ratio.low, ratio.high]
        file.write_text(json.dumps({"rates": {ONE: one, TWO: two, "nginx": rival}, "ratio": interval}))
    passed = ratio is not None and ratio.low >= LEAST and not failed
    print(f"bar: {'pass' if passed else 'fail'}: {line(ratio, '{:.2f}')} × one process, at least {LEAST} is asked for"
          + (f"; {len(failed)} measurements had failed requests" if failed else ""))  # fmt: skip
    return 0 if passed else 1


def line(found: Spread | None, form: str) -> str:
    if found is None:
        return "not measured"
    low, high = form.format(found.low), form.format(found.high)
    return f"{form.format(found.median)} [{low}, {high}] over {found.n}"


if __name__ == "__main__":
    raise SystemExit(main())
