"""Entries into the ledger's rows and back. SQL only: no connection is opened and no transaction begun here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from wastegate.core.call import Divergence
from wastegate.core.ledger import Attempt, Entry, Flew

LABELS_HELD = 65_536
"""Labels kept in memory: user tags may have any number of values, and memory must not."""
LOOKUP = 500
"""Values in one IN (…): below SQLite's oldest limit of 999."""

_NOWHERE = (None, None, None)
Item = TypeVar("Item")
_trail = msgspec.json.Decoder(tuple[str, ...])


def present(db: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    """Which of these calls are stored already."""
    return [
        known
        for some in _slices(ids)
        for (known,) in db.execute(f"SELECT id FROM entry_text WHERE id IN ({_marks(some)})", some)
    ]


def texts(db: sqlite3.Connection, labels: Sequence[int]) -> dict[int, str]:
    """The texts that label numbers stand for."""
    return {
        number: text
        for some in _slices(labels)
        for number, text in db.execute(f"SELECT id, text FROM label WHERE id IN ({_marks(some)})", some)
    }


def insert(db: sqlite3.Connection, labels: dict[str, int], entries: Sequence[Entry]) -> None:
    """New entries, within the caller's transaction. ``labels`` is the caller's memory of numbers already given:
    it is filled here, and must be forgotten if the transaction fails."""
    (top,) = db.execute("SELECT ifnull(max(seq), 0) FROM entry").fetchone()
    numbered = list(enumerate(entries, start=top + 1))

    def label(text: str) -> int:
        known = labels.get(text)
        return known if known is not None else _new_label(db, labels, text)

    numbers = [
        (
            *(seq, e.arrived, e.ended, max([e.ended, *(a.ended for a in e.attempts)])),
            *(label(e.route), label(e.model), label(e.tenant), label(e.length_class)),
            *(label(e.outcome), e.stream, e.status),
        )
        for seq, e in numbered
    ]
    words = [
        (
            *(seq, e.id, e.path, e.reason, e.finish_reason),
            *(msgspec.json.encode(e.trail).decode(), e.client_id, e.traceparent, e.blocks, e.prompt_bytes),
            *(_NOWHERE if e.divergence is None else (e.divergence.at, e.divergence.by, e.divergence.again)),
            *(_NOWHERE if e.flew is None else (e.flew.call, e.flew.prompt_tokens, e.flew.output_tokens)),
        )
        for seq, e in numbered
    ]
    attempts = [
        (
            *(seq, a.number, label(a.replica), a.claimed, a.sent, a.first_byte, a.first_token, a.ended),
            *(a.prompt_tokens, a.cached_tokens, a.output_tokens, label(a.outcome), label(a.usage)),
            *(a.status, label(a.reason)),
        )
        for seq, e in numbered
        for a in e.attempts
    ]
    tags = [(seq, place, label(key), label(value)) for seq, e in numbered for place, (key, value) in enumerate(e.tags)]
    for table, width, values in (
        ("entry", 11, numbers),
        ("entry_text", 16, words),
        ("attempt", 15, attempts),
        ("tag", 4, tags),
    ):
        db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * width)})", values)


def _new_label(db: sqlite3.Connection, labels: dict[str, int], text: str) -> int:
    db.execute("INSERT OR IGNORE INTO label (text) VALUES (?)", (text,))
    (number,) = db.execute("SELECT id FROM label WHERE text = ?", (text,)).fetchone()
    if len(labels) >= LABELS_HELD:
        labels.clear()
    labels[text] = number
    return int(number)


def read(db: sqlite3.Connection, keys: Sequence[int]) -> list[Entry]:
    """The entries with these row numbers, whole, by row number within each slice of them."""
    return [entry for some in _slices(keys) for entry in _read(db, some)]


def _read(db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[Entry]:
    attempts = _attempts(db, keys)
    tags = _tags(db, keys)
    for row in db.execute(
        f"""SELECT seq, entry_text.id, arrived, ended, r.text, path, m.text, t.text, c.text, stream, o.text, status,
            reason, finish_reason, trail, client_id, traceparent, blocks, prompt_bytes,
            diverges_at, diverges_by, same_again, flew_with, flew_prompt, flew_output
            FROM entry JOIN entry_text USING (seq)
            JOIN label r ON r.id = route JOIN label m ON m.id = model JOIN label t ON t.id = tenant
            JOIN label c ON c.id = length_class JOIN label o ON o.id = outcome
            WHERE seq IN ({_marks(keys)}) ORDER BY seq""",
        keys,
    ):
        seq, name, arrived, ended, route, path, model, tenant, size, stream, outcome, status, reason = row[:13]
        finish_reason, trail, client_id, traceparent, blocks, prompt_bytes = row[13:19]
        divergence, flew = row[19:22], row[22:]
        yield Entry(
            id=name,
            arrived=arrived,
            ended=ended,
            route=route,
            path=path,
            model=model,
            tenant=tenant,
            length_class=size,
            stream=bool(stream),
            outcome=outcome,
            status=status,
            reason=reason,
            finish_reason=finish_reason,
            attempts=tuple(attempts.get(seq, ())),
            trail=_trail.decode(trail),
            tags=tuple(tags.get(seq, ())),
            client_id=client_id,
            traceparent=traceparent,
            blocks=blocks,
            prompt_bytes=prompt_bytes,
            divergence=Divergence(*divergence) if divergence[0] is not None else None,
            flew=Flew(*flew) if flew[0] is not None else None,
        )


def _attempts(db: sqlite3.Connection, keys: Sequence[int]) -> dict[int, list[Attempt]]:
    attempts: dict[int, list[Attempt]] = {}
    for entry, *fields in db.execute(
        f"""SELECT entry, number, r.text, claimed, ended, o.text, sent, first_byte, first_token, attempt.status,
            why.text, prompt, cached, output, u.text FROM attempt
            JOIN label r ON r.id = replica JOIN label o ON o.id = outcome
            JOIN label u ON u.id = usage JOIN label why ON why.id = reason
            WHERE entry IN ({_marks(keys)}) ORDER BY entry, number""",
        keys,
    ):
        attempts.setdefault(entry, []).append(Attempt(*fields))
    return attempts


def _tags(db: sqlite3.Connection, keys: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    tags: dict[int, list[tuple[str, str]]] = {}
    for entry, key, value in db.execute(
        f"""SELECT entry, k.text, v.text FROM tag JOIN label k ON k.id = key JOIN label v ON v.id = value
            WHERE entry IN ({_marks(keys)}) ORDER BY entry, position""",
        keys,
    ):
        tags.setdefault(entry, []).append((key, value))
    return tags


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), LOOKUP):
        yield items[first : first + LOOKUP]


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
