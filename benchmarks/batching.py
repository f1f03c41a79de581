"""The cap that follows the load, beside fixed caps and the source article's rule, over a day of traffic.

    .venv/bin/python benchmarks/batching.py [--quick] [--json FILE] [--rounds N] [--live-vllm] [--only day|elastic]

Day: one local engine, one model (SmolLM2-135M-Instruct), its cap changed between turns over /admin. A day is 22 s long
and has seven times as many calls at its peak as at night (Poisson arrivals, the same for all arms of a round; short
prompts, 16 tokens out, as a moderator or a dialogue in a game has them: in so short a day an answer must be short, or
its own length is all that P95 shows). Its peak lies seven tenths of the way from what the engine makes at 8 at once to
what it makes at 32, as it is measured first: more than a cap of 8 can serve. All arms take turns, in an order that
turns with the rounds: five, of which the cap of 1 and the article's rule take part in two. Dollars are the engine's
price over its tokens at the peak; P95 is from a call's arrival to its end, with what is unanswered at the day's end
counted for as long as it has waited.

Elastic: two local replicas behind a gateway, always there or coming and going, over a day of 75 s: what idles and what
starting costs, by the audit. --live-vllm: the same function changes the running batch of vLLM's CPU build through the
plugin.

About 15 minutes, of which the elastic part is 3; --live-vllm adds 3.

Bars: at the peak at least 90 % of the saving against a cap of 8 that the best fixed cap has in hindsight, at a P95 no
worse than its by more than 5 % (medians over the rounds); the deviation of P95 over the day's windows at most half of
cap 8's; idle and starting together cheaper with elasticity than without, and as many calls answered.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.caps import day, elastic, live_vllm
from benchmarks.engines import rivals, streams
from wastegate import site
from wastegate.local.models import Library

MODEL = "smollm2-135m-instruct"
TOKENS, WORDS = 16, 5
DAY_SECONDS = 22.0
HIGH = 0.7
"""Where the peak lies between the engine's speed at 8 and at 32 at once."""
FIXED = (1, 8, 16, 32, 64)
FOLLOWING = ("cost_aware", "gradient", "article")
OURS = "cost_aware"
SLOW, SLOW_ROUNDS = ("1", "article"), 2
"""They are far off, and no bar depends on them."""
BASELINE = "8"
DOLLARS_AN_HOUR = 0.085
"""A two-core cloud machine. Every arm has the same, so that no bar depends on it."""
SAVING, P95, DEVIATION = 0.90, 1.05, 0.50


class Turn(Struct, frozen=True):
    """One arm's day."""

    arm: str
    round: int
    dollars: float
    """For a million tokens of the peak."""
    p95: float
    deviation: float
    answered: float
    cap: int
    """At the day's end."""
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds of four arms, and a short elastic day")
    parser.add_argument("--rounds", type=int, default=5, help="of all arms (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--only", choices=("day", "elastic"), help="one part; the other's bars are then not judged")
    parser.add_argument("--live-vllm", action="store_true", help="change a running vLLM's batch as well")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended too
    print(f"{os.cpu_count()} cores; load average at the start {os.getloadavg()[0]:.2f}", flush=True)
    figures: dict[str, object] = {}
    failed: list[str] = []
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as scratch:
        try:
            if arguments.only != "elastic":
                turns = days(Path(scratch), arguments.rounds, arguments.quick)
                figures["turns"] = turns
                judge(turns, failed, said)
            if arguments.only != "day":
                pair = elastic.compare(Path(scratch), arguments.quick)
                figures["elastic"] = pair
                elastic.judge(pair, failed, said)
            if arguments.live_vllm:
                steps = live_vllm.follow(Path(scratch))
                figures["live_vllm"] = steps
                live_vllm.judge(steps, failed, said)
        except RuntimeError as problem:
            print(f"bar: fail: {problem}")
            return 1
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    print(f"bar: {'fail' if failed else 'pass'}: {'; '.join(failed or said)}")
    return 1 if failed else 0


def days(scratch: Path, rounds: int, quick: bool) -> list[Turn]:
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    # Warmed for every width that a turn will have.
    engine = rivals.start_ours(model, scratch, "--cap", "64", "--queue", "4096", "--drain", "1")
    try:
        return uvloop.run(_days(engine.url, 2 if quick else rounds, 8.0 if quick else DAY_SECONDS, quick))
    finally:
        engine.end()


