"""How many instances of a model fit on a device by memory, and which model is cheapest at a demand. Figures in, figures
out; nothing is measured here.

What fits is not what it brings: instances on one device share its cores and its memory bus. So each answer is given
twice: as if the instances of a device together did no more than one alone (``shared``), and as if each did as much as
one alone (``multiplied``), which is what "8 instances of 42 requests a second are 336" assumes. The truth lies between;
only what holds under both is a conclusion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from wastegate.core.intervals import Estimate

Sharing = Literal["shared", "multiplied"]
BOTH: tuple[Sharing, Sharing] = ("shared", "multiplied")

_SECONDS_FOR_A_THOUSAND = 3.6
"""Dollars an hour over this and over requests a second are dollars per 1,000 requests."""


class Device(Struct, frozen=True, kw_only=True):
    """``memory``: bytes, of which the share ``usable`` may be filled. Dollars an hour for the whole of it."""

    name: str
    memory: int
    dollars_per_hour: float
    usable: float = 0.9

    def __post_init__(self) -> None:
        if self.memory <= 0 or not 0.0 < self.usable <= 1.0:
            raise ValueError(f"{self.name}: {self.memory} bytes, {self.usable:g} of them usable: there is no room")
        if not 0.0 < self.dollars_per_hour < math.inf:
            raise ValueError(f"{self.name} costs {self.dollars_per_hour:g} an hour: a price is above 0")


class Option(Struct, frozen=True, kw_only=True):
    """A model as it was measured. ``capacity``: requests per second within the SLO, of one instance that has the device
    to itself; ``memory``: bytes of one instance."""

    name: str
    capacity: Estimate
    memory: int

    def __post_init__(self) -> None:
        if self.memory <= 0:
            raise ValueError(f"an instance of {self.name} takes {self.memory} bytes: it must be above 0")


class Packed(Struct, frozen=True, kw_only=True):
    """One option at one demand. ``fits``: instances on a device; where none fits, or nothing is answered within the
    SLO, ``devices`` is None. The ends follow from those of the capacity."""

    name: str
    fits: int
    devices: int | None
    least: int | None
    most: int | None
    dollars_per_1000: float | None
    low: float | None
    high: float | None


class Scenario(Struct, frozen=True, kw_only=True):
    """All options under one belief of how instances share a device. ``cheapest`` is empty where none surely is."""

    sharing: Sharing
    packed: tuple[Packed, ...]
    cheapest: str
    why: str


class Choice(Struct, frozen=True, kw_only=True):
    """Which option is cheapest at ``demand`` requests per second; empty where it depends, and ``says`` on what."""

    demand: float
    cheapest: str
    says: str
    scenarios: tuple[Scenario, ...]


class Stretch(Struct, frozen=True, kw_only=True):
    """A range of demands with one answer: the cheapest option, or none that surely is."""

    first: float
    last: float
    cheapest: str


def pack(option: Option, device: Device, demand: float, sharing: Sharing) -> Packed:
    """The devices that ``demand`` requests per second need, whole ones. Raises ValueError for a demand of 0 or less."""
    if not 0.0 < demand < math.inf:
        raise ValueError(f"a demand of {demand:g} requests a second: it must be above 0")
    fits = int(device.memory * device.usable) // option.memory
    copies = fits if sharing == "multiplied" else min(fits, 1)
    value, least, most = (
        _devices(demand, copies * rate) for rate in (option.capacity.value, option.capacity.high, option.capacity.low)
    )
    dollars, low, high = (_dollars(device, count, demand) for count in (value, least, most))
    if value is None:
        low = None
    return Packed(
        name=option.name, fits=fits, devices=value, least=least, most=most, dollars_per_1000=dollars, low=low, high=high
    )


def choose(options: Sequence[Option], device: Device, demand: float) -> Choice:
    """The cheapest option, if it is under either belief, with intervals that do not overlap."""
    scenarios = tuple(scenario(options, device, demand, sharing) for sharing in BOTH)
    found = {one.cheapest for one in scenarios}
    cheapest = found.pop() if len(found) == 1 else ""
    if cheapest:
        says = f"{cheapest} is cheapest, however instances share a device"
    elif any(one.cheapest for one in scenarios):
        parts = [f"{one.cheapest or 'none surely'} if {_belief(one.sharing)}" for one in scenarios]
        says = f"{'; '.join(parts)}: measure several instances on one device"
    else:
        says = scenarios[0].why
    return Choice(demand=demand, cheapest=cheapest, says=says, scenarios=scenarios)


def scenario(options: Sequence[Option], device: Device, demand: float, sharing: Sharing) -> Scenario:
    """All options under one belief."""
    packed = tuple(pack(option, device, demand, sharing) for option in options)
    able = sorted((one for one in packed if one.dollars_per_1000 is not None), key=_dollars_of)
    if not able:
        return Scenario(sharing=sharing, packed=packed, cheapest="", why="no option answers within the SLO")
    first, *others = able
    near = [one for one in others if not (first.high is not None and one.low is not None and first.high < one.low)]
    if not near:
        return Scenario(sharing=sharing, packed=packed, cheapest=first.name, why="")
    same = all(_ends(one) == _ends(first) for one in near)
    what = "need as many devices" if same else "cannot be told apart"
    names = " and ".join([first.name, *(one.name for one in near)])
    return Scenario(sharing=sharing, packed=packed, cheapest="", why=f"{names} {what}")


def stretches(
    options: Sequence[Option], device: Device, demands: Sequence[float], sharing: Sharing
) -> tuple[Stretch, ...]:
    """Who is cheapest as demand rises: ``demands`` (n,) rising, in requests per second; neighbours with the same answer
    are one stretch."""
    found: list[Stretch] = []
    for demand in demands:
        cheapest = scenario(options, device, demand, sharing).cheapest
        if found and found[-1].cheapest == cheapest:
            found[-1] = Stretch(first=found[-1].first, last=demand, cheapest=cheapest)
        else:
            found.append(Stretch(first=demand, last=demand, cheapest=cheapest))
    return tuple(found)


def _devices(demand: float, capacity: float) -> int | None:
    """None where no number of devices would do, or it is not known."""
    return max(1, math.ceil(demand / capacity)) if capacity > 0.0 else None


def _dollars(device: Device, devices: int | None, demand: float) -> float | None:
    return None if devices is None else devices * device.dollars_per_hour / (_SECONDS_FOR_A_THOUSAND * demand)


def _dollars_of(packed: Packed) -> float:
    return math.inf if packed.dollars_per_1000 is None else packed.dollars_per_1000


def _ends(packed: Packed) -> tuple[float | None, float | None]:
    return packed.low, packed.high


def _belief(sharing: Sharing) -> str:
    return "instances share a device's speed" if sharing == "shared" else "each instance is as fast as one alone"
