"""Exported calls as files: JSON lines, CSV or Parquet, whole or not at all. Columns and bytes only; what they hold is
worked out elsewhere."""

from __future__ import annotations

import csv
import importlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import Progress

from wastegate.store.entries import Ledger
from wastegate.store.export import Bill, Call, Sweep
from wastegate.store.export_columns import ATTEMPTS, ENTRIES, REPLICAS, Column, Tried

Format = Literal["jsonl", "csv", "parquet"]
GROUP = 50_000
"""Rows in one row group of a Parquet file."""


class MissingPackageError(RuntimeError):
    """A format whose package is not installed; the text says how to get it."""


class Done(Struct, frozen=True):
    """What was written."""

    calls: int
    attempts: int
    files: tuple[str, ...]


def export(source: Path, start: float, end: float, folder: Path, form: Format, progress: bool = False) -> Done:
    """Export the ledger ``source``. ``progress``: show a bar on a terminal.

    Raises what ``Ledger`` and ``Files`` raise, and ValueError for a window that ends before it starts.
    """
    calls = attempts = 0
    with Ledger(source, create=False) as ledger:
        sweep = Sweep(ledger, start, end)
        console = Console(stderr=True)
        bar = Progress(console=console, transient=True, disable=not (progress and console.is_terminal))
        with Files(folder, form) as files, bar:
            task = bar.add_task("calls", total=ledger.count() if math.isinf(start) and math.isinf(end) else None)
            for some in sweep.calls():
                files.add(some)
                calls += len(some)
                attempts += sum(len(call.charges) for call in some)
                bar.update(task, completed=calls)
            files.finish(sweep.bills)
    return Done(calls, attempts, tuple(str(path) for path in files.paths))


class Files:
    """The files of one export. They get their names when the block ends well; otherwise nothing is left.

    Raises MissingPackageError for Parquet without pyarrow, OSError where the folder cannot be written.
    """

    def __init__(self, folder: Path, form: Format) -> None:
        self._arrow = _arrow() if form == "parquet" else None
        self._folder, self._form = folder, form
        self._sheets: dict[Path, _Lines | _Csv | _Parquet] = {}

    def __enter__(self) -> Files:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._entries = self._sheet("entries", ENTRIES)
            self._attempts = None if self._form == "jsonl" else self._sheet("attempts", ATTEMPTS)
            self._replicas = self._sheet("replicas", REPLICAS)
        except BaseException:
            self._end(well=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(well=error is None)

    def _end(self, well: bool) -> None:
        try:
            for sheet in self._sheets.values():
                sheet.close()
        except BaseException:
            well = False
            raise
        finally:
            for path in self._sheets:
                if well:
                    _beside(path).replace(path)
                else:
                    _beside(path).unlink(missing_ok=True)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._sheets)

    def add(self, calls: Sequence[Call]) -> None:
        """The next calls, and their attempts."""
        if self._attempts is None:
            self._entries.write([_line(call) for call in calls])
            return
        self._entries.write(calls)
        self._attempts.write(
            [
                Tried(call.entry, attempt, charge)
                for call in calls
                for attempt, charge in zip(call.entry.attempts, call.charges, strict=True)
            ]
        )

    def finish(self, bills: Iterable[Bill]) -> None:
        """What the replicas cost: the last thing that is known."""
        some = list(bills)
        self._replicas.write([_named(bill) for bill in some] if self._form == "jsonl" else some)

    def _sheet(self, name: str, columns: Sequence[Column[Any]]) -> _Lines | _Csv | _Parquet:
        path = self._folder / f"{name}.{self._form}"
        beside = _beside(path)
        if self._arrow is not None:
            self._sheets[path] = _Parquet(beside, columns, self._arrow)
        else:
            self._sheets[path] = _Lines(beside) if self._form == "jsonl" else _Csv(beside, columns)
        return self._sheets[path]


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _line(call: Call) -> dict[str, Any]:
    """An entry as the ledger knows it, with a charge in each attempt: `wastegate replay` reads it as a trace."""
    line: dict[str, Any] = msgspec.to_builtins(call.entry)
    for attempt, charge in zip(line["attempts"], call.charges, strict=True):
        attempt["charge"] = charge
    return line


def _named(bill: Bill) -> dict[str, Any]:
    return {column.name: column.read(bill) for column in REPLICAS}


class _Lines:
    """JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, rows: Sequence[Any]) -> None:
        self._file.write(self._encoder.encode_lines(rows))

    def close(self) -> None:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())


class _Csv:
    """Comma-separated values with a header, in UTF-8; what is not known is empty."""

    def __init__(self, path: Path, columns: Sequence[Column[Any]]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._readers = [_worded(column) if column.kind == "bool" else column.read for column in columns]
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow([column.name for column in columns])

    def write(self, rows: Sequence[Any]) -> None:
        self._writer.writerows([read(row) for read in self._readers] for row in rows)

    def close(self) -> None:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())


def _worded(column: Column[Any]) -> Callable[[Any], str]:
    """Truth as JSON writes it."""
    return lambda row: "true" if column.read(row) else "false"


class _Parquet:
    """A Parquet file; each column says in its metadata what it means."""

    def __init__(self, path: Path, columns: Sequence[Column[Any]], arrow: ModuleType) -> None:
        self._arrow, self._columns = arrow, columns
        kinds = {"string": arrow.string(), "int64": arrow.int64(), "double": arrow.float64(), "bool": arrow.bool_()}
        self._schema = arrow.schema(
            [arrow.field(column.name, kinds[column.kind], metadata={"about": column.about}) for column in columns]
        )
        writer = importlib.import_module("pyarrow.parquet").ParquetWriter
        self._file = path.open("wb")
        self._writer = writer(self._file, self._schema, compression="zstd")
        self._held: list[Any] = []
        self._count = 0

    def write(self, rows: Sequence[Any]) -> None:
        values = {column.name: [column.read(row) for row in rows] for column in self._columns}
        self._held.append(self._arrow.Table.from_pydict(values, self._schema))
        self._count += len(rows)
        if self._count >= GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(self._arrow.concat_tables(self._held))
        self._held, self._count = [], 0

    def close(self) -> None:
        with self._file as file:
            self._flush()
            self._writer.close()
            file.flush()
            os.fsync(file.fileno())


def _arrow() -> ModuleType:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise MissingPackageError(
            "Parquet needs pyarrow, which is not installed: pip install 'wastegate[export]', or take --format csv"
        ) from None
