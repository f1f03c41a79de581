"""One call as a reader sees it: in order, with what is not known said so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from tests.ledgers import attempt, entry, span
from tests.steps.test_explain import explained
from wastegate.core.call import Divergence
from wastegate.core.ledger import Flew
from wastegate.steps.explain import Engine, Explanation
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


def test_what_the_engine_did_stands_under_what_the_gateway_saw(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", attempt(prompt_tokens=100, output_tokens=20)))
    (cost,) = told.attempts
    engine = Engine(0.25, 100, 64, 36, 20, 8, 20, 1234.0, 1, "length", "steps")
    known = replace(cost, engine=engine, basis="EXACT", estimate=0.5, joules=12.0)
    said = " ".join(seen(replace(told, attempts=(known,))).split())
    for words in (
        "by its engine: waited there 250 ms",
        "prompt tokens, cached, computed 100, 64, 36",
        "output tokens, of steps 20, 20",
        "draft tokens verified 8",
        "preempted 1 times",
        "KV held, token-seconds 1,234",
        "as the gateway alone would say $0.5000",
        "energy 12 J",
        "basis EXACT",
    ):
        assert words in said, said
    plain = replace(known, engine=replace(engine, draft=0, preemptions=0))
    assert "draft" not in seen(replace(told, attempts=(plain,)))
    assert "basis GATEWAY" in " ".join(seen(told).split())


def test_whoever_flew_along_is_told_with_whom_and_what_it_saved(tmp_path: Path) -> None:
    call = entry("x", outcome="finished", status=200, flew=Flew("other", 30, None), prompt_bytes=1200,
                 divergence=Divergence(42, "time", 900))  # fmt: skip
    said = " ".join(seen(explained(tmp_path, call, life=[span("a")])).split())
    assert "It flew with other, so it cost nothing: 30 prompt and not known output tokens were not computed" in said
    assert "parts from one before it at byte 42 of 1,200 (time); 900 bytes behind that are the same again" in said
