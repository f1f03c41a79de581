"""The weekly report reads as sentences, says what it does not know, and is the same as a page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.ledgers import attempt, entry, span
from tests.steps.test_weekly import CENT, NOW, T, at, two_weeks, weeks
from wastegate import cli
from wastegate.steps.audit import At
from wastegate.steps.weekly import WEEK, LabelDriver, Report, judge, run
from wastegate.steps.weekly_view import html, signed, view


def said(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(view(report, judge(report)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_bill_its_change_and_its_drivers_are_told(tmp_path: Path) -> None:
    text = said(run(two_weeks(tmp_path), NOW))
    assert "The bill was $3.46, 106 % or $1.78 more than the week before ($1.68)." in text
    assert "a: +$1.68, its price rose" in text
    assert "b: +$0.1000, new, up for 10.00 h" in text
    assert "There were 3 calls, after 2 in the week before." in text
    assert "acme: +$0.0008333: 1 more call (+$0.0002778), each dearer (+$0.0005556 in all)" in text
    assert "gone: −$0.0002778, no calls any more (there were 1)" in text
    assert "new: +$0.0005556, new with 1 call" in text
    assert "There is too little history to forecast the next week: 2 whole weeks with a bill are known" in text


def test_a_week_without_traffic_is_a_sentence(tmp_path: Path) -> None:
    text = said(weeks(tmp_path, [10, 12, 11, 9, 10]))
    assert "No call ended in this week." in text
    assert "The bill was $0.1000, 11 % or $0.01000 more than the week before ($0.09000)." in text
    assert "Why the bill changed:\n  a: +$0.01000, up for 60.00 min longer" in text
    assert "between $0.06629 and $0.1337 in 9 of 10 cases, if weeks go on differing as the last 5 did." in text
    assert "no replica is known to have been up: nothing ran, or nobody wrote" in text


def test_an_empty_ledger_is_sentences_too(tmp_path: Path) -> None:
    text = said(run(at(tmp_path, [], []), NOW))
    assert "There is no bill: no replica is known to have been up at a known price." in text
    assert "Nothing is recorded yet" in text
    assert "0 whole weeks with a bill are known" in text
    assert "Take these figures with care:" in text


@pytest.mark.parametrize(
    ("weeks_ago", "words"),
    [
        (0.5, "It covers 3.5 d only, and cannot be compared with a week before: the ledger begins on "),
        (1.5, "It cannot be compared with a whole week before: the ledger begins on "),
    ],
)
def test_a_short_ledger_says_where_it_begins(tmp_path: Path, weeks_ago: float, words: str) -> None:
    text = said(run(at(tmp_path, [], [span("a", NOW - weeks_ago * WEEK, NOW, price=CENT)]), NOW))
    assert words in text
    assert "1 whole week with a bill is known" in text or weeks_ago < 1


def test_what_stayed_the_same_is_said_to(tmp_path: Path) -> None:
    life = [span("a", T, NOW, price=CENT)]
    calls = [entry(f"c{n}", attempt("a", T + 100 + n * WEEK, T + 200 + n * WEEK)) for n in range(2)]
    text = said(run(at(tmp_path, calls, life), NOW))
    assert "The bill was $1.68, the same as the week before ($1.68)." in text
    assert "No replica was up for longer or shorter, and no price changed." in text


def test_replicas_that_left_or_fell_in_price_are_told(tmp_path: Path) -> None:
    life = [
        span("a", T, T + WEEK, price=2 * CENT),
        span("a", T + WEEK, T + WEEK + 7200, price=CENT),
        span("b", T, T + 7200, price=CENT),
    ]
    text = said(run(at(tmp_path, [], life), NOW))
    assert "a: −$3.32, up for 6.9 d shorter; −$0.02000, its price fell" in text
    assert "b: −$0.02000, gone; it was up for 120.00 min" in text or "b: −$0.02000, gone; it was up for 2.00 h" in text
    assert "% or $" in text
    assert "less than the week before" in text


def test_after_a_week_that_cost_nothing_no_share_is_named(tmp_path: Path) -> None:
    calls = [entry("old", arrived=T - 5, ended=T - 5)]
    text = said(run(at(tmp_path, calls, [span("a", NOW - WEEK, NOW, price=CENT)]), NOW))
    assert "The bill was $1.68, $1.68 more than the week before ($0)." in text


def test_fewer_calls_at_the_same_price_are_told_as_that(tmp_path: Path) -> None:
    report = run(two_weeks(tmp_path), NOW)
    fewer = LabelDriver("route", "", by_calls=-2.0, by_each=0.0, calls=1, calls_before=3)
    text = said(replace(report, labels=(fewer,)))
    assert "(none): −$2.00: 2 fewer calls (−$2.00)" in text


def test_signs() -> None:
    assert [signed(1.5), signed(-0.25), signed(0.0)] == ["+$1.50", "−$0.2500", "$0"]


def test_the_page_says_the_same_and_draws_the_weeks(tmp_path: Path) -> None:
    report = weeks(tmp_path, [10, 12, 11, 9, 10])
    page = html(report, judge(report))
    assert "11 % or $0.01000 more than the week before" in page
    assert page.count('class="plain"') == 5
    assert "4 weeks before" in page
    assert "this week" in page


def test_a_label_from_outside_stays_text(tmp_path: Path) -> None:
    evil = "[/red]<script>x</script>"
    site = at(
        tmp_path,
        [entry("a", attempt("a", NOW - 500, NOW - 400), tenant=evil), entry("b", attempt("a", T + 5, T + 9))],
        [span("a", T, NOW, price=CENT)],
    )
    report = run(site, NOW)
    assert evil in said(report)
    assert "<script" not in html(report, judge(report))


def test_without_history_the_page_has_no_chart(tmp_path: Path) -> None:
    report = run(at(tmp_path, [], []), NOW)
    assert "<figure" not in html(report, judge(report))


# ---- the command


def command(site: At, *flags: str) -> int:
    return cli.main(
        ["report", "--weekly", "--ledger", str(site.ledger), "--until", "2026-10-05T15:33:20+00:00", *flags]
    )


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = two_weeks(tmp_path)
    assert command(site, "--html", str(tmp_path / "week.html")) == 0
    assert "The bill was" in capsys.readouterr().out
    assert (tmp_path / "week.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert command(site, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"]["week"]["end"] - found["report"]["week"]["start"] == WEEK


def test_the_command_explains_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(At(tmp_path / "no.db")) == 2
    assert "there is no ledger" in capsys.readouterr().err
