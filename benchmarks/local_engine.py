"""The local engine's speed through HTTP, beside its own step loop, vLLM's CPU build and llama.cpp's server.

    .venv/bin/python benchmarks/local_engine.py [--quick] [--json FILE] [--without RIVAL]

The same SmolLM2-135M-Instruct for all, each in the format named beside it. N streams begin at once, each with a prompt
of its own (about 110 tokens, no two with a beginning in common) and 64 tokens of greedy output, end tokens ignored, no
speculation. All contestants are up at the same time and take turns; whoever is not measured is stopped
(SIGSTOP). Rivals' environments are made once, in the cache folder: vLLM's takes about 3.5 GB.

Figures are medians over the rounds. A ratio is taken within each round, where its two sides ran minutes apart at most;
beside its median stand the least and the greatest of n rounds, between which the true median lies with probability
1 − 2^(1−n).

Bar, at 32 streams: at least 90 % of the raw step loop's tokens per second, 1.8 × vLLM's and 4.5 × llama.cpp's. At one
stream, llama.cpp's figure is printed beside ours.

With --hints the raw step loop runs instead, under each of the runtime's settings: what the engine's defaults were
chosen by. It has no bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import uvloop
from msgspec import Struct, to_builtins

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines import rivals, streams
from benchmarks.engines.rivals import Contestant
from wastegate import site
from wastegate.local.models import Library

MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS, PROMPT_WORDS, OUTPUT = 110, 40, 64
WIDTHS = (1, 8, 32)
BAR_WIDTH = 32
SETTINGS: tuple[dict[str, object], ...] = (
    {}, {"hint": "none"}, {"hint": "throughput"}, {"kv_precision": "f16"}, {"kv_precision": "bf16"}, {"threads": 1},
    {"batched_tokens": 512},
)  # fmt: skip
BARS = {"raw": 0.90, "vllm": 1.8, "llamacpp": 4.5}


class Measured(Struct, frozen=True):
    """One contestant at one width in one round: tokens per second, and the median time to a first token."""

    who: str
    width: int
    round: int
    rate: float
    first: float | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds at 32 streams, and one of one stream")
    parser.add_argument(
        "--rounds", type=int, default=6, help="rounds, each with all widths and contestants (default: 6)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--hints", action="store_true", help="the runtime's settings instead of the rivals; no bar")
    parser.add_argument("--without", action="append", default=[], choices=("vllm", "llamacpp"),
        help="leave a rival out; its bar then fails")  # fmt: skip
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contestants are ended too
    plan = [(1, 1), (2, BAR_WIDTH)] if arguments.quick else [(arguments.rounds, width) for width in WIDTHS]
    about = {"cpu": cpu(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print(f"{about['cpu']}, {about['cores']} cores; load average at the start {about['load']:.2f}")
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as logs:
        contestants: dict[str, Contestant] = {}
        try:
            starters = variants(Path(logs)) if arguments.hints else everyone(Path(logs), arguments.without)
            for who, starter in starters.items():
                print(f"starting {who} …", flush=True)
                contestants[who] = starter()
                contestants[who].pause()
            measured = uvloop.run(take_turns(contestants, plan))
        except RuntimeError as problem:
            tell_logs(Path(logs))
            print(f"bar: fail: {problem}")
            return 1
        finally:
            for contestant in contestants.values():
                contestant.end()
    names = {who: (contestant.name, contestant.made_of) for who, contestant in contestants.items()}
    figures = {"about": about, "contestants": names, "measured": to_builtins(measured)}
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    table(measured, names)
    return 0 if arguments.hints else tell(measured)


def everyone(logs: Path, without: Sequence[str]) -> dict[str, Callable[[], Contestant]]:
    """How each contestant is brought up."""
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    cache = site.cache_dir() / "benchmarks"
    cache.mkdir(parents=True, exist_ok=True)
    starters: dict[str, Callable[[], Contestant]] = {
        "raw": lambda: rivals.start_raw(model, PROMPT_TOKENS, OUTPUT, logs),
        "ours": lambda: rivals.start_ours(model, logs),
        "llamacpp": lambda: rivals.start_llamacpp(cache, model, BAR_WIDTH, logs),
        "vllm": lambda: rivals.start_vllm(cache, model, BAR_WIDTH, logs),
    }
    return {who: starter for who, starter in starters.items() if who not in without}


def variants(logs: Path) -> dict[str, Callable[[], Contestant]]:
    """The raw step loop under each setting that might be faster."""
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    return {
        str(options): partial(rivals.start_raw, model, PROMPT_TOKENS, OUTPUT, logs, options) for options in SETTINGS
    }


async def take_turns(contestants: dict[str, Contestant], plan: Sequence[tuple[int, int]]) -> list[Measured]:
    """Every width, round by round; who begins changes with the round."""
    prompts = streams.Prompts(seed=os.getpid(), words=PROMPT_WORDS)
    order = list(contestants)
    for who in order:  # once unmeasured: whatever is done on first use is done
        await measure(who, contestants[who], BAR_WIDTH, -1, prompts)
    measured = []
    for number in range(max(rounds for rounds, _ in plan)):
        for width in (width for rounds, width in plan if number < rounds):
            for at in range(len(order)):
                who = order[(at + number) % len(order)]
                measured.append(await measure(who, contestants[who], width, number, prompts))
    return measured


async def measure(who: str, contestant: Contestant, width: int, number: int, prompts: streams.Prompts) -> Measured:
    contestant.resume()
    try:
        if not contestant.url:
            seconds = float(await asyncio.to_thread(contestant.ask, str(width)))
            return Measured(who, width, number, width * OUTPUT / seconds, None)
        bodies = [streams.body(contestant.model, prompts.next(), OUTPUT) for _ in range(width)]
        batch = await streams.run(contestant.url, bodies, OUTPUT)
        return Measured(who, width, number, batch.rate, statistics.median(batch.first))
    finally:
        contestant.pause()


def table(measured: Sequence[Measured], names: dict[str, tuple[str, str]]) -> None:
    widths = sorted({one.width for one in measured})
    print(f"\n{'tokens/s (time to first token), median':58}" + "".join(f"{width:>16} at once" for width in widths))
    for who, (name, made_of) in names.items():
        cells = "".join(f"{cell(measured, who, width):>24}" for width in widths)
        print(f"{name + ': ' + made_of:58}{cells}")


def tell(measured: Sequence[Measured]) -> int:
    """The ratios and the bar; the exit code."""
    print("\nours beside each, within a round:")
    for who in BARS:
        for width in sorted({one.width for one in measured}):
            found = ratios(measured, who, width)
            if found:
                middle, count = statistics.median(found), len(found)
                print(f"  {who:9} at {width:2}: {middle:5.2f} × [{min(found):.2f} … {max(found):.2f}], {count} rounds")
    middles = {who: statistics.median(ratios(measured, who, BAR_WIDTH) or [float("nan")]) for who in BARS}
    passed = all(middles[who] >= least for who, least in BARS.items())
    figures = ", ".join(f"{who} {middles[who]:.2f} (≥ {least:.2f})" for who, least in BARS.items())
    print(f"bar: {'pass' if passed else 'fail'}: at {BAR_WIDTH} streams × {figures}")
    return 0 if passed else 1


def cell(measured: Sequence[Measured], who: str, width: int) -> str:
    rates = [one.rate for one in measured if (one.who, one.width) == (who, width)]
    firsts = [one.first for one in measured if (one.who, one.width) == (who, width) and one.first is not None]
    first = f" ({statistics.median(firsts):.2f} s)" if firsts else ""
    return f"{statistics.median(rates):.0f}{first}" if rates else "–"


def ratios(measured: Sequence[Measured], who: str, width: int) -> list[float]:
    """Ours over theirs, round by round."""
    rates = {(one.who, one.round): one.rate for one in measured if one.width == width}
    rounds = sorted(number for name, number in rates if name == who and ("ours", number) in rates)
    return [rates["ours", number] / rates[who, number] for number in rounds]


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"


def tell_logs(logs: Path) -> None:
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-15:]
        print(f"-- the end of {log.name}", *lines, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
