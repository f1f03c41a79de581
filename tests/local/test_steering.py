from __future__ import annotations

from typing import Any

from wastegate.core.admission import CapConfig
from wastegate.local.batch import Outcome
from wastegate.local.steering import Steering

COST_AWARE = CapConfig(dwell=0.5)


def step(seconds: float = 0.02, prefill: int = 0, decoding: int = 8, **more: Any) -> Outcome:
    told: dict[str, Any] = {
        "sequences": decoding, "generated": decoding, "kv_tokens": 100, "clean": True, "pieces": (), "ended": (),
        "starved": (), "refused": (),
    }  # fmt: skip
    return Outcome(seconds, prefill, decoding, **{**told, **more})


def test_it_grows_when_calls_wait_and_looks_four_times_a_dwell() -> None:
    steering = Steering(COST_AWARE, 8, 10_000)
    changes = []
    for tick in range(1, 50):
        for _ in range(2):
            steering.stepped(step(decoding=steering.state.cap))
        if steering.decide(tick * 0.0625, steering.state.cap, 9):
            changes.append((tick * 0.0625, steering.state.cap))
    assert changes[:3] == [(0.125, 12), (0.625, 18), (1.125, 27)]


def test_only_steps_that_do_nothing_but_decode_tell_what_a_token_takes() -> None:
    steering = Steering(COST_AWARE, 8, 10_000)
    steering.stepped(step(0.5, prefill=200))
    steering.stepped(step(0.5, clean=False))
    steering.stepped(step(0.5, decoding=8, sequences=9))
    steering.stepped(step(0.02))
    steering.decide(1.0, 8, 0)
    assert [(point.batch, point.seconds) for point in steering.state.points] == [(8, 0.02)]


def test_a_call_given_up_for_want_of_kv_lowers_the_cap() -> None:
    steering = Steering(COST_AWARE, 8, 10_000)
    steering.stepped(step(starved=((1, 0),)))
    assert steering.decide(1.0, 8, 5)
    assert (steering.state.cap, steering.state.why) == (6, "running calls were preempted 1 times")


def test_a_full_cache_lowers_the_cap() -> None:
    steering = Steering(COST_AWARE, 8, 100)
    steering.stepped(step(kv_tokens=99))
    assert steering.decide(1.0, 8, 5)
    assert steering.state.why == "99% of the KV cache are in use"


def test_the_article_gets_its_utilisation_and_its_waits() -> None:
    steering = Steering(CapConfig("article"), 8, 10_000)
    steering.stepped(step(0.1))
    assert steering.decide(1.0, 8, 3)
    assert steering.state.why == "utilisation 10% and 3 wait"
    for _ in range(10):
        steering.stepped(step(0.1))
    steering.admitted(0.5)
    assert steering.decide(2.0, 8, 3)
    assert steering.state.why == "utilisation 100% and waits of 500 ms"


def test_from_a_cap_set_by_hand_it_goes_on() -> None:
    steering = Steering(COST_AWARE, 8, 10_000)
    steering.begin(20)
    assert steering.state.why == "set by hand"
    assert steering.decide(1.0, 20, 3)
    assert steering.state.cap == 30


def test_a_fixed_cap_does_not_steer() -> None:
    assert not Steering(CapConfig("fixed"), 8, 10_000).steers
