"""The fleet's state: claims and releases balance, breakers open and close, retries stay within their budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.playbook import call, reply
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.plan import Plan, Timers
from wastegate.core.prefixes import Config
from wastegate.core.reuse import Reuse
from wastegate.core.shares import Share
from wastegate.core.world import Breaker, RetryBudget, World


def world(*names: str, cap: int | None = None, budget: RetryBudget | None = None) -> World:
    made = World(Breaker(failures=2, rest=10.0), budget or RetryBudget())
    made.set_fleet([Replica(name, f"http://{name}", ("m",), cap=cap) for name in names])
    for name in names:
        made.set_state(name, "ready")
    return made


def plan(name: str, number: int = 1) -> Plan:
    return Plan(call(), number, Timers(), replica=Replica(name, f"http://{name}"))


def one(made: World, name: str = "a", now: float = 0.0) -> ReplicaState:
    return next(s for s in made.seen(now) if s.replica.name == name)


def test_load_counts_from_the_claim_and_goes_with_the_release() -> None:
    made = world("a")
    assert made.claim(plan("a"), 0.0)
    assert one(made).in_flight == 1
    made.set_state("a", "loading")
    made.set_models("a", ("m", "n"))
    assert one(made).in_flight == 1, "a probe's word never touches load"
    made.released(reply("a", "finished", status=200), 1.0)
    assert one(made).in_flight == 0


def test_a_claim_above_the_cap_or_on_a_stranger_is_refused() -> None:
    made = world("a", cap=1)
    assert made.claim(plan("a"), 0.0)
    assert not made.claim(plan("a"), 0.0)
    assert not made.claim(plan("stranger"), 0.0)
    assert not made.claim(Plan(call(), 1, Timers()), 0.0)


def test_a_view_holds_only_the_replicas_that_serve_the_model() -> None:
    made = world("a")
    made.set_fleet([Replica("a", "http://a", ("m",)), Replica("b", "http://b", ("n",)), Replica("c", "http://c")])
    seen = made.view(call(model="m"), 5.0, 0.5, ahead=3)
    assert [s.replica.name for s in seen.replicas] == ["a", "c"], "one that has not said yet may serve any"
    assert (seen.now, seen.draw, seen.ahead, seen.known_models) == (5.0, 0.5, 3, ("m", "n"))


def test_a_model_that_nobody_has_named_may_be_any_silent_replicas() -> None:
    made = world("a")
    made.set_fleet([Replica("a", "http://a", ("m",)), Replica("c", "http://c")])
    seen = made.view(call(model="never heard of"), 0.0, 0.5)
    assert [s.replica.name for s in seen.replicas] == ["c"]


def test_failures_in_a_row_open_the_breaker_and_one_trial_closes_it() -> None:
    made = world("a")
    for now in (0.0, 1.0):
        assert made.claim(plan("a"), now)
        made.released(reply("a", "failed", reason="connect: refused"), now)
    assert one(made, now=2.0).breaker == "open"
    assert not made.claim(plan("a"), 2.0)
    assert one(made, now=11.0).breaker == "half_open"
    assert made.claim(plan("a"), 11.0)
    assert one(made, now=11.0).breaker == "open", "one trial at a time"
    assert not made.claim(plan("a"), 11.0)
    made.released(reply("a", "finished", status=200), 12.0)
    assert one(made, now=12.0).breaker == "closed"


def test_a_failed_trial_opens_the_breaker_again() -> None:
    made = world("a")
    for now in (0.0, 1.0, 12.0):
        assert made.claim(plan("a"), now)
        made.released(reply("a", "failed", reason="connect: refused"), now)
    assert one(made, now=13.0).breaker == "open"


@pytest.mark.parametrize(
    "neutral",
    [
        {"outcome": "failed", "status": 400},
        {"outcome": "failed", "status": 429, "retry_after": 0.0},
        {"outcome": "failed", "status": 503, "retry_after": 0.0},
        {"outcome": "hung_up"},
        {"outcome": "failed", "reason": "shutdown"},
        {"outcome": "failed", "reason": "not asked: nothing of the answer was left"},
        {"outcome": "failed", "reason": "timeout: total", "status": 200, "first_byte": 100.5},
    ],
)
def test_what_is_not_the_replicas_fault_is_neutral(neutral: dict[str, object]) -> None:
    made = world("a")
    made.claim(plan("a"), 0.0)
    made.released(reply("a", "failed", status=500), 0.0)
    for _ in range(5):
        made.claim(plan("a"), 1.0)
        made.released(reply("a", **neutral), 1.0)  # type: ignore[arg-type]
    assert one(made, now=2.0).breaker == "closed"
    made.claim(plan("a"), 2.0)
    made.released(reply("a", "failed", status=500), 2.0)
    assert one(made, now=3.0).breaker == "open", "a neutral answer does not wipe out a failure either"


def test_retry_after_gives_the_replica_a_rest_but_never_for_long() -> None:
    made = world("a")
    made.claim(plan("a"), 0.0)
    made.released(reply("a", "failed", status=503, retry_after=5.0), 1.0)
    assert not one(made).open_to_calls(5.9)
    assert one(made).open_to_calls(6.0)
    made.claim(plan("a"), 6.0)
    made.released(reply("a", "failed", status=429, retry_after=1e9), 7.0)
    assert one(made).open_to_calls(67.0)


def test_a_replica_that_comes_up_anew_is_trusted_again() -> None:
    made = world("a")
    for _ in range(2):
        made.claim(plan("a"), 0.0)
        made.released(reply("a", "failed", reason="cut"), 0.0)
    made.set_state("a", "down")
    made.set_state("a", "ready")
    assert one(made, now=1.0).breaker == "closed"


def test_a_new_fleet_keeps_what_stays() -> None:
    made = world("a", "b")
    made.claim(plan("a"), 0.0)
    made.set_fleet([Replica("a", "http://a:2"), Replica("c", "http://c")])
    assert (one(made).in_flight, one(made).replica.url, one(made).replica.models) == (1, "http://a:2", ("m",))
    assert [s.replica.name for s in made.states] == ["a", "c"]
    made.released(reply("b", "finished", status=200), 1.0)
    made.set_state("b", "ready")
    made.set_models("b", ("x",))
    assert [s.replica.name for s in made.states] == ["a", "c"], "a late word of one that left is dropped"


def test_an_engine_that_is_told_by_the_probe_stays() -> None:
    made = world("a")
    made.set_models("a", ("m",), "vllm")
    made.set_models("a", ("n",))
    assert (one(made).replica.engine, one(made).replica.models) == ("vllm", ("n",))
    made.set_fleet([Replica("a", "http://a", cap=3)])
    assert (one(made).replica.engine, one(made).replica.cap) == ("vllm", 3)
    made.set_fleet([Replica("a", "http://a", engine="sglang")])
    assert one(made).replica.engine == "sglang", "whoever writes it down knows better"


def test_other_rules_hold_from_now_on() -> None:
    made = world("a", budget=RetryBudget(share=0.0, reserve=5.0))
    made.claim(plan("a"), 0.0)
    made.released(reply("a", "failed", reason="cut"), 0.0)
    made.set_rules(Breaker(failures=1, rest=10.0), RetryBudget(share=0.0, reserve=1.0))
    assert one(made, now=20.0).breaker == "half_open", "one failure was enough, and its rest is over"
    assert made.retry_allowed
    assert made.claim(plan("a", number=2), 20.0)
    assert not made.retry_allowed, "five were saved up, of which one is left"


def test_retries_stay_within_their_budget() -> None:
    made = world("a", budget=RetryBudget(share=0.5, reserve=2.0))

    def allowed() -> bool:
        return made.view(call(), 0.0, 0.0).retry_allowed

    for _ in range(2):
        assert allowed()
        assert made.claim(plan("a", number=2), 0.0)
    assert not allowed()
    for _ in range(2):
        assert made.claim(plan("a"), 0.0)
    assert allowed(), "two calls at a share of one half earn one retry"


@given(st.lists(st.sampled_from(["claim", "finish", "fail", "down", "ready"]), max_size=60))
def test_load_never_leaks(steps: list[str]) -> None:
    made = world("a", cap=3)
    held = 0
    for now, step in enumerate(steps):
        if step == "claim":
            held += made.claim(plan("a"), float(now))
        elif step in ("finish", "fail") and held:
            outcome = "finished" if step == "finish" else "failed"
            made.released(reply("a", outcome, status=200 if step == "finish" else None), float(now))  # type: ignore[arg-type]
            held -= 1
        elif step in ("down", "ready"):
            made.set_state("a", step)  # type: ignore[arg-type]
        assert one(made, now=float(now)).in_flight == held <= 3


def test_the_load_of_other_gateways_counts_in_every_view() -> None:
    made = world("a", "b", cap=3)
    assert made.claim(plan("a"), 0.0)
    made.told("a", 2, 0, 0.0, False)
    made.told("stranger", 5, 9, 9.0, True)
    assert one(made).in_flight == 3
    assert [s.in_flight for s in made.view(call(model="m"), 0.0, 0.5).replicas] == [3, 0]
    assert [s.in_flight for s in made.states] == [1, 0], "what this gateway itself has given stays apart"
    assert not made.claim(plan("a"), 0.0), "three are the cap, whoever gave them"
    assert made.claim(plan("b"), 0.0)
    made.set_fleet([Replica("b", "http://b", ("m",))])
    made.set_fleet([Replica("a", "http://a", ("m",)), Replica("b", "http://b", ("m",))])
    assert one(made).in_flight == 0, "what was heard of one that left is forgotten"


def test_a_breaker_that_another_gateway_opened_is_open_here() -> None:
    made = world("a")
    made.told("a", 0, 2, 10.0, False)
    assert one(made, now=9.0).breaker == "open"
    assert one(made, now=10.0).breaker == "half_open"
    made.told("a", 1, 2, 10.0, True)
    assert one(made, now=11.0).breaker == "open", "the one trial is another's"
    made.told("a", 0, 0, 0.0, False)
    assert one(made, now=11.0).breaker == "closed"


def test_a_slot_may_be_granted_by_whoever_sees_to_the_caps() -> None:
    made = world("a", cap=1, budget=RetryBudget(share=0.0, reserve=1.0))
    assert made.claim(plan("a"), 0.0)
    assert made.grant("a", 2, False)
    assert one(made).in_flight == 2
    assert not made.retry_allowed, "it costs a retry all the same"
    assert not made.grant("stranger", 1, False)


def test_alone_it_keeps_to_its_shares_until_it_is_together_again() -> None:
    made = world("a", "b", "c", cap=4)
    made.told("a", 4, 2, 5.0, True)
    made.alone(Share(3, 4))
    assert one(made, now=6.0).breaker == "half_open", "the breaker is remembered; another's trial may be over"
    made.told("a", 0, 0, 0.0, False)
    assert made.claim(plan("a"), 6.0)
    assert not made.claim(plan("a"), 6.0), "its share is one of four"
    assert one(made, now=6.0).replica.cap == 1
    assert made.state("a", 6.0) == one(made, now=6.0)
    assert made.state("stranger", 6.0) is None
    assert made.claim(plan("b"), 6.0)
    made.told("b", 2, 0, 0.0, False)
    assert not made.claim(plan("b"), 6.0), "its own share is in use, though not all others are heard yet"
    assert made.claim(plan("c"), 6.0)
    made.told("c", 3, 0, 0.0, False)
    assert not made.claim(plan("c"), 6.0), "those who are heard use the rest"
    made.together()
    assert made.claim(plan("b"), 7.0)
    assert made.claim(plan("a"), 7.0)
    assert one(made, now=7.0).replica.cap == 4


def test_routing_is_told_of_the_fleet_and_asked_for_an_outlook() -> None:
    world = World(Breaker(), RetryBudget())
    world.set_fleet([Replica("a", "http://a", ("m",))])
    world.set_state("a", "ready")
    assert world.view(call(model="m"), 0.0, 0.5).outlook is None
    world.reuse = Reuse(Config(max_bytes=1 << 16), 300.0, 0.0)
    world.reuse.fleet(world.states)
    prompt = call(model="m", blocks=b"12345678", prompt_tokens=100)
    world.reuse.sent(prompt, "a", 0.0)

    def cached() -> float:
        outlook = world.view(prompt, 1.0, 0.5).outlook
        assert outlook is not None
        return outlook.cached[0]

    assert cached() == 100.0
    world.set_fleet([Replica("a", "http://a", ("m",)), Replica("b", "http://b", ("m",))])
    assert cached() == 100.0
    world.set_state("a", "down")
    assert cached() == 0.0


def test_rules_can_be_read_back() -> None:
    made = world("a")
    assert made.breaker == Breaker(failures=2, rest=10.0)


def test_a_cap_may_change_while_it_runs_and_be_its_own_again() -> None:
    made = world("a", cap=4)
    made.set_cap("a", 1)
    assert made.claim(plan("a"), 0.0)
    assert not made.claim(plan("a"), 0.0)
    assert (one(made).replica.cap, made.own_cap("a")) == (1, 4)
    made.set_cap("a", 2)
    assert made.claim(plan("a"), 0.0)
    assert (made.load("a"), made.load("stranger")) == (2, 0)
    made.set_cap("a", None)
    assert (one(made).replica.cap, made.own_cap("a")) == (4, 4)
    made.set_cap("stranger", 3)


def test_a_live_cap_outlives_a_change_of_the_fleet_and_its_own_one_follows_it() -> None:
    made = world("a", "b")
    made.set_cap("a", 3)
    made.set_fleet([Replica("a", "http://a", ("m",), cap=9)])
    assert (one(made).replica.cap, made.own_cap("a")) == (3, 9)
    made.set_fleet([Replica("b", "http://b", ("m",))])
    made.set_fleet([Replica("a", "http://a", ("m",), cap=9)])
    assert one(made).replica.cap == 9, "one that left and came back begins anew"
