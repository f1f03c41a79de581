"""Words for a time mean what people mean by them; others are met with examples."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from wastegate.steps.window import parse_when, parse_window

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("now", 0), ("90s", 90), ("15m", 900), ("1h", 3600), ("1.5h", 5400), ("7d", 604_800), (" 2w ", 1_209_600)],
)
def test_so_long_ago(words: str, seconds: float) -> None:
    assert parse_when(words, NOW) == NOW - seconds


def test_a_date_or_time_is_local_unless_it_says_otherwise() -> None:
    utc = datetime(2026, 5, 4, 13, 30, tzinfo=UTC).timestamp()
    assert parse_when("2026-05-04T13:30Z", NOW) == utc
    assert parse_when("2026-05-04T15:30+02:00", NOW) == utc
    assert parse_when("2026-05-04", NOW) == datetime(2026, 5, 4).astimezone().timestamp()
    assert parse_when("2026-05-04 13:30:05", NOW) == datetime(2026, 5, 4, 13, 30, 5).astimezone().timestamp()


@pytest.mark.parametrize("words", ["", "yesterday", "5", "-1h", "1y", "2026-13-01", "h"])
def test_other_words_are_met_with_examples(words: str) -> None:
    with pytest.raises(ValueError, match=r"is no time: write how long ago \(90s"):
        parse_when(words, NOW)


def test_a_window_without_words_has_no_bounds() -> None:
    assert parse_window(None, None, 1000.0) == (-math.inf, math.inf)
    assert parse_window("10s", "now", 1000.0) == (990.0, 1000.0)
