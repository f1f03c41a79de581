"""Energy from counters and from power."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.engines.devices import Device
from wastegate.engines.energy import LONGEST_GAP, EnergyMeter, integrate, risen


def test_a_counter_that_begins_anew() -> None:
    assert risen([100.0, 150.0, 20.0, 30.0]) == 80.0
    assert risen([5.0]) == risen([]) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_counter_that_only_rises_has_risen_from_its_first_to_its_last(steps: list[float]) -> None:
    total, values = 0.0, []
    for step in steps:
        total += step
        values.append(total)
    assert risen(values) == pytest.approx(values[-1] - values[0])


def test_power_over_time_is_the_area_below_it() -> None:
    assert integrate([(0.0, 100.0), (10.0, 200.0), (20.0, 200.0)]) == (3500.0, 20.0)


def test_nothing_is_assumed_over_a_gap_or_backwards() -> None:
    assert integrate([(0.0, 100.0), (LONGEST_GAP + 1, 100.0)]) == (0.0, 0.0)
    assert integrate([(10.0, 100.0), (5.0, 100.0), (5.0, 100.0)]) == (0.0, 0.0)


@given(st.floats(1, 1000), st.lists(st.floats(0.1, 100.0), min_size=1, max_size=30))
def test_constant_power_however_often_one_looks(watts: float, pauses: list[float]) -> None:
    at, series = 0.0, [(0.0, watts)]
    for pause in pauses:
        at += pause
        series.append((at, watts))
    joules, covered = integrate(series)
    assert joules == pytest.approx(watts * at)
    assert covered == pytest.approx(at)


def test_the_counter_goes_before_power() -> None:
    meter = EnergyMeter()
    assert meter.look(0.0, [Device("a", power=100.0, joules=50.0)]) is None
    assert meter.look(10.0, [Device("a", power=100.0, joules=80.0)]) == 30.0
    assert meter.look(20.0, [Device("a", power=100.0)]) == 1000.0, "without a counter the power tells"
    assert meter.look(500.0, [Device("a", power=100.0)]) is None, "too long ago"
    assert meter.look(510.0, [Device("a")]) is None


def test_a_replica_of_two_cards_has_the_energy_of_both_or_none_that_is_known() -> None:
    meter = EnergyMeter()
    assert meter.look(0.0, [Device("a", joules=1.0), Device("b", joules=5.0)]) is None
    assert meter.look(1.0, [Device("a", joules=2.0), Device("b", joules=7.0)]) == 3.0
    assert meter.look(2.0, [Device("a", joules=3.0), Device("b")]) is None
    assert meter.look(3.0, []) is None
