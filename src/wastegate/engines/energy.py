"""Energy from what meters say: a counter's rises, or power over time. Numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from wastegate.engines.devices import Device

LONGEST_GAP = 120.0
"""Seconds between two looks at power beyond which nobody can say what it was in between. An exporter looks every 30."""


def risen(counter: Iterable[float]) -> float:
    """What a counter has risen by from its first value to its last. A value below the one before it has begun anew."""
    return sum(after - before if after >= before else after for before, after in pairwise(counter))


def integrate(power: Sequence[tuple[float, float]], gap: float = LONGEST_GAP) -> tuple[float, float]:
    """(joules, seconds that they cover) of power in watts at times in seconds, oldest first: the trapezoid rule, with
    nothing assumed over a gap that is longer than ``gap``."""
    joules = covered = 0.0
    for (before, low), (after, high) in pairwise(power):
        if 0 < after - before <= gap:
            joules += (low + high) / 2 * (after - before)
            covered += after - before
    return joules, covered


class EnergyMeter:
    """Adds up what one replica's devices use, look by look."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Device]] = {}

    def look(self, at: float, devices: Iterable[Device]) -> float | None:
        """Joules since the look before; None where any device gives neither a counter nor power, or this is its first
        look, or its last is too long ago for power alone to tell."""
        parts = []
        for device in devices:
            before = self._before.get(device.id)
            self._before[device.id] = at, device
            parts.append(_between(*before, at, device) if before is not None else None)
        known = [part for part in parts if part is not None]
        return sum(known) if known and len(known) == len(parts) else None


def _between(then: float, before: Device, at: float, device: Device) -> float | None:
    if before.joules is not None and device.joules is not None:
        return risen((before.joules, device.joules))
    if before.power is None or device.power is None:
        return None
    joules, covered = integrate(((then, before.power), (at, device.power)))
    return joules if covered else None
