"""The streaming lever beside where the source article starts: a support chat's cost, throughput and first token.

    .venv/bin/python benchmarks/streaming_lever.py [--quick] [--json FILE] [--without local|vllm]

On the engine that comes with wastegate and on vLLM's CPU build, both with the same SmolLM2-135M-Instruct. 83 % of the
prompt tokens are one system prompt that all share; 15 % of the calls ask one of two questions that many ask; 20 % of
the users leave within two seconds. Eight users at a time, each with the next call as soon as it is rid of the last.
Everything goes through `wastegate up`:

    buffered   no prefix caching; an answer goes out whole, and a replica works on for users who have left
    baseline   no prefix caching; streamed, cancelled when the user leaves
    cached     the same with the engine's prefix cache
    lever      the same, and calls that ask the same at the same time share one run

A turn is the same calls for each arm, with words of its own, and ends when the engine has nothing left to do. Its cost
is a price for the machine × that time, over the calls that were answered. Arms take turns in an order that is drawn,
six times over; engines that are not measured are stopped (SIGSTOP). QPS at equal P95: the rate at which the lever,
with more users, has the P95 (E2E) that buffered answers have with eight.

Bar: on each engine the lever's cost for an answered call is at most half of buffered's, at the interval's far end.
A whole run takes about 15 minutes. A quick one has the local engine only and three short turns, and its interval is
of 75 %: it shows that this works.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import uvloop
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines import rivals
from benchmarks.engines.rivals import Contestant
from benchmarks.streaming import support
from benchmarks.streaming.stack import PRICE, Stack
from benchmarks.streaming.support import Load
from wastegate import site
from wastegate.core.comparison import compare
from wastegate.core.effect import Effect
from wastegate.core.intervals import Estimate
from wastegate.levers import streaming
from wastegate.load.blocks import Design, Run
from wastegate.load.client import Answer, Shot, shoot
from wastegate.load.host import Rule
from wastegate.load.paired import collect
from wastegate.load.turns import Sample, Turn, p50_and_p95
from wastegate.local.models import Library
from wastegate.store.entries import Ledger

MODEL = "smollm2-135m-instruct"
USERS = 8
MORE_USERS = (32,)
"""For the lever alone: what it carries at the P95 that buffered answers have."""
CALLS = 16
CONTEXT = 1024
STREAMS = 32
ARMS = ("buffered", "baseline", "cached", "lever")
BAR = 0.5
ARTICLE = "the source article: TTFT −82 %, QPS × 2.4, cost −57 %"


class Arm:
    """So many users on one stack."""

    def __init__(self, stack: Stack, load: Load, users: int, count: int) -> None:
        self._stack = stack
        self._load = load
        self._users = users
        self._count = count

    async def __call__(self, turn: Turn) -> Sample:
        shots = support.calls(self._load, self._count, turn.seed, turn.fresh)
        async with self._stack.at_work() as session:
            began = time.perf_counter()
            answers = await _ask(session, self._stack.url, shots, self._users)
            seconds = await self._stack.idle(session) - began
        return Sample(figures=_figures(answers, seconds))


async def _ask(session: aiohttp.ClientSession, url: str, shots: Sequence[Shot], users: int) -> list[Answer]:
    left, answers = deque(shots), []

    async def user() -> None:
        while left:
            shot, answer = left.popleft(), Answer()
            answers.append(answer)
            await shoot(session, url, shot, answer, time.perf_counter)

    await asyncio.gather(*(user() for _ in range(users)))
    failed = [answer for answer in answers if answer.outcome == "failed"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(answers)} calls failed: {failed[0].reason} {failed[0].detail}")
    return answers


def _figures(answers: Sequence[Answer], seconds: float) -> dict[str, float]:
    done = [answer for answer in answers if answer.outcome == "ok" and answer.sent is not None]
    if not done:
        raise RuntimeError("no call was answered")
    usages = [answer.usage for answer in done if answer.usage is not None]
    prompt = sum(usage.prompt_tokens or 0 for usage in usages)
    return {
        "answered": float(len(done)),
        "left": float(len(answers) - len(done)),
        "seconds": seconds,
        "qps": len(done) / seconds,
        "cost": PRICE / 3600 * seconds / len(done),
        "cached": sum(usage.cached_tokens or 0 for usage in usages) / prompt if prompt else math.nan,
        **p50_and_p95("ttft", [answer.first - answer.sent for answer in done if answer.first and answer.sent]),
        **p50_and_p95("e2e", [answer.ended - answer.sent for answer in done if answer.ended and answer.sent]),
    }


class Compared(Struct, frozen=True):
    """One engine. Ratios by block; None where the blocks do not say."""

    engine: str
    made_of: str
    load: Load
    run: Run
    cost: Estimate | None
    ttft: Estimate | None
    qps: Estimate | None
    qps_is_a_floor: bool
    """In some block even the most users kept the lever under buffered's P95: it would have carried more."""
    cancelling: Estimate | None
    caching: Estimate | None
    one_flight: Estimate | None
    perceived: Estimate | None
    """TTFT, baseline over buffered: what streaming alone does for who waits."""
    effect: Effect


