from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.ledgers import attempt, entry
from wastegate.core.call import Call
from wastegate.core.fleet import Rations, Replica, ReplicaState, View
from wastegate.core.plan import Plan, Refusal, Rules, Timers, baseline
from wastegate.levers.batching import Config, Degrade, decide, hours, measure

NOON = 43_200.0
CALL = Call("c-1", NOON - 0.5, "behavior", "/v1/chat/completions", "small", prompt_tokens=40)
CALM = Rations(0, None, 0)


def planned(
    rations: Rations | None = CALM, in_flight: int = 0, ahead: int = 0, now: float = NOON, **call: Any
) -> tuple[Plan, View]:
    """The baseline's plan on one replica with a cap of 2, and what it saw."""
    state = ReplicaState(Replica("a", "http://127.0.0.1:1", ("small",), cap=2), "ready", in_flight)
    view = View(now, (state,), draw=0.5, ahead=ahead, known_models=("small",), rations=rations)
    return baseline(replace(CALL, **call), view, (), Timers(), Rules()), view


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start": 0}, "start is at least 1"),
        ({"calls": -1}, "not below 0"),
        ({"max_wait": -0.1}, "not below 0"),
        ({"degrade": {"waiting": -1}}, "counts"),
        ({"degrade": {"night": "22-6"}}, "such as"),
        ({"caps": {"min": 9, "max": 3}}, "1 <= min <= max"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(wrong, Config)


def test_nothing_is_decided_where_nobody_counts_or_it_is_decided_already() -> None:
    on = Config(on=True, calls=1)
    plan, view = planned(None)
    assert decide(plan, view, on) is plan
    plan, view = planned(Rations(0, None, 9))
    for done in (replace(plan, replica=None, refusal=Refusal(404, "", "")), replace(plan, replica=None, joins="c-0")):
        assert decide(done, view, on) is done


def test_what_a_replica_may_run_stands_in_the_trail() -> None:
    plan, view = planned(Rations(3, None, 0))
    assert decide(plan, view, Config(on=True)).trail[-1] == "batching: a may run 2 at once; 3 wait"
    assert plan.replica is not None
    endless = replace(plan, replica=replace(plan.replica, cap=None))
    assert decide(endless, view, Config(on=True)) is endless


def test_a_routes_priority_goes_before_what_its_calls_ask_for() -> None:
    plan, view = planned(priority=-9)
    assert decide(plan, view, Config(on=True, priority=5)).call.priority == 5
    assert decide(plan, view, Config(on=True)).call.priority == -9
    plan, view = planned(priority=5)
    assert decide(plan, view, Config(on=True, priority=5)).call is plan.call


def test_a_route_that_runs_its_share_waits_for_itself() -> None:
    plan, view = planned(Rations(0, None, 4))
    held = decide(plan, view, Config(on=True, calls=4))
    assert held.replica is None
    assert held.wait is not None
    assert held.wait.why == "batching: 4 of the 4 calls that the route may have run"
    assert held.wait.until == CALL.arrived + 600
    assert decide(plan, view, Config(on=True, calls=5)).replica is not None


def test_a_wait_ends_with_the_routes_patience() -> None:
    plan, view = planned(Rations(3, 1.0, 0), ahead=3)
    assert plan.wait is not None
    bounded = decide(plan, view, Config(on=True, max_wait=2.0))
    assert bounded.wait is not None
    assert (bounded.wait.until, bounded.wait.why) == (CALL.arrived + 2.0, plan.wait.why)
    assert decide(plan, view, Config(on=True)) is plan


def test_what_cannot_have_its_turn_in_time_is_sent_away_at_once() -> None:
    plan, view = planned(Rations(30, 9.0, 0), ahead=30)
    shed = decide(plan, view, Config(on=True, max_wait=2.0))
    assert shed.wait is None
    assert shed.refusal is not None
    assert (shed.refusal.status, shed.refusal.code, shed.refusal.retry_after) == (503, "no_time", 7.5)
    assert "its turn would come in 9.0 s" in shed.refusal.message
    assert shed.trail[-1].startswith("batching: sent away, since 30 wait")
    assert decide(plan, view, Config(on=True, max_wait=30.0)).wait is not None


def test_whose_patience_has_run_out_waits_no_longer_even_where_the_pace_is_unknown() -> None:
    plan, view = planned(Rations(1, None, 0), in_flight=2, now=CALL.arrived + 3.0)
    shed = decide(plan, view, Config(on=True, max_wait=2.0))
    assert shed.refusal is not None
    assert "in longer" in shed.refusal.message
    assert shed.refusal.retry_after == 1.0


PRESSED = Config(on=True, degrade=Degrade(waiting=10, max_tokens=100, features=True))


def test_while_many_wait_calls_get_less_and_are_told_so() -> None:
    plan, view = planned(Rations(10, 0.1, 0))
    less = decide(plan, view, PRESSED)
    assert (less.most_tokens, less.reduced) == (100, "max_tokens=100, features")
    assert less.trail[-1] == "batching: reduced (max_tokens=100, features): 10 wait"
    plan, view = planned(Rations(9, 0.1, 0))
    assert decide(plan, view, PRESSED).reduced == ""


@pytest.mark.parametrize(
    ("call", "bound", "reduced", "most"),
    [
        ({"max_tokens": 50}, None, "features", None),
        ({"max_tokens": 500}, None, "max_tokens=100, features", 100),
        ({"max_tokens": 500}, 80, "features", 80),
        ({}, 800, "max_tokens=100, features", 100),
        ({"path": "/v1/embeddings"}, None, "features", None),
    ],
)
def test_no_answer_is_bounded_that_is_short_already(
    call: dict[str, Any], bound: int | None, reduced: str, most: int | None
) -> None:
    plan, view = planned(Rations(10, 0.1, 0), **call)
    less = decide(replace(plan, most_tokens=bound), view, PRESSED)
    assert (less.reduced, less.most_tokens) == (reduced, most)


def test_what_is_not_configured_to_be_less_stays() -> None:
    plan, view = planned(Rations(10, 0.1, 0))
    assert decide(plan, view, Config(on=True, degrade=Degrade(waiting=1))).reduced == ""


@pytest.mark.parametrize(
    ("night", "offset", "applies"),
    [
        ("22:00-06:00", 0.0, False),
        ("22:00-06:00", 11.0, True),
        ("22:00-06:00", -7.0, True),
        ("11:30-12:30", 0.0, True),
        ("12:30-13:00", 0.0, False),
        ("0:00-24:00", 3.5, True),
        ("", 0.0, False),
    ],
)
def test_night_is_by_the_sites_own_clock(night: str, offset: float, applies: bool) -> None:
    plan, view = planned()
    config = Config(on=True, degrade=Degrade(night=night, utc_offset=offset, features=True))
    said = decide(plan, view, config).trail[-1]
    assert said.startswith("batching: reduced (features): it is night") == applies


def test_hours_are_seconds_after_midnight() -> None:
    assert hours("22:30-6:00") == (81_000.0, 21_600.0)
    for wrong in ("25:00-06:00", "22:60-06:00", "22:00", "-06:00"):
        with pytest.raises(ValueError, match="hours of the day"):
            hours(wrong)


def test_the_account_tells_who_waited_who_was_sent_away_and_who_got_less() -> None:
    held = entry("a", attempt(begin=3.0, end=9.0), arrived=0.0, trail=("waits: batching: 4 of the 4 calls",))
    less = entry("b", attempt(begin=1.0, end=9.0), arrived=0.0, trail=("batching: reduced (features): 9 wait",))
    shed = entry("c", trail=("batching: sent away, since 9 wait",), outcome="refused")
    plain = entry("d", attempt())
    effect = measure([held, less, shed, plain], Config())
    assert (effect.lever, effect.saved, effect.harmed, effect.n) == ("batching", None, 0.5, 4)
    assert effect.notes == (
        "1 calls waited for their route's share",
        "a slot came after 1.000 s at the median and 3.000 s at P95",
        "1 calls were sent away at once, 1 got less than they asked for",
    )


def test_of_no_calls_there_is_no_account() -> None:
    effect = measure([], Config())
    assert (effect.harmed, effect.n) == (None, 0)
