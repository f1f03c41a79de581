"""Wishes against facts."""

from __future__ import annotations

import pytest

from wastegate.engines.exposition import parse
from wastegate.engines.readback import Comparison, Effective, Pages, compare, flag, idle_draft, whole, word
from wastegate.engines.signals import Signals


def test_what_came_true_is_not_mentioned() -> None:
    both = Effective(context=2048, prefix_caching=True)
    assert compare(both, both) == Comparison()


def test_what_did_not_is_a_warning_and_what_is_not_shown_is_said() -> None:
    asked = Effective(prefix_caching=True, block=16, version="1")
    assert compare(asked, Effective(prefix_caching=False, sequences=3)) == Comparison(
        ("asked for prefix caching on, but it runs with prefix caching off",),
        ("asked for KV blocks of 16 tokens; the engine does not show whether it is so",),
    )


def test_what_was_left_to_the_engine_is_no_wish() -> None:
    assert compare(Effective(), Effective(context=1, speculation="ngram")) == Comparison()


def test_a_draft_that_is_never_tried() -> None:
    assert "without a single draft" in idle_draft(Signals(0.0, drafts=0.0, finished=20.0))
    assert idle_draft(Signals(0.0, drafts=0.0, finished=19.0)) == ""
    assert idle_draft(Signals(0.0, drafts=1.0, finished=50.0)) == ""
    assert idle_draft(Signals(0.0, finished=50.0)) == ""


@pytest.mark.parametrize("keys", [("a", 5), ("b",), ("a", "x"), ("a", 0, "x", "y")])
def test_what_is_not_there_is_none(keys: tuple[str | int, ...]) -> None:
    assert Pages(parse("", ()), {"/p": {"a": [{"x": 1}]}}).get("/p", *keys) is None


def test_what_is_there() -> None:
    pages = Pages(parse("", ()), {"/p": {"a": [{"x": 1}]}})
    assert pages.get("/p", "a", 0, "x") == 1
    assert pages.get("/q", "a") is None


def test_a_pages_values() -> None:
    assert [whole(v) for v in (3, 3.0, True, None, "3", float("nan"))] == [3, 3, None, None, None, None]
    assert [word(v) for v in ("a", "", None, 3)] == ["a", None, None, None]
    assert [flag(v) for v in (True, "True", "False", False, "", None, 1)] == [
        True,
        True,
        False,
        False,
        None,
        None,
        None,
    ]
