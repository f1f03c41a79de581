"""The audit of a load test is shown with what it found, and without columns that nobody can fill."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.load.test_stages import lay, lifecycle, prometheus
from wastegate.load.imports import price_of
from wastegate.steps.loadtest import judge, run
from wastegate.steps.loadtest_view import UNREAD, view


def shown(folder: Path, price: float | None = None) -> str:
    report = run([folder], price_of(price))
    console = Console(file=io.StringIO(), width=160)
    console.print(view(report, judge(report)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_stages_findings_and_verdict_are_shown(tmp_path: Path) -> None:
    clients: dict[int, object] = {n: lifecycle() for n in range(4)}
    servers: dict[int, object] = {0: prometheus(kv=0.0), 1: prometheus(kv=0.0), 3: prometheus(120, 2.0, kv=0.0)}
    text = shown(lay(tmp_path / "[bold]run", clients, servers))
    assert "[bold]run: at most 1.0 requests a second" in text
    assert "window (stage 3): in stage 3 Prometheus counts 120 requests over 60 s" in text
    assert "dead metric (stages 0, 1, 3): " in text
    assert "take these reports with care" in text
    assert "$ / 1,000" not in text


def test_prices_are_shown_where_there_is_one(tmp_path: Path) -> None:
    text = shown(lay(tmp_path, {0: lifecycle(asked=None)}), price=3.6)
    assert "at $3.60 an hour" in text
    assert "$1.00" in text
    assert "–" in text
    assert "nothing here contradicts itself" in text


def test_stages_in_a_row_are_named_by_their_ends(tmp_path: Path) -> None:
    text = shown(lay(tmp_path, {n: lifecycle(failed=1) for n in range(3)}))
    assert "failed (stages 0–2): 3 requests failed." in text


def test_unread_files_are_named_and_bounded(tmp_path: Path) -> None:
    text = shown(lay(tmp_path, {0: lifecycle(), **dict.fromkeys(range(1, UNREAD + 4), "{")}))
    assert f"{UNREAD + 3} files not read:" in text
    assert "stage_1_lifecycle_metrics.json: not JSON" in text
    assert "and 3 more" in text
