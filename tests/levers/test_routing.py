"""The routing lever: every policy on values, and the rules that it must never break."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.playbook import call, reply, state, view
from wastegate.core.fleet import Confidence, Outlook, View
from wastegate.core.ledger import Entry, Flew
from wastegate.core.plan import Plan, Rules, Timers, baseline
from wastegate.levers.routing import Config, decide, measure

ON = Config(policy="prefix_aware")


def seen(*loads: int, **outlook: Any) -> View:
    """Replicas a, b, … with so many calls in flight; prefill takes a millisecond a token."""
    count = len(loads)
    states = [state(name, in_flight=load) for name, load in zip("abcdefghijkl", loads, strict=False)]
    sure: Confidence = "DEGRADED"
    waits, holdups = tuple(0.01 * load for load in loads), tuple(0.001 * load for load in loads)
    base = Outlook(1000.0, (0.0,) * count, waits, (0.001,) * count, holdups, (sure,) * count)
    return view(*states, outlook=replace(base, **outlook))


def decided(seen_: View, config: Config = ON, **members: Any) -> Plan:
    plan = baseline(call(**members), seen_, (), Timers(), Rules())
    return decide(plan, seen_, config)


def chosen(seen_: View, config: Config = ON, **members: Any) -> str:
    plan = decided(seen_, config, **members)
    assert plan.replica is not None
    return plan.replica.name


# ---- prefix_aware


def test_a_cached_prefix_is_worth_a_wait_up_to_its_seconds() -> None:
    cached = (0.0, 800.0)
    assert chosen(seen(0, 1, cached=cached, waits=(0.0, 0.5))) == "b"
    assert chosen(seen(0, 1, cached=cached, waits=(0.0, 1.7))) == "a"  # then a second prefill is cheaper: it is copied


def test_a_copy_is_dearer_where_it_holds_up_others() -> None:
    cached, waits = (0.0, 800.0), (0.0, 2.0)
    assert chosen(seen(0, 3, cached=cached, waits=waits)) == "a"
    assert chosen(seen(4, 3, cached=cached, waits=waits)) == "b"


def test_what_everybody_holds_decides_nothing() -> None:
    assert chosen(seen(2, 1, 3, cached=(800.0,) * 3, shared=800.0)) == "b"


def test_load_is_bounded_however_much_is_cached() -> None:
    """Ten of the eighteen in flight begin like it: they fill a replica by themselves."""
    many: dict[str, Any] = {"cached": (1000.0, 0.0, 0.0, 0.0), "waits": (0.0,) * 4, "alike": 10}
    assert chosen(seen(12, 2, 2, 2, **many)) != "a"
    assert chosen(seen(10, 2, 2, 2, **many)) == "a"  # free below 11


def test_what_nobody_else_asks_may_go_beyond_the_bound_but_not_without_end() -> None:
    rare: dict[str, Any] = {"cached": (1000.0, 0.0, 0.0, 0.0), "waits": (0.0,) * 4}
    assert chosen(seen(12, 2, 2, 2, **rare)) == "a"
    assert chosen(seen(22, 2, 2, 2, **rare)) != "a"
    assert chosen(seen(12, 2, 2, 2, **{**rare, "shared": 1000.0})) != "a"  # nothing to be gained by it


def test_a_copy_that_many_can_use_is_cheaper() -> None:
    cached, waits = (0.0, 800.0), (0.0, 2.0)
    assert chosen(seen(4, 3, cached=cached, waits=waits)) == "b"
    assert chosen(seen(4, 3, cached=cached, waits=waits, alike=3)) == "a"


# Of many replicas only some are compared.


def test_of_many_the_holders_are_compared_with_who_is_least_busy() -> None:
    cached = (300.0,) * 10 + (1000.0, 300.0)
    busy = (3,) * 12
    assert chosen(seen(*busy, cached=cached, shared=300.0)) == "k"
    waits = (0.1,) * 3 + (0.0,) + (0.1,) * 6 + (9.0, 0.1)
    assert chosen(seen(*busy, cached=cached, shared=300.0, waits=waits)) == "d"


def test_of_many_that_wait_alike_one_is_drawn_that_holds_what_most_do() -> None:
    cached = (0.0,) * 2 + (300.0,) * 10
    idle = seen(*(0,) * 12, cached=cached, shared=300.0)
    names = {chosen(replace(idle, draw=draw / 10)) for draw in range(10)}
    assert len(names) > 5
    assert not names & {"a", "b"}


def test_an_idle_one_that_lacks_what_most_hold_is_compared_with_those_who_do_not() -> None:
    cached = (0.0,) + (300.0,) * 11
    loads = (0,) + (2,) * 11
    few = seen(*loads, cached=cached, shared=300.0, waits=(0.0,) + (0.1,) * 11)
    assert chosen(few) != "a"
    many = seen(*loads, cached=cached, shared=300.0, waits=(0.0,) + (2.0,) * 11)
    assert chosen(many) == "a"


def test_a_cold_prompts_home_is_among_those_compared() -> None:
    assert chosen(seen(*(1,) * 12, home=7, chance=0.5)) == "h"


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 40), st.data())
def test_no_choice_exceeds_the_bound_where_there_is_another(loads: list[int], alike: int, data: st.DataObject) -> None:
    cached = tuple(data.draw(st.floats(0.0, 1000.0)) for _ in loads)
    plan = decided(seen(*loads, cached=cached, alike=alike), ON)
    assert plan.replica is not None
    load = loads["abcdefghijkl".index(plan.replica.name)]
    times = 2.0 if max(cached) > 0 and alike * len(loads) < sum(loads) else 1.0
    assert load + 1 <= times * max(11.0, 1.4 * (1 + sum(loads)) / len(loads)) or load == min(loads)


def test_a_cold_prompt_goes_home_while_that_costs_no_more_than_it_may_save() -> None:
    assert chosen(seen(1, 1, 1, home=2, chance=0.1)) == "c"
    assert chosen(seen(1, 1, 1, home=2, chance=0.1, waits=(0.0, 0.3, 0.3))) == "a"
    assert chosen(seen(1, 1, 1, home=2, chance=0.9, waits=(0.0, 0.3, 0.3))) == "c"


def test_equals_are_chosen_among_at_random() -> None:
    names = {chosen(replace(seen(1, 1, 1), draw=draw)) for draw in (0.0, 0.4, 0.9)}
    assert names == {"a", "b", "c"}


def test_only_those_that_can_take_the_call_are_chosen() -> None:
    seen_ = seen(1, 1, 1, cached=(0.0, 1000.0, 0.0))
    full = replace(seen_.replicas[1], replica=replace(seen_.replicas[1].replica, cap=1))
    assert chosen(replace(seen_, replicas=(seen_.replicas[0], full, seen_.replicas[2]))) != "b"


def test_the_trail_names_candidates_seconds_and_reason() -> None:
    (line,) = decided(seen(0, 1, cached=(0.0, 800.0), waits=(0.0, 0.25))).trail
    assert line == (
        "routing: b is the best of its cache and its wait: "
        "b 0.450 s (waits 0.250 s; has 800 of 1000 tokens, DEGRADED: saves 0.800 s); "
        "a 1.800 s (waits 0.000 s; has 0 of 1000 tokens, DEGRADED: saves 0.000 s); 2 open, at most 22 in flight each"
    )
    (line,) = decided(seen(0, 1)).trail
    assert line.startswith("routing: a waits least: a 1.000 s")
    (line,) = decided(seen(0, 0, home=1, chance=0.5)).trail
    assert line.startswith("routing: b is home to its beginning: b 0.500 s")


def test_the_trail_is_bounded() -> None:
    (line,) = decided(seen(*range(12), cached=(0.0,) * 11 + (500.0,))).trail
    assert line.count("waits 0.") == 2
    assert "12 open" in line


# ---- the others


def test_round_robin_takes_turns() -> None:
    config = Config(policy="round_robin")
    assert [chosen(seen(9, 0, 0, sequence=turn), config) for turn in range(4)] == ["a", "b", "c", "a"]


def test_least_inflight() -> None:
    assert chosen(seen(3, 1, 2), Config(policy="least_inflight")) == "b"


def test_a_session_stays_where_it_is_while_the_load_allows() -> None:
    config = Config(policy="session_hash", free_load=2)
    homes = {name: chosen(seen(0, 0, 0, 0), config, tags=(("session", name),)) for name in "stuvwxyz"}
    assert len(set(homes.values())) > 1
    assert homes["s"] == chosen(seen(0, 0, 0, 0), config, tags=(("other", "x"), ("session", "s")))
    loads = [5 if name == homes["s"] else 0 for name in "abcd"]
    assert chosen(seen(*loads), config, tags=(("session", "s"),)) != homes["s"]
    assert chosen(seen(0, 0, 0, 0), config, client_id="u") == chosen(seen(0, 0, 0, 0), config, client_id="u")


def test_prompts_that_begin_alike_go_together() -> None:
    config = Config(policy="prefix_hash")
    one, other = b"12345678" + b"abcdefgh", b"12345678" + b"hgfedcba"
    assert chosen(seen(0, 0, 0), config, blocks=one) == chosen(seen(0, 0, 0), config, blocks=other)
    assert chosen(seen(1, 0, 1), config) == "b"  # too short to have a beginning


def test_simhash_sticks_and_falls_back() -> None:
    config = Config(policy="simhash")
    assert chosen(seen(9, 0, 0, stuck="a"), config) == "a"
    plan = decided(replace(seen(0, 0, 0), draw=0.9), config)
    assert plan.trail == ("routing: simhash: no prompt like it in memory; c at random",)
    plan = decided(seen(2, 1, 2, stuck="gone"), Config(policy="simhash", fallback="least_inflight"))
    assert plan.trail == ("routing: simhash: gone cannot take it; least in flight: b (1)",)


# ---- what holds for all


@pytest.mark.parametrize(
    "policy", ["prefix_aware", "simhash", "round_robin", "least_inflight", "session_hash", "prefix_hash"]
)
def test_every_policy_leaves_waits_refusals_and_unknown_fleets_alone(policy: Any) -> None:
    config = Config(policy=policy)
    nobody = view()
    plan = baseline(call(), nobody, (), Timers(), Rules())
    assert decide(plan, nobody, config) == plan
    blind = view(state("a"), state("b"))
    plan = baseline(call(), blind, (), Timers(), Rules())
    assert decide(plan, blind, config) == plan
    assert chosen(seen(0), config, blocks=b"12345678") == "a"


@pytest.mark.parametrize(("name", "value"), [("max_load", 0.9), ("free_load", 0), ("sticky_seconds", 0.0)])
def test_settings_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        Config(**{name: value})  # type: ignore[arg-type]


def entry(**attempt: Any) -> Entry:
    tried = reply("a", "finished", **attempt).attempt
    return Entry("e", 0.0, 1.0, "r", "/p", "m", "t", "short", True, "finished", 200, attempts=(tried,))


def test_the_account_is_what_engines_say_was_cached_and_what_was_stored() -> None:
    told = [
        entry(prompt_tokens=100, cached_tokens=60),
        entry(prompt_tokens=100, cached_tokens=0, output_tokens=50),
        entry(prompt_tokens=9),
    ]
    effect = measure(told, ON)
    assert (effect.saved, effect.n) == (60 / 250, 2)
    assert "of 1 answers the engine did not say" in effect.notes[0]
    stored = Entry(
        "s", 0.0, 0.0, "r", "/p", "m", "t", "short", True, "finished", 200, trail=("answer cache: as e was",),
        flew=Flew("e", 100, None),
    )  # fmt: skip
    effect = measure([*told, stored], ON)
    assert (effect.saved, effect.n) == (160 / 350, 3)
    assert effect.parts == {"prefix cache": 60 / 350, "answer cache": 100 / 350}
    assert measure([entry()], ON).saved is None
