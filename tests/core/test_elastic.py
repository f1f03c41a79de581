from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.elastic import Config, State, decide

CONFIG = Config(least=1, calls_each=8, start_after=2.0, stop_after=60.0)


def follow(loads: list[int], config: Config = CONFIG, most: int = 4, every: float = 1.0) -> list[int]:
    """How many are wanted at each of these loads, a second apart."""
    state = State(1)
    wanted = []
    for number, load in enumerate(loads):
        state = decide(load, number * every, state, config, most)
        wanted.append(state.wanted)
    return wanted


@pytest.mark.parametrize(
    "wrong", [{"least": -1}, {"calls_each": 0}, {"start_after": -1.0}, {"stop_after": -1.0}, {"room": 0.0}], ids=str
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)


def test_without_a_least_all_run_whatever_the_load() -> None:
    assert follow([0, 100, 0], Config()) == [4, 4, 4]


def test_one_more_starts_once_all_have_been_full_for_a_while() -> None:
    assert follow([9, 9, 9, 9]) == [1, 1, 2, 2]
    assert follow([9, 9, 8, 9, 9]) == [1] * 5, "in between there was room"


def test_as_many_start_as_the_load_needs() -> None:
    assert follow([25] * 3) == [1, 1, 4]
    assert follow([1000] * 3) == [1, 1, 4]


def test_one_stops_long_after_it_could_go_and_one_at_a_time() -> None:
    state = State(3)
    wanted = []
    for second in range(130):
        state = decide(2, float(second), state, CONFIG, 4)
        wanted.append(state.wanted)
    assert (wanted.index(2), wanted.index(1)) == (60, 121)
    assert state.why == "2 calls for 60 s: 1 can serve them"


def test_one_stays_where_the_rest_would_have_no_room() -> None:
    state = State(2)
    for second in range(200):
        state = decide(5, float(second), state, CONFIG, 4)
    assert state.wanted == 2, "5 of the 8 that one can take are over 60 %"


def test_other_bounds_hold_at_once() -> None:
    assert decide(0, 0.0, State(9), CONFIG, 4).wanted == 4
    assert decide(0, 0.0, State(1), Config(least=3), 4).wanted == 3
    assert decide(0, 0.0, State(1), Config(least=9), 4).wanted == 4


LOADS = st.lists(st.integers(0, 100), max_size=200)


@given(LOADS, st.integers(1, 4), st.integers(4, 8))
def test_it_is_always_within_bounds(loads: list[int], least: int, most: int) -> None:
    config = Config(least=least, start_after=1.0, stop_after=5.0)
    assert all(least <= wanted <= most for wanted in follow(loads, config, most))


@given(st.integers(0, 100), st.integers(1, 8), st.floats(0.3, 1.0))
def test_under_constant_load_it_comes_to_rest(load: int, begin: int, room: float) -> None:
    config = Config(least=1, start_after=1.0, stop_after=5.0, room=room)
    state = State(begin)
    wanted = []
    for second in range(120):
        state = decide(load, float(second), state, config, 8)
        wanted.append(state.wanted)
    assert len(set(wanted[60:])) == 1
    assert state.wanted == 8 or load <= state.wanted * config.calls_each
