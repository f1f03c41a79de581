"""What other tools recorded, taken into a ledger or audited as it is. Which reader reads which kind stands here; no
format and no figure does."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from wastegate.load import imports, imports_inference_perf, imports_litellm, imports_otlp, imports_vllm
from wastegate.load.imports import Import, Options, Reader
from wastegate.steps import audit_html
from wastegate.steps.audit import At, Report
from wastegate.steps.words import counted, instant

READERS: dict[str, Reader] = {
    "vllm": imports_vllm.read,
    "otlp": imports_otlp.read,
    "litellm": imports_litellm.read,
    "inference-perf": imports_inference_perf.read,
}
KINDS = tuple(READERS)


def take_in(kind: str, paths: Sequence[Path], into: Path, options: Options, progress: bool = False) -> Import:
    """Import files of one kind into the ledger ``into``. ``progress``: show a count on a terminal.

    Raises ValueError for a kind that is not known or a folder without records, and what ``imports.run`` raises.
    """
    if kind not in READERS:
        raise ValueError(f"{kind!r} is no kind of record: write {', '.join(KINDS)}")
    if not paths:
        raise ValueError(f"--from {kind} names no file: write it behind the kind")
    files = [file for path in paths for file in (imports_inference_perf.records(path) if path.is_dir() else [path])]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise FileNotFoundError(f"there is no file {', '.join(missing)}")
    with _counting(progress) as tick:
        return imports.run(kind, READERS[kind], files, into, options, tick)


def audited(
    kind: str,
    paths: Sequence[Path],
    options: Options,
    start: float = -math.inf,
    end: float = math.inf,
    page: Path | None = None,
    progress: bool = False,
) -> tuple[Import, Report]:
    """Import into a ledger that lives only now, and audit it; ``page`` is where to write it as a page, if anywhere.
    Raises what :func:`take_in` and ``audit.run`` raise."""
    with tempfile.TemporaryDirectory(prefix="wastegate-") as folder:
        done = take_in(kind, paths, Path(folder) / "ledger.db", options, progress)
        name = f"{', '.join(done.files)} ({kind})"
        report, series = audit_html.run(At(Path(done.ledger)), start, end)
        report = replace(report, ledger=name)
        if page is not None:
            audit_html.save(page, report, series)
    return replace(done, ledger=""), report


MEANT = frozenset({"not a completion", "not a model call", "part of another call", "no last chunk"})
"""Reasons for which a row is left out because it is no call of its own."""


def faults(done: Import) -> int:
    """Rows that should have come in and could not be read."""
    return sum(skipped.count for reason, skipped in done.skipped.items() if reason not in MEANT)


def said(done: Import) -> Iterator[str]:
    """What became of the rows, for people."""
    where = f" into {done.ledger}" if done.ledger else ""
    yield f"{counted(done.read, 'row')} of {done.kind} read, {done.imported:,} imported{where}"
    if done.known:
        yield f"  {done.known:,} were there already"
    for reason, skipped in sorted(done.skipped.items(), key=lambda item: -item[1].count):
        yield f"  {skipped.count:,} left out: {reason}"
        yield from (f"    {place}" for place in skipped.first)
        if skipped.count > len(skipped.first):
            yield f"    and {skipped.count - len(skipped.first):,} more"
    if done.start is not None and done.end is not None:
        yield f"calls from {instant(done.start)} to {instant(done.end)}, on {', '.join(done.replicas) or 'no replica'}"
    yield from done.notes


@contextmanager
def _counting(progress: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not (progress and console.is_terminal):
        yield lambda _: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.completed:,.0f} rows"), console=console, transient=True) as bar:
        task = bar.add_task("rows", total=None)

        def tick(rows: int) -> None:
            if rows % 500 == 0:
                bar.update(task, completed=rows)

        yield tick
