"""What nobody measured is None, and what was measured is what it says."""

from __future__ import annotations

import numpy as np

from wastegate.core.stats import Summary, dearest, known, summary


def test_nothing_measured_is_none() -> None:
    assert summary(np.array([])) is None
    assert summary(np.array([np.nan, np.nan])) is None


def test_what_did_not_happen_does_not_count() -> None:
    assert known(np.array([1.0, np.nan, 2.0])).tolist() == [1.0, 2.0]
    assert summary(np.array([np.nan, 3.0])) == Summary(1, 3.0, 3.0, 3.0, 3.0)


def test_percentiles_of_a_hundred_and_one_values() -> None:
    assert summary(np.arange(101.0)) == Summary(101, 50.0, 50.0, 95.0, 99.0)


def test_the_dearest_share_counts_whole_values_only() -> None:
    costs = np.array([1, 1, 1, 1, 1, 1, 1, 1, 2, 90])
    assert dearest(costs, (0.01, 0.10, 0.20)) == [(0.10, 0.90), (0.20, 0.92)]


def test_nothing_to_share_out() -> None:
    assert dearest(np.array([], np.int64), (0.10,)) == []
    assert dearest(np.zeros(50, np.int64), (0.10,)) == []
