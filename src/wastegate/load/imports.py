"""Calls that other tools recorded, into a ledger: what was read, what came in, and what did not and why, so that the
counts reconcile. How each tool writes stands in the readers; nothing here knows a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from wastegate.core.ledger import NANO, Entry, ReplicaSpan
from wastegate.load.documents import Unread
from wastegate.store.entries import Ledger

BATCH = 2_000
SHOWN = 5
"""Places named for one reason."""


class Options(Struct, frozen=True):
    """What the files do not say. ``replica``: the one that all calls ran on, where empty the file's own.
    ``start``: when the first call arrived, for files whose clock has no date."""

    replica: str = ""
    model: str = ""
    start: float | None = None
    price: int = 0
    """Nano-dollars an hour of each replica; 0: not known."""


class Note(Struct, frozen=True):
    """Something that a reader must be told of a file, beside its rows."""

    text: str


Read = Iterator[Entry | Unread | Note]
Reader = Callable[[Path, Options], Read]


class Skipped(Struct, frozen=True):
    """Rows that did not come in for one reason, and where the first of them are."""

    count: int
    first: tuple[str, ...]


class Import(Struct, frozen=True):
    """``read = imported + known + all of skipped``."""

    kind: str
    files: tuple[str, ...]
    ledger: str
    read: int
    imported: int
    known: int
    """That were there already, by their ids."""
    skipped: dict[str, Skipped]
    replicas: tuple[str, ...]
    start: float | None
    """When the first imported call arrived, and the last one ended."""
    end: float | None
    notes: tuple[str, ...]

    @property
    def reconciles(self) -> bool:
        return self.read == self.imported + self.known + sum(one.count for one in self.skipped.values())


def run(
    kind: str,
    reader: Reader,
    paths: Sequence[Path],
    into: Path,
    options: Options,
    tick: Callable[[int], None] = lambda _: None,
) -> Import:
    """Read the files into the ledger ``into``, which is made if it is not there. Importing a file twice changes
    nothing. ``tick`` is told of rows read. Raises OSError for a file, LedgerError for the ledger."""
    count = _Count()
    with Ledger(into) as ledger:
        for path in paths:
            batch: list[Entry] = []
            for row in reader(path, options):
                if isinstance(row, Note):
                    count.notes.append(row.text)
                    continue
                count.read += 1
                tick(count.read)
                if isinstance(row, Unread):
                    count.skip(row)
                    continue
                batch.append(row)
                if len(batch) >= BATCH:
                    count.add(ledger, batch)
                    batch = []
            count.add(ledger, batch)
        spans = count.spans(kind, options.price)
        ledger.save_spans(spans)
    notes = list(dict.fromkeys(count.notes))
    if spans:
        notes.append(
            "A replica's up time is taken to last from its first call to the end of its last: what it cost before, "
            "after, or while another tool sent it calls is in no figure."
        )
    if not options.price and spans:
        notes.append("No price was given: with --price-per-hour the calls have a cost.")
    return Import(
        kind=kind,
        files=tuple(str(path) for path in paths),
        ledger=str(into),
        read=count.read,
        imported=count.imported,
        known=count.known,
        skipped={reason: Skipped(number, tuple(count.first[reason])) for reason, number in count.skipped.items()},
        replicas=tuple(sorted(count.life)),
        start=count.start,
        end=count.end,
        notes=tuple(notes),
    )


class _Count:
    """What has been read so far."""

    def __init__(self) -> None:
        self.read = self.imported = self.known = 0
        self.skipped: dict[str, int] = {}
        self.first: dict[str, list[str]] = {}
        self.life: dict[str, tuple[float, float]] = {}
        self.notes: list[str] = []
        self.start: float | None = None
        self.end: float | None = None

    def skip(self, row: Unread) -> None:
        self.skipped[row.reason] = self.skipped.get(row.reason, 0) + 1
        places = self.first.setdefault(row.reason, [])
        if len(places) < SHOWN:
            places.append(f"{row.where}: {row.detail}" if row.detail else row.where)

    def add(self, ledger: Ledger, batch: Sequence[Entry]) -> None:
        new = ledger.add(batch)
        self.imported += new
        self.known += len(batch) - new
        for entry in batch:
            self.start = min(entry.arrived, entry.arrived if self.start is None else self.start)
            self.end = max(entry.ended, entry.ended if self.end is None else self.end)
            for attempt in entry.attempts:
                first, last = self.life.get(attempt.replica, (attempt.claimed, attempt.ended))
                self.life[attempt.replica] = (min(first, attempt.claimed), max(last, attempt.ended))

    def spans(self, kind: str, price: int) -> list[ReplicaSpan]:
        return [
            ReplicaSpan(name, "serving", first, last, price, seen=last, engine=f"imported: {kind}")
            for name, (first, last) in sorted(self.life.items())
        ]


def price_of(dollars: float | None) -> int:
    """Nano-dollars an hour. Raises ValueError."""
    if dollars is None:
        return 0
    if not 0 < dollars < 1e6:
        raise ValueError(f"--price-per-hour is {dollars}: it must be above 0 and below a million dollars")
    return round(dollars * NANO)
