"""A file of another time or another program is met with a sentence, and a migration is whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ledgers import attempt, entry
from wastegate.core.records import Cursor, Heard
from wastegate.store import schema
from wastegate.store.entries import Ledger
from wastegate.store.schema import APPLICATION, MIGRATIONS, LedgerError, SchemaTooNew, migrate


def fresh(path: Path | str = ":memory:") -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def test_an_empty_file_becomes_a_ledger_and_stays_one() -> None:
    db = fresh()
    migrate(db, "x.db")
    told = {"engine_record", "engine_gap", "engine_cursor"}
    assert tables(db) == {"label", "entry", "entry_text", "attempt", "tag", "span"} | told
    assert (pragma(db, "user_version"), pragma(db, "application_id")) == (len(MIGRATIONS), APPLICATION)
    migrate(db, "x.db")


def test_a_newer_schema_is_refused_and_left_alone() -> None:
    db = fresh()
    migrate(db, "x.db")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 3}")
    with pytest.raises(SchemaTooNew, match=rf"x\.db has ledger schema {len(MIGRATIONS) + 3}.*upgrade wastegate"):
        migrate(db, "x.db")
    assert pragma(db, "user_version") == len(MIGRATIONS) + 3


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE mine (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 252006674"]
)
def test_another_programs_database_is_never_touched(statement: str) -> None:
    db = fresh()
    db.execute(statement)
    before = tables(db)
    with pytest.raises(LedgerError, match="not a wastegate ledger"):
        migrate(db, "x.db")
    assert tables(db) == before


def test_an_older_ledger_is_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fresh()
    migrate(db, "x.db")
    ran: list[str] = []

    def step(name: str) -> Callable[[sqlite3.Connection], None]:
        return lambda _: ran.append(name)

    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, step("second"), step("third")))
    migrate(db, "x.db")
    assert ran == ["second", "third"]
    assert pragma(db, "user_version") == len(MIGRATIONS) + 2
    migrate(db, "x.db")
    assert len(ran) == 2


def test_a_ledger_from_before_engine_records_keeps_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    db = fresh(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[:2])
        migrate(db, "old.db")
    assert "engine_record" not in tables(db)
    db.execute("INSERT INTO label VALUES (1, 'chat')")
    db.close()
    with Ledger(path) as ledger:
        ledger.save_records([Heard("a", Cursor("boot", 3, 1.0), ())])
        assert ledger.cursors()["a"].sequence == 3
        assert ledger.names([1]) == {1: "chat"}


def test_an_older_ledgers_calls_last_until_they_ended(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.add([entry("waited", attempt("a", 1.0, 2.0, outcome="failed"), ended=9.0)])
        db = fresh(tmp_path / "l.db")
        db.execute("UPDATE entry SET last = 2.0")  # as it was written before
        assert len(ledger.facts(5.0, 10.0).calls.key) == 0
        schema._last_moments(db)
        db.close()
        assert len(ledger.facts(5.0, 10.0).calls.key) == 1


def test_a_migration_that_fails_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fresh()
    migrate(db, "x.db")

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise RuntimeError("in the midst of it")

    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, half))
    with pytest.raises(RuntimeError):
        migrate(db, "x.db")
    assert "half" not in tables(db)
    assert pragma(db, "user_version") == len(MIGRATIONS)


def test_of_two_that_open_a_new_file_one_migrates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = fresh(tmp_path / "x.db"), fresh(tmp_path / "x.db")
    known = schema._is_current

    def overtaken(connection: sqlite3.Connection, where: str) -> bool:
        answer = known(connection, where)
        monkeypatch.setattr(schema, "_is_current", known)
        migrate(other, where)  # between the first look and the lock
        return answer

    monkeypatch.setattr(schema, "_is_current", overtaken)
    migrate(one, "x.db")
    assert "entry" in tables(one)
    one.close()
    other.close()
