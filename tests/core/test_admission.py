from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.plant import Plant
from wastegate.core.admission import Admission, CapConfig, CapState, Limits, Policy, Signals, decide
from wastegate.core.widths import ENOUGH, learn


def test_limits_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="cap is 0: at least 1"):
        Limits(cap=0)
    with pytest.raises(ValueError, match="queue is -1"):
        Limits(queue=-1)
    assert Limits(cap=1, queue=0) == Limits(1, 0)


# ---- the line and the cap


def test_runs_up_to_the_cap_then_waits_then_turns_away() -> None:
    admission: Admission[str] = Admission(Limits(cap=2, queue=1))
    assert [admission.arrive(ticket) for ticket in "abcd"] == ["run", "run", "wait", "full"]
    assert (admission.running, admission.waiting) == (2, 1)
    assert admission.finish() == ["c"]
    assert admission.finish() == []
    assert admission.finish() == []
    assert (admission.running, admission.waiting) == (0, 0)


def test_releasing_a_slot_twice_is_an_error() -> None:
    admission: Admission[str] = Admission(Limits(cap=1))
    admission.arrive("a")
    admission.finish()
    with pytest.raises(ValueError, match="released twice"):
        admission.finish()


def test_a_newcomer_does_not_overtake_the_line() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    admission.arrive("a")
    admission.arrive("b")
    assert admission.finish() == ["b"]
    admission.arrive("c")
    assert admission.arrive("d", priority=-1) == "wait"
    assert admission.finish() == ["d"]
    assert admission.finish() == ["c"]


def test_who_leaves_the_line_is_not_admitted() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    for ticket in "abc":
        admission.arrive(ticket)
    assert admission.leave("b")
    assert not admission.leave("a"), "a runs: it does not wait"
    assert admission.finish() == ["c"]


def test_a_raised_cap_admits_in_order() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=5))
    for ticket in "abcd":
        admission.arrive(ticket)
    assert admission.resize(Limits(cap=3, queue=5)) == ["b", "c"]
    assert admission.running == 3


def test_a_lowered_cap_lets_the_running_drain() -> None:
    admission: Admission[str] = Admission(Limits(cap=3, queue=5))
    for ticket in "abcd":
        admission.arrive(ticket)
    assert admission.resize(Limits(cap=1, queue=5)) == []
    assert [admission.finish() for _ in range(3)] == [[], [], ["d"]]


def test_a_shortened_queue_keeps_those_who_wait() -> None:
    admission: Admission[str] = Admission(Limits(cap=1, queue=3))
    for ticket in "abc":
        admission.arrive(ticket)
    admission.resize(Limits(cap=1, queue=1))
    assert admission.arrive("d") == "full"
    assert admission.waiting == 2
    assert admission.finish() == ["b"]


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(-1, 1)),
    st.tuples(st.just("finish"), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 40)),
    st.tuples(st.just("cap"), st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=200)
def test_nobody_is_lost_and_the_cap_holds(steps: list[tuple[str, int]]) -> None:
    """Every ticket that arrived runs, waits, was turned away, left or has finished: exactly one of these."""
    admission: Admission[int] = Admission(Limits(cap=2, queue=3))
    running: list[int] = []
    waiting: set[int] = set()
    cap = 2
    for number, (step, value) in enumerate(steps):
        admitted: list[int] = []
        if step == "arrive":
            verdict = admission.arrive(number, value)
            assert (verdict == "full") == (len(waiting) == 3 and verdict != "run")
            if verdict == "run":
                assert not waiting, "nobody may overtake those who wait"
                running.append(number)
            elif verdict == "wait":
                waiting.add(number)
        elif step == "finish" and running:
            running.pop(0)
            admitted = admission.finish()
        elif step == "leave":
            assert admission.leave(value) == (value in waiting)
            waiting.discard(value)
        elif step == "cap":
            cap = value
            admitted = admission.resize(Limits(cap=cap, queue=3))
        assert waiting.issuperset(admitted)
        waiting.difference_update(admitted)
        running += admitted
        assert (admission.running, admission.waiting) == (len(running), len(waiting))
        assert not admitted or len(running) <= cap
        assert not waiting or len(running) >= cap, "a free slot and somebody waiting do not go together"


# ---- the cap and the load


def signals(now: float = 100.0, running: int = 8, waiting: int = 5, **more: Any) -> Signals:
    return Signals(now, running, waiting, **more)


def steps(width: int, seconds: float, count: int = ENOUGH) -> tuple[tuple[int, float], ...]:
    return ((width, seconds),) * count


