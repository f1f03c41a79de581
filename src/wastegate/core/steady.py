"""When a server under constant load has settled, and which stretch of a run shows it so. Times of ended calls in, a
window out; no clock and no call enters here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct


class Rule(Struct, frozen=True, kw_only=True):
    """When to stop, fixed beforehand. A *wave* is as many ended calls as run at once, or ``least_calls`` if that is
    more: calls of equal length end in bursts, and only whole waves have a rate that does not depend on where in a burst
    one looks. The first wave never counts. ``seconds`` must be measured at least; after ``most`` seconds it ends
    anyway. Two waves agree if their lengths differ by no more than ``tolerance`` (0.2 for 20 %)."""

    seconds: float = 2.0
    most: float = 60.0
    tolerance: float = 0.2
    least_calls: int = 4

    def __post_init__(self) -> None:
        if not 0.0 < self.seconds <= self.most < math.inf:
            raise ValueError(f"{self.seconds:g} s to measure within {self.most:g} s: 0 < seconds <= most is needed")
        if not 0.0 < self.tolerance < math.inf or self.least_calls < 1:
            raise ValueError(f"waves of {self.least_calls} calls within {self.tolerance:g}: both must be above 0")

    def wave(self, width: int) -> int:
        """Calls in a wave where ``width`` run at once."""
        return max(width, self.least_calls)


class Window(Struct, frozen=True, kw_only=True):
    """What counts: calls that ended after ``begin`` and up to ``end``, in seconds. ``settled``: successive waves in it
    agreed; if not, time was up, and it is the second half of what ran."""

    begin: float
    end: float
    settled: bool

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def holds(self, moment: float) -> bool:
        return self.begin < moment <= self.end


def window(ends: Sequence[float], width: int, rule: Rule) -> Window | None:
    """The stretch to measure, from the moments at which calls ended so far: (n,) rising, in seconds after the start.
    None while it has not settled, or not for long enough."""
    size = rule.wave(width)
    marks = [0.0, *ends[size - 1 :: size]]
    begin, settled = 1, False
    for wave in range(2, len(marks)):
        if _agree(marks[wave - 1] - marks[wave - 2], marks[wave] - marks[wave - 1], rule.tolerance):
            settled = True
        else:
            begin, settled = wave - 1, False
    if settled and marks[-1] - marks[begin] >= rule.seconds:
        return Window(begin=marks[begin], end=marks[-1], settled=True)
    return None


def cut_off(ends: Sequence[float], width: int, rule: Rule, now: float) -> Window:
    """The stretch to measure where time is up ``now`` seconds after the start: the later half of its whole waves;
    where there is no whole wave after the first, all of it."""
    marks = [0.0, *ends[rule.wave(width) - 1 :: rule.wave(width)]]
    if len(marks) < 3:
        return Window(begin=0.0, end=now, settled=False)
    return Window(begin=marks[len(marks) // 2], end=marks[-1], settled=False)


def _agree(one: float, other: float, tolerance: float) -> bool:
    return max(one, other) <= (1.0 + tolerance) * min(one, other)
