"""A progress bar for a download, on stderr. Shows only; fetches nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from wastegate.local.download import Progress


@contextlib.contextmanager
def bar(what: str) -> Iterator[Progress]:
    """Show a bar while the block lasts; what it gives is told bytes so far and in all."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task(what, total=None)
        yield lambda have, total: shown.update(task, completed=have, total=total or None)
