"""How many fit, what a demand costs in whole devices, and what is concluded only under both beliefs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.curve import unbounded
from wastegate.core.intervals import Estimate
from wastegate.core.packing import Device, Option, Sharing, choose, pack, scenario, stretches

A10G = Device(name="a10g", memory=24_000_000_000, dollars_per_hour=3.6, usable=1.0)
GB = 1_000_000_000


def option(name: str, rate: float, gb: float, spread: float = 0.01) -> Option:
    capacity = Estimate(
        value=rate, low=rate * (1 - spread), high=rate * (1 + spread), level=0.95, blocks=6, method="made up"
    )
    return Option(name=name, capacity=capacity, memory=round(gb * GB))


def test_by_hand() -> None:
    """Ten of 2.4 GB fit on 24 GB. 50 a second need five devices of 10 a second, or one of ten times 10."""
    one = option("m", 10.0, 2.4, spread=0.0)
    shared, multiplied = pack(one, A10G, 50.0, "shared"), pack(one, A10G, 50.0, "multiplied")
    assert (shared.fits, shared.devices) == (10, 5)
    assert shared.dollars_per_1000 == pytest.approx(5 * 3.6 / (3.6 * 50))
    assert (multiplied.fits, multiplied.devices) == (10, 1)
    assert pack(one, A10G, 0.5, "shared").devices == 1, "a device is paid for whole"


def test_the_ends_follow_the_capacity() -> None:
    found = pack(option("m", 10.0, 2.4, spread=0.5), A10G, 30.0, "shared")
    assert (found.least, found.devices, found.most) == (2, 3, 6)
    assert found.low is not None
    assert found.high is not None
    assert found.low == pytest.approx(2 / 30)
    assert found.high == pytest.approx(6 / 30)


def test_a_capacity_without_an_interval_has_no_upper_end() -> None:
    found = pack(Option(name="m", capacity=unbounded(10.0, 0.95, 1), memory=GB), A10G, 30.0, "shared")
    assert (found.least, found.devices, found.most, found.high) == (1, 3, None, None)


def test_what_does_not_fit_cannot_serve() -> None:
    found = pack(option("huge", 10.0, 25.0), A10G, 1.0, "multiplied")
    assert (found.fits, found.devices, found.low, found.high) == (0, None, None, None)
    nothing = choose([option("huge", 10.0, 25.0)], A10G, 1.0)
    assert (nothing.cheapest, nothing.says) == ("", "no option answers within the SLO")


def test_some_of_the_memory_stays_free() -> None:
    device = Device(name="d", memory=10 * GB, dollars_per_hour=1.0)
    assert pack(option("m", 1.0, 4.6), device, 1.0, "shared").fits == 1
    assert pack(option("m", 1.0, 4.5), device, 1.0, "shared").fits == 2


def test_the_articles_two_models() -> None:
    """3 instances of 118 a second, and 8 of 42: if they multiply, one card does 354 and the other 336, so that they
    cost nearly the same; if they share a card's speed, the small one is cheaper. Neither is 2.8 times as dear."""
    small, large = option("small", 118.0, 8.0), option("large", 42.0, 3.0)
    assert (pack(small, A10G, 1.0, "shared").fits, pack(large, A10G, 1.0, "shared").fits) == (3, 8)
    found = choose([small, large], A10G, 1000.0)
    assert found.scenarios[0].cheapest == "small"
    assert found.scenarios[1].cheapest == ""
    assert found.cheapest == ""
    assert found.says == (
        "small if instances share a device's speed; none surely if each instance is as fast as one alone: "
        "measure several instances on one device"
    )


def test_what_holds_under_both_beliefs_is_concluded() -> None:
    found = choose([option("a", 100.0, 2.4), option("b", 10.0, 2.4)], A10G, 900.0)
    assert (found.cheapest, found.says) == ("a", "a is cheapest, however instances share a device")


def test_the_only_one_that_can_is_the_cheapest() -> None:
    found = scenario([option("a", 1.0, 2.4), option("huge", 9.0, 99.0)], A10G, 5.0, "shared")
    assert found.cheapest == "a"


def test_nothing_is_concluded_where_intervals_overlap() -> None:
    near = [option("a", 10.0, 13.0, 0.3), option("b", 11.0, 13.0, 0.3)]
    found = scenario(near, A10G, 130.0, "shared")
    assert (found.cheapest, found.why) == ("", "b and a cannot be told apart")
    assert choose(near, A10G, 130.0).says == found.why


def test_whole_devices_make_equals() -> None:
    found = choose([option("a", 10.0, 1.0), option("b", 40.0, 1.0)], A10G, 5.0)
    assert (found.cheapest, found.says) == ("", "a and b need as many devices")


def test_as_demand_rises() -> None:
    found = stretches([option("a", 10.0, 1.0), option("b", 40.0, 1.0)], A10G, [1.0, 5.0, 20.0, 30.0], "shared")
    assert [(one.first, one.last, one.cheapest) for one in found] == [(1.0, 5.0, ""), (20.0, 30.0, "b")]


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0.1, 30.0), st.sampled_from(["shared", "multiplied"]))
def test_what_is_bought_suffices_and_one_less_would_not(
    demand: float, rate: float, gb: float, sharing: Sharing
) -> None:
    found = pack(option("m", rate, gb), A10G, demand, sharing)
    if found.fits == 0:
        assert found.devices is None
        return
    assert found.devices is not None
    each = rate * (found.fits if sharing == "multiplied" else 1)
    assert found.devices * each >= demand * (1 - 1e-9)
    assert found.devices == 1 or (found.devices - 1) * each < demand * (1 + 1e-9)
    assert found.least is not None
    assert found.most is not None
    assert found.least <= found.devices <= found.most


@pytest.mark.parametrize("demand", [0.0, -1.0, math.inf])
def test_a_demand_is_above_0(demand: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        pack(option("m", 1.0, 1.0), A10G, demand, "shared")


def test_devices_and_options_that_cannot_be_are_refused() -> None:
    for wrong in ({"memory": 0}, {"usable": 0.0}, {"usable": 1.5}, {"dollars_per_hour": 0.0}):
        with pytest.raises(ValueError, match=r"no room|above 0"):
            Device(**{"name": "d", "memory": GB, "dollars_per_hour": 1.0, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 bytes"):
        Option(name="m", capacity=unbounded(1.0, 0.95, 1), memory=0)
