"""The three formats hold the same figures, can be read back, and are there whole or not at all."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ledgers import PLAIN, attempt, entry, span, whole_entries
from wastegate import cli
from wastegate.core.ledger import Entry
from wastegate.load.traces import read
from wastegate.store import export_files
from wastegate.store.entries import Ledger
from wastegate.store.export import Sweep
from wastegate.store.export_files import Files, Format, MissingPackageError


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    known = {"prompt_tokens": 1000, "output_tokens": 100}
    with Ledger(tmp_path / "ledger.db") as made:
        made.add(
            [
                entry("x", attempt("a", 10, 20, first_token=12.0, **known), tags=(("team", 'red, "green"\nblue'),)),
                entry("y", attempt("a", 11, 13, outcome="failed"), attempt("b", 13, 16, number=2, **known)),
                entry("z", attempt("b", 30, 31.5, outcome="hung_up"), stream=False),
                entry("none"),
            ]
        )
        made.save_spans([span("a", 0, 40, work=PLAIN), span("b", 0, 40)])
        yield made


def exported(ledger: Ledger, folder: Path, form: Format) -> tuple[Path, ...]:
    sweep = Sweep(ledger, -math.inf, math.inf, 2, 2)
    with Files(folder, form) as files:
        for calls in sweep.calls():
            files.add(calls)
        files.finish(sweep.bills)
    return files.paths


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def test_jsonl_is_the_ledgers_own_entries(ledger: Ledger, tmp_path: Path) -> None:
    entries, replicas = exported(ledger, tmp_path / "out", "jsonl")
    decoded = [msgspec.json.decode(line, type=Entry) for line in entries.read_bytes().splitlines()]
    assert {one.id: one for one in decoded} == {name: ledger.entry(name) for name in ("x", "y", "z", "none")}
    spent = sum(one["charge"]["cost"] for line in rows_of(entries) for one in line["attempts"])
    assert spent == sum(line["requests_nano"] for line in rows_of(replicas)) > 0


def test_replay_reads_what_was_exported(ledger: Ledger, tmp_path: Path) -> None:
    entries, _ = exported(ledger, tmp_path / "out", "jsonl")
    text = entries.read_text(encoding="utf-8").replace("\\nblue", "")  # no header can hold a line's end
    entries.write_text(text, encoding="utf-8")
    trace = read(entries)
    assert trace.format == "export"
    rows = {row.at: row for row in trace.rows}
    assert (rows[10.0].input_tokens, rows[10.0].output_tokens) == (1000, 100)
    assert rows[11.0].input_tokens == 1000
    left = rows[30.0].hang_up
    assert left is not None
    assert left.seconds == 1.5
    assert not rows[30.0].stream


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_agree_with_the_entries(ledger: Ledger, tmp_path: Path, form: Format) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    lines, _ = exported(ledger, tmp_path / "lines", "jsonl")
    paths = exported(ledger, tmp_path / "out", form)
    assert [path.name for path in paths] == [f"{name}.{form}" for name in ("entries", "attempts", "replicas")]
    entries, attempts, replicas = (rows_of(path) for path in paths)
    known = {line["id"]: line for line in rows_of(lines)}
    assert {row["id"] for row in entries} == known.keys()
    for row in entries:
        assert float(row["arrived"]) == known[row["id"]]["arrived"]
        assert json.loads(row["tags"]) == known[row["id"]]["tags"]
    for row in attempts:
        other = known[row["entry"]]["attempts"][int(row["number"]) - 1]
        assert int(row["cost_nano"]) == other["charge"]["cost"]
        assert (row["first_token"] or None) == (other["first_token"] and type(row["first_token"])(other["first_token"]))
        assert str(row["priced"]).lower() == str(other["charge"]["priced"]).lower()
        assert (int(row["prompt_tokens"]) if row["prompt_tokens"] else None) == other["prompt_tokens"]
    spent = sum(int(row["cost_nano"]) for row in attempts)
    assert spent == sum(int(row["cost_nano"]) for row in entries) == sum(int(row["requests_nano"]) for row in replicas)


def test_parquet_columns_have_kinds_and_say_what_they_mean(ledger: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    _, attempts, _ = exported(ledger, tmp_path / "out", "parquet")
    schema = parquet.read_schema(attempts)
    assert str(schema.field("cost_nano").type) == "int64"
    assert str(schema.field("sent").type) == "double"
    assert schema.field("waste").metadata[b"about"] == b"why its cost is waste; empty: it is not"


def test_a_parquet_file_is_written_in_groups(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr(export_files, "GROUP", 2)
    entries, _, _ = exported(ledger, tmp_path / "out", "parquet")
    assert parquet.ParquetFile(entries).num_row_groups > 1


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_empty_ledger_makes_empty_files(tmp_path: Path, form: Format) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with Ledger(tmp_path / "l.db") as ledger:
        paths = exported(ledger, tmp_path / "out", form)
    assert [rows_of(path) for path in paths] == [[]] * len(paths)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True).flatmap(
        lambda ids: st.tuples(*(whole_entries(f"c{n}") for n in ids))
    )
)
def test_any_entry_comes_back_from_jsonl(tmp_path: Path, some: tuple[Entry, ...]) -> None:
    numbered = [
        msgspec.structs.replace(
            one, attempts=tuple(msgspec.structs.replace(a, number=n + 1) for n, a in enumerate(one.attempts))
        )
        for one in some
    ]
    with Ledger(Path(":memory:")) as ledger:
        ledger.add(numbered)
        entries, _ = exported(ledger, tmp_path / "out", "jsonl")
    decoded = [msgspec.json.decode(line, type=Entry) for line in entries.read_bytes().splitlines()]
    assert sorted(decoded, key=lambda one: one.id) == sorted(numbered, key=lambda one: one.id)


def test_an_export_that_breaks_off_leaves_what_was_there(ledger: Ledger, tmp_path: Path) -> None:
    (entries, *_) = exported(ledger, tmp_path / "out", "csv")
    before = entries.read_bytes()
    sweep = Sweep(ledger, -math.inf, math.inf, 2, 1)

    def broken() -> None:
        with Files(tmp_path / "out", "csv") as files:
            files.add(next(sweep.calls()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert entries.read_bytes() == before
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv"] * 3


def test_a_full_disk_leaves_what_was_there(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entries, *_) = exported(ledger, tmp_path / "out", "csv")
    before = entries.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        exported(ledger, tmp_path / "out", "csv")
    assert entries.read_bytes() == before
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv"] * 3


def test_a_file_that_cannot_be_made_leaves_nothing(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "out" / "attempts.csv.partial").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        exported(ledger, tmp_path / "out", "csv")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["attempts.csv.partial"]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'wastegate\[export\]'"):
        Files(tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


# ---- the command


def test_the_command_writes_and_says_what(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flags = ["--ledger", str(ledger.path), "--no-progress"]
    assert cli.main(["export", "--format", "csv", "--to", str(out), *flags]) == 0
    said = capsys.readouterr().out
    assert "4 calls" in said
    assert str(out / "attempts.csv") in said
    assert cli.main(["export", "--format", "jsonl", "--to", str(out), "--json", "--since", "1970-01-02", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ledger", "nowhere.db"], "no ledger at nowhere.db"),
        (["--since", "tomorrow"], "'tomorrow' is no time"),
        (["--since", "1h", "--until", "2h"], "before it starts"),
    ],
)
def test_what_cannot_be_exported_is_explained(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    given = ["export", "--format", "csv", "--to", str(tmp_path / "out"), "--ledger", str(ledger.path), *flags]
    assert cli.main(given) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))


def test_the_command_names_the_extra(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    given = ["export", "--format", "parquet", "--to", str(tmp_path / "out"), "--ledger", str(ledger.path)]
    assert cli.main(given) == 2
    assert "wastegate[export]" in capsys.readouterr().err