def compared(engine: Contestant, load: Load, run: Run, effect: Effect) -> Compared:
    def ratio(base: str, other: str, metric: str) -> Estimate | None:
        return compare(run.series(base, metric), run.series(other, metric), "ratio", run.design.level)

    rates, floor = equal_p95(run)
    return Compared(
        engine=engine.name,
        made_of=engine.made_of,
        load=load,
        run=run,
        cost=ratio("buffered", "lever", "cost"),
        ttft=ratio("buffered", "lever", "ttft_p50"),
        qps=compare(run.series("buffered", "qps"), rates, "ratio", run.design.level) if len(rates) else None,
        qps_is_a_floor=floor,
        cancelling=ratio("buffered", "baseline", "cost"),
        caching=ratio("baseline", "cached", "cost"),
        one_flight=ratio("cached", "lever", "cost"),
        perceived=ratio("buffered", "baseline", "ttft_p50"),
        effect=effect,
    )


def equal_p95(run: Run) -> tuple[np.ndarray, bool]:
    """(n,) the lever's QPS at buffered's P95, block by block, and whether some are floors. The logarithm of P95 is
    taken to be straight in QPS between two numbers of users, and never to fall."""
    arms = [arm for arm in run.arms if arm.startswith("lever")]
    rates = np.stack([run.series(arm, "qps") for arm in arms])
    levels = np.maximum.accumulate(np.log(np.stack([run.series(arm, "e2e_p95") for arm in arms])), axis=0)
    goals = np.log(run.series("buffered", "e2e_p95"))
    found = [float(np.interp(goal, levels[:, at], rates[:, at])) for at, goal in enumerate(goals)]
    return np.array(found), bool((goals > levels[-1]).any())


# ---- what runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the local engine, three short turns: shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--without", action="append", default=[], choices=("local", "vllm"), help="leave one out")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that whatever is up is ended, too
    without = {*arguments.without, *(["vllm"] if arguments.quick else [])}
    design = Design(blocks=6, spares=2, seconds=1.0, warmup=0.0, mirrored=False)
    if arguments.quick:
        design = Design(blocks=3, spares=0, seconds=1.0, warmup=0.0, mirrored=False, level=0.75, quiet=0.0,
                        rule=Rule(steal=1.0, others=1.0))  # fmt: skip
    found: list[Compared] = []
    try:
        for name, starter in engines().items():
            if name not in without:
                found.append(measure(starter, design, 6 if arguments.quick else CALLS, arguments.quick))
                show(found[-1])
    except RuntimeError as problem:
        print(f"bar: fail: {problem}")
        return 1
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.encode(found))
    return tell(found)


Starter = Callable[[Path, bool], Contestant]
"""Brings an engine up, with its prefix cache or without; its log goes into the folder."""


def engines() -> dict[str, Starter]:
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    cache = site.cache_dir() / "benchmarks"
    cache.mkdir(parents=True, exist_ok=True)

    def local(logs: Path, cached: bool) -> Contestant:
        return rivals.start_ours(model, logs, *([] if cached else ["--no-prefix-caching"]))

    def vllm(logs: Path, cached: bool) -> Contestant:
        caching = "--enable-prefix-caching" if cached else "--no-enable-prefix-caching"
        more = (caching, "--enable-prompt-tokens-details", "--enforce-eager")
        return rivals.start_vllm(cache, model, STREAMS, logs, *more, context=CONTEXT)

    return {"local": local, "vllm": vllm}


