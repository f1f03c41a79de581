"""The journal: one line when a call is admitted and one when it ends, written at once, so that a killed gateway
loses no finished call. Only lines and segments here; what a call cost, or who asks, must never enter.

A journal is a directory of segments, ``<worker>-<number>.jsonl``. Rules:

- A worker appends to one segment and holds a lock (flock) on it while it lives: no lock, no owner.
- A line is a letter and a JSON value: ``A`` admission, ``E`` entry, ``T`` the time, ``C`` closed by its owner.
- A segment that its owner closed ends in ``C``: the calls still in flight were copied to the head of the next one.
  Without ``C`` the owner died, and what was in flight is lost.
- A segment is deleted once its entries are in the ledger, whose keys are the calls' ids: to do that twice changes
  nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from wastegate.core.call import length_class
from wastegate.core.ledger import Admission, Attempt, Entry
from wastegate.store.segments import WORKER, Dead, create, dead, write_all

SEGMENT_BYTES = 32 * 1024 * 1024
"""A segment is replayed in memory and a piece at a time: this bounds it (about 50,000 calls)."""
BATCH = 1000
"""Entries given to the ledger in one transaction."""
GONE = "the gateway died"
_encode = msgspec.json.Encoder().encode


class JournalError(Exception):
    """A line could not be written: disk full, disk failed, directory gone. Nothing half written stays behind."""


class Journal:
    """One worker's open journal, for one thread. Raises JournalError where the directory cannot be used.

    ``worker`` (letters, digits, ``_``, ``.``) names this process among those that share the directory.
    ``sync`` waits for the disk on every line: it survives a power cut, and costs milliseconds a call.
    """

    def __init__(self, directory: Path, worker: str, *, segment_bytes: int = SEGMENT_BYTES, sync: bool = False) -> None:
        if not WORKER.fullmatch(worker):
            raise ValueError(f"worker {worker!r}: only letters, digits, _ and . can name a journal's segments")
        self._directory = directory
        self._worker = worker
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._in_flight: dict[str, bytes] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.path, self._file = create(directory, worker)
        except OSError as error:
            raise JournalError(f"cannot open a journal in {directory}: {_why(error)}") from error
        self._size = 0
        self._copied = 0
        """Bytes at the head that only repeat what an earlier segment says."""
        self._torn = False

    def admit(self, admission: Admission) -> None:
        """A call that was admitted, or whose attempt (``number`` ≥ 1) starts: from here on no kill can lose it.
        Raises JournalError."""
        line = b"A%b\n" % _encode(admission)
        self._write(line)
        self._in_flight[admission.id] = self._in_flight.get(admission.id, b"") + line

    def end(self, *entries: Entry) -> None:
        """Calls that have ended: one write, or none of it is there. Raises JournalError."""
        self._write(b"".join([b"E%b\n" % _encode(entry) for entry in entries]))
        for entry in entries:
            self._in_flight.pop(entry.id, None)

    @property
    def full(self) -> bool:
        """The segment has reached its size: time to :meth:`rotate`."""
        return self._size - self._copied >= self._segment_bytes

    def beat(self, now: float) -> None:
        """The gateway lived at ``now``: calls that a kill cuts off are closed at the last time written. Once a second
        while calls are in flight is enough. Raises JournalError."""
        self._write(b"T" + _encode(now) + b"\n")

    def rotate(self) -> Path | None:
        """Close this segment and go on in a new one that begins with the calls in flight.

        The closed segment's path, fit for deletion once its calls are in the ledger; None where there was nothing
        to close. On JournalError the present segment stays in use.
        """
        if self._size == self._copied:
            return None
        head = b"".join(self._in_flight.values())
        try:
            path, file = create(self._directory, self._worker)
        except OSError as error:
            raise JournalError(f"cannot open a new segment in {self._directory}: {_why(error)}") from error
        try:
            write_all(file, head, self._sync)
            self._write(b"C\n")
        except (OSError, JournalError) as error:
            path.unlink(missing_ok=True)
            os.close(file)
            raise JournalError(f"cannot begin {path}: {_why(error)}") from error
        closed = self.path
        os.close(self._file)
        self.path, self._file, self._size, self._copied = path, file, len(head), len(head)
        return closed

    def close(self) -> None:
        """End the journal. Calls still in flight will be found lost."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        try:
            write_all(self._file, line, self._sync)
        except OSError as error:
            self._cut_back(error)
        self._size += len(line)
        self._torn = False

    def _cut_back(self, error: OSError) -> None:
        """A line may be half there: take it away, or the next would stick to it."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._torn = True  # a newline ahead of the next line keeps the two apart
        raise JournalError(f"cannot write to the journal {self.path}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def replay(
    directory: Path,
    add: Callable[[Sequence[Entry]], int],
    damaged: Callable[[Path, int], None] | None = None,
) -> int:
    """Give every call in segments without a living owner to ``add`` (``Ledger.add``), then delete those segments.

    Ends are given as they are; what was in flight when its gateway died is given as ``lost``. The sum of what
    ``add`` returns: how many calls were new. ``add`` must know calls by their id, since a replay that is itself
    killed begins again; several processes may replay at once. A segment with lines that make no sense is renamed
    to end in ``.damaged`` instead, and ``damaged`` told of it and of how many. Whatever ``add`` raises ends the
    replay with that segment still in place. Raises OSError where the directory cannot be read.
    """
    new = 0
    for segments in dead(directory):
        reading = _Reading()
        batch: list[Entry] = []
        for segment in segments:
            for entry in reading.read(segment):
                batch.append(entry)
                if len(batch) >= BATCH:
                    new += add(batch)
                    batch = []
        if last := [*batch, *reading.lost.values()]:
            new += add(last)
        for segment in segments:  # only now: all that they say is in the ledger
            count = reading.damaged.get(segment.path, 0)
            segment.remove(keep=count > 0)
            if count and damaged is not None:
                damaged(segment.path, count)
    return new


class _Reading:
    """The segments of one worker, read in order."""

    def __init__(self) -> None:
        self.lost: dict[str, Entry] = {}
        """Held back to the end: a segment that came to the disk without its ``C`` may have a successor with the end."""
        self.damaged: dict[Path, int] = {}

    def read(self, segment: Dead) -> Iterator[Entry]:
        """Finished entries; those in flight at the end of the segment go to ``lost``."""
        in_flight: dict[str, list[Admission]] = {}
        seen = 0.0
        for line in segment.lines():
            value = _decode(line)
            if value is None:
                if line.endswith(b"\n"):  # without one it is the line that the kill cut off
                    self.damaged[segment.path] = self.damaged.get(segment.path, 0) + 1
            elif isinstance(value, Entry):
                in_flight.pop(value.id, None)
                self.lost.pop(value.id, None)
                seen = max(seen, value.ended)
                yield value
            elif isinstance(value, Admission):
                in_flight.setdefault(value.id, []).append(value)
                seen = max(seen, value.arrived, value.claimed)
            elif isinstance(value, float):
                seen = max(seen, value)
            else:
                in_flight.clear()
        for key, admissions in in_flight.items():
            self.lost[key] = _lost(admissions, seen)


_entry = msgspec.json.Decoder(Entry).decode
_admission = msgspec.json.Decoder(Admission).decode
_time = msgspec.json.Decoder(float).decode
CLOSED = "C"


def _decode(line: bytes) -> Entry | Admission | float | str | None:
    """The value of a line; None for one that makes no sense."""
    kind, body = line[:1], line[1:]
    try:
        if kind == b"E":
            return _entry(body)
        if kind == b"A":
            return _admission(body)
        if kind == b"T":
            return _time(body)
    except msgspec.DecodeError:
        return None
    return CLOSED if line == b"C\n" else None


def _lost(admissions: list[Admission], seen: float) -> Entry:
    """The entry of a call whose gateway died: it ends when anything was last written."""
    call = admissions[-1]
    tries = list({admission.number: admission for admission in admissions if admission.number > 0}.values())
    ends = [*(later.claimed for later in tries[1:]), seen]
    attempts = tuple(
        Attempt(
            number=one.number,
            replica=one.replica,
            claimed=one.claimed,
            # It may not have been sent; charged as if, it is at least not forgotten.
            sent=one.claimed,
            ended=max(ended, one.claimed),
            outcome="lost" if one is tries[-1] else "failed",
            reason=GONE if one is tries[-1] else f"tried again; {GONE} before it could say why",
            prompt_tokens=one.prompt_tokens,
            usage="estimated",
        )
        for one, ended in zip(tries, ends, strict=False)
    )
    return Entry(
        id=call.id,
        arrived=call.arrived,
        ended=max(seen, call.arrived, call.claimed),
        route=call.route,
        path=call.path,
        model=call.model,
        tenant=call.tenant,
        length_class=length_class(call.prompt_tokens, 0),
        stream=call.stream,
        outcome="lost",
        status=0,
        reason=GONE,
        attempts=attempts,
        trail=(f"{GONE} while this call was in flight: closed from the journal",),
        tags=call.tags,
        client_id=call.client_id,
        traceparent=call.traceparent,
    )
