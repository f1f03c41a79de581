from __future__ import annotations

from typing import Any

import pytest

from wastegate.sim.replica import Faults, Settings, llamacpp, local


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"running": 0}, "running is 0: it must be at least 1"),
        ({"queue": -1}, "queue is -1: it cannot be below 0"),
        ({"tier_tokens": 64}, "tier_tokens needs tier_rate"),
        ({"accepted": (0.5, 0.7)}, "none above the one before it"),
        ({"accepted": (1.5,)}, "shares from 0 to 1"),
        ({"part_block": 32}, "least_prefill is 1"),
    ],
)
def test_settings_that_no_engine_has_are_named(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Settings(**members)


def test_other_engines_are_settings_of_the_same_model() -> None:
    slots = llamacpp(slots=4, context=2048)
    assert (slots.running, slots.kv_tokens, slots.block) == (4, 8192, 1)
    ours = local(cap=32, queue=256, kv_tokens=40_000)
    assert (ours.running, ours.queue, ours.step_tokens, ours.part_block) == (32, 256, 256, 32)


def test_faults_are_shares() -> None:
    with pytest.raises(ValueError, match="nor all together above 1"):
        Faults(refuse=0.6, cut=0.5)
    with pytest.raises(ValueError, match="none may be below 0"):
        Faults(hang=-0.1)


def test_each_fault_has_its_share_of_the_draws() -> None:
    faults = Faults(refuse=0.1, hang=0.2, cut=0.3)
    assert [faults.at(luck) for luck in (0.0, 0.09, 0.1, 0.29, 0.31, 0.59, 0.61)] == [
        "refuse",
        "refuse",
        "hang",
        "hang",
        "cut",
        "cut",
        "none",
    ]
    assert Faults().at(0.0) == "none"
