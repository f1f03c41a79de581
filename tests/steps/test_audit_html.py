"""The page shows what the terminal shows, and charts that add up; without figures it says so."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from tests.ledgers import HOURLY, PLAIN, attempt, entry, span
from wastegate import cli
from wastegate.core.ledger import Entry, ReplicaSpan
from wastegate.steps import audit, audit_html, audit_view
from wastegate.steps.audit import At
from wastegate.store.entries import Ledger

T = 1_790_000_000.0
EVIL = "[/red]</title><script>alert('x')</script>"


def at(folder: Path, entries: Sequence[Entry], life: Sequence[ReplicaSpan]) -> At:
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
    return At(folder / "ledger.db")


def usual(folder: Path, tenant: str = "acme") -> At:
    prompt = {"prompt_tokens": 1000, "output_tokens": 100}
    entries = [
        entry("x", attempt("a", T + 10, T + 20, first_token=T + 12, **prompt), tenant=tenant, tags=(("team", "red"),)),
        entry("y", attempt("a", T + 10, T + 20, **prompt), route="mail"),
        entry("z", attempt("a", T + 30, T + 32, outcome="failed"), attempt("b", T + 32, T + 35, number=2, **prompt)),
    ]
    life = [
        span("a", T, T + 10, phase="loading", work=PLAIN),
        span("a", T + 10, T + 60, work=PLAIN),
        span("b", T, T + 60, price=2 * HOURLY),
    ]
    return at(folder, entries, life)


def html_of(site: At) -> str:
    report, series = audit_html.run(site)
    return audit_html.render(report, audit.judge(report), series)


def test_every_chart_is_there(tmp_path: Path) -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html_of(usual(tmp_path)))
    assert (
        captions
        == [
            "Where the money went",
            "Dollars an hour, over time",
            "Idle, by replica",
            "Waste: attempts that came to nothing, and their part of the bill",
            "Cost of requests, by route",
            "Cost of requests, by model",
            "Cost of requests, by tenant",
            "Cost of requests, by class",
            "Cost of requests, by tag team",
            "Latency of finished calls: P50, P95, P99",
            "How the cost is spread over requests",
            "What requests cost, and what the usual formula says",
        ][: len(captions)]
    )
    assert len(captions) >= 11


def test_all_that_the_terminal_shows_is_on_the_page(tmp_path: Path) -> None:
    site = usual(tmp_path)
    report = audit.run(site)
    console = Console(file=io.StringIO(), width=200)
    console.print(audit_view.view(report, audit.judge(report)))
    assert isinstance(console.file, io.StringIO)
    page = " ".join(unescape(re.sub(r"<[^>]*>", " ", html_of(site))).split())
    for line in console.file.getvalue().splitlines():
        for words in re.split(r"\s{2,}", line.strip(" ─")):
            assert " ".join(words.split()) in page


def test_the_series_is_the_bill(tmp_path: Path) -> None:
    report, series = audit_html.run(usual(tmp_path))
    assert sum(piece.total for piece in series) == pytest.approx(report.bill.total, rel=1e-6)
    assert sum(piece.calls for piece in series) == report.calls == 3
    assert series[0].start == report.window.start
    assert series[-1].end == report.window.end


def test_a_label_from_outside_stays_text(tmp_path: Path) -> None:
    html = html_of(usual(tmp_path, tenant=EVIL))
    assert "<script" not in html
    assert "&lt;/title&gt;&lt;script&gt;" in html
    assert html.count("</title>") == html.count("<title>")


def test_an_empty_ledger_is_a_page_with_a_sentence(tmp_path: Path) -> None:
    html = html_of(at(tmp_path, [], []))
    assert "Nothing is known of this window." in html
    assert "No call ended in this window" in html
    assert "<figure" not in html


def test_without_prices_no_dollar_is_drawn(tmp_path: Path) -> None:
    calls = [entry("x", attempt("a", T, T + 1, first_token=T + 0.5, prompt_tokens=3, output_tokens=2))]
    html = html_of(at(tmp_path, calls, [span("a", T, T + 9, price=0)]))
    assert re.findall(r"<figcaption>(.*?)</figcaption>", html) == ["Latency of finished calls: P50, P95, P99"]
    assert "no replica was up at a known price" in html


def test_idle_alone_is_drawn_too(tmp_path: Path) -> None:
    html = html_of(at(tmp_path, [], [span("a", T, T + 9)]))
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    assert captions == ["Where the money went", "Dollars an hour, over time", "Idle, by replica"]


def test_many_labels_are_cut_to_the_dearest(tmp_path: Path) -> None:
    calls = [entry(f"c{n}", attempt("a", T + n, T + n + 1, output_tokens=5), tenant=f"t{n}") for n in range(15)]
    html = html_of(at(tmp_path, calls, [span(f"r{n}", T, T + 20) for n in range(12)] + [span("a", T, T + 20)]))
    assert "5 more in the table below." in html
    assert "3 more in the table below." in html


def test_charts_of_tags_are_bounded(tmp_path: Path) -> None:
    tags = tuple((f"key-{n:02}", "x") for n in range(30))
    html = html_of(at(tmp_path, [entry("c", attempt("a", T, T + 1), tags=tags)], [span("a", T, T + 2)]))
    assert html.count("<figcaption>Cost of requests, by") == audit_html.SPLITS
    assert "tag key-29" in html


def test_the_command_writes_the_page_beside_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = usual(tmp_path)
    page = tmp_path / "audit.html"
    assert cli.main(["audit", "--ledger", str(site.ledger), "--html", str(page), "--json"]) == 0
    assert '"report"' in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = usual(tmp_path)
    assert cli.main(["audit", "--ledger", str(site.ledger), "--html", str(tmp_path / "no" / "a.html")]) == 2
    assert "no/a.html" in capsys.readouterr().err
