"""What a replay showed: every row accounted for, rates, latencies, lengths, and whether the run may be believed.
Values in, values out; no network and no clock enter here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from wastegate.core.stats import summary
from wastegate.load.openloop import Progress, Result
from wastegate.load.prompts import Source, tolerance

FLOOR = 0.95
"""Share of the offered rate under which a run shows the load tool's limits, not the server's."""
GRACE = 0.05
"""Seconds by which the last row may be late before the rate counts as missed: scheduling noise of a short run."""


FEW = 5
"""Answers in each third of a run from which on its latencies are compared."""


class Spread(Struct, frozen=True):
    """Seconds, over ``count`` requests."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Rates(Struct, frozen=True):
    """Requests per second. None where the run is too short to have a rate."""

    offered: float | None
    achieved: float | None
    """Sent, over the time it took to send them."""
    completed: float | None
    """Answered in full, over the whole run."""
    kept: float | None = None
    """The share of what came in the run's last third that the server kept up with: time over time and the latency
    that was added to it. None where there are too few answers to tell."""

    @property
    def share(self) -> float:
        """Achieved over offered; 1 where there is no rate to hold."""
        return self.achieved / self.offered if self.offered and self.achieved is not None else 1.0


class Lengths(Struct, frozen=True):
    """How well the prompts that were made met the lengths wanted, by the server's own count."""

    source: Source
    compared: int
    within: int
    """Off by no more than 2 %, or 2 tokens."""
    worst: int
    """The largest difference, in tokens."""
    mean_off: float
    """The mean difference, with its sign, as a share of the length wanted."""
    outputs_compared: int
    outputs_short: int
    """Answers that ended before the length asked for."""


class Report(Struct, frozen=True, kw_only=True):
    """One replay. ``read = sent + skipped + not_reached`` and ``sent = ok + failed + hung_up``."""

    trace: str
    format: str
    url: str
    model: str
    seed: int
    valid: bool
    invalid: tuple[str, ...]
    """Why the run may not be believed; empty if it may."""
    interrupted: bool
    notes: tuple[str, ...]
    read: int
    sent: int
    skipped: dict[str, int]
    not_reached: int
    ok: int
    failed: dict[str, int]
    hung_up: int
    clipped: int
    seconds: float
    """From the first intended send to the last answer."""
    rates: Rates
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    drift: Spread | None
    """Lateness of sending."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """None where the server does not say it for any answer."""
    input_per_second: float | None
    output_per_second: float | None
    usage: Literal["engine", "counted", "mixed", "none"]
    """Who counted the output: the server, this tool by the pieces that came (a lower bound), or both."""
    lengths: Lengths | None
    calibration_calls: int = 0
    """Calls before the run, to the tokenizer for the most part: not among the rows, but in a gateway's ledger."""