async def _days(url: str, rounds: int, seconds: float, quick: bool) -> list[Turn]:
    arms = ["8", "32", OURS, "article"] if quick else [*map(str, FIXED), OURS, "article"]
    narrow, wide = await speed(url, 8), await speed(url, 32)
    peak = (narrow + HIGH * (wide - narrow)) / TOKENS
    print(
        f"8 at once make {narrow:.0f} tokens/s, 32 make {wide:.0f}: {peak:.1f} calls a second at the peak", flush=True
    )
    turns: list[Turn] = []
    for number in range(rounds):
        times = day.arrivals(peak, seconds, seed=number)
        for at in range(len(arms)):
            arm = arms[(at + number) % len(arms)]
            if arm in SLOW and number >= SLOW_ROUNDS:
                continue
            turn = await one(url, arm, number, times, seconds, seed=len(turns))
            turns.append(turn)
            print(
                f"{number + 1} {arm:>10}: ${turn.dollars:.3f} a million tokens at the peak, P95 {turn.p95:5.2f} s, "
                f"deviation {turn.deviation:5.2f} s, {turn.answered:.0%} answered, cap {turn.cap} ({turn.why})",
                flush=True,
            )
    return turns


async def speed(url: str, width: int) -> float:
    """Tokens a second with so many streams at once, with their prompts; the better of two."""
    await told(url, "limits", {"cap": width})
    prompts = streams.Prompts(seed=width, words=WORDS)
    rates = []
    for _ in range(3):
        bodies = [streams.body("m", prompts.next(), TOKENS) for _ in range(width)]
        rates.append((await streams.run(url, bodies, TOKENS)).rate)
    return max(rates[1:])


async def one(url: str, arm: str, number: int, times: Sequence[float], seconds: float, seed: int) -> Turn:
    """A day of one arm, with prompts that no other turn has. What follows begins at 8, as the article does."""
    follows = arm in FOLLOWING
    # A day of 22 s has dwells in proportion: a real one has hours in which to grow.
    caps = {"policy": arm if follows else "fixed", "dwell": 0.25, "memory": 5.0}
    await told(url, "caps", caps)
    await told(url, "limits", {"cap": 8 if follows else int(arm)})
    lived = await day.live(url, "m", list(times), seconds, TOKENS, WORDS, seed)
    after = await told(url, "caps", {"policy": "fixed"})
    await idle(url)
    dollars = DOLLARS_AN_HOUR / 3600 * lived.peak_seconds / lived.peak_tokens * 1e6
    why = str(after["why"]) if follows else "fixed"
    return Turn(arm, number, dollars, lived.p95, lived.deviation(seconds), lived.answered, int(str(after["cap"])), why)


async def told(url: str, what: str, change: dict[str, object]) -> dict[str, object]:
    async with aiohttp.ClientSession() as session, session.put(f"{url}/admin/{what}", json=change) as answer:
        said: dict[str, object] = await answer.json()
        if answer.status != 200:
            raise RuntimeError(f"/admin/{what}: {said}")
        return said


async def idle(url: str) -> None:
    """Until nobody runs or waits: those who left at the day's end are gone after a step or two."""
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/admin/limits") as answer:
                load = await answer.json()
            if not load["running"] and not load["waiting"]:
                return
            await asyncio.sleep(0.05)


def judge(turns: Sequence[Turn], failed: list[str], said: list[str]) -> None:
    """Medians over the rounds; ratios are taken within a round."""
    arms = list(dict.fromkeys(turn.arm for turn in turns))
    dollars = {arm: middle(turns, arm, "dollars") for arm in arms}
    print(f"\n{'cap':>10} {'$/M tokens':>11} {'saved':>7} {'P95':>14} {'deviation':>10} {'answered':>9}")
    for arm in arms:
        row = [turn for turn in turns if turn.arm == arm]
        p95 = sorted(turn.p95 for turn in row)
        print(
            f"{arm:>10} {dollars[arm]:11.3f} {1 - dollars[arm] / dollars[BASELINE]:7.0%} "
            f"{statistics.median(p95):5.2f} ({p95[0]:.2f}–{p95[-1]:.2f}) {middle(turns, arm, 'deviation'):9.2f} "
            f"{middle(turns, arm, 'answered'):9.0%}"
        )
    best = min((arm for arm in arms if arm.isdigit()), key=lambda arm: dollars[arm])
    saving, most = (1 - dollars[arm] / dollars[BASELINE] for arm in (OURS, best))
    late = ratio(turns, OURS, best, "p95")
    swing = ratio(turns, OURS, BASELINE, "deviation")
    for name, holds in (
        (f"saving {saving:.1%} where the best fixed cap, {best}, has {most:.1%}", saving >= SAVING * most),
        (f"P95 {late:.2f} × that of {best}", late <= P95),
        (f"deviation of P95 {swing:.2f} × that of {BASELINE}", swing <= DEVIATION),
    ):
        (said if holds else failed).append(name)


def middle(turns: Sequence[Turn], arm: str, figure: str) -> float:
    return float(statistics.median(getattr(turn, figure) for turn in turns if turn.arm == arm))


def ratio(turns: Sequence[Turn], one: str, other: str, figure: str) -> float:
    by = {(turn.arm, turn.round): float(getattr(turn, figure)) for turn in turns}
    rounds = {turn.round for turn in turns}
    return float(statistics.median(by[one, number] / max(by[other, number], 1e-9) for number in rounds))


if __name__ == "__main__":
    sys.exit(main())
