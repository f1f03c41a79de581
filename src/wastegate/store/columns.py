"""Rows of the ledger into numpy columns, a chunk at a time. Reads only; the columns' meaning is ``core.facts``'s."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np

from wastegate.core.facts import OUTCOMES, UNKNOWN, USAGES, Attempts, Calls, Facts, Ints, Tags
from wastegate.core.ledger import ReplicaSpan
from wastegate.store import records
from wastegate.store.rows import texts

ROWS = 65_536
"""Rows turned into arrays at once: the Python objects of only so many exist at a time."""


def read_facts(db: sqlite3.Connection, start: float, end: float, spans: tuple[ReplicaSpan, ...]) -> Facts:
    """Every call that touches [start, end) with all its attempts and tags; all spans."""
    where, bounds = "", []
    if start > -np.inf or end < np.inf:
        where, bounds = "WHERE last >= ? AND arrived < ?", [start, end]
    key, arrived, ended, route, model, tenant, size, outcome, stream = _columns(
        db,
        f"""SELECT seq, arrived, ended, route, model, tenant, length_class, outcome, stream
            FROM entry {where} ORDER BY seq""",
        bounds,
        (np.int64, np.float64, np.float64, *(np.int32,) * 5, np.bool_),
    )
    calls = Calls(key, arrived, ended, route, model, tenant, size, _positions(db, OUTCOMES)[outcome], stream)
    inside = f"WHERE entry IN (SELECT seq FROM entry {where})" if where else ""
    attempts, replicas = _attempts(db, inside, bounds, key)
    entry, name, value = _columns(
        db,
        f"SELECT entry, key, value FROM tag {inside} ORDER BY entry, position",
        bounds,
        (np.int64, np.int32, np.int32),
    )
    labels = np.unique(np.concatenate([np.unique(column) for column in (route, model, tenant, size, name)]))
    return Facts(
        start=start,
        end=end,
        attempts=attempts,
        calls=calls,
        tags=Tags(np.searchsorted(key, entry), name, value),
        replicas=replicas,
        spans=spans,
        names=texts(db, labels.tolist()),
        records=records.columns(db, where, bounds, key, attempts.call, attempts.number),
        gaps=records.gaps(db),
    )


def _attempts(db: sqlite3.Connection, inside: str, bounds: list[float], keys: Ints) -> tuple[Attempts, tuple[str, ...]]:
    entry, number, replica, claimed, sent, first, ended, prompt, cached, output, outcome, usage = _columns(
        db,
        f"""SELECT entry, number, replica, claimed, ifnull(sent, -1e300), ifnull(first_token, -1e300), ended,
            ifnull(prompt, {UNKNOWN}), ifnull(cached, {UNKNOWN}), ifnull(output, {UNKNOWN}), outcome, usage
            FROM attempt {inside} ORDER BY entry, number""",
        bounds,
        (np.int64, np.int32, np.int32, *(np.float64,) * 4, *(np.int64,) * 3, *(np.int32,) * 2),
    )
    for times in (sent, first):
        times[times == -1e300] = np.nan
    codes, place = np.unique(replica, return_inverse=True)
    names = texts(db, codes.tolist())
    attempts = Attempts(
        call=np.searchsorted(keys, entry),
        number=number,
        replica=place.astype(np.int32),
        claimed=claimed,
        sent=sent,
        first_token=first,
        ended=ended,
        prompt=prompt,
        cached=cached,
        output=output,
        outcome=_positions(db, OUTCOMES)[outcome],
        usage=_positions(db, USAGES)[usage],
    )
    return attempts, tuple(names[int(code)] for code in codes)


def _columns(db: sqlite3.Connection, query: str, values: Sequence[float], kinds: Sequence[type]) -> list[np.ndarray]:
    """One array a column. Every value must be a number: SQL turns NULL into one first."""
    cursor = db.execute(query, values)
    chunks: list[list[np.ndarray]] = [[np.empty(0, kind)] for kind in kinds]
    while rows := list(islice(cursor, ROWS)):
        block = np.fromiter(chain.from_iterable(rows), np.float64, count=len(rows) * len(kinds))
        for chunk, column, kind in zip(chunks, block.reshape(len(rows), -1).T, kinds, strict=True):
            chunk.append(column.astype(kind))
    return [np.concatenate(chunk) for chunk in chunks]


def _positions(db: sqlite3.Connection, words: Sequence[str]) -> np.ndarray:
    """From a label's number to its word's position: what reports compare are positions, not texts."""
    marks = ",".join("?" * len(words))
    known = dict(db.execute(f"SELECT text, id FROM label WHERE text IN ({marks})", words).fetchall())
    table = np.zeros(max(known.values(), default=0) + 1, np.int8)
    for place, word in enumerate(words):
        if word in known:
            table[known[word]] = place
    return table
