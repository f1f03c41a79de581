"""The simulator's roofline against runs of dense models measured on H100 and H200, each model left out in turn.

    .venv/bin/python benchmarks/simulator_silicon.py [--quick] [--json FILE] [--data CSV] [--score CSV]

The engine is vLLM. For each model the roofline's efficiencies (eight, and the time that a request takes to reach the
engine) are fitted to runs of the *other* models only; then each of the left-out model's runs is simulated (its clients,
its lengths, its KV) and compared with what was measured. Nothing of a left-out model is used, in any precision or on
any device.

How runs are made is taken to be the same for all, as the public sweeps' scripts have it: clients that ask again as soon
as they are answered, ten calls each, lengths drawn from 80 to 100 % of the nominal ones; means are reported. NVIDIA's
own FP8 checkpoints keep their KV in FP8 as well. What KV fits is reckoned from memory and weights. A run counts as
saturated when its clients' sequences do not fit that KV together: its TTFT is then the queue's, and is not scored.

Beside ours stands what is used without a simulator: the nearest run of another model, scaled by weights per device.
Mixtures of experts are refused by name; the table says how many runs that leaves out.

Bar: by leave-one-model-out, median absolute error at most 20 % for TPOT and 30 % for TTFT (not saturated), and rank
correlation of throughput at least 0.95.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from msgspec import Struct, to_builtins
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from wastegate.sim.closed import Ask, ask
from wastegate.sim.descent import descend
from wastegate.sim.hardware import HardwareError, find_device, find_shape
from wastegate.sim.replica import Settings
from wastegate.sim.roofline import Efficiency, Roofline

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "traces" / "silicon" / "silicon_train.csv"
FITTED = ("compute", "weights", "kv", "attention", "link", "sum_seconds", "step_seconds", "sequence_seconds", "front")
START = np.array([0.6, 0.7, 0.6, 0.4, 0.4, 12e-6, 2e-3, 20e-6, 0.02])
SLACK = np.array([0.3, 0.2, 0.4, 0.4, 0.5, 0.5, 0.5, 0.7, 0.7])
"""What is plausible before any run is seen, as logarithms around START."""
SPREAD = 0.2
"""Lengths are drawn from this part below the nominal one up to it."""
FITTED_RUNS = 32
"""Of each model at most: more of them add time and little else."""
BARS = {"TPOT": 0.20, "TTFT": 0.30}
RANK = 0.95


class Run(Struct, frozen=True):
    """One measured run. Seconds."""

    id: str
    model: str
    device: str
    devices: int
    precision: str
    prompt: int
    output: int
    clients: int
    ttft: float
    tpot: float
    kv_precision: str

    def roofline(self, how: Efficiency) -> Roofline:
        return Roofline(
            find_device(self.device), find_shape(self.model), self.devices, self.precision, self.kv_precision, how
        )

    @property
    def saturated(self) -> bool:
        return self.clients * (self.prompt + self.output) > self.roofline(Efficiency()).kv_tokens()

    @property
    def rate(self) -> float:
        """Output tokens per second and device that TTFT and TPOT amount to."""
        return self.clients * self.output / (self.ttft + self.tpot * (self.output - 1)) / self.devices


class Scored(Struct, frozen=True):
    """A run beside what was foretold without its model. ``table``: what the nearest other run, scaled, says."""

    run: Run
    ttft: float
    tpot: float
    rate: float
    table_tpot: float
    table_ttft: float


def read(path: Path) -> tuple[list[Run], dict[str, int]]:
    """Dense runs of vLLM on H100 and H200, and how many runs each refused model leaves out."""
    runs, refused = [], dict[str, int]()
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["backend"] != "vllm" or row["mode"] != "agg" or row["system"] not in ("h100_sxm", "h200_sxm"):
                continue
            try:
                model = find_shape(row["model_path"]).name
            except HardwareError as problem:
                name = row["model_path"].rpartition("/")[2] + ("" if "mixture" in str(problem) else " (unknown)")
                refused[name] = refused.get(name, 0) + 1
                continue
            runs.append(_run(row, model))
    return runs, refused


def _run(row: dict[str, str], model: str) -> Run:
    return Run(
        id=row["id"], model=model, device=row["system"], devices=int(row["tp_size"]),
        precision="fp8" if row["gemm_quant_mode"].startswith("fp8") else "bf16",
        prompt=int(row["isl"]), output=int(row["osl"]), clients=int(row["batch_size"]),
        ttft=float(row["silicon_ttft_ms"]) / 1e3, tpot=float(row["silicon_tpot_ms"]) / 1e3,
        kv_precision="fp8" if row["model_path"].startswith("nvidia/") else "bf16",
    )  # fmt: skip


def simulate(job: tuple[Run, tuple[float, ...]]) -> tuple[float, float, float]:
    """Mean TTFT and TPOT in seconds, output tokens per second and device."""
    run, values = job
    how = dict(zip(FITTED, values, strict=True))
    front = how.pop("front")
    for name in ("compute", "weights", "kv", "attention", "link"):
        how[name] = min(1.0, how[name])
    roofline = run.roofline(Efficiency(**how))
    # What vLLM's server takes by itself on devices of 70 GiB and more.
    settings = Settings(running=1024, step_tokens=8192, kv_tokens=roofline.kv_tokens())
    what = Ask(run.clients, run.prompt, run.output, 10 * run.clients, SPREAD, SPREAD, front)
    seen = ask(settings, roofline, what)
    return float(np.mean(seen.ttft)), float(np.mean(seen.tpot)), seen.rate / run.devices


class Judge:
    """Simulates many runs at once, in as many processes as may be used."""

    def __init__(self, processes: int) -> None:
        self._pool = Pool(processes)

    def __call__(self, runs: Sequence[Run], sets: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Shape (sets, runs, 3)."""
        jobs = [(run, tuple(map(float, values))) for values in sets for run in runs]
        figures = self._pool.map(simulate, jobs, chunksize=max(1, len(jobs) // 64))
        return np.array(figures).reshape(len(sets), len(runs), 3)

    def close(self) -> None:
        self._pool.terminate()


def fit(runs: Sequence[Run], judge: Judge, rounds: int) -> NDArray[np.float64]:
    """Efficiencies and front from these runs alone."""
    runs = [run for model in sorted({run.model for run in runs}) for run in _some(runs, model)]
    measured = np.log([*(run.tpot for run in runs), *(run.ttft for run in runs)])
    measured[len(runs) :][[run.saturated for run in runs]] = np.nan

    def model(sets: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        figures = judge(runs, sets)
        return [np.log(np.concatenate([one[:, 1], one[:, 0]])) for one in figures]

    return descend(model, measured, START, SLACK, rounds)


def _some(runs: Sequence[Run], model: str) -> list[Run]:
    own = [run for run in runs if run.model == model]
    return own[:: -(-len(own) // FITTED_RUNS)]


def nearest(run: Run, others: Sequence[Run]) -> tuple[float, float]:
    """TPOT and TTFT as the most similar run of another model has them, scaled by weights per device."""

    def far(other: Run) -> float:
        pairs = [(run.prompt, other.prompt), (run.output, other.output), (run.clients, other.clients)]
        same = (run.device != other.device) + (run.precision != other.precision) + (run.devices != other.devices)
        return float(sum(abs(np.log(one / two)) for one, two in pairs) + same)

    other = min(others, key=far)
    scale = _weight(run) / _weight(other)
    return other.tpot * scale, other.ttft * scale


def _weight(run: Run) -> float:
    return run.roofline(Efficiency()).weight_bytes / run.devices


def leave_one_out(
    runs: Sequence[Run], scored: Sequence[Run], judge: Judge, rounds: int
) -> tuple[list[Scored], dict[str, dict[str, float]]]:
    """``scored`` may be other runs than those that are fitted to; their model is left out all the same."""
    results, fits = [], {}
    for model in sorted({run.model for run in scored}):
        others = [run for run in runs if run.model != model]
        values = fit(others, judge, rounds)
        fits[f"without {model}"] = dict(zip(FITTED, map(float, values), strict=True))
        left = [run for run in scored if run.model == model]
        for run, (ttft, tpot, rate) in zip(left, judge(left, [values])[0], strict=True):
            table_tpot, table_ttft = nearest(run, others)
            results.append(Scored(run, float(ttft), float(tpot), float(rate), table_tpot, table_ttft))
        print(f"  {model}: {len(left)} runs foretold from {len(others)} of other models", flush=True)
    return results, fits


def error(scored: Sequence[Scored], what: str, table: bool = False) -> list[float]:
    """Relative errors, absolute; TTFT only where the run was not saturated."""
    name = what.lower()
    return [
        abs(getattr(one, f"table_{name}" if table else name) / getattr(one.run, name) - 1)
        for one in scored
        if what == "TPOT" or not one.run.saturated
    ]


def rank_correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (one, two)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def tell(scored: Sequence[Scored], refused: dict[str, int]) -> int:
    groups = {"all": list(scored)}
    for model in sorted({one.run.model for one in scored}):
        groups[model] = [one for one in scored if one.run.model == model]
    print("\nmodel left out      runs   TPOT median  P90     TTFT median  P90   (runs)   nearest run: TPOT   TTFT")
    for name, group in groups.items():
        tpot, ttft = error(group, "TPOT"), error(group, "TTFT")
        table = [float(np.median(error(group, what, table=True) or [np.nan])) for what in BARS]
        print(
            f"{name:18} {len(group):5}   {np.median(tpot):9.1%} {np.quantile(tpot, 0.9):7.1%}"
            f"   {np.median(ttft):9.1%} {np.quantile(ttft, 0.9):7.1%}  ({len(ttft):3})"
            f"            {table[0]:7.1%} {table[1]:7.1%}"
        )
    print("\nworst by TPOT, then by TTFT (not saturated):")
    for what in BARS:
        rows = [one for one in scored if what == "TPOT" or not one.run.saturated]
        name = what.lower()
        rows.sort(key=lambda one: -abs(np.log(getattr(one, name) / getattr(one.run, name))))
        for one in rows[:3]:
            print(
                f"  {what} {getattr(one, name) * 1e3:8.1f} ms foretold, {getattr(one.run, name) * 1e3:8.1f} measured: "
                f"{one.run.model} × {one.run.devices} {one.run.device}, {one.run.prompt}+{one.run.output}, "
                f"{one.run.clients} clients"
            )
    print(f"\nrefused as mixtures of experts: {sum(refused.values())} runs of {', '.join(sorted(refused))}")
    return verdict(scored)


def verdict(scored: Sequence[Scored]) -> int:
    middle = {what: float(np.median(error(scored, what))) for what in BARS}
    rank = rank_correlation([one.rate for one in scored], [one.run.rate for one in scored])
    passed = all(middle[what] <= most for what, most in BARS.items()) and rank >= RANK
    figures = ", ".join(f"{what} {middle[what]:.1%} (≤ {most:.0%})" for what, most in BARS.items())
    print(f"bar: {'pass' if passed else 'fail'}: {figures}, rank of throughput {rank:.3f} (≥ {RANK})")
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every third run, and one round of fitting")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--data", type=Path, default=DATA, help="the measured runs to fit to")
    parser.add_argument("--score", type=Path, help="other runs to score (default: the same)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2, help="rounds of fitting (default: 2; more change little)")
    arguments = parser.parse_args()
    if not arguments.data.exists():
        print(f"bar: fail: no measured runs at {arguments.data}")
        return 1
    runs, refused = read(arguments.data)
    scored_runs = read(arguments.score)[0] if arguments.score else runs
    if arguments.quick:
        runs, scored_runs = runs[::3], scored_runs[::3]
    began = time.perf_counter()
    judge = Judge(arguments.processes)
    try:
        run_all = partial(leave_one_out, runs, scored_runs, judge)
        scored, fits = run_all(1 if arguments.quick else arguments.rounds)
        if not arguments.quick:
            fits["all"] = dict(zip(FITTED, map(float, fit(runs, judge, arguments.rounds)), strict=True))
    finally:
        judge.close()
    for name, values in fits.items():
        print(f"  {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in values.items()))
    print(f"  {time.perf_counter() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({"fits": fits, "runs": to_builtins(scored)}, indent=1))
    return tell(scored, refused)


if __name__ == "__main__":
    sys.exit(main())
