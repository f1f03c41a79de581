"""Cache-aware routing beside round robin, session hashing and two cache-aware routers, on the same traffic.

    .venv/bin/python benchmarks/routing.py [--quick] [--json FILE] [--repeats N] [--only fleet|vllm|decision]

Fleet: four replicas that model an engine's batch and prefix cache behind real sockets (benchmarks/fleet). Each turn
starts the gateway anew and empties the caches; turns of all arms are interleaved. The loads are Mooncake's
conversation trace at an eighth of its lengths, and questions about 200 products (Zipf); a third one, four fifths about
one product, shows how evenly load lies. vLLM: three real CPU replicas whose KV pools hold a third of the products each.
Decision: CPU time with 64 replicas and a prompt of 8 KB, and the index after ten million blocks. About 15 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fleet import decision, engines  # noqa: E402
from benchmarks.fleet.loads import TRACE, mooncake, shop  # noqa: E402
from benchmarks.fleet.turns import ARMS, OURS, Fleet, Load, Result, turn  # noqa: E402
from benchmarks.overhead.peers import MissingError  # noqa: E402

HITS, RATIO, MICROSECONDS = 0.95, 1.5, 30.0
"""The bars: hits ÷ one pooled cache's, most ÷ mean in flight, µs for a decision."""
LATE, MOST_AGAIN = 0.003, 2
"""A turn whose replicas were so many seconds late on the mean is disturbed, and run again, so many times at most."""


