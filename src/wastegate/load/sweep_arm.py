"""One target at one length as an arm of a paired run: a turn is one level, in a closed or an open loop. The order of
turns, and what is made of their figures, never enter here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from wastegate.core.steady import Rule
from wastegate.load.closedloop import ClosedLoop
from wastegate.load.openloop import Result
from wastegate.load.replay import Config, Known, Replay, Replayed
from wastegate.load.report import FLOOR
from wastegate.load.schedule import Pace
from wastegate.load.sweep_target import Running
from wastegate.load.target import TargetError
from wastegate.load.turns import Sample, Turn, lengths, p50_and_p95, sending_fault

Mode = Literal["closed", "open"]


class Shape(Struct, frozen=True):
    """How long calls are, in tokens."""

    input_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.input_tokens} tokens in, {self.output_tokens} out"


class Slo(Struct, frozen=True, kw_only=True):
    """What a good call keeps, in seconds; None for no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def kept(self, result: Result) -> bool:
        """Whether the call was answered within every limit. One of a single token has no time per token."""
        if result.fate != "ok":
            return False
        pairs = ((self.ttft, result.ttft), (self.tpot, result.tpot), (self.e2e, result.e2e))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)

    def __str__(self) -> str:
        limits = (("TTFT", self.ttft), ("TPOT", self.tpot), ("E2E", self.e2e))
        return ", ".join(f"{name} ≤ {limit:g} s" for name, limit in limits if limit is not None) or "none"


class Asked(Struct, frozen=True, kw_only=True):
    """What is asked of every target alike."""

    mode: Mode = "closed"
    slo: Slo = Slo()
    settle: Rule = Rule()
    """Closed loop: how long a level runs."""
    model: str = ""
    timeout: float = 300.0
    drain: float = 30.0
    """Closed loop: seconds that calls under way get at a level's end, of a target that was not started here."""


class Swept:
    """A target at one shape. The engine of a target that was started here computes only during its turns."""

    def __init__(self, target: Running, shape: Shape, asked: Asked, api_key: str = "") -> None:
        self._target = target
        self._shape = shape
        self._asked = asked
        self._api_key = api_key
        self._known: Known | None = None

    async def __call__(self, turn: Turn) -> Sample:
        """Raises TargetError where the target cannot be used, or answers nothing in its warm-up turn."""
        self._target.resume()
        try:
            done, found, fault = await (self._closed(turn) if self._asked.mode == "closed" else self._open(turn))
        finally:
            self._target.pause()
        self._check(done, turn)
        return Sample(figures=found, fault=fault, notes=self._notes(done))

    async def _closed(self, turn: Turn) -> tuple[Replayed, dict[str, float], str]:
        drain = 0.0 if self._target.ours else self._asked.drain
        loop = ClosedLoop(round(turn.rate or 1), self._asked.settle, drain)
        replay = Replay(self._config(turn, Pace(rate=1.0)), lengths(*self._lengths, 1), self._known, sender=loop.run)
        done = await replay.go()
        self._known = replay.known
        window = loop.window
        if window is None:
            return done, {}, ""
        counted = [result for result in done.results if window.holds((result.answer.ended or 0.0) - result.start)]
        return done, figures(counted, window.seconds, self._asked.slo, window.settled), ""

    async def _open(self, turn: Turn) -> tuple[Replayed, dict[str, float], str]:
        rate = turn.rate or 1.0
        pace = Pace(rate=rate, duration=turn.seconds, seed=turn.seed)
        rows = math.ceil(2 * (rate * turn.seconds + 1))
        replay = Replay(self._config(turn, pace), lengths(*self._lengths, rows), self._known)
        done = await replay.go()
        self._known = replay.known
        counted = [one for one in done.results if one.planned.at >= turn.warmup and one.fate in ("ok", "failed")]
        ends = [one.answer.ended - one.start for one in counted if one.answer.ended is not None]
        kept = done.report.rates.kept
        seconds = max(ends, default=turn.warmup) - turn.warmup
        found = figures(counted, seconds, self._asked.slo, kept is None or kept >= FLOOR)
        return done, found, sending_fault(done.report, replay.progress.held)

    @property
    def _lengths(self) -> tuple[int, int]:
        return self._shape.input_tokens, self._shape.output_tokens

    def _config(self, turn: Turn, pace: Pace) -> Config:
        asked = self._asked
        return Config(
            trace=Path("made"),
            url=self._target.url,
            pace=pace,
            model=asked.model if not self._target.ours else "",
            ignore_eos="always",
            temperature=0.0,
            timeout=asked.timeout,
            api_key=self._api_key if not self._target.ours else "",
            prompt_seed=turn.fresh,
        )

    def _check(self, done: Replayed, turn: Turn) -> None:
        name, results = self._target.name, done.results
        if any(result.planned.clipped for result in results):
            context = self._known.context if self._known else None
            raise TargetError(
                f"{name}: {self._shape} do not fit its context of {context} tokens: ask for shorter calls"
            )
        if turn.block < 0 and not any(result.fate == "ok" for result in results):
            why = next((one.answer.reason + ": " + one.answer.detail for one in results if one.fate == "failed"), "")
            raise TargetError(f"{name} answered no call{': ' + why if why else ''}")

    def _notes(self, done: Replayed) -> tuple[str, ...]:
        found = [note for note in done.report.notes if not note.startswith("first ")]
        counted = done.report.lengths
        if counted is not None and counted.outputs_short:
            found.append("answers ended before the length asked for: it is not the load that was meant")
        if done.report.failed:
            found.append(f"calls failed: {', '.join(done.report.failed)}")
        return tuple(f"{self._target.name}: {note}" for note in found)


def figures(counted: Sequence[Result], seconds: float, slo: Slo, settled: bool) -> dict[str, float]:
    """A turn's figures from the calls that count and the seconds that they took together: requests and tokens per
    second, shares from 0 to 1, latencies in seconds. Nothing where no call counts."""
    if not counted or seconds <= 0.0:
        return {}
    answered = [result for result in counted if result.fate == "ok"]
    good = sum(slo.kept(result) for result in counted)
    never = [math.inf] * (len(counted) - len(answered))
    ends = [result.e2e for result in answered if result.e2e is not None]
    found = {
        "calls": float(len(counted)),
        "qps": len(answered) / seconds,
        "output_tokens_per_s": sum(result.output_tokens or 0 for result in answered) / seconds,
        "goodput": good / seconds,
        "good_share": good / len(counted),
        "failed_share": len(never) / len(counted),
        "settled": float(settled),
        "wait": float(np.mean(ends)) if ends else math.inf,
    }
    for name, known in (("ttft", [result.ttft for result in answered]), ("e2e", ends)):
        found |= p50_and_p95(name, [value for value in known if value is not None] + never)
    return found | p50_and_p95("tpot", [result.tpot for result in answered if result.tpot is not None])
