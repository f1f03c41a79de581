"""Other tools' records can be imported and audited; every row is accounted for, also in what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.test_imports_inference_perf import row
from tests.load.test_imports_litellm import PLAIN, STREAM
from tests.load.test_stages import lay, lifecycle, prometheus
from wastegate import cli
from wastegate.load.imports import Options, price_of
from wastegate.load.imports_inference_perf import RECORD
from wastegate.steps import foreign
from wastegate.steps.foreign import audited, faults, said, take_in


def spend(folder: Path) -> Path:
    path = folder / "spend.jsonl"
    lines = [PLAIN, STREAM, {**PLAIN, "request_id": "e", "call_type": "aembedding"}, STREAM]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"request_id": \n', encoding="utf-8")
    return path


def test_what_became_of_each_row_is_said(tmp_path: Path) -> None:
    path = spend(tmp_path)
    done = take_in("litellm", [path], tmp_path / "l.db", Options())
    assert (done.read, done.imported, done.known, faults(done)) == (5, 2, 1, 1)
    assert done.reconciles
    lines = list(said(done))
    assert lines[0] == f"5 rows of litellm read, 2 imported into {tmp_path / 'l.db'}"
    assert "  1 were there already" in lines
    assert "  1 left out: not a completion" in lines
    assert any(line.startswith(f"    {path}, line 5: Expecting value") for line in lines)


def test_many_faults_of_one_kind_are_counted_on(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n" * 8, encoding="utf-8")
    done = take_in("litellm", [path], tmp_path / "l.db", Options())
    assert "    and 3 more" in list(said(done))


def test_an_audit_needs_no_ledger_of_its_own(tmp_path: Path) -> None:
    path = spend(tmp_path)
    done, report = audited("litellm", [path], Options(price=price_of(3.6)))
    assert (done.ledger, report.ledger) == ("", f"{path} (litellm)")
    assert report.calls == 2
    # One replica from the first call's arrival to the end of the last: 8.12 s at a tenth of a cent.
    assert report.bill.total == pytest.approx(0.00812, abs=1e-5)
    assert next(said(done)) == "5 rows of litellm read, 2 imported"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_searched_for_records(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RECORD).write_text(json.dumps([row()]), encoding="utf-8")
    assert take_in("inference-perf", [tmp_path], tmp_path / "l.db", Options()).imported == 1


def test_a_count_is_shown_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = tmp_path / "x.jsonl"
    path.write_text((json.dumps(PLAIN) + "\n") * 600, encoding="utf-8")
    assert take_in("litellm", [path], tmp_path / "l.db", Options(), progress=True).read == 600


@pytest.mark.parametrize(("kind", "said_"), [("csv", "no kind of record"), ("otlp", "there is no file")])
def test_what_cannot_be_taken_in_is_refused_before_a_ledger_is_made(tmp_path: Path, kind: str, said_: str) -> None:
    with pytest.raises((ValueError, OSError), match=said_):
        take_in(kind, [tmp_path / "gone.json"], tmp_path / "l.db", Options())
    assert not (tmp_path / "l.db").exists()


# ---- the commands


def test_import_says_by_its_exit_code_whether_all_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, into = spend(tmp_path), tmp_path / "l.db"
    assert cli.main(["import", "litellm", str(path), "--into", str(into)]) == 1
    assert "left out: not JSON" in capsys.readouterr().out
    path.write_text(json.dumps(PLAIN) + "\n", encoding="utf-8")
    given = ["import", "litellm", str(path), "--into", str(into), "--price-per-hour", "2", "--start", "now", "--json"]
    assert cli.main(given) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 1
    assert cli.main(["audit", "--ledger", str(into)]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--price-per-hour", "-1"], "--price-per-hour is -1"), (["--start", "soon"], "'soon' is no time")],
)
def test_import_explains_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert cli.main(["import", "litellm", str(spend(tmp_path)), "--into", str(tmp_path / "l.db"), *flags]) == 2
    assert words in capsys.readouterr().err


def test_audit_from_another_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = spend(tmp_path), tmp_path / "a.html"
    assert cli.main(["audit", "--from", "litellm", str(path), "--price-per-hour", "2.5", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "5 rows of litellm read, 2 imported" in out
    assert "The bill" in out
    assert "litellm" in page.read_text(encoding="utf-8")
    assert cli.main(["audit", "--from", "litellm", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["import"]["read"] == 5


def test_audit_from_reports_of_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = lay(tmp_path / "run", {0: lifecycle()}, {0: prometheus(120, 2.0, kv=0.0)})
    assert cli.main(["audit", "--from", "inference-perf", str(folder), "--price-per-hour", "3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "it looked at another window" in out
    assert "The metric is dead, not zero" in out
    assert cli.main(["audit", "--from", "inference-perf", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["ruling"] == "hold"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--from", "inference-perf", ".", "--since", "1h"], "leave out --html, --since and --until"),
        (["--from", "inference-perf", "no-such-folder"], "per_stage"),
        (["--from", "litellm"], "names no file"),
        (["--from", "cvs", "x"], "no kind of record"),
    ],
)
def test_audit_explains_what_is_wrong(capsys: pytest.CaptureFixture[str], flags: list[str], words: str) -> None:
    assert cli.main(["audit", *flags]) == 2
    assert words in capsys.readouterr().err


def test_the_kinds_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["import", "--help"])
    assert f"{{{','.join(foreign.KINDS)}}}" in capsys.readouterr().out