def loads(quick: bool) -> list[Load]:
    part = 4 if quick else 1
    made = [
        Load("shop questions", lambda seed: shop(900 // part, 110, seed), 2.0, 1000),
        Load("one hot product", lambda seed: shop(1200 // part, 170, seed, hot=0.8), 2.0, 1000),
    ]
    if TRACE.exists():
        made.insert(0, Load("mooncake", lambda seed: mooncake(560 // part, 60, 600 * (seed % 8)), 4.0, 1000))
    else:
        print(f"no trace at {TRACE}: without the mooncake load", flush=True)
    return made


def fleet(repeats: int, quick: bool) -> tuple[list[Result], list[str]]:
    """Every arm on every load, in an order that turns with the repeats; and which arms could not be had."""
    results, missing = [], {}
    replicas = Fleet()
    try:
        for seed in range(repeats):
            for load in loads(quick):
                turns = [arm for arm in ARMS if arm.name not in missing]
                if load.name == "one hot product":
                    turns = turns[:1]
                for arm in [*turns[seed % len(turns) :], *turns[: seed % len(turns)]]:
                    try:
                        result = turn(replicas, load, arm, seed)
                    except MissingError as error:
                        missing[arm.name] = f"{arm.name}: {error}"
                        continue
                    for _ in range(0 if quick else MOST_AGAIN):
                        if result.late <= LATE:
                            break
                        print(f"{seed + 1} {load.name:15s} {arm.name:14s} disturbed: {result.late * 1e3:.1f} ms late")
                        result = turn(replicas, load, arm, seed)
                    results.append(result)
                    print(f"{seed + 1} {load.name:15s} {arm.name:14s} {_brief(result)}", flush=True)
    finally:
        replicas.stop()
    return results, list(missing.values())


def _brief(result: Result) -> str:
    share = result.cached / result.pooled if result.pooled else 0.0
    failed = f", {result.failed} failed" if result.failed else ""
    failed += f"; steps {result.late * 1e3:.1f} ms late" if result.late > LATE else ""
    return f"P99 {_quantile(result.ttft, 0.99):.3f} s, computed {result.computed:,}, hits {share:.3f} of pooled{failed}"


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Bars:
    """What was promised, and what came of it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.passed = True

    def add(self, met: bool, text: str) -> None:
        self.passed = self.passed and met
        self.lines.append(f"{text} ({'met' if met else 'not met'})")


def tell(results: list[Result], bars: Bars) -> None:
    for load in dict.fromkeys(result.load for result in results):
        here = [result for result in results if result.load == load]
        print(f"\n{load}: medians of {len({result.seed for result in here})} repeats")
        print(f"{'':15s}{'computed':>12s}{'hits/pooled':>12s}{'TTFT P50':>10s}{'P99':>9s}{'variance':>10s}", end="")
        print(f"{'most/mean':>10s}")
        for arm in dict.fromkeys(result.arm for result in here):
            own = [result for result in here if result.arm == arm]
            ratios = [ratio for result in own for ratio in result.ratios]
            shown = f"{statistics.mean(ratios):10.2f}" if ratios else f"{'–':>10s}"
            print(
                f"{arm:15s}{_median(own, 'computed'):12,.0f}{_hits(own):12.3f}{_median(own, 'p50'):10.3f}"
                f"{_median(own, 'p99'):9.3f}{_median(own, 'variance'):10.4f}{shown}"
            )
        _judge(load, here, bars)


def _figure(result: Result, name: str) -> float:
    if name == "computed":
        return float(result.computed)
    if name == "variance":
        return statistics.pvariance(result.ttft) if result.ttft else float("nan")
    return _quantile(result.ttft, {"p50": 0.5, "p99": 0.99}[name])


def _median(results: list[Result], name: str) -> float:
    return statistics.median(_figure(result, name) for result in results)


def _hits(results: list[Result]) -> float:
    return statistics.median(result.cached / max(1, result.pooled) for result in results)


def _judge(load: str, here: list[Result], bars: Bars) -> None:
    own = {result.seed: result for result in here if result.arm == OURS}
    if load == "one hot product":
        ratios = [ratio for result in own.values() for ratio in result.ratios]
        mean = statistics.mean(ratios) if ratios else float("nan")
        bars.add(mean <= RATIO, f"{load}: most/mean in flight {mean:.2f} (≤ {RATIO})")
        return
    hits = _hits(list(own.values()))
    bars.add(hits >= HITS, f"{load}: hits {hits:.3f} of one pooled cache (≥ {HITS})")
    for arm in dict.fromkeys(result.arm for result in here if result.arm != OURS):
        pairs = [(own[other.seed], other) for other in here if other.arm == arm and other.seed in own]
        for name, text in (("computed", "prefill work"), ("p99", "P99 TTFT"), ("variance", "TTFT variance")):
            ratios = sorted(_figure(mine, name) / _figure(other, name) for mine, other in pairs)
            middle = statistics.median(ratios)
            line = f"{load}: {text} × {middle:.2f} [{ratios[0]:.2f} … {ratios[-1]:.2f}] of {arm}"
            if name == "variance":
                print(f"  {line}")
            else:
                bars.add(middle <= 1.0, f"{line} (≤ 1)")
    for result in here:
        if result.late > LATE:
            bars.add(False, f"{load}: {result.arm}, repeat {result.seed + 1}: disturbed by others on this machine")
        if result.failed:
            bars.add(result.arm != OURS, f"{load}: {result.failed} calls failed through {result.arm}")


def costs(quick: bool, bars: Bars) -> dict[str, object]:
    cost = decision.measure(3 if quick else 9)
    print(
        f"\na decision with {decision.REPLICAS} replicas and {decision.BLOCKS * 512} bytes of prompt, in µs of CPU",
        end="",
    )
    print(" [fastest … slowest round]:")
    for name, text in (
        ("known", "routing adds, prompt known in part"),
        ("cold", "routing adds, prompt unknown"),
        ("kept", "telling it what was sent, begun, ended"),
        ("baseline", "the baseline's own view and plan, beside it"),
    ):
        middle, low, high = getattr(cost, name)
        print(f"  {text:45s}{middle:6.1f} [{low:.1f} … {high:.1f}]")
    worst = max(cost.known[0], cost.cold[0])
    bars.add(worst < MICROSECONDS, f"decision {worst:.1f} µs (< {MICROSECONDS:g})")
    memory = decision.fill(1_000_000 if quick else 10_000_000)
    bars.add(
        memory.bytes <= memory.bound,
        f"index after {memory.sent:,} blocks: {memory.bytes / 2**20:.0f} MiB with the latest {memory.blocks:,} "
        f"(bound {memory.bound / 2**20:.0f})",
    )
    return {"decision": cost, "memory": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repeat, without vLLM: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("fleet", "vllm", "decision"))
    given = parser.parse_args()
    bars, told = Bars(), dict[str, object]()
    if given.only in (None, "decision"):
        told |= costs(given.quick, bars)
    if given.only in (None, "fleet"):
        results, missing = fleet(1 if given.quick else given.repeats, given.quick)
        tell(results, bars)
        for line in missing:
            bars.add(False, f"not measured: {line}")
        told["fleet"] = results
    if given.only == "vllm" or (given.only is None and not given.quick):
        told["vllm"] = engines.compare(bars.add)
    for line in bars.lines:
        print(f"  {line}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(told))
    failed = [line for line in bars.lines if line.endswith("(not met)")]
    print(f"bar: {'pass' if bars.passed else 'fail'}: " + ("; ".join(failed) or f"{len(bars.lines)} bars met"))
    return 0 if bars.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
