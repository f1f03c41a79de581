"""An audit of another tool's load test: what each stage cost, and which of its figures may not be believed. It reads
reports; it sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from wastegate.core.ledger import NANO
from wastegate.load import stages
from wastegate.load.documents import Unread
from wastegate.load.stages import Client, Run, Stage
from wastegate.steps.verdict import Verdict

SLACK = 0.05
"""Part by which the two sides of one stage may differ: scrapes come every few seconds, stages last a minute."""
FLOOR = 0.95
"""A stage that answered less than this part of what it asked for does not show its rate, but the most that was got."""
CLIENT_BOUND = 0.85
"""From this part of the client's own limit on, its waiting is in the latencies."""

Kind = Literal["window", "dead metric", "length", "overloaded", "client bound", "failed", "unread"]


class Row(Struct, frozen=True):
    """One stage, by its client alone."""

    number: int
    asked: float | None
    rate: float
    count: int
    p95: float | None
    ttft_p95: float | None
    in_flight: float | None
    per_thousand: float | None
    """US dollars for 1,000 requests, at the price that was given; None without one."""
    million_out: float | None
    """US dollars for a million output tokens, prompts and all."""


class Finding(Struct, frozen=True):
    """Something that a reader of this run would get wrong."""

    run: str
    kind: Kind
    stages: tuple[int, ...]
    text: str


class Tested(Struct, frozen=True):
    """One run."""

    name: str
    rows: tuple[Row, ...]
    most: float
    """The highest rate that was answered, requests a second."""


class Report(Struct, frozen=True):
    """``read`` files = those whose figures stand in ``runs`` or that findings are about, and ``unread``."""

    runs: tuple[Tested, ...]
    findings: tuple[Finding, ...]
    read: int
    unread: tuple[Unread, ...]
    price: float | None
    """US dollars an hour."""


def run(paths: Sequence[Path], price: int = 0) -> Report:
    """Audit the runs below these folders; ``price`` in nano-dollars an hour of what served them, 0 for unknown.
    Raises what ``stages.read`` raises."""
    runs = stages.read(paths)
    return Report(
        runs=tuple(_tested(one, price) for one in runs),
        findings=tuple(finding for one in runs for finding in _findings(one)),
        read=sum(one.read for one in runs),
        unread=tuple(fault for one in runs for fault in one.unread),
        price=price / NANO if price else None,
    )


def judge(report: Report) -> Verdict:
    """Whether the reports can be taken as they stand."""
    kinds = {
        "window": "the server's figures are of another window than the client's: only the client's are shown",
        "dead metric": "a metric that reads 0 throughout was not measured: it is not shown",
        "length": "the server's prompt lengths are not those that were sent",
        "overloaded": "some stages could not send what they were to: their latencies are those of a full queue",
        "client bound": "some latencies are bounded by the client's own limit",
        "failed": "some requests failed: latencies are of the others",
        "unread": "some files could not be read",
    }
    found = {finding.kind for finding in report.findings} | ({"unread"} if report.unread else set())
    return Verdict.of((), (said for kind, said in kinds.items() if kind in found))


def _tested(one: Run, price: int) -> Tested:
    return Tested(
        one.name,
        tuple(_row(stage, price / NANO / 3600) for stage in one.stages),
        max((stage.client.rate for stage in one.stages), default=0.0),
    )


def _row(stage: Stage, second: float) -> Row:
    """``second``: dollars a second."""
    client = stage.client
    return Row(
        number=stage.number,
        asked=client.asked,
        rate=client.rate,
        count=client.count,
        p95=client.p95,
        ttft_p95=client.ttft_p95,
        in_flight=client.in_flight,
        per_thousand=second / client.rate * 1000 if second else None,
        million_out=second / client.output_rate * 1e6 if second and client.output_rate else None,
    )


def _findings(one: Run) -> Iterator[Finding]:
    for find in (_windows, _dead, _lengths, _overloaded, _client_bound, _failed):
        finding = find(one)
        if finding is not None:
            yield finding


def _where(one: Run, is_one: Callable[[Stage], bool]) -> list[Stage]:
    return [stage for stage in one.stages if is_one(stage)]


