"""Columns are named once, documented, and read what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import attempt, entry
from wastegate.core.call import Divergence
from wastegate.core.ledger import Flew
from wastegate.store.export import Bill, Call, Charge
from wastegate.store.export_columns import ATTEMPTS, ENTRIES, REPLICAS, Column, Tried

CHARGE = Charge(
    cost=6, prefill=1, decode=2, kv=3, naive=9, estimate=5, joules=2.5, recorded=True, priced=True, waste=""
)
UNPRICED = Charge(
    cost=0, prefill=0, decode=0, kv=0, naive=0, estimate=0, joules=None, recorded=False, priced=False, waste="failed"
)
CALL = Call(
    entry("x", attempt("a", 1, 2, outcome="failed"), attempt("b", 2, 4, number=2), tags=(("team", "red"),)),
    (UNPRICED, CHARGE),
)


def row(columns: tuple[Column[Any], ...], value: object) -> dict[str, Any]:
    return {column.name: column.read(value) for column in columns}


def test_a_call_sums_its_attempts() -> None:
    found = row(ENTRIES, CALL)
    assert (found["id"], found["cost_nano"], found["naive_nano"], found["attempts"]) == ("x", 6, 9, 2)
    assert found["priced"] is False
    assert found["tags"] == '[["team","red"]]'
    assert found["trail"] == "[]"


def test_what_a_call_shared_is_there_or_empty() -> None:
    names = ("prompt_bytes", "flew_with", "diverges_at", "diverges_by", "same_again")
    assert [row(ENTRIES, CALL)[name] for name in names] == [0, None, None, None, None]
    shared = entry("y", flew=Flew("x", 30, 6), prompt_bytes=900, divergence=Divergence(40, "time", 512))
    found = row(ENTRIES, Call(shared, ()))
    assert [found[name] for name in names] == [900, "x", 40, "time", 512]


def test_an_attempt_names_its_call_and_its_charge() -> None:
    found = row(ATTEMPTS, Tried(CALL.entry, CALL.entry.attempts[1], CHARGE))
    assert (found["entry"], found["number"], found["replica"], found["ended"]) == ("x", 2, "b", 4)
    assert [found[f"{name}_nano"] for name in ("cost", "prefill", "decode", "kv", "naive")] == [6, 1, 2, 3, 9]
    assert (found["estimate_nano"], found["joules"], found["recorded"]) == (5, 2.5, True)


def test_a_replica_shows_its_bill() -> None:
    found = row(REPLICAS, Bill("a", 10, 6, 3, 1, 1.0, 0.5, 1.0, 0.0, 0.0, None, "EXACT", "a test"))
    assert found["bill_nano"] == found["requests_nano"] + found["idle_nano"] + found["overhead_nano"]
    assert (found["work"], found["basis"], found["joules"]) == ("a test", "EXACT", None)


@pytest.mark.parametrize("columns", [ENTRIES, ATTEMPTS, REPLICAS])
def test_every_column_is_documented(columns: tuple[Column[Any], ...]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    assert len({column.name for column in columns}) == len(columns)
    missing = [column.name for column in columns if f"| `{column.name}` | {column.about} |" not in page]
    assert missing == []