CONFIG = CapConfig()
GRADIENT = CapConfig(policy="gradient")
ARTICLE = CapConfig(policy="article")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min": 0}, "min is 0 and max is 64"),
        ({"min": 9, "max": 8}, "min is 9 and max is 8"),
        ({"grow": 1.0}, "grow is 1 and shrink 1.3"),
        ({"shrink": 0.9}, "factors above 1"),
        ({"tpot_slo": 0.0}, "tpot_slo must be above 0"),
        ({"dwell": -1.0}, "dwell and memory"),
        ({"kv_room": 0.99}, "shares of the KV cache"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CapConfig(**wrong)


def test_it_grows_by_half_rounded_up_when_calls_wait_at_the_cap() -> None:
    state = decide(signals(), CapState(8), CONFIG)
    assert (state.cap, state.changed) == (12, 100.0)
    assert state.why == "5 wait and there is room"
    assert decide(signals(running=3), CapState(3), CONFIG).cap == 5


@pytest.mark.parametrize("calm", [{"waiting": 0}, {"running": 7}, {"running": 9}, {"kv_use": 0.9}])
def test_it_does_not_grow_where_the_cap_keeps_nobody_waiting_or_there_is_no_room(calm: dict[str, Any]) -> None:
    assert decide(signals(**calm), CapState(8), CONFIG).cap == 8


@pytest.mark.parametrize(
    ("pain", "said"),
    [
        ({"preemptions": 2}, "running calls were preempted 2 times"),
        ({"kv_use": 0.97}, "97% of the KV cache are in use"),
        ({"samples": steps(8, 0.25)}, "a token takes 250 ms, over 200"),
    ],
)
@pytest.mark.parametrize("config", [CONFIG, GRADIENT])
def test_it_shrinks_by_1_3_rounded_down_when_running_calls_are_hurt(
    pain: dict[str, Any], said: str, config: CapConfig
) -> None:
    state = decide(signals(**pain), CapState(8), config)
    assert (state.cap, state.why) == (6, said)


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.integers(2, 64), st.sampled_from([CONFIG, GRADIENT]))
def test_waiting_alone_never_shrinks(waiting: int, waited: float, cap: int, config: CapConfig) -> None:
    seen = signals(running=cap, waiting=waiting, waited=waited, utilisation=1.0, samples=steps(cap, 0.05), kv_use=0.5)
    assert decide(seen, CapState(cap), config).cap >= cap


def test_what_the_last_change_did_is_seen_before_the_next() -> None:
    state = CapState(8)
    caps = []
    for tick in range(9):
        state = decide(signals(now=tick * 0.25, running=state.cap), state, CONFIG)
        caps.append(state.cap)
    assert caps == [12, 12, 12, 12, 18, 18, 18, 18, 27]


def test_pain_between_two_decisions_is_not_forgotten() -> None:
    state = decide(signals(now=0.0), CapState(8), CONFIG)
    state = decide(signals(now=0.5, running=12, preemptions=1), state, CONFIG)
    assert state.cap == 12
    state = decide(signals(now=1.0, running=12), state, CONFIG)
    assert (state.cap, state.preempted) == (9, 0)


def test_slow_steps_are_gathered_until_there_are_enough_to_judge() -> None:
    state = CapState(8)
    for tick in range(4):
        state = decide(signals(now=float(tick), waiting=0, samples=steps(8, 0.5, 2)), state, CONFIG)
        assert state.cap == (8 if tick < 3 else 6)
    assert state.recent == (), "they tell of the cap before"


def test_where_steps_are_slow_it_waits_for_enough_of_them_before_it_grows_again() -> None:
    state = CapState(12, changed=0.0)
    for tick in range(1, 4):
        state = decide(signals(now=float(tick), running=12, samples=steps(12, 0.15, 1)), state, CONFIG)
        assert state.cap == 12
    assert decide(signals(now=4.0, running=12), state, CONFIG).cap == 18, "but not for ever"


def test_a_cap_that_does_not_bind_shrinks_from_what_runs() -> None:
    state = decide(signals(running=20, waiting=0, samples=steps(20, 0.3)), CapState(64), CONFIG)
    assert state.cap == 15


def test_while_those_above_a_lowered_cap_drain_it_is_not_lowered_again() -> None:
    seen = signals(now=200.0, running=12, preemptions=3)
    assert decide(seen, CapState(9, changed=100.0), CONFIG).cap == 9
    drained = decide(signals(now=200.0, running=9, waiting=0, samples=steps(12, 0.5)), CapState(9), CONFIG)
    assert (drained.cap, drained.recent) == (9, ()), "what they took is no fault of this cap"


