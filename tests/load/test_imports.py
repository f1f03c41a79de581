"""Every row is accounted for; a second import changes nothing; what cannot be a call is told where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.load import imports
from wastegate.load.documents import Unread
from wastegate.load.imports import Import, Note, Options, Read, price_of, run
from wastegate.load.imports_rows import (
    call,
)
from wastegate.store.entries import Ledger

T = 1_790_000_000.0


def made(id: str, at: float = T, replica: str = "a") -> Entry:
    return call(id=id, arrived=at, ended=at + 2, replica=replica, model="m", prompt=10, output=5, first_token=at + 1)


def taken(folder: Path, *rows: Entry | Unread | Note, options: Options = Options()) -> Import:  # noqa: B008 - frozen
    def reader(path: Path, given: Options) -> Read:
        assert given is options
        yield from rows

    return run("made", reader, [folder / "x"], folder / "l.db", options)


def test_counts_reconcile(tmp_path: Path) -> None:
    bad = [Unread(f"x, line {n}", "not JSON", "no") for n in range(7)]
    done = taken(tmp_path, made("1"), *bad, made("2", T + 5, "b"), made("1"), Unread("x, line 9", "no time"))
    assert (done.read, done.imported, done.known) == (11, 2, 1)
    assert done.skipped["not JSON"].count == 7
    assert len(done.skipped["not JSON"].first) == imports.SHOWN
    assert done.skipped["no time"].first == ("x, line 9",)
    assert done.reconciles
    assert (done.start, done.end, done.replicas) == (T, T + 7, ("a", "b"))


def test_a_second_import_changes_nothing(tmp_path: Path) -> None:
    taken(tmp_path, made("1"), made("2"))
    again = taken(tmp_path, made("1"), made("2"))
    assert (again.read, again.imported, again.known) == (2, 0, 2)
    with Ledger(tmp_path / "l.db") as ledger:
        assert ledger.count() == 2


def test_large_files_go_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "BATCH", 3)
    done = taken(tmp_path, *(made(str(n)) for n in range(8)))
    assert (done.imported, done.reconciles) == (8, True)


def test_up_time_is_from_the_first_call_to_the_end_of_the_last(tmp_path: Path) -> None:
    options = Options(price=price_of(3.6))
    done = taken(tmp_path, made("1"), made("2", T + 5), options=options)
    with Ledger(tmp_path / "l.db") as ledger:
        (span,) = ledger.spans()
    assert span == ReplicaSpan("a", "serving", T, T + 7, 3_600_000_000, seen=T + 7, engine="imported: made")
    assert any("up time is taken to last" in note for note in done.notes)
    assert not any("No price" in note for note in done.notes)


def test_without_a_price_that_is_said(tmp_path: Path) -> None:
    done = taken(tmp_path, made("1"), Note("of the file"), Note("of the file"))
    assert done.notes[0] == "of the file"
    assert sum("of the file" in note for note in done.notes) == 1
    assert "--price-per-hour" in done.notes[-1]


def test_nothing_imported_has_no_times_and_no_notes(tmp_path: Path) -> None:
    done = taken(tmp_path, Unread("x", "not JSON"))
    assert (done.start, done.end, done.replicas, done.notes) == (None, None, (), ())


@pytest.mark.parametrize("dollars", [0.0, -1.0, 1e7, float("nan")])
def test_a_price_that_cannot_be_is_refused(dollars: float) -> None:
    with pytest.raises(ValueError, match="price-per-hour"):
        price_of(dollars)


def test_a_price_in_nano_dollars() -> None:
    assert (price_of(None), price_of(2.5)) == (0, 2_500_000_000)
