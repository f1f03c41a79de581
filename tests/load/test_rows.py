"""Where an error says it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from wastegate.load.rows import Line, TraceError

LINE = Line(Path("a.jsonl"), 7, '{"at": 1, "tokens": "many"}')


def test_an_error_names_file_line_and_column() -> None:
    assert str(LINE.error("is bad", 3)) == "a.jsonl, line 7, column 3: is bad"
    assert str(LINE.error("is bad")) == "a.jsonl, line 7: is bad"


def test_the_column_is_where_the_member_stands() -> None:
    assert str(LINE.wrong("tokens", "must be few")) == "a.jsonl, line 7, column 11: tokens: must be few"
    assert "column 1:" in str(LINE.wrong("absent", "must be there"))


def test_numbers_are_taken_as_they_are() -> None:
    assert LINE.number_in({"x": 2}, "x") == 2.0
    assert LINE.tokens_in({"x": 0}, "x") == 0


@pytest.mark.parametrize("value", [True, "3", [3], -1, 1.5])
def test_a_count_of_tokens_is_whole_and_not_negative(value: object) -> None:
    with pytest.raises(TraceError, match="not a whole number of tokens"):
        LINE.tokens_in({"tokens": value}, "tokens")


@pytest.mark.parametrize("value", [True, "3", {}])
def test_a_number_is_a_number(value: object) -> None:
    with pytest.raises(TraceError, match="is not a number"):
        LINE.number_in({"at": value}, "at")


def test_what_is_missing_is_named() -> None:
    for read in (LINE.number_in, LINE.tokens_in):
        with pytest.raises(TraceError, match="when is missing"):
            read({}, "when")