def test_a_cap_that_hurt_is_left_alone_for_a_while_and_each_time_for_longer() -> None:
    state = decide(signals(now=0.0, running=12, preemptions=1), CapState(12), CONFIG)
    assert (state.cap, state.ceiling, state.ceiling_until) == (9, 12, 30.0)
    state = decide(signals(now=1.0, running=9), state, CONFIG)
    assert state.cap == 10, "by halves towards what hurt"
    state = decide(signals(now=2.0, running=10), state, CONFIG)
    assert state.cap == 11
    assert decide(signals(now=3.0, running=11), state, CONFIG).cap == 11
    state = decide(signals(now=31.0, running=11), state, CONFIG)
    assert state.cap == 12, "not beyond it at once"
    assert decide(signals(now=32.0, running=12), state, CONFIG).cap == 18
    state = decide(signals(now=32.0, running=12, preemptions=1), state, CONFIG)
    assert (state.cap, state.ceiling_until) == (9, 32.0 + 60.0)
    state = decide(signals(now=1000.0, running=9, preemptions=1), state, CONFIG)
    assert state.ceiling_until == 1030.0, "after a long calm it counts from the beginning"


def test_at_the_knee_it_grows_no_more() -> None:
    points = learn((), [*steps(8, 0.03), *steps(16, 0.058), *steps(32, 0.115)])
    state = CapState(8, points=points)
    assert decide(signals(samples=steps(8, 0.03)), state, CONFIG).cap == 8
    slower = decide(signals(samples=steps(8, 0.04)), state, CONFIG)
    assert slower.cap == 12
    assert slower.why.endswith("of the tokens/s at the knee")
    assert decide(signals(), state, CONFIG).cap == 12, "nothing says that it works at the knee's rate now"


def test_outside_its_bounds_it_comes_within_at_once() -> None:
    assert decide(signals(now=0.1), CapState(100, changed=0.0), CONFIG).cap == 64
    state = decide(signals(now=0.1), CapState(1, changed=0.0), CONFIG)
    assert (state.cap, state.why) == (2, "within 2 and 64")


def test_at_its_bounds_it_stays() -> None:
    least = decide(signals(running=2, preemptions=1), CapState(2), CONFIG)
    assert (least.cap, least.changed) == (2, -math.inf)
    assert decide(signals(running=64), CapState(64), CONFIG).cap == 64


def test_a_fixed_cap_stays_but_learns() -> None:
    state = decide(signals(preemptions=9, samples=steps(8, 0.5)), CapState(100), CapConfig(policy="fixed"))
    assert state.cap == 100
    assert state.points


def test_the_gradient_grows_while_the_widest_seen_is_the_cheapest() -> None:
    assert decide(signals(), CapState(8), GRADIENT).why == "nothing measured yet"
    assert decide(signals(waiting=0), CapState(8), GRADIENT).cap == 8
    state = decide(signals(samples=steps(8, 0.024)), CapState(8), GRADIENT)
    assert state.cap == 12
    assert state.why == "the engine's time for a token is least, 3.00 ms, about 8 at once"
    assert decide(signals(waiting=0, samples=steps(8, 0.024)), CapState(8), GRADIENT).cap == 8


def test_the_gradient_goes_back_to_where_a_token_costs_least() -> None:
    points = learn((), [*steps(8, 0.03), *steps(16, 0.05), *steps(32, 0.098)])
    state = decide(signals(running=32), CapState(32, points=points), GRADIENT)
    assert state.cap == 24
    assert decide(signals(now=200.0, running=18), CapState(18, points=points), GRADIENT).cap == 18
    assert decide(signals(now=200.0, running=8), CapState(8, points=points), GRADIENT).cap == 12
    bound = CapConfig(policy="gradient", min=32)
    assert decide(signals(running=32), CapState(32, points=points), bound).cap == 32


def test_the_gradient_looks_at_no_width_over_the_slo() -> None:
    points = learn((), [*steps(8, 0.15), *steps(32, 0.3)])
    state = decide(signals(running=32, samples=steps(32, 0.15)), CapState(32, points=points), GRADIENT)
    assert state.cap == 24
    assert "about 8 at once" in state.why


def test_the_article_rule_as_it_is_written() -> None:
    assert decide(signals(utilisation=0.3), CapState(8), ARTICLE).cap == 12
    assert decide(signals(utilisation=0.9, waited=0.25), CapState(8), ARTICLE).cap == 6
    assert decide(signals(utilisation=0.9, waited=0.25), CapState(2), ARTICLE).changed == -math.inf
    calm: list[dict[str, Any]] = [{"utilisation": 0.3, "waiting": 0}, {"utilisation": 0.6}, {"utilisation": 0.9}]
    for nothing in (*calm, {"waited": 9.0}):
        assert decide(signals(**nothing), CapState(8), ARTICLE).cap == 8


# ---- what it does to an engine


