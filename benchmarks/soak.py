"""Half an hour of mixed load and random faults: nothing leaks, nothing is lost, and every cent is accounted for.

    .venv/bin/python benchmarks/soak.py [--minutes 30 | --quick] [--seed N] [--clients N] [--json FILE] [--keep DIR]

Clients of several kinds (streams or not, several sizes and tenants, some leave at any moment) call through
`wastegate up --workers 2` four replicas that hang, reset, break off, answer with errors, ask for a rest, or close
behind each answer. Meanwhile, at random: replicas are killed and started again, or stopped for a while; worker 1 is
killed; worker 2 is stopped, sometimes for longer than its lease lasts; the configuration is changed and reloaded.

Afterwards all of this must hold:
- load is back at zero, as the gateway sees it and by the replicas' own count, and nothing waits;
- memory is flat: the slope of each process's resident memory over the second half of the run, from a line through 12
  block means, has a 95 % interval whose upper end is below 0.5 MB a minute (for chief and worker 2: worker 1 is killed
  too often to have a second half). A --quick run is too short to tell warming up from leaking: its bound is 40;
- every call that a client sent has exactly one entry (a call that was on its way to a worker as that was killed may
  have none), with an outcome that fits what the client saw; every whole answer has all its tokens, in order, once;
- no id is there twice; requests + idle + overhead are the bill to the nano-dollar, and the bill is price × up time;
- counters never went down; the gateway ended with exit code 0 when asked to, its journal is empty, its log holds no
  traceback, and none of its processes is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.endurance.checks import Slope, check_calls, check_money, slope_of
from benchmarks.endurance.clients import Clients
from benchmarks.endurance.processes import Gateway, Replicas, rss_mb

FLAT, FLAT_QUICK = 0.5, 40.0
"""MB a minute."""
SETTLE_SECONDS = 20.0
STOP_SECONDS = 30.0
SHOWN = 20
"""Problems printed of each kind."""


class Soak:
    """One run."""

    def __init__(self, folder: Path, seconds: float, clients: int, seed: int, faulty: float) -> None:
        self.seconds = seconds
        self.luck = random.Random(seed)
        self.replicas = Replicas(faulty, seed)
        self.gateway = Gateway(folder, self.replicas)
        self.clients = Clients(self.gateway.url, clients, 0.15, random.Random(seed + 1))
        self.memory: dict[str, list[tuple[float, float]]] = {"chief": [], "worker 2": []}
        self.largest: dict[str, float] = {}
        self.kills: list[float] = []
        """When workers were killed, by the wall clock."""
        self.faults: dict[str, int] = {}
        self.problems: list[str] = []
        self._version = 1
        self._until = 0.0
        self._pending: set[asyncio.Task[None]] = set()

    # ---- under load

    async def run(self) -> None:
        await asyncio.to_thread(self.gateway.wait_ready)
        self._until = time.monotonic() + self.seconds
        watching = asyncio.create_task(self._watch())
        hurting = asyncio.create_task(self._hurt())
        await self.clients.run(lambda: time.monotonic() >= self._until)
        for task in (hurting, watching):
            task.cancel()
        await asyncio.gather(hurting, watching, return_exceptions=True)
        if self._pending:
            await asyncio.wait(self._pending)

    async def _watch(self) -> None:
        """Memory, and counters that must never go down."""
        ended = 0
        while True:
            await asyncio.sleep(min(1.0, self.seconds / 60))
            now = self.seconds - (self._until - time.monotonic())
            workers = self.gateway.workers()
            for name, pid in {"chief": self.gateway.pid, **{f"worker {n}": p for n, p in workers.items()}}.items():
                megabytes = rss_mb(pid)
                if megabytes is not None:
                    self.largest[name] = max(self.largest.get(name, 0.0), megabytes)
                    if name in self.memory:
                        self.memory[name].append((now, megabytes))
            before, ended = ended, await asyncio.to_thread(self.gateway.ended_calls)
            if ended < before:
                self.problems.append(f"the count of ended calls went from {before} down to {ended}")

    async def _hurt(self) -> None:
        """One fault after another, in random order; each kind comes as often as the others."""
        every = max(1.5, min(8.0, self.seconds / 20))
        kinds = [self._kill_replica, self._stop_replica, self._kill_worker, self._stop_worker, self._reload]
        while True:
            self.luck.shuffle(kinds)
            for kind in kinds:
                await asyncio.sleep(self.luck.uniform(0.5, 1.5) * every)
                name = kind.__name__[1:].replace("_", " ")
                self.faults[name] = self.faults.get(name, 0) + 1
                task = asyncio.create_task(kind())
                self._pending.add(task)
                task.add_done_callback(self._pending.discard)

    async def _kill_replica(self) -> None:
        number = self.luck.randrange(2)
        if not self.replicas.runs(number):
            return
        self.replicas.kill(number)
        await asyncio.sleep(self.luck.uniform(0.5, 3.0))
        self.replicas.start(number)

    async def _stop_replica(self) -> None:
        number = self.luck.randrange(2, 4)
        self.replicas.send(number, signal.SIGSTOP)
        await asyncio.sleep(self.luck.uniform(0.5, 4.0))
        self.replicas.send(number, signal.SIGCONT)

    async def _kill_worker(self) -> None:
        pid = self.gateway.workers().get(1)
        if pid is not None:
            self.kills.append(time.time())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _stop_worker(self) -> None:
        pid = self.gateway.workers().get(2)
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.luck.uniform(0.3, 7.0))
            os.kill(pid, signal.SIGCONT)

    async def _reload(self) -> None:
        self._version += 1
        self.gateway.configure(self._version)
        self.gateway.send(signal.SIGHUP)

    # ---- afterwards

    def settle(self) -> None:
        """Load must go back to zero everywhere by itself."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := self._left():
            if time.monotonic() > deadline:
                self.problems.append(f"after {SETTLE_SECONDS:g} s without calls there is still: {left}")
                return
            time.sleep(0.2)

    def _left(self) -> dict[str, int]:
        state = self.gateway.state()
        loads = {f"load on {row['name']}": row["in_flight"] for row in state["replicas"]}
        counts = {"in flight": state["in_flight"], "waiting": state["waiting"], **loads}
        counts["open at the replicas"] = self.replicas.open_calls()
        return {name: count for name, count in counts.items() if count}

    def stop(self) -> None:
        workers = self.gateway.workers()
        code = self.gateway.stop(STOP_SECONDS)
        if code != 0:
            self.problems.append(f"the gateway ended with {'nothing: it had to be killed' if code is None else code}")
        left = [number for number, pid in workers.items() if rss_mb(pid)]
        if left:
            self.problems.append(f"workers {left} are still there")
        unread = [path.name for path in (self.gateway.data / "journal").iterdir()]
        if unread:
            self.problems.append(f"the journal still holds {', '.join(sorted(unread))}")
        log = self.gateway.log.read_text()
        if "Traceback" in log:
            self.problems.append(f"the log holds a traceback:\n{log[log.index('Traceback') :][:2000]}")

    def slopes(self, bound: float) -> dict[str, Slope]:
        """Each watched process's memory over the second half."""
        found = {}
        for name, samples in self.memory.items():
            slope = slope_of([sample for sample in samples if sample[0] >= self.seconds / 2])
            if slope is None:
                self.problems.append(f"{name}: too few samples of its memory")
                continue
            found[name] = slope
            if slope.high > bound:
                self.problems.append(f"{name}: memory grows by up to {slope.high:.2f} MB a minute (bound {bound:g})")
        return found


