"""Steps that are alike, as one sum, and the sequences that take part in them. Arithmetic only: who takes part is
decided elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence as Row

from wastegate.sim.replica import Work

_ROUNDING = 1e-3
"""Of a step: what the clock's rounding may add to a whole number of them, with times since 1970."""


class Sequence:
    """One call. ``base`` tokens of KV were there when the replica's clock of tokens stood at ``since``."""

    __slots__ = (
        "asked", "base", "cached", "done", "end", "gone", "hashes", "hit", "key", "made", "order", "output", "own",
        "prompt", "since", "started",
    )  # fmt: skip

    def __init__(self, key: str, work: Work, order: int, hashes: Row[int]) -> None:
        self.key = key
        self.asked = self.prompt = work.prompt
        """To be computed before the next token: after a preemption also what it had made."""
        self.output = work.output
        self.order = order
        self.hashes = hashes
        self.done = self.cached = self.hit = self.made = 0
        self.own = 0
        """Tokens of KV that are reserved for it alone while its prompt is computed."""
        self.base = self.since = 0.0
        self.end = math.inf
        self.started = self.gone = False


class Phase:
    """Steps of one composition: ``parts`` of prompts, and ``gain`` tokens for each running sequence, in each step.

    Lengths grow evenly from step to step, and a step's time is taken to grow evenly with them: m steps take
    ``m·first + slope·m·(m−1)/2`` seconds, whatever m is, besides what they wait for at the beginning.
    """

    __slots__ = ("began", "doubt", "first", "gain", "inside", "loading", "parts", "running", "slope", "steps")

    def __init__(self, began: float, steps: int, running: int, gain: float) -> None:
        self.began = began
        self.steps = steps
        self.running = running
        self.gain = gain
        self.parts: list[tuple[Sequence, int]] = []
        self.loading = self.first = self.slope = self.doubt = 0.0
        self.inside = True

    @property
    def end(self) -> float:
        return self.began + self.seconds(self.steps)

    def seconds(self, steps: int) -> float:
        if not steps:
            return 0.0
        return self.loading + steps * self.first + self.slope * steps * (steps - 1) / 2

    def done(self, now: float) -> int:
        """Whole steps until ``now``."""
        left = now - self.began - self.loading
        if left <= 0:
            return 0
        half = self.slope / 2
        if abs(half) * self.steps < 1e-12 * self.first:
            count = left / self.first
        else:
            linear = self.first - half
            count = 2 * left / (linear + math.sqrt(max(0.0, linear * linear + 4 * half * left)))
        return min(math.floor(count + _ROUNDING), self.steps)