def _numbers(some: Sequence[Stage]) -> tuple[int, ...]:
    return tuple(stage.number for stage in some)


def _apart(one: float, other: float) -> bool:
    return abs(one - other) > SLACK * max(abs(one), abs(other))


def _windows(one: Run) -> Finding | None:
    """Both sides counted requests: over the same window they would be the same ones."""

    def differs(stage: Stage) -> bool:
        server = stage.server
        if server is None:
            return False
        return _apart(server.count, stage.client.count) or _apart(server.seconds, stage.client.seconds)

    some = _where(one, differs)
    if not some:
        return None
    worst = max(some, key=lambda stage: _ratio(stage))
    client, server = worst.client, worst.server
    assert server is not None
    return Finding(
        one.name,
        "window",
        _numbers(some),
        f"in stage {worst.number} Prometheus counts {server.count:,} requests over {server.seconds:.0f} s, and the "
        f"client {client.count:,} over {client.seconds:.0f} s: it looked at another window, which holds other requests "
        "too. None of its figures is used.",
    )


def _ratio(stage: Stage) -> float:
    return stage.server.count / max(stage.client.count, 1) if stage.server is not None else 0.0


def _dead(one: Run) -> Finding | None:
    """A request in flight holds KV: a usage of exactly 0 in every quantile of every stage was never measured."""
    read = _where(one, lambda stage: stage.server is not None and bool(stage.server.kv))
    busy = [stage for stage in read if (stage.client.in_flight or 0.0) > 0]
    if not busy or any(value for stage in read if stage.server is not None for value in stage.server.kv or ()):
        return None
    most = max(stage.client.in_flight or 0.0 for stage in busy)
    return Finding(
        one.name,
        "dead metric",
        _numbers(read),
        f"kv_cache_usage_percentage reads 0 in all {len(read)} stages, though up to {most:.0f} requests were in "
        "flight, each of which holds KV. The metric is dead, not zero. The likely cause: vLLM renamed "
        "gpu_cache_usage_perc to kv_cache_usage_perc, and a query for the old name finds nothing.",
    )


def _lengths(one: Run) -> Finding | None:
    def differs(stage: Stage) -> bool:
        server, sent = stage.server, stage.client.prompt
        return server is not None and server.prompt is not None and sent is not None and _apart(server.prompt, sent)

    some = _where(one, differs)
    if not some:
        return None
    worst = max(some, key=_length)
    return Finding(
        one.name,
        "length",
        _numbers(some),
        f"in stage {worst.number} Prometheus gives a mean prompt of {_length(worst):,.0f} tokens, and the client sent "
        f"{worst.client.prompt:,.0f}.",
    )


def _length(stage: Stage) -> float:
    return (stage.server.prompt or 0.0) if stage.server is not None else 0.0


def _short(client: Client) -> bool:
    return client.asked is not None and client.rate < FLOOR * client.asked


def _overloaded(one: Run) -> Finding | None:
    some = _where(one, lambda stage: _short(stage.client))
    if not some:
        return None
    most = max(stage.client.rate for stage in some)
    last = some[-1].client
    return Finding(
        one.name,
        "overloaded",
        _numbers(some),
        f"asked for up to {last.asked:.1f} requests a second, it answered at most {most:.1f}: these stages show where "
        "the run is full, and no latency at their rate.",
    )


def _client_bound(one: Run) -> Finding | None:
    cap = one.most_in_flight
    if cap is None:
        return None
    some = _where(one, lambda stage: (stage.client.in_flight or 0.0) >= CLIENT_BOUND * cap)
    if not some:
        return None
    flights = [stage.client.in_flight or 0.0 for stage in some]
    return Finding(
        one.name,
        "client bound",
        _numbers(some),
        f"{min(flights):.0f} to {max(flights):.0f} requests were in flight, of {cap:,} that the client may have open: "
        "with more workers the latencies would be longer.",
    )


def _failed(one: Run) -> Finding | None:
    some = _where(one, lambda stage: stage.client.failed > 0)
    if not some:
        return None
    return Finding(one.name, "failed", _numbers(some), f"{sum(s.client.failed for s in some):,} requests failed.")
