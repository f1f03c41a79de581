"""How long one step of an engine takes, behind one interface whatever it is known from: a sum of coefficients, a table
that somebody measured. No clock and no event enters here; what hardware should do is ``sim.roofline``'s."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Protocol

from msgspec import Struct


class Load(Struct, frozen=True, gc=False):
    """What one step computes. Any member may be 0; they are floats where a mean is meant."""

    prefill: float = 0.0
    """Prompt tokens."""
    pairs: float = 0.0
    """Of those, each with each token that it attends to: a prompt computed whole has about tokens² / 2."""
    decoding: float = 0.0
    """Tokens of running sequences: one each, and the drafted ones where there is speculation."""
    kv: float = 0.0
    """Tokens whose KV the running sequences read."""


class Timing(Protocol):
    """A source of step times."""

    def step(self, load: Load) -> float:
        """Seconds of one step."""
        ...

    def doubt(self, load: Load) -> float:
        """Relative half-width of the interval around :meth:`step` in which 9 of 10 real steps lie, as far as known."""
        ...

    def inside(self, load: Load) -> bool:
        """Such a step was among those that the source was made from."""
        ...


class Linear(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step as a sum. The simplest source: for a sketch of an engine that nobody has measured."""

    step_seconds: float = 0.0
    per_prefill: float = 0.0
    per_pair: float = 0.0
    per_decoding: float = 0.0
    per_kv: float = 0.0
    relative_doubt: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: no part of a step takes less than no time")
        if not self.step_seconds + self.per_prefill > 0 or not self.step_seconds + self.per_decoding > 0:
            raise ValueError("give step_seconds, or per_prefill and per_decoding: a step must take some time")

    def step(self, load: Load) -> float:
        return (
            self.step_seconds
            + self.per_prefill * load.prefill
            + self.per_pair * load.pairs
            + self.per_decoding * load.decoding
            + self.per_kv * load.kv
        )

    def doubt(self, load: Load) -> float:
        return self.relative_doubt

    def inside(self, load: Load) -> bool:
        """A sketch covers everything equally badly."""
        return True


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured steps: ``decode`` holds (sequences, seconds) of steps that only decode, ``prefill`` (tokens, seconds) of
    steps that only compute prompts. Between points on straight lines, beyond them along the last one; a mixed step is
    its two halves without counting the fixed cost of a step twice."""

    decode: tuple[tuple[float, float], ...]
    prefill: tuple[tuple[float, float], ...]
    per_kv: float = 0.0
    """Seconds for each token of live KV beyond ``kv_per_sequence``, at which ``decode`` was measured."""
    kv_per_sequence: float = 0.0
    relative_doubt: float = 0.1

    def __post_init__(self) -> None:
        for name in ("decode", "prefill"):
            points = getattr(self, name)
            if not points or any(one >= two for (one, _), (two, _) in pairwise(points)):
                raise ValueError(f"{name} needs points whose first numbers rise")
            if min(min(point) for point in points) <= 0:
                raise ValueError(f"{name} holds a number that is not above 0")

    def step(self, load: Load) -> float:
        decode = _between(self.decode, load.decoding) if load.decoding else 0.0
        if load.decoding:
            decode += self.per_kv * max(0.0, load.kv - self.kv_per_sequence * load.decoding)
        prefill = _between(self.prefill, load.prefill) if load.prefill else 0.0
        twice = min(self.decode[0][1], self.prefill[0][1]) if load.decoding and load.prefill else 0.0
        return decode + prefill - twice

    def doubt(self, load: Load) -> float:
        return self.relative_doubt if self.inside(load) else 3 * self.relative_doubt

    def inside(self, load: Load) -> bool:
        return load.decoding <= self.decode[-1][0] and load.prefill <= self.prefill[-1][0]


def _between(points: tuple[tuple[float, float], ...], at: float) -> float:
    """Before the first point its value: a step has a fixed cost that fewer tokens do not lower."""
    if at <= points[0][0] or len(points) == 1:
        return points[0][1] if at <= points[0][0] else points[0][1] * at / points[0][0]
    index = min(max(1, bisect_left(points, (at, 0.0))), len(points) - 1)
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (at - left) / (right - left)
