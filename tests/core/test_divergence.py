"""Where prompts part, by what, and how much is the same again behind it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.divergence import diverge, same

RULES = "Answer kindly, cite your sources, and never guess. " * 20


def prompt(text: str, *more: str) -> bytes:
    """A chat prompt as it stands in a body: a system message, then others."""
    messages = [{"role": "system", "content": f"You help with orders. {text}\n{RULES}"}]
    return msgspec.json.encode([*messages, *({"role": "user", "content": one} for one in more)])


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("6b1f0a3c-1111-4222-8333-aaaaaaaaaaaa", "9c2f0a3c-1111-4222-8333-bbbbbbbbbbbb", "uuid"),
        ("Now: 2026-11-30T22:10:11Z", "Now: 2026-11-30T22:10:12Z", "time"),
        ("Now: 2026-11-30 22:10:11.123456+01:00", "Now: 2026-12-01 02:10:11.5+01:00", "time"),
        ("Date: 30.11.2026", "Date: 1.12.2026", "time"),
        ("It is 10:11 AM", "It is 9:12 PM", "time"),
        ("Today is Monday, 30 November 2026", "Today is Tuesday, 1 December 2026", "time"),
        ("Today is Nov 30, 2026", "Today is Dec 1, 2026", "time"),
        ("at 1764000000", "at 1764000123", "time"),
        ("at 1764000000123", "at 1764000123456", "time"),
        ("session sess_8fk3jd9x", "session sess_a9k3jd9y", "id"),
        ("trace deadbeefdeadbeef01", "trace cafebeefdeadbeef01", "id"),
        ("turn 9", "turn 10", "counter"),
        ("turn 99", "turn 3", "number"),
        ("total 10.50", "total 9,999.00", "number"),
        ("Customer: John Smith", "Customer: Al", "text"),
    ],
)
def test_the_kind_of_thing_that_parts_them(before: str, now: str, kind: str) -> None:
    found = diverge(prompt(before, "Where is it?"), prompt(now, "Where is it?"))
    assert found is not None
    assert found.by == kind
    assert len("[{'role':'system','content':'You help") < found.at < len(prompt(now)) - len(RULES)
    assert len(RULES) <= found.again <= len(RULES) + 60


def test_nothing_of_the_prompt_is_in_what_comes_out() -> None:
    found = diverge(prompt("Customer: John Smith"), prompt("Customer: Alice Jones"))
    assert found is not None
    assert {type(value) for value in (found.at, found.by, found.again)} == {int, str}
    assert found.by == "text"


def test_several_places_are_counted_together() -> None:
    found = diverge(
        prompt("id 6b1f0a3c-1111-4222-8333-aaaaaaaaaaaa. " + RULES + "Now: 10:11:12."),
        prompt("id 9c2f0a3c-1111-4222-8333-bbbbbbbbbbbb. " + RULES + "Now: 11:12:13."),
    )
    assert found is not None
    assert found.by == "uuid"
    assert found.again > 2 * len(RULES)


def test_after_so_many_places_it_stops_looking() -> None:
    def dotted(number: int) -> bytes:
        return prompt(" ".join(f"{RULES} at {number}:{minute:02}." for minute in range(12)))

    found = diverge(dotted(10), dotted(11))
    assert found is not None
    assert 7 * len(RULES) < found.again < 9 * len(RULES)


def test_another_question_is_text_that_nothing_follows() -> None:
    found = diverge(prompt("", "Where is my parcel?"), prompt("", "Can I return shoes?"))
    assert found is not None
    assert (found.by, found.again) == ("text", 0)


def test_what_has_grown_or_is_the_same_does_not_part() -> None:
    one = prompt("", "Where is my parcel?")
    grown = prompt("", "Where is my parcel?", "And when?")
    assert diverge(one, one) is None
    assert diverge(one, grown) is None
    assert diverge(grown, one) is None
    assert diverge(b"", one) is None


def test_text_without_any_end_runs_to_the_end() -> None:
    found = diverge(b"a" * 100 + b"b" * 10, b"a" * 100 + b"c" * 10)
    assert found is not None
    assert (found.at, found.by, found.again) == (100, "text", 0)


@given(st.binary(max_size=9000), st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 60))
def test_what_is_the_same_is_counted_to_the_byte(head: bytes, one: bytes, other: bytes, at: int) -> None:
    begin = min(at, len(head))
    found = same(head + one, begin, head + other, begin)
    left, right = (head + one)[begin:], (head + other)[begin:]
    assert left[:found] == right[:found]
    assert found == min(len(left), len(right)) or left[found] != right[found]


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_any_two_texts_can_be_compared(one: bytes, other: bytes) -> None:
    found = diverge(one, other)
    if found is not None:
        assert one[: found.at] == other[: found.at]
        assert 0 <= found.again <= min(len(one), len(other))
