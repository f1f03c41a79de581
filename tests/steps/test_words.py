"""Small amounts keep their figures, and what is not known is a dash."""

from __future__ import annotations

from datetime import datetime

import pytest

from wastegate.steps.words import NOTHING, counted, dollars, instant, seconds, share


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, NOTHING),
        (0.0, "$0"),
        (1234.5, "$1,234.50"),
        (1.0, "$1.00"),
        (0.5, "$0.5000"),
        (0.0123456, "$0.01235"),
        (0.000001234, "$0.000001234"),
        (1e-9, "$0.000000001000"),
        (-0.5, "$-0.5000"),
    ],
)
def test_dollars(amount: float | None, text: str) -> None:
    assert dollars(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, NOTHING),
        (0.0, "0 ms"),
        (0.00123, "1.23 ms"),
        (0.0426, "43 ms"),
        (1.5, "1.50 s"),
        (119.0, "119.00 s"),
        (180.0, "3.00 min"),
        (7200.0, "2.00 h"),
        (172_800.0, "2.0 d"),
    ],
)
def test_seconds(amount: float | None, text: str) -> None:
    assert seconds(amount) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, NOTHING),
        (0.0, "0.0 %"),
        (1e-9, "< 0.1 %"),
        (0.004, "0.4 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (1, "100 %"),
    ],
)
def test_shares(part: float | None, text: str) -> None:
    assert share(part) == text


def test_instants_are_local_with_their_zone() -> None:
    when = datetime(2026, 5, 4, 13, 30).astimezone()
    assert instant(when.timestamp()) == when.isoformat(" ", "seconds")


def test_one_or_many() -> None:
    assert (counted(1, "call"), counted(0, "call"), counted(2000, "call")) == ("1 call", "0 calls", "2,000 calls")
