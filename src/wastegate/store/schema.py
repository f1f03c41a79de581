"""The ledger's tables and how an older file becomes a newer one: one function a migration. No query enters."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

APPLICATION = 0x57474C31
"""SQLite's application_id of our files ("WGL1"): another program's database is never touched."""


class LedgerError(sqlite3.Error):
    """The ledger cannot be used; the message says why and what to do. Whoever catches SQLite's errors catches it."""


class SchemaTooNew(LedgerError):  # noqa: N818 - the name says what happened
    """The file was written by a newer wastegate."""


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Bring the file to the present schema, each step whole or not at all.

    Raises SchemaTooNew for a newer file and LedgerError for a database that is not a ledger.
    """
    if _is_current(connection, where):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have migrated while this one waited for the lock.
        if not _is_current(connection, where):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for step in MIGRATIONS[version:]:
                step(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _is_current(connection: sqlite3.Connection, where: str) -> bool:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION and (tables or version or application):
        raise LedgerError(f"{where} is a SQLite database, but not a wastegate ledger; name another file")
    if version > len(MIGRATIONS):
        raise SchemaTooNew(
            f"{where} has ledger schema {version}, and this wastegate knows up to {len(MIGRATIONS)}: "
            "it was written by a newer version; upgrade wastegate, or name another ledger"
        )
    return bool(version == len(MIGRATIONS))


def _first(connection: sqlite3.Connection) -> None:
    """Numbers that reports scan stand apart from texts that only one call's explanation reads: a million rows
    of numbers are read in seconds, and texts would push them off their pages."""
    for statement in (
        "CREATE TABLE label (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
        """CREATE TABLE entry (
            seq INTEGER PRIMARY KEY, arrived REAL NOT NULL, ended REAL NOT NULL, last REAL NOT NULL,
            route INTEGER NOT NULL, model INTEGER NOT NULL, tenant INTEGER NOT NULL,
            length_class INTEGER NOT NULL, outcome INTEGER NOT NULL, stream INTEGER NOT NULL,
            status INTEGER NOT NULL)""",
        "CREATE INDEX entry_last ON entry (last)",
        """CREATE TABLE entry_text (
            seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, path TEXT NOT NULL, reason TEXT NOT NULL,
            finish_reason TEXT NOT NULL, trail TEXT NOT NULL, client_id TEXT NOT NULL,
            traceparent TEXT NOT NULL, blocks BLOB NOT NULL)""",
        """CREATE TABLE attempt (
            entry INTEGER NOT NULL, number INTEGER NOT NULL, replica INTEGER NOT NULL,
            claimed REAL NOT NULL, sent REAL, first_byte REAL, first_token REAL, ended REAL NOT NULL,
            prompt INTEGER, cached INTEGER, output INTEGER, outcome INTEGER NOT NULL, usage INTEGER NOT NULL,
            status INTEGER, reason INTEGER NOT NULL, PRIMARY KEY (entry, number)) WITHOUT ROWID""",
        """CREATE TABLE tag (
            entry INTEGER NOT NULL, position INTEGER NOT NULL, key INTEGER NOT NULL, value INTEGER NOT NULL,
            PRIMARY KEY (entry, position)) WITHOUT ROWID""",
        """CREATE TABLE span (
            replica TEXT NOT NULL, phase TEXT NOT NULL, start REAL NOT NULL, body TEXT NOT NULL,
            PRIMARY KEY (replica, phase, start)) WITHOUT ROWID""",
    ):
        connection.execute(statement)


def _prompts(connection: sqlite3.Connection) -> None:
    """What a prompt shares with others, and with whom a call flew."""
    for column in (
        "prompt_bytes INTEGER NOT NULL DEFAULT 0",
        "diverges_at INTEGER",
        "diverges_by TEXT",
        "same_again INTEGER",
        "flew_with TEXT",
        "flew_prompt INTEGER",
        "flew_output INTEGER",
    ):
        connection.execute(f"ALTER TABLE entry_text ADD COLUMN {column}")


def _engine_records(connection: sqlite3.Connection) -> None:
    """What engines tell of attempts. They come late, so they stand apart and are joined by the call's id when read."""
    for statement in (
        """CREATE TABLE engine_record (
            entry TEXT NOT NULL, number INTEGER NOT NULL, boot TEXT NOT NULL, sequence INTEGER NOT NULL,
            replica INTEGER NOT NULL, id TEXT NOT NULL, arrived REAL NOT NULL, ended REAL NOT NULL,
            prompt INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL, preemptions INTEGER NOT NULL,
            finish TEXT NOT NULL, measured TEXT NOT NULL, runs BLOB NOT NULL,
            PRIMARY KEY (entry, number, boot, sequence)) WITHOUT ROWID""",
        """CREATE TABLE engine_gap (
            replica TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL, lost INTEGER,
            PRIMARY KEY (replica, start)) WITHOUT ROWID""",
        """CREATE TABLE engine_cursor (
            replica TEXT PRIMARY KEY, boot TEXT NOT NULL, sequence INTEGER NOT NULL, heard REAL NOT NULL)
            WITHOUT ROWID""",
    ):
        connection.execute(statement)


def _last_moments(connection: sqlite3.Connection) -> None:
    """``last`` was the end of a call's last attempt, even where the call waited on and ended later: windows after that
    attempt did not find it."""
    connection.execute("UPDATE entry SET last = ended WHERE last < ended")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first, _prompts, _engine_records, _last_moments)
