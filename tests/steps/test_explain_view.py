"""One call as a reader sees it: in order, with what is not known said so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.ledgers import attempt, entry, span
from tests.steps.test_explain import explained
from wastegate.steps.explain import Explanation
from wastegate.steps.explain_view import view


def seen(explanation: Explanation) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(explanation))
    said: Any = console.file
    return str(said.getvalue())


def test_a_call_is_told_from_its_arrival_to_its_cost(tmp_path: Path) -> None:
    call = entry(
        "x",
        attempt("a", 0.5, 1.0, outcome="failed", reason="connect", sent=None, usage="none"),
        attempt("b", 1.0, 5.0, number=2, first_byte=1.4, first_token=1.5, prompt_tokens=1200, output_tokens=8),
        arrived=0.0,
        reason="",
        finish_reason="stop",
        trail=("a was less loaded", "a failed: tries another"),
        tags=(("team", "red"),),
        client_id="theirs",
        traceparent="00-trace",
    )
    said = seen(explained(tmp_path, call, life=[span("a"), span("b")]))
    for words in (
        "Call x",
        "finished, status 200 (stop)",
        "route chat · model small · tenant default · short · streamed · team=red",
        "the client's own id: theirs",
        "traceparent: 00-trace",
        "a was less loaded",
        "Attempt 1 on a: failed (connect); its cost is waste: superseded",
        "Attempt 2 on b: finished",
        "+1.50 s",
        "500 ms",
        "1,200",
        "not known",
        "It cost $4.50 (rate × duration × memory share: $4.50)",
        "What is a guess",
        "attempt 1: nobody counted its tokens",
    ):
        assert words in said, said
    assert said.index("Why it went") < said.index("Attempt 1") < said.index("Attempt 2") < said.index("It cost")


def test_a_lost_call_has_no_status(tmp_path: Path) -> None:
    said = seen(explained(tmp_path, entry("x", attempt(outcome="lost"), status=0, stream=False)))
    assert "lost, status unknown" in said
    assert "streamed" not in said
    assert "Why it went" not in said


def test_a_call_without_a_price(tmp_path: Path) -> None:
    assert "Its cost is not known" in seen(explained(tmp_path, entry("x", attempt("b")), life=[]))


def test_a_call_that_reached_nobody_has_nothing_to_guess(tmp_path: Path) -> None:
    said = seen(explained(tmp_path, entry("x", reason="line_full")))
    assert "It never reached a replica, so it cost nothing." in said
    assert "refused, status 503 (line_full)" in said
    assert "What is a guess" not in said


def test_a_call_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    one = attempt(end=2.0, first_token=2.0, output_tokens=1)
    said = seen(explained(tmp_path, entry("x", one)))
    (line,) = [line for line in said.splitlines() if "time per token" in line]
    assert line.split()[-1] == "–"
