"""Every call written down: at once in the journal, soon after in the ledger. The hot path only ever appends a line;
a thread of its own feeds the database."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from wastegate.core.ledger import Admission, Entry, ReplicaSpan
from wastegate.core.records import Cursor, Heard
from wastegate.gateway.telemetry import Telemetry
from wastegate.store.entries import Ledger
from wastegate.store.journal import Journal, JournalError, replay
from wastegate.store.schema import LedgerError

log = logging.getLogger(__name__)

_BATCH_SECONDS = 1.0
_BATCH = 5_000
_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 30.0
_BACKLOG = 200_000
"""Entries kept in memory while the database cannot be written; beyond it they are in the journal alone."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where calls are written down."""

    path: str = ""
    """The SQLite file; empty means ``ledger.db`` in the data directory."""
    journal: str = ""
    """The journal's directory; empty means ``journal`` in the data directory."""
    segment_mb: int = 32
    """The journal starts a new file at this size; a file goes once all of it is in the ledger."""
    when_full: str = "refuse"
    """What happens to new calls when the disk takes no more: "refuse" them (503), or "serve" them unrecorded."""

    def __post_init__(self) -> None:
        if self.when_full not in ("refuse", "serve"):
            raise ValueError(f'when_full is {self.when_full!r}: it is "refuse" or "serve"')
        if self.segment_mb < 1:
            raise ValueError(f"segment_mb is {self.segment_mb}: at least 1")


