"""``wastegate simulate`` as a person runs it: flags, progress, what is printed and left behind. Nothing is simulated or
counted here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wastegate.load.rows import TraceError
from wastegate.steps import page, whatif_view
from wastegate.steps.whatif import Report, Told, Where, judge, run
from wastegate.steps.whatif_file import FileError, read
from wastegate.steps.whatif_sweep import SweepError, here, on_ray, points, sweep


def where_from(flags: argparse.Namespace) -> Where:
    """Raises FileError."""
    raw = read(flags.config)
    return Where(
        name=str(flags.config), raw=raw, text=flags.config.read_text(encoding="utf-8"),
        trace="" if flags.trace is None else str(flags.trace), calls=flags.calls, like=flags.like, speed=flags.speed,
        rate=flags.rate,
    )  # fmt: skip


def command(flags: argparse.Namespace) -> int:
    """0 shown, 1 held (there is a reason not to trust the figures), 2 bad usage or input."""
    try:
        where = where_from(flags)
        reports = _many(where, flags) if flags.sweep else [_one(where, flags.no_progress)]
    except (FileError, SweepError, TraceError, ValueError, OSError) as error:
        print(f"wastegate simulate: {error}", file=sys.stderr)
        return 2
    verdicts = [judge(report) for report in reports]
    if flags.html is not None:
        try:
            page.write(flags.html, whatif_view.html(reports, verdicts))
        except OSError as error:
            print(f"wastegate simulate: {flags.html}: cannot be written ({error.strerror})", file=sys.stderr)
            return 2
    if flags.json:
        pairs = [{"report": one, "verdict": two} for one, two in zip(reports, verdicts, strict=True)]
        print(msgspec.json.format(msgspec.json.encode(pairs if flags.sweep else pairs[0])).decode())
    else:
        shown = whatif_view.many(reports, verdicts) if flags.sweep else whatif_view.view(reports[0], verdicts[0])
        Console().print(shown)
    return 1 if any(verdict.ruling != "pass" for verdict in verdicts) else 0


def _one(where: Where, quiet: bool) -> Report:
    with _progress(quiet, "calls", None) as told:
        return run(where, told)


def _many(where: Where, flags: argparse.Namespace) -> Sequence[Report]:
    jobs = points(where, flags.sweep)
    spread = on_ray(flags.ray) if flags.ray else here(flags.processes or len(os.sched_getaffinity(0)))
    with _progress(flags.no_progress, "runs", len(jobs)) as told:
        return sweep(jobs, spread, told)


@contextmanager
def _progress(quiet: bool, what: str, total: int | None) -> Iterator[Told | None]:
    if quiet:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
