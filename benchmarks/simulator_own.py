"""The simulator against engines that run here: what it foretells of settings that it was not fitted to.

    .venv/bin/python benchmarks/simulator_own.py [--quick] [--json FILE] [--repeats N] [--engines local,vllm]

Each engine serves the same SmolLM2-135M-Instruct. Step times are fitted to the calls of five loads, by the way that a
ledger's calls are fitted (``sim.fit.from_calls``): times as a client sees them, and the engine's own token counts.
Then eight other loads are run (other numbers of clients, other lengths, arrivals at random instead of clients that
wait), and each is simulated with the same calls. The engines' settings (batch, tokens of a step, KV) are those that
they were started with. One engine runs at a time. About eleven minutes on two cores.

Beside ours stands what people reckon without a simulator: a batch's tokens per second between the two nearest fitted
loads, on a straight line over the number of clients.

Bar, for mean TTFT, mean TPOT, P95 E2E and tokens per second, over all loads of an engine: the median error is at most
10 %, or the repeats' own spread where that is more, and none is above 20 %; and of the loads that differ in clients
alone, the one that would be chosen for its tokens per second is the best, or within 3 % of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import uvloop
from msgspec import Struct, to_builtins
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines import rivals, streams
from benchmarks.engines.rivals import Contestant
from wastegate import site
from wastegate.core.ledger import Attempt
from wastegate.local.models import Library
from wastegate.sim.batch import BatchedReplica
from wastegate.sim.fit import Fitted, fit, from_calls
from wastegate.sim.replica import Settings, Work, local

MODEL = "smollm2-135m-instruct"
STREAMS = 32
KV_BYTES = 30 * 2 * 3 * 64 * 2
"""Of a token of SmolLM2-135M in BF16."""
ENGINES = {
    "local": local(cap=STREAMS, queue=256, kv_tokens=40_000),
    "vllm": Settings(running=STREAMS, step_tokens=2048, block=128, kv_tokens=(1 << 30) // KV_BYTES),
}
WHAT = ("ttft", "tpot", "p95", "rate")
MEDIAN, WORST, BEST = 0.10, 0.20, 0.97


class Load(Struct, frozen=True):
    """Clients that wait for their answers, or with ``every`` arrivals so many seconds apart on average."""

    name: str
    clients: int
    words: int
    output: int
    calls: int
    every: float = 0.0


FITTED = (
    Load("1 client", 1, 40, 48, 6), Load("4 clients", 4, 40, 48, 16), Load("10 clients", 10, 40, 48, 30),
    Load("28 clients", 28, 40, 48, 56), Load("3 clients, long prompts", 3, 120, 16, 18),
)  # fmt: skip
FORETOLD = (
    Load("2 clients", 2, 40, 48, 8), Load("6 clients", 6, 40, 48, 18), Load("16 clients", 16, 40, 48, 40),
    Load("32 clients", 32, 40, 48, 64), Load("8 clients, longer prompts", 8, 90, 24, 24),
    Load("12 clients, longer answers", 12, 20, 80, 24), Load("at random, 1/s", 0, 40, 48, 14, 1.0),
    Load("at random, 2/s", 0, 40, 48, 24, 0.5),
)  # fmt: skip
SAME = ("2 clients", "6 clients", "16 clients", "32 clients")


def quick(load: Load) -> Load:
    return replace(load, calls=max(4, load.calls // 3), output=max(10, load.output // 3))


class Call(Struct, frozen=True):
    """One call as its client saw it. Seconds of one clock."""

    sent: float
    first: float
    ended: float
    prompt: int
    output: int


class Figures(Struct, frozen=True):
    """Of one run: mean TTFT, mean TPOT and P95 E2E in seconds, tokens per second."""

    ttft: float
    tpot: float
    p95: float
    rate: float


class Result(Struct, frozen=True):
    """A load, as it ran each time, as it was foretold, and as the straight line has it."""

    engine: str
    load: str
    real: tuple[Figures, ...]
    foretold: Figures
    line: float | None

    def middle(self, what: str) -> float:
        return float(statistics.mean(getattr(one, what) for one in self.real))

    def error(self, what: str) -> float:
        return float(abs(getattr(self.foretold, what) / self.middle(what) - 1))

    def spread(self, what: str) -> float:
        values = [getattr(one, what) for one in self.real]
        return float((max(values) - min(values)) / self.middle(what))


# ---- real calls


async def call(url: str, body: bytes) -> Call:
    """Raises RuntimeError where the stream breaks off or says no counts."""
    loop = asyncio.get_running_loop()
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    _, stream = await loop.create_connection(streams._Stream, host, port)
    sent = time.perf_counter()
    stream.send(host, body)
    async with asyncio.timeout(streams.TIMEOUT):
        await stream.done
    counts = re.search(rb'"prompt_tokens":\s*(\d+)', stream.tail)
    if counts is None or stream.tokens() < 1:
        raise RuntimeError(f"{url}: a stream without counts: {stream.tail[-200:]!r}")
    return Call(sent, stream.first, stream.last, int(counts[1]), stream.tokens())


async def run(engine: Contestant, load: Load, prompts: streams.Prompts, seed: int) -> list[Call]:
    """All its calls, in the order of their beginning."""
    bodies = [streams.body(engine.model, prompt_of(prompts, load.words), load.output) for _ in range(load.calls)]
    if load.every:
        return await at_random(engine.url, bodies, gaps(load, seed))
    left = list(reversed(bodies))
    calls: list[Call] = []

    async def client() -> None:
        while left:
            calls.append(await call(engine.url, left.pop()))

    await asyncio.gather(*(client() for _ in range(load.clients)))
    return sorted(calls, key=lambda one: one.sent)


async def at_random(url: str, bodies: Sequence[bytes], after: Sequence[float]) -> list[Call]:
    began = time.perf_counter()

    async def later(seconds: float, body: bytes) -> Call:
        await asyncio.sleep(began + seconds - time.perf_counter())
        return await call(url, body)

    return list(await asyncio.gather(*(later(*pair) for pair in zip(after, bodies, strict=True))))


def gaps(load: Load, seed: int) -> list[float]:
    chance, at, found = random.Random(seed), 0.0, []
    for _ in range(load.calls):
        found.append(at)
        at += chance.expovariate(1 / load.every)
    return found


def prompt_of(prompts: streams.Prompts, words: int) -> str:
    prompts._words = words
    return prompts.next()


# ---- foretold calls


def foretell(settings: Settings, timing: Fitted, load: Load, like: Sequence[Call]) -> list[Call]:
    """The same calls simulated: their prompts and answers, and their arrivals where nobody waited for an answer."""
    replica = BatchedReplica(settings, timing)
    coming = [(one.sent - like[0].sent if load.every else 0.0) for one in like]
    waiting = len(like) if load.every else load.clients
    begun: dict[str, float] = {}
    first: dict[str, float] = {}
    ended: list[Call] = []
    place = 0
    queue = [(coming[index], index) for index in range(min(waiting, len(like)))]
    place = len(queue)
    while queue or len(replica):
        due = replica.next_change()
        if queue and (due is None or queue[0][0] <= due):
            at, index = queue.pop(0)
            replica.advance(at)
            replica.add(str(index), Work(like[index].prompt, like[index].output), at)
            begun[str(index)] = at
            continue
        assert due is not None
        for milestone in replica.advance(due):
            if milestone.what == "first_token":
                first[milestone.key] = milestone.at
                continue
            one = like[int(milestone.key)]
            ended.append(Call(begun[milestone.key], first[milestone.key], milestone.at, one.prompt, one.output))
            if place < len(like):
                queue.append((milestone.at, place))
                place += 1
    return ended


def figures(calls: Sequence[Call]) -> Figures:
    whole = max(one.ended for one in calls) - min(one.sent for one in calls)
    return Figures(
        ttft=statistics.mean(one.first - one.sent for one in calls),
        tpot=statistics.mean((one.ended - one.first) / (one.output - 1) for one in calls),
        p95=float(np.quantile([one.ended - one.sent for one in calls], 0.95)),
        rate=sum(one.output for one in calls) / whole,
    )


def learn(runs: Sequence[Sequence[Call]], settings: Settings) -> Fitted:
    """As from a ledger that holds these calls."""
    attempts = [
        Attempt(
            1, "r", one.sent, one.ended, "finished", sent=one.sent, first_byte=one.first, first_token=one.first,
            status=200, prompt_tokens=one.prompt, output_tokens=one.output, usage="engine",
        )
        for calls in runs
        for one in calls
    ]  # fmt: skip
    return fit(from_calls(attempts, settings.step_tokens))


def straight(load: Load, fitted: dict[int, float]) -> float | None:
    """Tokens per second between the nearest fitted numbers of clients; None where lengths or arrivals differ."""
    if load.every or load.name not in SAME:
        return None
    known = sorted(fitted)
    return float(np.interp(load.clients, known, [fitted[one] for one in known]))


# ---- the course


async def measure(
    name: str, engine: Contestant, repeats: int, loads: Sequence[Load], fitted: Sequence[Load]
) -> tuple[list[Result], Fitted]:
    settings = ENGINES[name]
    prompts = streams.Prompts(seed=os.getpid(), words=40)
    await run(engine, fitted[-1], prompts, 0)  # whatever is done on first use is done
    learnt = []
    for load in fitted:
        print(f"  {load.name} …", flush=True)
        learnt.append(await run(engine, load, prompts, 1))
    timing = learn(learnt, settings)
    base = {load.clients: figures(calls).rate for load, calls in zip(fitted, learnt, strict=True) if load.words == 40}
    real: dict[str, list[list[Call]]] = {load.name: [] for load in loads}
    for repeat in range(repeats):
        for load in loads:
            real[load.name].append(await run(engine, load, prompts, 10 + repeat))
    results = []
    for load in loads:
        told = [figures(foretell(settings, timing, load, calls)) for calls in real[load.name]]
        mean = Figures(*(statistics.mean(getattr(one, what) for one in told) for what in WHAT))
        ran = tuple(figures(calls) for calls in real[load.name])
        results.append(Result(name, load.name, ran, mean, straight(load, base)))
    return results, timing


def starters(logs: Path) -> dict[str, Callable[[], Contestant]]:
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    cache = site.cache_dir() / "benchmarks"
    cache.mkdir(parents=True, exist_ok=True)
    return {
        "local": lambda: rivals.start_ours(model, logs),
        "vllm": lambda: rivals.start_vllm(cache, model, STREAMS, logs),
    }


def tell(results: Sequence[Result], fits: dict[str, Fitted]) -> int:
    """The tables and the bar; the exit code."""
    for name, timing in fits.items():
        print(f"\n{name}: fitted to {timing.observations} mean steps, off by {timing.middle:.1%} at the median, "
              f"{timing.residual:.1%} at P90")  # fmt: skip
        print(f"{'':28}" + "".join(f"{what:>24}" for what in WHAT) + f"{'line: rate':>14}")
        for one in (one for one in results if one.engine == name):
            cells = "".join(
                f"{getattr(one.foretold, what):8.3g} {one.middle(what):8.3g} {one.error(what):6.1%}" for what in WHAT
            )
            line = f"{abs(one.line / one.middle('rate') - 1):13.1%}" if one.line is not None else f"{'–':>13}"
            print(f"{one.load:28}{cells}{line}")
    print("\n(foretold, measured, error; the last column is the straight line's error)")
    return verdict(results)


def verdict(results: Sequence[Result]) -> int:
    passed, said = bool(results), []
    for name in dict.fromkeys(one.engine for one in results):
        mine = [one for one in results if one.engine == name]
        middle = {what: statistics.median(one.error(what) for one in mine) for what in WHAT}
        allowed = {what: max(MEDIAN, statistics.median(one.spread(what) for one in mine)) for what in WHAT}
        worst = max((one.error(what), f"{what} of {one.load}") for one in mine for what in WHAT)
        chosen = best(mine)
        passed = passed and all(middle[what] <= allowed[what] for what in WHAT) and worst[0] <= WORST and chosen >= BEST
        medians = ", ".join(f"{what} {middle[what]:.1%} (≤ {allowed[what]:.0%})" for what in WHAT)
        said.append(f"{name}: {medians}, worst {worst[0]:.1%} ({worst[1]}, ≤ {WORST:.0%}), chosen {chosen:.2f} of best")
    print(f"bar: {'pass' if passed else 'fail'}: " + "; ".join(said))
    return 0 if passed else 1


def best(results: Sequence[Result]) -> float:
    """Real tokens per second of the load that would be chosen, as a part of the best one's."""
    alike = [one for one in results if one.load in SAME]
    if not alike:
        return 1.0
    chosen = max(alike, key=lambda one: one.foretold.rate)
    return chosen.middle("rate") / max(one.middle("rate") for one in alike)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short loads, once each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=2, help="of each foretold load (default: 2)")
    parser.add_argument("--engines", help="which (default: local,vllm; local alone with --quick)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engines are ended too
    names = (arguments.engines or ("local" if arguments.quick else "local,vllm")).split(",")
    loads = [quick(load) for load in FORETOLD[1:3]] if arguments.quick else FORETOLD
    fitted = [quick(load) for load in (FITTED[0], FITTED[2], FITTED[4])] if arguments.quick else FITTED
    repeats = 1 if arguments.quick else arguments.repeats
    results: list[Result] = []
    fits: dict[str, Fitted] = {}
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as logs:
        starts = starters(Path(logs))
        for name in names:
            print(f"{name}: starting …", flush=True)
            engine = starts[name]()
            try:
                mine, fits[name] = uvloop.run(measure(name, engine, repeats, loads, fitted))
                results += mine
            finally:
                engine.end()
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": to_builtins(results), "fits": to_builtins(fits)}, indent=1))
    return tell(results, fits)


if __name__ == "__main__":
    sys.exit(main())
