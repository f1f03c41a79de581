"""Two local replicas behind a gateway over a day, always there or coming and going with the load: what idles, and what
starting costs, as the audit has it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from msgspec import Struct

from benchmarks.caps import day

DAY_SECONDS, QUICK_SECONDS = 75.0, 25.0
PEAK_CALLS = 8.0
"""A second: one replica on one core serves some 5 of them."""
TOKENS, WORDS = 32, 20
READY_SECONDS = 120.0


class Bill(Struct, frozen=True):
    """US dollars for the day, and how its calls fared."""

    arm: str
    total: float
    requests: float
    idle: float
    overhead: float
    """Loading and warming up."""
    answered: float
    p95: float


def compare(scratch: Path, quick: bool) -> list[Bill]:
    """The same day twice."""
    return [one(scratch / arm, arm, quick) for arm in ("always there", "elastic")]


def one(folder: Path, arm: str, quick: bool) -> Bill:
    folder.mkdir()
    seconds = QUICK_SECONDS if quick else DAY_SECONDS
    with gateway(folder, arm == "elastic") as url:
        times = day.arrivals(PEAK_CALLS, seconds, seed=1)
        lived = uvloop.run(_live(url, times, seconds))
    command = [sys.executable, "-m", "wastegate", "audit", "--ledger", str(folder / "data/ledger.db"), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if not told.stdout:
        raise RuntimeError(f"the audit of {arm} failed: {told.stderr}")
    bill = json.loads(told.stdout)["report"]["bill"]
    made = Bill(arm, bill["total"], bill["requests"], bill["idle"], bill["overhead"], lived.answered, lived.p95)
    print(
        f"{arm:>12}: ${made.total:.6f} = {made.requests:.6f} for calls + {made.idle:.6f} idle + {made.overhead:.6f} "
        f"overhead; {made.answered:.1%} answered, P95 {made.p95:.2f} s",
        flush=True,
    )
    return made


async def _live(url: str, times: list[float], seconds: float) -> day.Day:
    return await day.live(url, "smollm2-135m-instruct", times, seconds, TOKENS, WORDS, seed=2, count=False)


@contextmanager
def gateway(folder: Path, comes_and_goes: bool) -> Iterator[str]:
    """`wastegate up` with its own two replicas, once those that begin are ready."""
    config = folder / "wastegate.toml"
    elastic = "[local.elastic]\nleast = 1\ncalls_each = 8\nstart_after = 0.5\nstop_after = 6.0\n"
    config.write_text(f"[local]\nreplicas = 2\n{elastic if comes_and_goes else ''}")
    command = [sys.executable, "-m", "wastegate", "up", "--config", str(config), "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (folder / "gateway.log").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        match = re.match(r"ready (\S+) admin (\S+)", process.stdout.readline())
        if match is None:
            raise RuntimeError(f"the gateway did not start: {(folder / 'gateway.log').read_text()}")
        until = time.monotonic() + READY_SECONDS
        while sum(state == "ready" for state in _states(match[2])) < (1 if comes_and_goes else 2):
            if time.monotonic() > until:
                raise RuntimeError("the replicas did not become ready")
            time.sleep(0.2)
        yield match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _states(admin: str) -> list[str]:
    with urllib.request.urlopen(admin + "/admin/state", timeout=10) as answer:
        return [replica["state"] for replica in json.load(answer)["replicas"]]


def judge(pair: list[Bill], failed: list[str], said: list[str]) -> None:
    always, elastic = pair
    before, after = (bill.idle + bill.overhead for bill in pair)
    print(
        f"idle and starting: ${before:.6f} → ${after:.6f} ({after / before - 1:+.0%}); idle alone "
        f"${always.idle:.6f} → ${elastic.idle:.6f}, starting and draining ${always.overhead:.6f} → "
        f"${elastic.overhead:.6f}; the bill ${always.total:.6f} → ${elastic.total:.6f} "
        f"({elastic.total / always.total - 1:+.0%})"
    )
    (said if after < before else failed).append(f"idle and starting {after / before - 1:+.0%} with elasticity")
    if elastic.answered < min(always.answered, 0.999):
        failed.append(f"{elastic.answered:.1%} answered with elasticity, {always.answered:.1%} without")
