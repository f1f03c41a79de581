"""What a reader sees: every figure of the report, sentences where there is none, and no NaN."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.ledgers import attempt, entry, span
from tests.steps.test_audit import RECORDS, audited, told_audit, usual
from wastegate.steps.audit import Report, judge
from wastegate.steps.audit_view import view
from wastegate.steps.verdict import Verdict


def seen(report: Report, verdict: Verdict | None = None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(view(report, verdict or judge(report)))
    said: Any = console.file
    return str(said.getvalue())


def words_of(report: Report, verdict: Verdict | None = None) -> str:
    """The same, however it is laid out."""
    return " ".join(seen(report, verdict).split())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return usual(tmp_path_factory.mktemp("view"))


def test_every_part_is_there(report: Report) -> None:
    said = words_of(report)
    for words in (
        "Audit of",
        "(60.00 s)",
        "requests $18.00 10 %",
        "of it wasted: tried again elsewhere",
        "price × up time $180.00 100 %",
        "Replicas",
        "Cost per request",
        "1,000 requests: $6,000.00 by themselves; $60,000.00 with idle, overhead and waste",
        "a million tokens in:",
        "rate × duration × memory share would bill the requests $28.00: 1.56 × their cost",
        "TTFT, streamed",
        "What requests cost, by label",
        "tag team red 1 $4.51 25 %",
        "4 calls: 3 finished, 1 never sent to a replica",
        "4 attempts counted by the engine",
        "each call's part is an estimate",
        "Work on b is weighed by default",
        "these figures stand",
    ):
        assert words in said, said


@pytest.mark.parametrize(
    ("known", "words"),
    [(0.0, "taken as 1: no replica"), (0.4, "known for 40 % of attempts, taken as 1"), (1.0, "KV held ÷ capacity")],
)
def test_the_memory_share_of_the_usual_formula_is_told(report: Report, known: float, words: str) -> None:
    assert words in words_of(replace(report, naive=replace(report.naive, memory_known=known)))


def test_no_traffic_is_a_sentence(tmp_path: Path) -> None:
    said = words_of(audited(tmp_path, [], [span(end=60.0)]))
    assert "No call ended in this window, so there is no cost per request to show." in said
    assert "idle: up, nobody in flight $60.00 100 %" in said
    assert "Cost per request" not in said
    assert "nan" not in said.lower()


def test_an_empty_ledger_is_sentences(tmp_path: Path) -> None:
    said = words_of(audited(tmp_path, []))
    assert "take these figures with care" in said
    assert "The bill" not in said
    assert "nan" not in said.lower()


def test_what_is_not_priced_or_counted_is_said(tmp_path: Path) -> None:
    entries = [
        entry("x", attempt("free", 0.0, 5.0, usage="estimated", prompt_tokens=9), route=""),
        entry("y", attempt("a", 8.0, 14.0, usage="none", outcome="lost")),
    ]
    said = words_of(audited(tmp_path, entries, [span("a"), span("free", price=0)]))
    for words in (
        "Unpriced: 1 attempt of 1 call on free ran at no known price.",
        "9.00 s of attempts fell outside the known, priced up time of their replica.",
        "100 % of the tokens are estimates, not counts.",
        "1 attempt estimated from bytes (9 tokens)",
        "1 attempt without a count (0 tokens)",
        "1 lost when the gateway died",
        "not measured",
        "by calls unpriced dollars of requests",
        "route chat 1 0 $2.00 100 % (none) 1 1 – –",
        "a $10.00 $2.00 $8.00 $0 10.00 s 20 % 0 ms GATEWAY free – – – – 0 ms – 10.00 s GATEWAY",
        "take these figures with care",
    ):
        assert words in said, said


def test_calls_that_never_reached_a_replica_have_no_tokens_to_count(tmp_path: Path) -> None:
    said = words_of(audited(tmp_path, [entry("x")], [span()]))
    assert "1 call: 1 never sent to a replica" in said
    assert "token counts" not in said


def test_a_failure_is_told_in_words(report: Report) -> None:
    said = words_of(report, Verdict("fail", ("off by a dollar",)))
    assert "these figures are wrong" in said
    assert "off by a dollar" in said


def test_a_narrow_terminal_loses_no_figure(report: Report) -> None:
    said = seen(replace(report, ledger="l.db"), width=60)
    assert max(len(line) for line in said.splitlines()) <= 60
    assert "…" not in said


def test_what_engines_tell_is_said_for_each(tmp_path: Path) -> None:
    report = told_audit(tmp_path, *RECORDS)
    said = words_of(report)
    for words in (
        "up busy kWh basis",
        "a $10.00 $10.00 $0 $0 10.00 s 100 % 2 EXACT",
        "b $10.00 $10.00 $0 $0 10.00 s 100 % – GATEWAY",
        "its energy 1 kWh",
        "Calls in flight together on b share",
        "a (EXACT): its engine tells of 2 of 2 attempts; the gateway alone would have charged",
        "tokens by gateway and engine: in 200 and 200, cached 20 and 32, out 100 and 101.",
    ):
        assert words in said, said
    quiet = replace(report, told=tuple(replace(one, cached=None) for one in report.told))
    assert "in 200 and 200, out 100 and 101" in words_of(quiet)
    unmoved = replace(report, replicas=tuple(replace(one, moved=None) for one in report.replicas))
    assert "the gateway alone" not in words_of(unmoved)
