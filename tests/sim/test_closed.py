from __future__ import annotations

import pytest

from wastegate.sim.closed import Ask, ask
from wastegate.sim.replica import Settings
from wastegate.sim.timing import Linear

STEPS = Linear(step_seconds=0.01)


def test_a_client_asks_again_when_it_is_answered() -> None:
    seen = ask(Settings(), STEPS, Ask(clients=1, prompt=10, output=5, calls=4))
    assert seen.ttft == pytest.approx((0.01,) * 4)
    assert seen.tpot == pytest.approx((0.01,) * 4)
    assert seen.output == 20
    assert seen.seconds == pytest.approx(0.2)
    assert seen.rate == pytest.approx(100.0)


def test_several_clients_share_the_steps() -> None:
    seen = ask(Settings(), STEPS, Ask(clients=8, prompt=10, output=5, calls=80))
    assert len(seen.e2e) == 80
    assert seen.rate == pytest.approx(800.0, rel=0.1)


def test_the_way_to_the_engine_is_in_the_first_token() -> None:
    seen = ask(Settings(), STEPS, Ask(clients=1, prompt=10, output=5, calls=3, front=0.1))
    assert seen.ttft == pytest.approx((0.11,) * 3)


def test_lengths_may_vary_and_clients_may_begin_one_after_another() -> None:
    seen = ask(Settings(), STEPS, Ask(4, 100, 100, 40, prompt_spread=0.5, output_spread=0.5, stagger=1.0), seed=2)
    assert 50 * 40 < seen.output < 100 * 40
    assert seen.ttft[0] == pytest.approx(0.01)
    again = ask(Settings(), STEPS, Ask(4, 100, 100, 40, prompt_spread=0.5, output_spread=0.5, stagger=1.0), seed=2)
    assert (again.ttft, again.e2e) == (seen.ttft, seen.e2e)


def test_a_call_that_does_not_fit_ends_it() -> None:
    with pytest.raises(ValueError, match=r"a call of 10 \+ 5 tokens was refused: too long"):
        ask(Settings(kv_tokens=12), STEPS, Ask(1, 10, 5, 1))