class Facts(Struct, frozen=True, kw_only=True):
    """What a report says of the run beyond its results."""

    trace: str
    format: str
    url: str
    model: str
    seed: int
    source: Source | None
    max_inflight: int
    interrupted: bool
    calibration_calls: int = 0
    notes: tuple[str, ...] = ()


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and quantiles of what is there; None if nothing is."""
    known = np.array([value for value in values if value is not None])
    found = summary(known)
    if found is None:
        return None
    return Spread(found.count, found.mean, found.p50, found.p95, found.p99, float(known.max()))


def summarise(results: Sequence[Result], progress: Progress, facts: Facts) -> Report:
    """The report of a run, from one Result a row."""
    fates = Counter(result.fate for result in results)
    sent = [result for result in results if result.fate in ("ok", "failed", "hung_up")]
    ended = [result.answer.ended - result.start for result in sent if result.answer.ended is not None]
    seconds = max(ended, default=0.0)
    ok = [result for result in sent if result.fate == "ok"]
    rates = _rates(results, sent, seconds, progress, facts.interrupted)
    invalid = _invalid(rates, sent, ok, progress, facts)
    into = sum(_prompt_tokens(result) or 0 for result in sent)
    out = sum(result.output_tokens or 0 for result in sent)
    return Report(
        trace=facts.trace,
        format=facts.format,
        url=facts.url,
        model=facts.model,
        seed=facts.seed,
        valid=not invalid,
        invalid=invalid,
        interrupted=facts.interrupted,
        notes=(*facts.notes, *_notes(sent)),
        read=len(results),
        sent=len(sent),
        skipped=_counted(result.planned.skip for result in results if result.fate == "skipped"),
        not_reached=fates["not_reached"],
        ok=len(ok),
        failed=_counted(result.answer.reason for result in sent if result.fate == "failed"),
        hung_up=fates["hung_up"],
        clipped=sum(result.planned.clipped for result in sent),
        seconds=seconds,
        rates=rates,
        ttft=spread(result.ttft for result in ok),
        tpot=spread(result.tpot for result in ok),
        e2e=spread(result.e2e for result in ok),
        drift=spread(result.drift for result in sent),
        input_tokens=into,
        output_tokens=out,
        cached_tokens=_cached(sent),
        input_per_second=into / seconds if seconds else None,
        output_per_second=out / seconds if seconds else None,
        usage=_usage(sent),
        lengths=_lengths(ok, facts.source) if facts.source else None,
        calibration_calls=facts.calibration_calls,
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _prompt_tokens(result: Result) -> int | None:
    return result.answer.usage.prompt_tokens if result.answer.usage else None


def _cached(sent: Sequence[Result]) -> int | None:
    said = [result.answer.usage.cached_tokens for result in sent if result.answer.usage]
    known = [tokens for tokens in said if tokens is not None]
    return sum(known) if known else None


def _usage(sent: Sequence[Result]) -> Literal["engine", "counted", "mixed", "none"]:
    told = sum(bool(result.answer.usage and result.answer.usage.output_tokens is not None) for result in sent)
    counted = sum(result.output_tokens is not None for result in sent) - told
    if told and counted:
        return "mixed"
    return "engine" if told else "counted" if counted else "none"


def _rates(
    results: Sequence[Result], sent: Sequence[Result], seconds: float, progress: Progress, interrupted: bool
) -> Rates:
    """Gaps over time: n rows make n − 1 gaps. A stopped run is judged by the rows that were due until then."""
    completed = sum(result.fate == "ok" for result in sent) / seconds if seconds else None
    until = progress.sending_ended if interrupted and progress.sending_ended is not None else float("inf")
    due = [result.planned.at for result in results if result.fate != "skipped" and result.planned.at <= until]
    times = sorted(result.planned.at + (result.drift or 0.0) for result in sent)
    if len(due) < 2 or len(times) < 2 or due[-1] <= due[0]:
        return Rates(None, None, completed)
    late = max(0.0, times[-1] - due[-1] - GRACE)
    span = due[-1] - due[0]
    return Rates((len(due) - 1) / span, (len(times) - 1) / (span + late), completed, _kept(sent, due[0], span))


def _kept(sent: Sequence[Result], first: float, span: float) -> float | None:
    """A server that does a share s of what comes adds (1/s − 1) seconds of latency a second.

    The last third of the run is held against the middle one: in the first, the server is still filling up. Twice
    the standard error of the difference is put down to chance.
    """
    third = span / 3
    timed = [(result.planned.at - first, result.e2e) for result in sent if result.e2e is not None]
    middle = np.array([e2e for at, e2e in timed if third < at <= 2 * third])
    last = np.array([e2e for at, e2e in timed if at > 2 * third])
    if min(middle.size, last.size) < FEW:
        return None
    error = (middle.var(ddof=1) / middle.size + last.var(ddof=1) / last.size) ** 0.5
    added = max(0.0, float(last.mean() - middle.mean() - 2 * error))
    return third / (third + added)


def _invalid(
    rates: Rates, sent: Sequence[Result], ok: Sequence[Result], progress: Progress, facts: Facts
) -> tuple[str, ...]:
    if not sent:
        return ("no request was sent",)
    if not ok and all(result.fate == "failed" for result in sent):
        return ("no request was answered in full",)
    if rates.offered is None or rates.achieved is None:
        return ()
    if rates.share < FLOOR:
        cause = (
            f"the bound of {facts.max_inflight} in flight held rows back {progress.held} times: offer less, or raise "
            "--max-inflight"
            if progress.held
            else "this machine could not send in time: offer less, or send from a freer machine"
        )
        return (
            f"sent {rates.achieved:.3g} requests/s where {rates.offered:.3g} were offered "
            f"({rates.share:.0%}, below {FLOOR:.0%}): {cause}",
        )
    if rates.kept is not None and rates.kept < FLOOR:
        return (
            f"the server fell behind: it kept up with {rates.kept:.0%} of what came, below {FLOOR:.0%}, so that "
            f"latency grows with the length of the run. Offer less than {rates.offered:.3g} requests/s",
        )
    return ()


def _notes(sent: Sequence[Result]) -> list[str]:
    notes: list[str] = []
    seen: set[str] = set()
    for result in sent:
        answer = result.answer
        if result.fate == "failed" and answer.detail and answer.reason not in seen and len(seen) < 5:
            seen.add(answer.reason)
            notes.append(f"first {answer.reason!r}, row {result.planned.number}: {answer.detail}")
    return notes


def _lengths(ok: Sequence[Result], source: Source) -> Lengths | None:
    pairs = [
        (result.planned.input_tokens, tokens)
        for result in ok
        if result.planned.input_tokens is not None and (tokens := _prompt_tokens(result)) is not None
    ]
    outputs = [
        (result.planned.output_tokens, result.output_tokens)
        for result in ok
        if result.planned.input_tokens is not None and result.output_tokens is not None
    ]
    if not pairs and not outputs:
        return None
    gaps = [actual - wanted for wanted, actual in pairs]
    return Lengths(
        source=source,
        compared=len(pairs),
        within=sum(abs(actual - wanted) <= tolerance(wanted) for wanted, actual in pairs),
        worst=max(gaps, key=abs, default=0),
        mean_off=float(np.mean([gap / wanted for gap, (wanted, _) in zip(gaps, pairs, strict=True)])) if pairs else 0.0,
        outputs_compared=len(outputs),
        outputs_short=sum(actual < (wanted or 0) for wanted, actual in outputs),
    )
