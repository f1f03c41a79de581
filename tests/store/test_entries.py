"""The ledger keeps each call once, tells what is wrong with a file, and is read while it is written."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import PLAIN, attempt, entry, span
from wastegate.store import entries as entries_module
from wastegate.store.entries import Ledger
from wastegate.store.schema import LedgerError, SchemaTooNew


def test_a_call_is_stored_once_however_often_it_is_added(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        one = entry("x", attempt())
        assert ledger.add([one, entry("x", tenant="a second with this id")]) == 1
        assert ledger.add([one, entry("y")]) == 1
        assert ledger.add([]) == 0
        assert ledger.count() == 2
        assert ledger.entry("x") == one


def test_it_is_there_after_closing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "deep/er/ledger.db") as ledger:
        ledger.add([entry("x", attempt())])
    with Ledger(tmp_path / "deep/er/ledger.db", create=False) as ledger:
        assert ledger.entry("x") == entry("x", attempt())


def test_all_of_a_batch_or_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        with pytest.raises(LedgerError, match=r"ledger\.db failed: .*NOT NULL"):
            ledger.add([entry("x", attempt(), tenant="acme"), entry("y", ended=math.nan)])
        assert ledger.count() == 0
        # Numbers given out in what was rolled back must not be used for other texts.
        ledger.add([entry("z", attempt(), tenant="beta")])
        ledger.add([entry("w", attempt(), tenant="acme")])
        assert (ledger.entry("z").tenant, ledger.entry("w").tenant) == ("beta", "acme")


def test_a_span_is_written_over_its_last_version(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        open_span = span("a", 1.0, None, seen=2.0)
        ledger.save_spans([open_span, span("b", 1.0, 2.0)])
        closed = span("a", 1.0, 9.0, seen=9.0, probe_seconds=0.5, work=PLAIN, kv_capacity=7, accelerator="h100")
        ledger.save_spans([closed, span("a", 0.0, 1.0, phase="loading")])
        assert ledger.spans() == (span("a", 0.0, 1.0, phase="loading"), closed, span("b", 1.0, 2.0))


def test_a_call_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.add([entry(name, attempt()) for name in ("ab", "abc", "abd", "b%", "bx")])
        assert ledger.entry("abd").id == "abd"
        assert ledger.entry("ab").id == "ab", "a whole id is no beginning"
        assert ledger.entry("b%").id == "b%"
        assert ledger.key("bx") == 5
        with pytest.raises(KeyError, match=r"several calls .* begins with 'a': ab, abc, abd\""):
            ledger.entry("a")
        for unknown in ("zz", "", "%"):
            with pytest.raises(KeyError, match="no call in"):
                ledger.entry(unknown)
        ledger.add([entry(f"many-{n}") for n in range(9)])
        with pytest.raises(KeyError, match="many-0, many-1, many-2, many-3, many-4 …"):
            ledger.entry("many")


def test_labels_can_be_named(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.add([entry("x", tags=(("team", "red"),))])
        tags = ledger.facts(-math.inf, math.inf).tags
        assert list(ledger.names(tags.value.tolist()).values()) == ["red"]
        assert ledger.names([]) == {}


def test_no_file_is_no_ledger_unless_one_is_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no ledger at .*nope\.db.*wastegate up"):
        Ledger(tmp_path / "nope.db", create=False)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("this is not a database, however long it may be" * 50)
    with pytest.raises(LedgerError, match=r"cannot open the ledger .*not a database"):
        Ledger(path)


def test_a_place_where_no_file_can_be_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file/ledger.db", tmp_path):
        with pytest.raises(LedgerError, match="cannot open the ledger"):
            Ledger(path)


@pytest.mark.parametrize("changed", [{"status": 2**70}, {"tenant": "\ud800"}])
def test_a_value_that_cannot_be_stored_is_one_clear_error(tmp_path: Path, changed: dict[str, Any]) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        with pytest.raises(LedgerError, match=r"ledger\.db failed"):
            ledger.add([entry("x", **changed)])
        assert ledger.add([entry("x")]) == 1


def test_a_newer_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger._db.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew, match="99"):
        Ledger(path)


def test_it_is_written_in_wal_and_to_the_disk(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        (mode,) = ledger._db.execute("PRAGMA journal_mode").fetchone()
        (level,) = ledger._db.execute("PRAGMA synchronous").fetchone()
        assert (mode, level) == ("wal", 2)


def test_another_process_reads_while_this_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.add([entry("x", attempt())])
        ledger._db.execute("BEGIN IMMEDIATE")  # a batch that lasts
        script = (
            "import sys, math; from pathlib import Path; from wastegate.store.entries import Ledger\n"
            "with Ledger(Path(sys.argv[1]), create=False) as ledger:\n"
            "    print(len(ledger.facts(-math.inf, math.inf).calls.key), ledger.entry('x').id)"
        )
        said = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
        assert said.stdout == "1 x\n", said.stderr
        ledger._db.execute("ROLLBACK")


def test_a_thread_may_use_what_another_opened(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        thread = threading.Thread(target=ledger.add, args=([entry("x")],))
        thread.start()
        thread.join(10)
        assert ledger.count() == 1


def test_a_ledger_held_by_another_is_waited_for_and_then_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "BUSY_SECONDS", 0.05)
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="cannot be used now: database is locked"):
            ledger.add([entry("x")])
        other.execute("ROLLBACK")
        other.close()
        assert ledger.add([entry("x")]) == 1


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.close()
    with pytest.raises(LedgerError, match="cannot be used now"):
        ledger.add([entry("x")])


def test_a_full_disk_stores_nothing_and_says_so(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
        ledger._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(LedgerError, match="full"):
            ledger.add([entry(f"{n}", attempt(), path="x" * 500) for n in range(100)])
        assert ledger.count() == 0
        ledger._db.execute("PRAGMA max_page_count = 100000")
        assert ledger.add([entry("x", attempt())]) == 1


def test_a_commit_that_fails_stores_nothing_and_says_so(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger._db.executescript(
            """PRAGMA foreign_keys = ON; CREATE TABLE parent (id INTEGER PRIMARY KEY);
            CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
            CREATE TRIGGER late AFTER INSERT ON entry BEGIN INSERT INTO child VALUES (1); END"""
        )
        with pytest.raises(LedgerError, match="failed: FOREIGN KEY"):
            ledger.add([entry("x", attempt())])
        assert ledger.count() == 0
        ledger._db.execute("DROP TRIGGER late")
        assert ledger.add([entry("x", attempt())]) == 1


def test_cuts_lose_no_call_though_the_clock_was_set_back(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.add([entry(f"c{n}", attempt("a", float(n), n + 0.5)) for n in range(8)])
        assert ledger.cuts(0.0, 100.0, 3) == [2.5, 5.5]
        assert ledger.cuts(2.5, 6.0, 2) == [3.5, 5.5]
        ledger.add([entry("back", arrived=6.0, ended=4.0)])
        # 4.5 would lie between the end and the arrival of the last.
        assert ledger.cuts(0.0, 100.0, 3) == [2.5, 7.5]


def test_what_is_read_within_one_moment_is_of_one_moment(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger, Ledger(tmp_path / "l.db") as other:
        with ledger.still():
            assert ledger.count() == 0
            other.add([entry("x", attempt())])
            assert ledger.count() == 0
            assert len(ledger.facts(-math.inf, math.inf).calls.key) == 0
        assert ledger.count() == 1
        assert [one.id for one in ledger.read([1])] == ["x"]


def test_a_call_is_found_where_it_ended_though_its_attempts_were_over(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.add([entry("waited", attempt("a", 1.0, 2.0, outcome="failed"), ended=9.0)])
        assert len(ledger.facts(5.0, 10.0).calls.key) == 1