class Recorder:
    """Owns the journal of one gateway process, and the thread that copies it into the ledger."""

    def __init__(
        self,
        journal: Path,
        ledger: Path,
        worker: str,
        config: Config,
        now: Callable[[], float],
        telemetry: Telemetry | None = None,
    ) -> None:
        """``telemetry`` is told of calls once they are in the ledger, and is closed with this."""
        self._config = config
        self._now = now
        self._telemetry = telemetry
        self._ledger_path = ledger
        self._directory = journal
        self.cursors: dict[str, Cursor] = {}
        """How far each replica's engine records had been read when this began."""
        self._recover()
        self._journal = Journal(journal, worker, segment_bytes=config.segment_mb << 20)
        self._pending: deque[Entry | ReplicaSpan | Heard | Path] = deque()
        """For the thread, in order. A path is a closed segment: it may go once all before it is in the ledger."""
        self._due = threading.Event()
        self._stopping = False
        self._spilled: set[Path] = set()
        """Segments with calls that memory had no room for: once closed they are read, not merely deleted."""
        self._tried = 0.0
        self.unrecorded = 0
        """Calls that ended while the journal could not be written."""
        self.failing = ""
        """Empty, or why the journal cannot be written."""
        self._thread = threading.Thread(target=self._run, name="wastegate-ledger", daemon=True)
        self._thread.start()

    def set_rules(self, config: Config) -> None:
        """What to do with new calls on a full disk, from now on. Files stay where they are."""
        self._config = config

    @property
    def untold(self) -> int:
        """Calls that telemetry has dropped."""
        return self._telemetry.dropped if self._telemetry is not None else 0

    # ---- the hot path

    @property
    def refusing(self) -> bool:
        """New calls must be turned away: they could not be written down."""
        if not self.failing or self._config.when_full == "serve":
            return False
        if self._now() - self._tried >= _RETRY_SECONDS:
            self.beat()  # the disk may have room again: a line without a call tells
        return bool(self.failing)

    def admit(self, admission: Admission) -> None:
        """A call that is on its way to a replica: a kill of this process leaves a trace of it."""
        try:
            self._journal.admit(admission)
        except JournalError as error:
            self._failed(error)
            return
        self._written()

    def end(self, entries: Sequence[Entry]) -> None:
        """Calls that have ended. After this returns, a kill of this process cannot lose them."""
        try:
            self._journal.end(*entries)
        except JournalError as error:
            self.unrecorded += len(entries)
            self._failed(error)
            return
        if len(self._pending) < _BACKLOG:
            self._pending.extend(entries)
        else:
            self._spilled.add(self._journal.path)
        self._written()

    def _written(self) -> None:
        if self.failing:
            self._works()
        if self._journal.full:
            self._rotate()

    def beat(self) -> None:
        """The gateway lives: what a kill cuts off is charged up to here."""
        try:
            self._journal.beat(self._now())
        except JournalError as error:
            self._failed(error)
            return
        self._written()

    def save_spans(self, spans: Sequence[ReplicaSpan]) -> None:
        self._pending.extend(spans)

    def save_records(self, heard: Heard) -> bool:
        """What an engine has told. False where there is no room for it: it must be told again."""
        if len(self._pending) >= _BACKLOG:
            return False
        self._pending.append(heard)
        return True

    def _rotate(self) -> None:
        try:
            old = self._journal.rotate()
        except JournalError as error:
            self._failed(error)
            return
        if old is not None:
            self._pending.append(old)

    def _works(self) -> None:
        log.warning("the journal can be written again")
        self.failing = ""

    def _failed(self, error: JournalError) -> None:
        self._tried = self._now()
        if not self.failing:
            log.error("the journal cannot be written: %s", error)
        self.failing = str(error)

    # ---- the ledger's thread

    def _recover(self) -> None:
        """Take over what an earlier process left in the journal: its ends, and as ``lost`` what it had in flight."""
        with Ledger(self._ledger_path) as ledger:
            self.cursors = ledger.cursors()
            taken = replay(self._directory, ledger.add, self._damaged)
        if taken:
            log.warning("%d calls of an earlier run were taken from the journal into the ledger", taken)

    def _damaged(self, segment: Path, lines: int) -> None:
        log.error("%d lines of the journal %s make no sense; it is kept, renamed to end in .damaged", lines, segment)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._copy_on()
            except Exception:  # the file cannot be opened: the journal keeps the calls until it can
                log.exception("the ledger cannot be opened; the journal keeps the calls")
                self._due.wait(_RETRY_SECONDS)

    def _copy_on(self) -> None:
        with Ledger(self._ledger_path) as ledger:
            while not self._stopping:
                self._due.wait(_BATCH_SECONDS)
                self._copy(ledger)
            self._copy(ledger)

    def _copy(self, ledger: Ledger) -> None:
        """Move what is pending into the ledger; what it does not take now stays pending, in order."""
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]
        entries = [item for item in batch if isinstance(item, Entry)]
        spans = [item for item in batch if isinstance(item, ReplicaSpan)]
        heard = [item for item in batch if isinstance(item, Heard)]
        try:
            if spans:
                ledger.save_spans(spans)
            if entries:
                ledger.add(entries)
            if heard:
                ledger.save_records(heard)
            for segment in (item for item in batch if isinstance(item, Path)):
                self._remove(segment, ledger)
        except LedgerError as error:  # a full disk, a locked file
            log.error("the ledger cannot be written: %s; the journal keeps the calls", error)
            self._pending.extendleft(reversed(batch))
        except Exception:  # whatever it is, it must not end this thread: nothing would be copied any more
            log.exception("the ledger cannot be written; the journal keeps the calls")
            self._pending.extendleft(reversed(batch))
        else:
            if self._telemetry is not None:
                self._telemetry.put(entries)

    def _remove(self, segment: Path, ledger: Ledger) -> None:
        """A closed segment may go once its calls have come through memory; one with others is read first."""
        if segment in self._spilled:
            replay(self._directory, ledger.add, self._damaged)
            self._spilled.discard(segment)
        segment.unlink(missing_ok=True)

    def close(self) -> None:
        """Write all that is pending, then stop."""
        self._stopping = True
        self._due.set()
        self._thread.join(timeout=_CLOSE_SECONDS)
        if self._telemetry is not None:
            self._telemetry.close()
        self._journal.close()
        try:
            self._recover()
        except LedgerError as error:
            log.error("the ledger cannot be written: %s; the journal keeps the calls for the next start", error)
