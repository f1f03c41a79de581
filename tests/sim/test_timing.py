from __future__ import annotations

from typing import Any

import pytest

from wastegate.sim.timing import Linear, Load, Table

TABLE = Table(decode=((1, 0.02), (8, 0.024), (32, 0.06)), prefill=((32, 0.03), (256, 0.2)), per_kv=1e-6)


def test_a_sum_adds_its_parts() -> None:
    linear = Linear(0.01, 1e-4, 1e-8, 1e-3, 1e-6, relative_doubt=0.2)
    load = Load(prefill=100, pairs=5000, decoding=8, kv=1000)
    assert linear.step(load) == pytest.approx(0.01 + 0.01 + 0.00005 + 0.008 + 0.001)
    assert (linear.doubt(load), linear.inside(load)) == (0.2, True)


def test_a_table_is_read_between_its_points() -> None:
    assert TABLE.step(Load(decoding=1)) == 0.02
    assert TABLE.step(Load(decoding=4.5)) == pytest.approx(0.022)
    assert TABLE.step(Load(decoding=32)) == pytest.approx(0.06)
    assert TABLE.step(Load(decoding=8, kv=1000)) == pytest.approx(0.025)
    assert TABLE.step(Load(prefill=144)) == pytest.approx(0.115)
    assert TABLE.step(Load(prefill=1)) == 0.03, "fewer tokens do not lower a step's fixed cost"


def test_a_mixed_step_has_one_fixed_cost() -> None:
    both = TABLE.step(Load(prefill=144, decoding=8))
    assert both == pytest.approx(0.115 + 0.024 - 0.02)


def test_beyond_its_points_a_table_goes_on_and_says_so() -> None:
    far = Load(decoding=64)
    assert TABLE.step(far) == pytest.approx(0.06 + 32 * 0.036 / 24)
    assert not TABLE.inside(far)
    assert TABLE.doubt(far) > TABLE.doubt(Load(decoding=8))
    single = Table(decode=((4, 0.02),), prefill=((64, 0.1),))
    assert single.step(Load(decoding=2)) == 0.02
    assert single.step(Load(decoding=8)) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("kind", "members", "problem"),
    [
        (Linear, {"step_seconds": -1.0}, "step_seconds is -1.0"),
        (Linear, {"per_prefill": 1e-4}, "a step must take some time"),
        (Table, {"decode": (), "prefill": ((1, 1),)}, "decode needs points"),
        (Table, {"decode": ((2, 1), (1, 1)), "prefill": ((1, 1),)}, "whose first numbers rise"),
        (Table, {"decode": ((1, 0),), "prefill": ((1, 1),)}, "not above 0"),
    ],
)
def test_times_that_cannot_be_are_named(kind: Any, members: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        kind(**members)
