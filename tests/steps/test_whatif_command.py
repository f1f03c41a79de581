from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.steps.test_whatif import FLEET
from wastegate.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "what.toml"
    path.write_text(FLEET + "\n[traffic]\nrate = 5.0\noutput = 20.0\n")
    return path


def test_one_run_is_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--config", str(config), "--calls", "700"]) == 0
    assert "700 finished" in capsys.readouterr().out


def test_json_holds_report_and_verdict(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--config", str(config), "--calls", "50", "--json", "--no-progress"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["report"]["calls"], told["verdict"]["ruling"]) == (50, "pass")


def test_a_sweep_is_a_list_and_leaves_a_page(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = config.with_suffix(".html")
    flags = ["--calls", "50", "--json", "--no-progress", "--processes", "2", "--html", str(page)]
    assert main(["simulate", "--config", str(config), "--sweep", "machines.0.count=1,2", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["report"]["label"] for one in told] == ["count=1", "count=2"]
    assert "<svg" in page.read_text()
    assert main(["simulate", "--config", str(config), "--sweep", "machines.0.count=1,2", "--calls", "20"]) == 0
    assert "count=2" in capsys.readouterr().out


def test_what_cannot_be_trusted_is_told_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "far.toml"
    path.write_text(
        "[[machines]]\n[machines.table]\ndecode = [[1, 0.01]]\nprefill = [[1, 0.01]]\n[traffic]\nrate = 5.0\n"
    )
    assert main(["simulate", "--config", str(path), "--calls", "20", "--no-progress"]) == 1
    assert "hold: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        ("", [], "missing required field `machines`"),
        (FLEET, ["nowhere.csv"], "cannot be opened"),
        (FLEET, ["--sweep", "x"], "write a path and its values"),
        (FLEET + "\n[traffic]\n", ["--html", "/nowhere/page.html"], "cannot be written"),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: list[str], problem: str
) -> None:
    path = tmp_path / "what.toml"
    path.write_text(text)
    assert main(["simulate", "--config", str(path), "--calls", "5", "--no-progress", *flags]) == 2
    assert problem in capsys.readouterr().err


def test_the_worked_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Shorter: the first 60 calls of such a trace."""
    trace = tmp_path / "azure.csv"
    rows = [f"2026-01-01 00:00:{second:02}.0000000,{900 + second},{100 + second}" for second in range(60)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    example = Path(__file__).parent.parent.parent / "examples" / "whatif.toml"
    sweeps = ["--sweep", "machines.0.roofline.hardware=l40s,h100", "--sweep", "machines.0.count=3,4,7,8"]
    command = ["simulate", str(trace), "--config", str(example), "--speed", "8", *sweeps, "--no-progress", "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told) == 8
    prices = {one["report"]["label"]: one["report"]["per_thousand"] for one in told}
    assert prices["hardware=l40s, count=3"] < prices["hardware=h100, count=8"]
