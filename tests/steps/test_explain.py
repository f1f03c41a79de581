"""One call's cost is the same as in the audit, in parts, with every guess named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.ledgers import PLAIN, attempt, entry, record, run, span
from wastegate import cli
from wastegate.core.attribution import attribute
from wastegate.core.facts import gather
from wastegate.core.ledger import NANO, Entry, ReplicaSpan
from wastegate.core.records import Cursor, Heard
from wastegate.steps.audit import At
from wastegate.steps.explain import Explanation, explain
from wastegate.store.entries import Ledger


def written(folder: Path, entries: Sequence[Entry], life: Sequence[ReplicaSpan]) -> At:
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
    return At(folder / "ledger.db")


def explained(folder: Path, *entries: Entry, life: Sequence[ReplicaSpan] = (span(end=100.0),)) -> Explanation:
    """The first entry, among the others."""
    return explain(written(folder, entries, life), entries[0].id)


def test_its_cost_is_what_the_audit_counts(tmp_path: Path) -> None:
    tokens = {"prompt_tokens": 900, "output_tokens": 70}
    entries = [
        entry(
            "x", attempt("a", 1.0, 5.0, outcome="failed"), attempt("b", 5.0, 9.0, number=2, first_token=6.0, **tokens)
        ),
        entry("beside", attempt("b", 0.0, 7.0, **tokens)),
        entry("long", attempt("a", 0.0, 90.0)),
        entry("elsewhen", attempt("b", 50.0, 60.0)),
    ]
    life = [span("a", end=100.0), span("b", end=100.0, work=PLAIN, kv_capacity=2000)]
    told = explained(tmp_path, *entries, life=life)
    facts = gather(entries, life)
    charges = attribute(facts)
    mine = facts.attempts.call == [one.id for one in sorted(entries, key=lambda e: e.id)].index("x")
    assert told.dollars == pytest.approx(charges.amount[mine].sum() / NANO, abs=1e-8)
    assert told.naive == pytest.approx(charges.naive[mine].sum() / NANO, abs=1e-8)
    first, second = told.attempts
    assert (first.attempt.number, first.waste, first.company) == (1, "superseded", 2.0)
    assert second.dollars == pytest.approx(second.prefill + second.decode + second.kv)  # type: ignore[operator]
    assert (second.waste, second.company, second.memory_known, second.work) == ("", 1.5, True, "a test")
    assert told.entry == entries[0]


def test_alone_nothing_is_a_guess_but_the_memory(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", attempt(begin=1.0, end=3.0, prompt_tokens=5)))
    assert told.dollars == 2.0
    assert told.guesses == ("attempt 1: the KV capacity of a is not known, so the naive figure takes all of it",)


@pytest.mark.parametrize(
    ("changed", "life", "guess"),
    [
        ({"usage": "estimated"}, [span()], "its tokens are estimated from bytes"),
        ({"usage": "none"}, [span()], "it is charged for its place alone"),
        ({"outcome": "lost"}, [span()], "its end is when the gateway last wrote anything"),
        ({}, [span(price=0)], "a was up at no known price, so it has no cost here"),
        ({}, [span()], "shared with others by default, not measured"),
        ({}, [span(work=PLAIN)], "shared with others by work as the gateway sees it, weighed as a test"),
    ],
)
def test_each_guess_is_named(tmp_path: Path, changed: dict[str, Any], life: list[ReplicaSpan], guess: str) -> None:
    told = explained(tmp_path, entry("x", attempt(**changed)), entry("y", attempt()), life=life)
    assert any(guess in one for one in told.guesses), told.guesses


def test_without_a_price_there_is_no_cost_rather_than_none(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", attempt("b")), life=[span("a")])
    assert (told.dollars, told.naive, told.attempts[0].prefill) == (None, None, None)


def test_one_priced_attempt_gives_a_sum(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", attempt("b", 0.0, 1.0), attempt("a", 1.0, 4.0, number=2)), life=[span("a")])
    assert [one.dollars for one in told.attempts] == [None, 3.0]
    assert told.dollars == 3.0


def test_a_call_that_reached_nobody(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", arrived=5.0, ended=5.0))
    assert (told.dollars, told.attempts, told.guesses) == (None, (), ())


def test_an_attempt_of_no_time_has_no_company(tmp_path: Path) -> None:
    told = explained(tmp_path, entry("x", attempt(begin=2.0, end=2.0, sent=None)))
    assert told.attempts[0].company is None
    assert told.attempts[0].dollars == 0.0


# ---- the command


def test_the_command_takes_a_beginning_of_an_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = written(
        tmp_path, [entry("abcdef", attempt(end=2.0)), entry("abd", attempt(begin=50.0, end=51.0))], [span()]
    )
    assert cli.main(["explain", "abc", "--ledger", str(where.ledger)]) == 0
    assert "It cost $2.00" in capsys.readouterr().out
    assert cli.main(["explain", "abc", "--ledger", str(where.ledger), "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out, type=Explanation)
    assert told == explain(where, "abcdef")


@pytest.mark.parametrize(
    ("id", "ledger", "said"),
    [
        ("ab", "ledger.db", "several calls have an id that begins with 'ab': abc, abd"),
        ("zz", "ledger.db", "has an id that begins with 'zz'"),
        ("abc", "nope.db", "there is no ledger at"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], id: str, ledger: str, said: str
) -> None:
    written(tmp_path, [entry("abc"), entry("abd")], [])
    assert cli.main(["explain", id, "--ledger", str(tmp_path / ledger)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("wastegate explain: ")
    assert said in captured.err


def test_a_damaged_ledger_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = written(tmp_path, [entry(f"{n}", attempt(), path="x" * 300) for n in range(500)], [])
    size = where.ledger.stat().st_size
    with where.ledger.open("r+b") as file:
        file.seek(4096)  # all but the first page, which says what the file is
        file.write(b"\xff" * (size - 4096))
    for command in (["explain", "250"], ["audit"]):
        assert cli.main([*command, "--ledger", str(where.ledger)]) == 2
        assert "malformed" in capsys.readouterr().err


def test_what_its_engine_told_is_beside_what_the_gateway_saw(tmp_path: Path) -> None:
    seen: dict[str, Any] = {"begin": 0.0, "end": 10.0, "first_token": 1.0, "prompt_tokens": 100, "output_tokens": 100}
    where = written(
        tmp_path, [entry("x", attempt(**seen)), entry("y", attempt(**seen))], [span(work=PLAIN, joules=300.0)]
    )
    runs = (
        run(2.0, 4.0, 1, prefill=90, kv=50.0),
        run(4.0, 10.0, 50, decode=50, draft=20, kv=600.0),
    )
    told = (
        record("x.1", *runs, arrived=0.5, prompt=100, cached=10, preemptions=1, finish="length"),
        record("x.1", run(4.0, 10.0, 60, decode=60), prompt=100, cached=90, finish="stop"),
    )
    with Ledger(where.ledger) as ledger:
        numbered = tuple(replace(one, sequence=number) for number, one in enumerate(told, 1))
        ledger.save_records([Heard("a", Cursor("boot", 2, 11.0), numbered)])
    (cost,) = explain(where, "x").attempts
    engine = cost.engine
    assert engine is not None
    assert (engine.queued, engine.prompt, engine.cached, engine.prefill) == (1.5, 100, 90, 90)
    assert (engine.output, engine.draft, engine.steps, engine.kv) == (112, 20, 60, 650.0)
    assert (engine.preemptions, engine.finish, engine.measured) == (1, "length, stop", "steps")
    assert cost.basis == explain(where, "x").basis == "DEGRADED", "y ran with it, and nothing tells of that"
    assert cost.estimate == pytest.approx(5.0)
    assert cost.joules is not None
    assert cost.dollars is not None
    assert cost.joules / 300 == pytest.approx(cost.dollars / 10, rel=1e-6)
    assert any("in each step" in guess for guess in explain(where, "x").guesses)
    (other,) = explain(where, "y").attempts
    assert (other.basis, other.engine, other.estimate) == ("GATEWAY", None, None)
    with Ledger(where.ledger) as ledger:
        late = record("y.1", measured="times", sequence=3)
        ledger.save_records([Heard("a", Cursor("boot", 3, 11.0), (late,))])
    (other,) = explain(where, "y").attempts
    assert other.engine is not None
    assert (other.engine.queued, other.engine.measured, other.basis) == (None, "times", "DEGRADED")
