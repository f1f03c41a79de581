"""One turn of one arm: what is offered in it, and the figures that come of it. The order of turns, and what is made of
their figures, never enter here."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from wastegate.load.openloop import Result
from wastegate.load.replay import Config, Known, Replay
from wastegate.load.report import FLOOR, Report
from wastegate.load.rows import Row, Trace
from wastegate.load.traces import read

OWN_TEXT = "the rows bring their own text: what one turn leaves in a prefix cache, the next one finds there"


class Turn(Struct, frozen=True, kw_only=True):
    """What one arm is to do. The turns of a block differ in ``arm``, ``place`` and ``fresh`` only."""

    arm: str
    rate: float | None
    """Requests per second to offer; None for the trace's own times."""
    block: int
    """From 0; -1 is the turn that only warms up."""
    place: int
    """Where in its block it stands, from 0."""
    seconds: float
    """How long to send."""
    warmup: float
    """Seconds at the beginning whose calls do not count."""
    seed: int
    """For arrivals: the same in all turns of a block."""
    fresh: int
    """For the words of prompts: another in every turn, so that no turn finds in a cache what one before it left."""


class Sample(Struct, frozen=True, kw_only=True):
    """What one turn showed. ``figures`` by metric, in seconds, counts or requests per second."""

    figures: Mapping[str, float]
    fault: str = ""
    """Why the turn does not show what it was meant to, through no doing of the arm; empty if it does."""
    notes: tuple[str, ...] = ()


Measure = Callable[[Turn], Sample | Mapping[str, float] | Awaitable[Sample | Mapping[str, float]]]
"""Runs one turn. A plain function runs in a thread of its own."""


class Replayed:
    """A URL and its options as an arm: each turn replays the trace's rows against it."""

    def __init__(self, config: Config, trace: Trace | None = None) -> None:
        self._config = config
        self._trace = trace or read(config.trace, config.format, config.pace.limit)
        self._known: Known | None = None
        own = any(row.messages is not None or row.prompt is not None for row in self._trace.rows)
        self._notes = (OWN_TEXT,) if own else ()

    async def __call__(self, turn: Turn) -> Sample:
        pace = replace(self._config.pace, duration=turn.seconds, seed=turn.seed)
        if turn.rate is not None:
            pace = replace(pace, rate=turn.rate, speed=None)
        config = replace(self._config, pace=pace, prompt_seed=turn.fresh)
        run = Replay(config, self._trace, self._known)
        done = await run.go()
        self._known = run.known
        return Sample(
            figures=figures(done.results, turn.warmup),
            fault=sending_fault(done.report, run.progress.held),
            notes=done.report.notes + self._notes,
        )


def lengths(input_tokens: int, output_tokens: int, count: int) -> Trace:
    """A trace of equal calls without times: they arrive at random at the rate of the turn (a Poisson process)."""
    rows = tuple(Row(line=line, input_tokens=input_tokens, output_tokens=output_tokens) for line in range(1, count + 1))
    return Trace(path=f"{input_tokens} tokens in, {output_tokens} out", format="mooncake", rows=rows)


def figures(results: Sequence[Result], warmup: float) -> dict[str, float]:
    """The figures of a turn, from the calls that were due after ``warmup`` seconds.

    Latencies count from the intended arrival; a call that failed has waited for ever, so that a server cannot look
    fast by refusing. One on which the client hung up counts for no latency. Without calls there are no figures.
    """
    sent = [result for result in results if result.planned.at >= warmup and result.fate in ("ok", "failed", "hung_up")]
    if not sent:
        return {}
    answered = [result for result in sent if result.fate == "ok"]
    failed = sum(result.fate == "failed" for result in sent)
    ends = [result.answer.ended - result.start for result in sent if result.answer.ended is not None]
    seconds = max(ends, default=warmup) - warmup
    found = {
        "sent": float(len(sent)),
        "answered": float(len(answered)),
        "failed_share": failed / len(sent),
        "seconds": seconds,
        "output_tokens": float(sum(result.output_tokens or 0 for result in sent)),
    }
    if seconds > 0:
        found["answered_per_s"] = found["answered"] / seconds
        found["output_tokens_per_s"] = found["output_tokens"] / seconds
    never = [math.inf] * failed
    for name, known in (
        ("ttft", [result.ttft for result in answered]),
        ("e2e", [result.e2e for result in answered]),
    ):
        values = [value for value in known if value is not None] + never
        found |= p50_and_p95(name, values)
    return found | p50_and_p95("tpot", [result.tpot for result in answered if result.tpot is not None])


def p50_and_p95(name: str, values: Sequence[float]) -> dict[str, float]:
    """P50 and P95; between a number and "never" there is nothing in the middle."""
    if not values:
        return {}
    method: Literal["linear", "higher"] = "linear" if math.isfinite(max(values)) else "higher"
    p50, p95 = np.quantile(values, (0.5, 0.95), method=method)
    return {f"{name}_p50": float(p50), f"{name}_p95": float(p95)}


def sending_fault(report: Report, held: int) -> str:
    """A turn whose rows were sent late by this tool shows this tool. One whose rows were held back because too many
    were in flight shows a slow server, and counts."""
    if not held and report.rates.share < FLOOR:
        return f"less than {FLOOR:.0%} of the offered rate was sent"
    return ""
