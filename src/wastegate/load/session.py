"""A replay as a person runs it: signals, the live display, the files that are left. How rows are sent stays out."""

from __future__ import annotations

import asyncio
import os
import signal
from argparse import Namespace
from asyncio import Task
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console

from wastegate.load.display import show
from wastegate.load.openloop import Loop, Result
from wastegate.load.replay import Config, Replay, Replayed
from wastegate.load.report import Report
from wastegate.load.schedule import Pace
from wastegate.load.traces import SAMPLE


class RowRecord(Struct, frozen=True, kw_only=True):
    """One line of a saved replay. Times are seconds after the run's start, durations seconds from the intended send."""

    row: int
    line: int
    """Where the row stands in the trace."""
    fate: str
    reason: str
    at: float
    drift: float | None
    ttft: float | None
    tpot: float | None
    e2e: float | None
    status: int | None
    path: str
    wanted_input: int | None
    wanted_output: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    clipped: bool
    finish_reason: str
    client_id: str
    """The x-request-id that was sent."""
    request_id: str
    """The server's own, where it names one."""
    tenant: str
    route: str
    tags: dict[str, str]


class EarlyStopError(RuntimeError):
    """A signal came before the first row was sent: there is nothing to report."""


async def watched(replay: Replay, console: Console | None) -> Replayed:
    """Run to the end. The first SIGINT or SIGTERM stops sending, the second also aborts what is in flight; the
    report of what ran comes back either way. Raises EarlyStopError if nothing ran yet."""
    display = asyncio.create_task(show(replay.progress, console)) if console is not None else None
    work = asyncio.create_task(replay.go())

    def asked() -> None:
        if replay.sending:
            replay.stop.ask()
        else:
            work.cancel()

    if not await attend(work, display, asked):
        raise EarlyStopError("interrupted before the first row was sent")
    return work.result()


async def attend(work: Task[Any], display: Task[None] | None, asked: Callable[[], None]) -> bool:
    """Let work run to its end, ``asked`` being called at each SIGINT and SIGTERM; both tasks have ended afterwards.
    False where the work was cancelled."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        await asyncio.wait((work,))
        return not work.cancelled()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        tasks = [task for task in (display, work) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def record(result: Result) -> RowRecord:
    """What is kept of a row: measures and labels, never text."""
    row, answer = result.planned.row, result.answer
    usage = answer.usage
    return RowRecord(
        row=result.planned.number,
        line=row.line,
        fate=result.fate,
        reason=result.planned.skip if result.fate == "skipped" else answer.reason if result.fate == "failed" else "",
        at=round(result.planned.at, 6),
        drift=_micro(result.drift),
        ttft=_micro(result.ttft),
        tpot=_micro(result.tpot),
        e2e=_micro(result.e2e),
        status=answer.status,
        path=result.path,
        wanted_input=result.planned.input_tokens,
        wanted_output=result.planned.output_tokens,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=result.output_tokens,
        clipped=result.planned.clipped,
        finish_reason=answer.finish_reason,
        client_id=result.client_id,
        request_id=answer.request_id,
        tenant=row.tenant,
        route=row.route,
        tags=dict(row.tags),
    )


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def save(results: Iterable[Result], path: Path) -> None:
    """Write one JSON line a row, whole or not at all. Raises OSError where the place cannot be written."""
    beside = path.with_name(path.name + ".partial")
    with beside.open("wb") as file:
        for result in results:
            file.write(msgspec.json.encode(record(result)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def config_from(flags: Namespace, environment: Mapping[str, str]) -> Config:
    """The replay that a command line asks for. Raises ValueError for flags that do not fit."""
    if flags.api_key_env and flags.api_key_env not in environment:
        raise ValueError(f"--api-key-env {flags.api_key_env}: there is no such environment variable")
    return Config(
        trace=SAMPLE if flags.trace == Path("sample") and not flags.trace.exists() else flags.trace,
        url=flags.url,
        format=flags.format,
        pace=Pace(
            speed=flags.speed,
            rate=flags.rate,
            limit=flags.limit,
            duration=flags.duration,
            token_scale=flags.token_scale,
            seed=flags.seed,
        ),
        loop=Loop(max_inflight=flags.max_inflight, drain=flags.drain),
        model=flags.model,
        endpoint=flags.endpoint,
        on_misfit=flags.on_misfit,
        ignore_eos=flags.ignore_eos,
        temperature=flags.temperature,
        stream=not flags.no_stream,
        timeout=flags.timeout,
        api_key=environment[flags.api_key_env] if flags.api_key_env else flags.api_key,
        headers=tuple(_header(text) for text in flags.header),
        tenant=flags.tenant,
        tenant_header=flags.tenant_header,
        fresh_connections=flags.fresh_connections,
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise ValueError(f"--header {text!r} must look like 'name: value'")
    return name.strip(), value.strip()


def exit_code(report: Report) -> int:
    """130 for an interrupted run, 1 for one that is not valid, else 0."""
    return 130 if report.interrupted else 0 if report.valid else 1
