from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.sim.phase import Phase


def phase(steps: int, first: float, slope: float = 0.0, loading: float = 0.0, began: float = 0.0) -> Phase:
    made = Phase(began, steps, running=1, gain=1.0)
    made.first, made.slope, made.loading = first, slope, loading
    return made


def test_many_steps_are_one_sum() -> None:
    growing = phase(4, 0.1, slope=0.01)
    assert growing.seconds(4) == pytest.approx(0.1 + 0.11 + 0.12 + 0.13)
    assert phase(4, 0.1, loading=1.0, began=5.0).end == pytest.approx(6.4)
    assert phase(0, 0.1, loading=1.0).seconds(0) == 0.0


@given(
    st.integers(1, 5000),
    st.floats(1e-4, 1.0),
    st.floats(0, 0.1),
    st.floats(0, 2),
    st.sampled_from([0.0, 1.7e9]),
    st.data(),
)
def test_a_time_is_found_back_as_its_number_of_steps(
    steps: int, first: float, share: float, loading: float, began: float, data: st.DataObject
) -> None:
    one = phase(steps, first, share * first, loading, began)
    count = data.draw(st.integers(0, steps))
    within = data.draw(st.floats(0.05, 0.95))
    assert one.done(began + one.seconds(count)) in (count, max(0, count - (began > 0)))
    if count < steps and count:
        next_one = one.seconds(count + 1) - one.seconds(count)
        assert one.done(began + one.seconds(count) + within * next_one) == count
    assert one.done(began + one.seconds(steps) + 10 * first) == steps
    assert one.done(began) == 0