def measure(starter: Starter, design: Design, count: int, quick: bool) -> Compared:
    """Start one engine twice, with its cache and without, and run every arm. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as scratch, ExitStack() as ends:
        folder = Path(scratch)
        engine = {}
        for cached in (False, True):
            engine[cached] = starter(folder, cached)
            ends.callback(engine[cached].end)
            engine[cached].pause()
        stacks = {
            "buffered": Stack("buffered", engine[False], 'answers = "buffered"', folder),
            "baseline": Stack("baseline", engine[False], "", folder),
            "cached": Stack("cached", engine[True], "", folder),
            "lever": Stack("lever", engine[True], "one_flight = true", folder),
        }
        for stack in stacks.values():
            ends.callback(stack.end)
        load = uvloop.run(calibrate(stacks["baseline"]))
        arms = {name: Arm(stack, load, USERS, count) for name, stack in stacks.items()}
        for users in () if quick else MORE_USERS:
            arms[f"lever, {users} users"] = Arm(stacks["lever"], load, users, max(count, users * 3 // 2))
        run = uvloop.run(collect(arms, design))
        if not run.kept(None):
            raise RuntimeError("the machine was too busy: every block was dropped")
        stacks["lever"].settle()
        return compared(engine[True], load, run, account(stacks["lever"].data / "ledger.db"))


async def calibrate(stack: Stack) -> Load:
    """How many words of its own a prompt takes so that 83 % of its tokens are shared."""

    async def tokens(question: str) -> int:
        answer = Answer()
        await shoot(session, stack.url, Shot(support.PATH, support.body(support.SYSTEM_WORDS, question, 1)), answer,
                    time.perf_counter)  # fmt: skip
        if answer.usage is None or answer.usage.prompt_tokens is None:
            raise RuntimeError(f"{stack.engine.name} does not count tokens: {answer.reason} {answer.detail}")
        return answer.usage.prompt_tokens

    async with stack.at_work() as session:
        short, long = await tokens("order"), await tokens("order " * 40)
    each = (long - short) / 39
    shared = short - 8  # the question itself, and what the template puts behind it
    own = round((shared / support.SHARED - short) / each) + 1
    return Load(support.SYSTEM_WORDS, own, shared, round(short + (own - 1) * each))


def account(path: Path) -> Effect:
    """What the lever's own ledger says of it."""
    with Ledger(path, create=False) as ledger:
        entries = ledger.read(ledger.facts(-math.inf, math.inf).calls.key.tolist())
    return streaming.measure(entries, streaming.Config(one_flight=True))


# ---- what is told


def show(one: Compared) -> None:
    load, run = one.load, one.run
    kept = len(run.kept(None))
    print(f"\n{one.engine} ({one.made_of}): prompts of {load.prompt_tokens} tokens, {load.shared:.0%} of them shared, "
          f"{support.OUTPUT} tokens of answer; {kept} blocks kept, {len(run.blocks) - kept} "
          f"dropped")  # fmt: skip
    print(f"{'arm':18} {'$/1000 answered':>16} {'answered/s':>11} {'TTFT P50':>9} {'E2E P95':>9} {'cached':>7}")
    for arm in run.arms:
        cost, qps, ttft, e2e, cached = (
            float(np.mean(run.series(arm, metric))) for metric in ("cost", "qps", "ttft_p50", "e2e_p95", "cached")
        )
        print(f"{arm:18} {cost * 1000:16.5f} {qps:11.2f} {ttft:8.2f}s {e2e:8.2f}s {cached:7.0%}")
    at_least = "at least " if one.qps_is_a_floor else ""
    print(f"lever beside buffered: cost {change(one.cost)}, TTFT {change(one.ttft)}, QPS at equal P95 {at_least}"
          f"{times(one.qps)}")  # fmt: skip
    print(ARTICLE)
    print(f"of the cost: cancelling {change(one.cancelling)}, then caching {change(one.caching)}, then one flight "
          f"{change(one.one_flight)}; only perceived: TTFT {change(one.perceived)} by streaming alone")  # fmt: skip
    parts = ", ".join(f"{name} {share:.1%}" for name, share in one.effect.parts.items())
    print(f"the lever's own account, of {one.effect.n} calls: tokens not computed: {parts}")
    for note in one.effect.notes:
        print(f"  {note}")


def tell(found: Sequence[Compared]) -> int:
    if not found:
        print("bar: fail: nothing was measured")
        return 1
    said = "; ".join(f"{one.engine} {change(one.cost)}" for one in found)
    passed = all(one.cost is not None and one.cost.high <= BAR for one in found)
    verdict = "pass" if passed else "fail"
    print(f"bar: {verdict}: cost for an answered call, lever beside buffered: {said} (−{1 - BAR:.0%} is asked for)")
    return 0 if passed else 1


def change(ratio: Estimate | None) -> str:
    """ "−57 % [−61 %, −50 %]"."""
    if ratio is None:
        return "not known"
    return f"{ratio.value - 1:+.0%} [{ratio.low - 1:+.0%}, {ratio.high - 1:+.0%}]".replace("-", "−")


def times(ratio: Estimate | None) -> str:
    return "not known" if ratio is None else f"× {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    raise SystemExit(main())