def main() -> int:
    arguments = _arguments()
    seconds = 45.0 if arguments.quick else arguments.minutes * 60
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="wastegate-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bar: fail: it was stopped"))  # what it has started goes too
    soak = Soak(folder, seconds, arguments.clients, arguments.seed, arguments.faulty)
    try:
        asyncio.run(soak.run())
        soak.settle()
        soak.stop()
    finally:
        soak.gateway.kill()
        soak.replicas.stop()
    code = tell(soak, FLAT_QUICK if arguments.quick else FLAT, arguments.json)
    if arguments.keep is None and code == 0:
        shutil.rmtree(folder, ignore_errors=True)
    elif code:
        print(f"data and log are kept in {folder}", file=sys.stderr)
    return code


def tell(soak: Soak, bound: float, file: Path | None) -> int:
    """Print what was found; the exit code."""
    ledger = soak.gateway.data / "ledger.db"
    calls = check_calls(soak.clients.seen, ledger, soak.kills)
    money = check_money(ledger)
    slopes = soak.slopes(bound)
    problems = soak.problems + money.problems + calls.problems
    faults = ", ".join(f"{count} × {name}" for name, count in sorted(soak.faults.items()))
    print(f"{soak.seconds:.0f} s, {calls.sent:,} calls ({calls.sent / soak.seconds:.0f} a second); faults: {faults}")
    outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(calls.outcomes.items()))
    print(f"ledger: {calls.entries:,} entries: {outcomes}; {calls.continued:,} finished on another replica midway")
    print(f"clients: {calls.whole:,} whole answers, {calls.left:,} left early")
    print(
        f"bill ${money.bill:.6f} = requests ${money.requests:.6f} + idle ${money.idle:.6f} + overhead "
        f"${money.overhead:.6f}; price × up time ${money.by_hand:.6f}"
    )
    for name, slope in slopes.items():
        print(
            f"memory of {name}: {slope.start:.1f} → {slope.end:.1f} MB over the second half, {slope.slope:+.2f} MB a "
            f"minute [{slope.low:+.2f}, {slope.high:+.2f}], bound {bound:g}"
        )
    print("largest: " + ", ".join(f"{name} {size:.0f} MB" for name, size in sorted(soak.largest.items())))
    for problem in problems[:SHOWN]:
        print(f"  wrong: {problem}")
    if file is not None:
        _write(file, {"calls": calls, "money": money, "memory": slopes, "faults": soak.faults, "problems": problems})
    what = f"{len(problems)} problems" if problems else "all accounted for, memory flat, load back at zero"
    print(f"bar: {'fail' if problems else 'pass'}: {calls.sent:,} calls in {soak.seconds:.0f} s: {what}")
    return 1 if problems else 0


def _write(file: Path, figures: dict[str, Any]) -> None:
    beside = file.with_suffix(file.suffix + ".part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    beside.rename(file)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--quick", action="store_true", help="45 seconds")
    parser.add_argument("--seed", type=int, default=1, help="of all chance but the machine's own")
    parser.add_argument("--clients", type=int, default=24, help="calls at a time, at most (default: 24)")
    parser.add_argument("--faulty", type=float, default=0.08, help="the part of answers that go wrong (default: 0.08)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data and log here")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
