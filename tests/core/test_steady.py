"""A window opens only where whole waves agree, and never over the first one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.steady import Rule, Window, cut_off, window


def bursts(*gaps: float, size: int = 4) -> list[float]:
    """Calls that end ``size`` at a time, so many seconds after the burst before."""
    ends, at = [], 0.0
    for gap in gaps:
        at += gap
        ends += [at] * size
    return ends


RULE = Rule(seconds=1.0, most=20.0, tolerance=0.2)


def test_two_waves_that_agree_are_enough_and_the_first_does_not_count() -> None:
    assert window(bursts(1.0, 1.1), 4, RULE) == Window(begin=1.0, end=2.1, settled=True)


def test_a_start_that_is_slower_is_left_out() -> None:
    ends = bursts(3.0, 1.0)
    assert window(ends, 4, RULE) is None, "one wave alone shows nothing"
    assert window(bursts(3.0, 1.0, 1.0), 4, RULE) == Window(begin=3.0, end=5.0, settled=True)


def test_it_begins_anew_where_waves_part() -> None:
    ends = bursts(0.5, 0.5, 2.0, 2.1)
    found = window(ends, 4, RULE)
    assert found is not None
    assert (found.begin, found.seconds) == pytest.approx((1.0, 4.1))
    assert window(bursts(0.5, 0.5, 2.0), 4, RULE) is None


def test_it_must_last() -> None:
    assert window(bursts(0.4, 0.4, 0.4), 4, RULE) is None
    assert window(bursts(0.5, 0.5, 0.5), 4, RULE) == Window(begin=0.5, end=1.5, settled=True)


def test_few_callers_are_taken_together() -> None:
    assert (RULE.wave(1), RULE.wave(64)) == (4, 64)
    assert window([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5], 1, RULE) is None
    assert window([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], 1, RULE) == Window(begin=2.0, end=4.0, settled=True)


def test_where_time_is_up_the_later_half_is_taken() -> None:
    ends = bursts(1.0, 2.0, 4.0, 8.0)
    assert window(ends, 4, RULE) is None
    assert cut_off(ends, 4, RULE, 16.0) == Window(begin=3.0, end=15.0, settled=False)
    assert cut_off(bursts(1.0), 4, RULE, 20.0) == Window(begin=0.0, end=20.0, settled=False)


@given(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=60), st.integers(1, 8))
def test_a_window_holds_whole_waves(gaps: list[float], width: int) -> None:
    ends = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    found = window(ends, width, RULE)
    if found is not None:
        assert found.seconds >= RULE.seconds
        counted = sum(map(found.holds, ends))
        assert counted % RULE.wave(width) == 0
        assert counted > 0
        assert not any(map(found.holds, ends[: RULE.wave(width)]))


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0.0}, {"seconds": 9.0, "most": 8.0}, {"tolerance": 0.0}, {"least_calls": 0}]
)
def test_a_rule_that_cannot_be_kept_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"needed|above 0"):
        Rule(**wrong)  # type: ignore[arg-type]
