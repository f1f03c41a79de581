"""From a row's members to a call: what cannot be one says why."""

from __future__ import annotations

import pytest

from wastegate.core.ledger import Entry
from wastegate.load.documents import Unread, Value
from wastegate.load.imports_rows import (
    RowError,
    call,
    checked,
    identity,
    members,
    moment_of,
    number_of,
    objects,
    one_line,
    text_of,
    tokens_of,
)


def test_a_call_has_one_attempt_and_its_labels_on_one_line() -> None:
    entry = call(id="x", arrived=1.0, ended=3.0, replica="a\nb", model="m\x1b", tenant="t" * 300, prompt=300)
    (attempt,) = entry.attempts
    assert (attempt.replica, entry.model, len(entry.tenant)) == ("a b", "m", 200)
    assert (attempt.usage, entry.length_class, entry.status) == ("engine", "medium", 200)
    assert call(id="x", arrived=1.0, ended=3.0, replica="", model="", tried=False).attempts == ()
    bare = call(id="x", arrived=1.0, ended=3.0, replica="", model="", outcome="failed")
    assert (bare.attempts[0].replica, bare.attempts[0].usage, bare.tenant, bare.status) == (
        "unknown",
        "none",
        "default",
        0,
    )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"arrived": 5.0, "ended": 4.0}, "before it arrived"),
        ({"arrived": -1.0, "ended": 4.0}, "no seconds since the epoch"),
        ({"arrived": 1.0, "ended": 1e12}, "no seconds since the epoch"),
        ({"arrived": float("nan"), "ended": 4.0}, "no seconds since the epoch"),
        ({"arrived": 1.0, "ended": 4.0, "first_token": 5.0}, "outside of"),
    ],
)
def test_times_that_cannot_be_are_refused(times: dict[str, float], said: str) -> None:
    with pytest.raises(RowError, match=said):
        call(id="x", replica="a", model="m", **times)  # type: ignore[arg-type]


def test_a_row_error_becomes_a_place_and_a_reason() -> None:
    def broken() -> Entry:
        raise RowError("bad time", "it ended before")

    assert checked("x, line 3", broken) == Unread("x, line 3", "bad time", "it ended before")


def test_numbers_and_counts() -> None:
    value = {"a": "12", "b": None, "c": "x", "d": True, "e": 1.5, "f": float("inf"), "g": "", "h": -3}
    assert (number_of(value, "a"), number_of(value, "b"), number_of(value, "g"), number_of(value, "z")) == (
        12.0,
        None,
        None,
        None,
    )
    assert (tokens_of(value, "b", "a"), tokens_of(value, "z")) == (12, None)
    for name in ("c", "d", "f"):
        with pytest.raises(RowError, match=name):
            number_of(value, name)
    for name in ("e", "h"):
        with pytest.raises(RowError, match="not a count of tokens"):
            tokens_of(value, name)


def test_moments() -> None:
    value = {"a": "2026-01-31T12:00:00Z", "b": "2026-01-31 12:00:00", "c": "2026-01-31T13:00:00+01:00", "d": "", "e": 5}
    assert {moment_of(value, name) for name in "abc"} == {1_769_860_800.0}
    assert moment_of(value, "d") is None
    with pytest.raises(RowError, match="e is 5"):
        moment_of(value, "e")


def test_members_and_texts() -> None:
    value = {"a": {"b": 1}, "c": "x", "d": "", "e": 7}
    assert (members(value, "a"), members(value, "c"), members(None, "a")) == ({"b": 1}, {}, {})
    assert (text_of(value, "d", "e", "c"), text_of(value, "z")) == ("x", "")
    assert list(objects([Value("1", {"a": 1}), Value("2", [1]), Unread("3", "x")])) == [
        ("1", {"a": 1}),
        Unread("2", "no object", "a list where a JSON object is needed"),
        Unread("3", "x"),
    ]


def test_identities_are_stable_and_differ() -> None:
    assert identity("k", 1, "a") == identity("k", 1, "a")
    assert identity("k", 1, "a") != identity("k", "1a")
    assert one_line(" a\tb\u2028c ") == "a b c"
