"""What engines tell of attempts, into the ledger's tables and back. SQL only: no connection is opened here, and no
transaction begun."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np

from wastegate.core.facts import Codes, Ints, Records, no_records
from wastegate.core.ledger import EngineRecord, RecordGap, Run
from wastegate.core.records import Cursor, Heard, attempt_of

_WIDTH = len(Run.__struct_fields__)


def insert(db: sqlite3.Connection, heard: Sequence[Heard]) -> None:
    """Records of attempts, and how far was read, within the caller's transaction. What is known already stays once;
    what no gateway sent is left out."""
    for one in heard:
        db.execute("INSERT OR IGNORE INTO label (text) VALUES (?)", (one.replica,))
        (replica,) = db.execute("SELECT id FROM label WHERE text = ?", (one.replica,)).fetchone()
        rows = [
            (*attempt, one.cursor.boot, r.sequence, replica, r.id, r.arrived, r.ended, r.prompt, r.cached, r.output,
             r.preemptions, r.finish, r.measured, _packed(r.runs))
            for r in one.records
            if (attempt := attempt_of(r.id)) is not None
        ]  # fmt: skip
        db.executemany(f"INSERT OR REPLACE INTO engine_record VALUES ({','.join('?' * 15)})", rows)
        if one.gap is not None:
            gap = one.gap
            db.execute(
                "INSERT OR REPLACE INTO engine_gap VALUES (?, ?, ?, ?)", (gap.replica, gap.start, gap.end, gap.lost)
            )
        cursor = one.cursor
        db.execute(
            "INSERT OR REPLACE INTO engine_cursor VALUES (?, ?, ?, ?)",
            (one.replica, cursor.boot, cursor.sequence, cursor.heard),
        )


def cursors(db: sqlite3.Connection) -> dict[str, Cursor]:
    """How far each replica's records have been read."""
    rows = db.execute("SELECT replica, boot, sequence, heard FROM engine_cursor")
    return {replica: Cursor(boot, sequence, heard) for replica, boot, sequence, heard in rows}


def gaps(db: sqlite3.Connection) -> tuple[RecordGap, ...]:
    """All times of which records are missing, by replica and start."""
    return tuple(RecordGap(*row) for row in db.execute('SELECT replica, start, "end", lost FROM engine_gap'))


def of_entry(db: sqlite3.Connection, entry: str) -> list[tuple[int, EngineRecord]]:
    """What was told of one call's attempts: their numbers, and the records."""
    rows = db.execute(
        """SELECT number, sequence, id, arrived, ended, finish, prompt, cached, output, preemptions, runs, measured
           FROM engine_record WHERE entry = ? ORDER BY number, boot, sequence""",
        (entry,),
    )
    fields = EngineRecord.__struct_fields__
    return [
        (number, EngineRecord(**dict(zip(fields, (*head, tuple(map(_run, _runs([packed]))), measured), strict=True))))
        for number, *head, packed, measured in rows
    ]


def columns(
    db: sqlite3.Connection, where: str, bounds: Sequence[float], keys: Ints, call: Ints, number: Codes
) -> Records:
    """Of all calls that fit ``where`` (over the table entry). ``keys`` are the calls' row numbers, ascending, ``call``
    and ``number`` the attempts in the order of the facts."""
    if db.execute("SELECT 1 FROM engine_record LIMIT 1").fetchone() is None:
        return no_records()
    told = db.execute(
        f"""SELECT text.seq, attempt.number, prompt_, cached_, output_, measured, runs FROM (
                SELECT entry AS id_, number AS number_, replica AS replica_, prompt AS prompt_, cached AS cached_,
                output AS output_, measured, runs, boot, sequence FROM engine_record)
            JOIN entry_text AS text ON text.id = id_
            JOIN attempt ON attempt.entry = text.seq AND attempt.number = number_ AND attempt.replica = replica_
            {where and f"WHERE text.seq IN (SELECT seq FROM entry {where})"}
            ORDER BY text.seq, attempt.number, boot, sequence""",
        bounds,
    ).fetchall()
    if not told:
        return no_records()
    numbers = np.array([row[:5] for row in told], np.int64)
    packed = [row[6] for row in told]
    runs = _runs(packed)
    lengths = np.array([len(one) for one in packed]) // (8 * _WIDTH)
    place = _place(np.searchsorted(keys, numbers[:, 0]), numbers[:, 1], call, number)
    return Records(
        attempt=place,
        prompt=numbers[:, 2],
        cached=numbers[:, 3],
        output=numbers[:, 4],
        whole=np.array([row[5] == "steps" for row in told], np.bool_),
        runs=runs,
        record=np.repeat(np.arange(len(told)), lengths),
    )


def _place(calls: Ints, numbers: Ints, call: Ints, number: Codes) -> Ints:
    """The attempts' rows; ``call`` and ``number`` rise together."""
    width = int(max(number.max(initial=0), numbers.max(initial=0))) + 1
    return np.searchsorted(call * width + number, calls * width + numbers).astype(np.int64)


def _packed(runs: Sequence[Run]) -> bytes:
    rows = [(r.start, r.end, r.steps, r.prefill, r.decode, r.draft, r.kv) for r in runs]
    return np.array(rows, "<f8").tobytes()


def _runs(packed: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(packed), "<f8").reshape(-1, _WIDTH).astype(np.float64)


def _run(row: np.ndarray) -> Run:
    start, end, steps, prefill, decode, draft, kv = row.tolist()
    return Run(start, end, int(steps), int(prefill), int(decode), int(draft), kv)
