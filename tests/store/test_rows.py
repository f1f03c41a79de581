"""Entries into rows and back: whatever an entry says, it still says."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledgers import attempt, entry, whole_entries
from wastegate.core.ledger import Entry
from wastegate.store import rows
from wastegate.store.schema import migrate


def database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db, "memory")
    return db


@given(
    st.lists(st.integers(), max_size=4, unique=True).flatmap(lambda n: st.tuples(*(whole_entries(f"{i}") for i in n)))
)
def test_every_entry_comes_back_as_it_was(entries: tuple[Entry, ...]) -> None:
    db = database()
    rows.insert(db, {}, entries)
    assert rows.read(db, range(1, len(entries) + 1)) == list(entries)


def test_one_text_is_stored_once_and_keeps_its_number() -> None:
    db = database()
    labels: dict[str, int] = {}
    for name in ("x", "y"):
        rows.insert(db, labels, [entry(name, attempt(), tenant="acme")])
    rows.insert(db, {}, [entry("z", attempt(), tenant="acme")])
    (count,) = db.execute("SELECT count(*) FROM label WHERE text = 'acme'").fetchone()
    assert count == 1
    assert rows.texts(db, [labels["acme"]]) == {labels["acme"]: "acme"}
    assert {one.tenant for one in rows.read(db, [1, 2, 3])} == {"acme"}


def test_memory_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LABELS_HELD", 8)
    db = database()
    labels: dict[str, int] = {}
    entries = [entry(f"{n}", attempt(), tags=(("user", f"user-{n}"),)) for n in range(100)]
    rows.insert(db, labels, entries)
    assert len(labels) <= 8
    assert rows.read(db, range(1, 101)) == entries


def test_lookups_of_any_length_are_cut_to_what_sqlite_takes() -> None:
    db = database()
    entries = [entry(f"{n}") for n in range(rows.LOOKUP * 2 + 1)]
    rows.insert(db, {}, entries)
    assert len(rows.read(db, range(1, len(entries) + 1))) == len(entries)
    assert sorted(rows.present(db, ["nobody", *(one.id for one in entries)])) == sorted(one.id for one in entries)


def test_the_last_instant_of_a_call_is_its_attempts_too() -> None:
    db = database()
    rows.insert(db, {}, [entry("x", attempt(end=7.0), ended=5.0), entry("y", ended=3.0)])
    assert db.execute("SELECT last FROM entry ORDER BY seq").fetchall() == [(7.0,), (3.0,)]
