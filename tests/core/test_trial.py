"""One setting a trial; a unit stays in its arm; arms that lost units are noticed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.trial import Arm, Goal, Setting, Trial, arm_of, split_as_planned


def trial(base: dict[str, Setting], other: dict[str, Setting], *goals: Goal, blocks: int = 12) -> Trial:
    return Trial(
        baseline=Arm(name="off", settings=base),
        candidate=Arm(name="on", settings=other),
        goals=goals or (Goal(metric="cost"),),
        blocks=blocks,
    )


def test_one_setting_may_differ() -> None:
    one = trial({"cap": 8, "draft": "none"}, {"cap": 16, "draft": "none"})
    assert (one.changed, one.is_aa) == (("cap",), False)


def test_two_settings_may_not() -> None:
    with pytest.raises(ValueError, match=r"off and on differ in cap and draft: .* Change one setting a trial"):
        trial({"cap": 8, "draft": "none"}, {"cap": 16, "draft": "ngram"})


@pytest.mark.parametrize(
    ("base", "other"), [({}, {"cap": None}), ({"cap": 1}, {"cap": True}), ({"cap": 1}, {"cap": 1.0})]
)
def test_a_setting_that_one_arm_lacks_or_spells_otherwise_differs(
    base: dict[str, Setting], other: dict[str, Setting]
) -> None:
    assert trial(base, other).changed == ("cap",)


def test_arms_that_are_alike_need_a_tolerance() -> None:
    assert trial({"cap": 8}, {"cap": 8}, Goal(metric="cost", bound=1.05)).is_aa
    with pytest.raises(ValueError, match="how far apart they may be found; it cannot be 1"):
        trial({"cap": 8}, {"cap": 8})
    assert Goal(metric="cost", bound=0.8).tolerance == (0.8, 1.25)
    assert Goal(metric="score", bound=0.1, scale="difference").tolerance == (-0.1, 0.1)


def test_trials_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="plan 6 or more"):
        trial({"cap": 8}, {"cap": 16}, blocks=5)
    with pytest.raises(ValueError, match="needs goals, one a metric"):
        trial({"cap": 8}, {"cap": 16}, Goal(metric="cost"), Goal(metric="cost", bound=0.5))
    with pytest.raises(ValueError, match="a ratio's bound lies above 0"):
        Goal(metric="cost", bound=0.0)
    with pytest.raises(ValueError, match="the bound is nan"):
        Goal(metric="score", bound=math.nan, scale="difference")


@given(st.text(), st.text(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_who_is_in_stays_in_when_the_share_grows(key: str, salt: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    if arm_of(key, salt, small) == "candidate":
        assert arm_of(key, salt, large) == "candidate"
    assert arm_of(key, salt, small) == arm_of(key, salt, small)
    assert (arm_of(key, salt, 0.0), arm_of(key, salt, 1.0)) == ("baseline", "candidate")


def test_assignment_is_the_same_in_every_process() -> None:
    assert [arm_of(f"tenant-{n}", "canary-7", 0.5) for n in range(6)] == [
        "candidate", "baseline", "baseline", "baseline", "baseline", "candidate",
    ]  # fmt: skip


def test_shares_are_met_and_salts_draw_anew() -> None:
    keys = [f"call-{number}" for number in range(20_000)]
    one = np.array([arm_of(key, "one", 0.05) == "candidate" for key in keys])
    two = np.array([arm_of(key, "two", 0.05) == "candidate" for key in keys])
    for drawn in (one, two):
        assert split_as_planned(int(drawn.sum()), len(keys), 0.05)
    assert (one & two).mean() == pytest.approx(0.0025, abs=0.0015)


def test_a_share_must_be_one() -> None:
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        arm_of("a", "b", 1.5)


def test_units_that_got_lost_on_one_side_show() -> None:
    assert split_as_planned(500, 1000, 0.5)
    assert not split_as_planned(430, 1000, 0.5)
    assert not split_as_planned(570, 1000, 0.5)
