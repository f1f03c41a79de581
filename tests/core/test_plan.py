"""The baseline: whom it picks, when it waits, when it refuses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.playbook import call, reply, state, view
from wastegate.core.fleet import View
from wastegate.core.plan import Plan, Rules, Timers, baseline

RULES, TIMERS = Rules(), Timers()


def plan(seen: View, *failed: str, **members: object) -> Plan:
    tried = tuple(reply(name, "failed").attempt for name in failed)
    return baseline(call(**members), seen, tried, TIMERS, RULES)


def test_the_less_loaded_of_the_two_drawn_is_chosen() -> None:
    chosen = plan(view(state("a", in_flight=5), state("b", in_flight=2)))
    assert chosen.replica is not None
    assert chosen.replica.name == "b"
    assert chosen.trail == ("baseline: b (2 in flight) before a (5)",)


def test_a_single_replica_needs_no_draw() -> None:
    chosen = plan(view(state("a", in_flight=1)))
    assert chosen.replica is not None
    assert chosen.trail == ("baseline: a, the only one open (1 in flight)",)


@given(count=st.integers(2, 9), draw=st.floats(0, 1, exclude_max=True))
def test_the_two_are_always_different(count: int, draw: float) -> None:
    """Of two equals the first drawn stays; a loaded one never beats its partner."""
    names = [f"r{index}" for index in range(count)]
    chosen = plan(view(*(state(name, in_flight=index) for index, name in enumerate(names)), draw=draw))
    first, second = chosen.trail[0].removeprefix("baseline: ").split(" before ")
    assert first.split()[0] != second.split()[0]
    assert int(first.split("(")[1].split()[0]) < int(second.split("(")[1].rstrip(")"))


def test_draws_spread_evenly_over_idle_replicas() -> None:
    states = [state(name) for name in "abcd"]
    picks = Counter(plan(view(*states, draw=index / 1200)).replica.name for index in range(1200))  # type: ignore[union-attr]
    assert set(picks.values()) == {300}


def test_a_replica_that_failed_the_call_is_not_asked_again() -> None:
    chosen = plan(view(state("a"), state("b", in_flight=9)), "a")
    assert chosen.replica is not None
    assert (chosen.replica.name, chosen.number) == ("b", 2)


@pytest.mark.parametrize(
    "closed",
    [
        {"state": "down"},
        {"state": "draining"},
        {"breaker": "open"},
        {"resting_until": 101.0},
        {"cap": 2, "in_flight": 2},
    ],
)
def test_a_replica_that_cannot_take_the_call_is_passed_over(closed: dict[str, object]) -> None:
    chosen = plan(view(state("a", **closed), state("b", in_flight=9)))
    assert chosen.replica is not None
    assert chosen.replica.name == "b"


def test_all_at_their_caps_means_a_place_in_line() -> None:
    waiting = plan(view(state("a", cap=1, in_flight=1)))
    assert waiting.wait is not None
    assert (waiting.wait.until, waiting.wait.why) == (700.0, "every replica is at its cap")


def test_whoever_has_others_ahead_waits_even_if_a_slot_is_free() -> None:
    waiting = plan(view(state("a"), ahead=2))
    assert waiting.wait is not None
    assert waiting.replica is None


def test_a_fleet_that_is_coming_up_holds_the_call_for_a_while_then_refuses() -> None:
    loading = state("a", state="loading")
    held = plan(view(loading))
    assert held.wait is not None
    assert held.wait.until == 100.0 + RULES.hold
    refused = plan(view(loading, state("b", breaker="open"), state("c", resting_until=115.0), now=110.0))
    assert refused.refusal is not None
    assert refused.refusal.status == 503
    assert refused.refusal.retry_after is not None
    for part in ("a is loading", "b is set aside", "c asked for 5.0 s of rest"):
        assert part in refused.refusal.message


def test_a_rest_that_outlasts_the_hold_is_told_at_once_and_a_short_one_is_sat_out() -> None:
    refused = plan(view(state("a", resting_until=140.0), state("b", resting_until=130.0))).refusal
    assert refused is not None
    assert (refused.status, refused.code, refused.retry_after) == (503, "resting", 30.0)
    waiting = plan(view(state("a", resting_until=140.0), state("b", resting_until=105.0))).wait
    assert waiting is not None
    assert waiting.why == "every replica rests"


def test_no_model_is_known_yet() -> None:
    refused = plan(View(now=100.0, replicas=(), draw=0.0)).refusal
    assert refused is not None
    assert (refused.status, refused.code) == (503, "no_replica")


def test_a_call_whose_time_ran_out_in_line_is_not_sent() -> None:
    refused = plan(view(state("a"), now=700.0)).refusal
    assert refused is not None
    assert (refused.status, refused.code) == (504, "timeout_total")


@pytest.mark.parametrize("timer", Timers.__struct_fields__)
def test_a_timer_must_be_above_zero(timer: str) -> None:
    with pytest.raises(ValueError, match=timer):
        Timers(**{timer: 0.0})


def test_rules_are_checked() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        Rules(max_attempts=0)
    with pytest.raises(ValueError, match="429"):
        Rules(retry_statuses=(503, 429))