def test_the_article_rule_spirals_down_under_load_that_the_engine_could_serve() -> None:
    """At 8 at once this engine serves 8.9 calls a second, at 64 it serves 23. With 12 a second, calls wait; the rule
    takes their waits for a reason to run fewer, and they wait longer still."""
    article, ours = Plant(ARTICLE), Plant(CONFIG)
    for plant in (article, ours):
        plant.run(60, lambda now: 12.0)
    assert [cap for _, cap in article.changes] == [6, 4, 3, 2], "down to the least, and never up again"
    assert article.waiting > 400
    assert ours.state.cap > 8
    assert ours.waiting < 20
    assert ours.served > 2.5 * article.served


def test_it_settles_under_constant_load_and_within_the_slo() -> None:
    """A token takes 100 ms from 40 at once on. The load is more than that serves, so somebody always waits."""
    plant = Plant(CapConfig(tpot_slo=0.1), fixed=0.02, each=0.002)
    plant.run(120, lambda now: 30.0)
    assert all(30 <= cap <= 42 for at, cap in plant.changes if at > 5)
    plant.changes.clear()
    plant.run(600, lambda now: 30.0)
    assert len(plant.changes) <= 16, "it tries more again now and then, each time later"
    assert 30 <= plant.state.cap <= 40


def test_a_small_kv_cache_bounds_it_without_a_storm_of_preemptions() -> None:
    plant = Plant(CONFIG, kv=2_000)  # about 16 calls
    plant.run(300, lambda now: 20.0)
    assert 8 <= plant.state.cap <= 17
    assert plant.served > 0.8 * 300 * 12 / (0.02 + 0.012) / 32


LOADS = st.floats(0.5, 40.0)
POLICIES = st.sampled_from([CONFIG, GRADIENT, CapConfig(tpot_slo=0.05), CapConfig(policy="gradient", tpot_slo=0.05)])


@given(POLICIES, LOADS, st.integers(1, 64), st.floats(0.0002, 0.01), st.integers(1_500, 20_000))
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_under_any_constant_load_it_comes_to_rest(
    config: CapConfig, load: float, cap: int, each: float, kv: int
) -> None:
    plant = Plant(config, cap=cap, each=each, kv=kv)
    plant.run(150, lambda now: load)
    plant.changes.clear()
    plant.run(300, lambda now: load)
    assert len(plant.changes) <= 16, "of 300 chances to change"
    assert config.min <= plant.state.cap <= config.max


@given(POLICIES, st.integers(2, 64), st.floats(20.0, 200.0))
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_it_recovers_from_overload(config: CapConfig, cap: int, flood: float) -> None:
    """After a flood, and a cache too small for it, a load that half the engine could serve is served again."""
    plant = Plant(config, cap=cap, kv=4_000)
    plant.run(20, lambda now: flood)
    plant.run(1 + plant.waiting / 4, lambda now: 0.0)
    assert plant.waiting == 0
    plant.waits.clear()
    plant.run(60, lambda now: 4.0)
    assert plant.waiting <= 2
    assert max(plant.waits[40:]) < 0.5


SIGNALS = st.builds(
    Signals,
    now=st.floats(0, 1e6),
    running=st.integers(0, 500),
    waiting=st.integers(0, 500),
    samples=st.lists(st.tuples(st.integers(0, 500), st.floats(0, 100)), max_size=20).map(tuple),
    preemptions=st.integers(0, 9),
    kv_use=st.none() | st.floats(0, 1),
    waited=st.none() | st.floats(0, 100),
    utilisation=st.none() | st.floats(0, 1),
)


@given(
    st.lists(SIGNALS, max_size=30),
    st.integers(1, 500),
    st.sampled_from(["cost_aware", "gradient", "article"]),
    st.integers(1, 40),
    st.integers(0, 60),
)
def test_it_is_always_within_its_bounds(seen: list[Signals], cap: int, policy: Policy, least: int, more: int) -> None:
    config = CapConfig(policy=policy, min=least, max=least + more)
    state = CapState(cap)
    for one in sorted(seen, key=lambda one: one.now):
        state = decide(one, state, config)
        assert config.min <= state.cap <= config.max
        assert len(state.recent) <= 4 * ENOUGH


@pytest.mark.parametrize(("most", "bounds"), [(None, (4, 32)), (64, (4, 32)), (32, (4, 32)), (8, (4, 8)), (2, (2, 2))])
def test_a_replicas_own_cap_bounds_what_it_ever_gets(most: int | None, bounds: tuple[int, int]) -> None:
    config = CapConfig(min=4, max=32, grow=2.0).within(most)
    assert (config.min, config.max) == bounds
    assert config.grow == 2.0
