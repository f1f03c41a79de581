"""The ledger: every call that ended and every replica's spans, in SQLite. Facts only; what they cost is worked out
by whoever reads them. One thread at a time; another process may read meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from wastegate.core.facts import Facts
from wastegate.core.ledger import EngineRecord, Entry, ReplicaSpan
from wastegate.core.records import Cursor, Heard
from wastegate.store import records, rows
from wastegate.store.columns import read_facts
from wastegate.store.prompts import PromptRows, read_prompts
from wastegate.store.schema import LedgerError, migrate

BUSY_SECONDS = 10.0
_span = msgspec.json.Decoder(ReplicaSpan)


class Ledger:
    """An open ledger file.

    Raises LedgerError if the file cannot be used, SchemaTooNew if a newer wastegate wrote it, and
    FileNotFoundError where ``create`` is False and there is none.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if not create and not path.is_file():
            raise FileNotFoundError(
                f"there is no ledger at {path}: `wastegate up` writes one; --ledger names another place"
            )
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
            )
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"cannot open the ledger {path}: {error}") from error
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            # FULL: a journal segment is deleted once its entries are here, so here must mean on the disk.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA journal_size_limit = 67108864")
            migrate(self._db, str(path))
        except sqlite3.Error as error:
            self._db.close()
            if isinstance(error, LedgerError):
                raise
            raise LedgerError(f"cannot open the ledger {path}: {error}") from error
        self._labels: dict[str, int] = {}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, entries: Sequence[Entry]) -> int:
        """Store those that are not here yet, all or none of them; how many were new. Raises LedgerError."""
        fresh = {entry.id: entry for entry in reversed(entries)}  # of two with one id the first counts
        try:
            with _Transaction(self._db, self.path):
                for known in rows.present(self._db, list(fresh)):
                    del fresh[known]
                rows.insert(self._db, self._labels, list(reversed(fresh.values())))
        except BaseException:
            self._labels.clear()  # what was rolled back may get another number next time
            raise
        return len(fresh)

    def save_spans(self, spans: Sequence[ReplicaSpan]) -> None:
        """Store spans, each over its last version: replica, phase and start say which it is. Raises LedgerError."""
        values = [(s.replica, s.phase, s.start, msgspec.json.encode(s).decode()) for s in spans]
        with _Transaction(self._db, self.path):
            self._db.executemany("INSERT OR REPLACE INTO span VALUES (?, ?, ?, ?)", values)

    def save_records(self, heard: Sequence[Heard]) -> None:
        """Store what engines have told, and how far each was read; twice is as once. Raises LedgerError."""
        with _Transaction(self._db, self.path):
            records.insert(self._db, heard)

    def cursors(self) -> dict[str, Cursor]:
        """How far each replica's records have been read."""
        return records.cursors(self._db)

    def records(self, entry: str) -> list[tuple[int, EngineRecord]]:
        """What engines tell of the call with exactly this id: attempt numbers, and records."""
        return records.of_entry(self._db, entry)

    def spans(self) -> tuple[ReplicaSpan, ...]:
        """All spans, by replica and start."""
        bodies = self._db.execute("SELECT body FROM span ORDER BY replica, start, phase")
        return tuple(_span.decode(body) for (body,) in bodies)

    def count(self) -> int:
        """How many calls are stored."""
        (count,) = self._db.execute("SELECT count(*) FROM entry").fetchone()
        return int(count)

    def facts(self, start: float, end: float) -> Facts:
        """What touches the window [start, end), in epoch seconds; infinite for no bound."""
        with self.still():
            return read_facts(self._db, start, end, self.spans())

    @contextmanager
    def still(self) -> Iterator[None]:
        """All that is read within is of one instant, though a gateway writes meanwhile."""
        if self._db.in_transaction:
            yield
            return
        with _Transaction(self._db, self.path, "DEFERRED"):
            yield

    def begins(self) -> float | None:
        """The first moment that is known here: of a replica's life, or of a call. None where nothing is."""
        (arrived,) = self._db.execute("SELECT min(arrived) FROM entry").fetchone()
        (start,) = self._db.execute("SELECT min(start) FROM span").fetchone()
        return min((float(one) for one in (arrived, start) if one is not None), default=None)

    def cuts(self, start: float, end: float, every: int) -> list[float]:
        """Instants, rising, that cut [start, end) so that about ``every`` calls end between two of them, and each call
        of the window touches one of the pieces."""
        found = self._db.execute(
            """SELECT DISTINCT last FROM (SELECT last, row_number() OVER (ORDER BY last) AS place FROM entry
               WHERE last >= ? AND last < ?) WHERE place % ? = 0 ORDER BY last""",
            (start, end, every),
        )
        # Where the clock was set back a call may seem to end before it arrived: a cut between the two would lose it.
        back = self._db.execute("SELECT last, arrived FROM entry WHERE arrived > last").fetchall()
        return [
            float(cut) for (cut,) in found if cut > start and not any(last < cut <= arrived for last, arrived in back)
        ]

    def read(self, keys: Sequence[int]) -> list[Entry]:
        """The calls with these row keys (``Calls.key`` in facts), whole, by key within each few hundred of them."""
        return rows.read(self._db, keys)

    def prompts(self, first: int, last: int) -> Iterator[PromptRows]:
        """What is known of the prompts of calls with these row keys and those between, some thousand at a time."""
        return read_prompts(self._db, first, last)

    def names(self, labels: Iterable[int]) -> dict[int, str]:
        """The texts of labels, such as those of ``Facts.tags``."""
        return rows.texts(self._db, sorted({int(label) for label in labels}))

    def key(self, prefix: str) -> int:
        """The row key (``Calls.key`` in facts) of the call whose id is, or alone begins with, ``prefix``.

        Raises KeyError with a sentence for the reader.
        """
        found = self._db.execute(
            "SELECT seq, id FROM entry_text WHERE id >= ? AND id < ? ORDER BY id LIMIT 6",
            (prefix, prefix + "\U0010ffff"),
        ).fetchall()
        if not prefix or not found:
            raise KeyError(f"no call in {self.path} has an id that begins with {prefix!r}")
        if len(found) > 1 and found[0][1] != prefix:
            some = ", ".join(name for _, name in found[:5]) + " …" * (len(found) > 5)
            raise KeyError(f"several calls have an id that begins with {prefix!r}: {some}")
        return int(found[0][0])

    def entry(self, prefix: str) -> Entry:
        """That call, whole. Raises KeyError as :meth:`key` does."""
        return rows.read(self._db, [self.key(prefix)])[0]


class _Transaction:
    """All or nothing; SQLite's errors become LedgerError with the file's name."""

    def __init__(self, connection: sqlite3.Connection, path: Path, kind: str = "IMMEDIATE") -> None:
        self._db, self._path, self._kind = connection, path, kind

    def __enter__(self) -> None:
        try:
            self._db.execute(f"BEGIN {self._kind}")
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self._path} cannot be used now: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = error
        if failure is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as refused:
                failure = refused
        if failure is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")
        # The last two: a value that SQLite cannot hold. A background writer must hear of it as of any other.
        if isinstance(failure, sqlite3.Error | OverflowError | UnicodeError):
            raise LedgerError(f"the ledger {self._path} failed: {failure}") from failure
