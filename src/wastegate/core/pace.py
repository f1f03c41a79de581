"""How fast a replica does prefill and how much of it lies before it, as its answers' first tokens show. No clock and no
prompt enter: counts of tokens, and seconds that somebody else has measured."""

from __future__ import annotations

import numpy as np

from wastegate.core.fleet import Confidence

_FIRST_RATE, _FIRST_SLOWDOWN = 1e-4, 1e-2
"""Seconds a token of prefill, and a running call: where no answer was seen yet. They weigh as much as one answer."""
_MEMORY = 0.98
"""What an answer still weighs after the next one: the last fifty or so count."""
_EVERY = 8
"""Answers between two fits."""
_THOUSAND = 1e3


class Pace:
    """One replica. Its time to first token is taken as ``base + rate × tokens of prefill + slowdown × running calls``:
    prefill is done call after call, between steps that serve who is running.

    Least squares over its last answers, each term at least 0, drawn a little towards the first values.
    """

    __slots__ = (
        "_moments", "_seen", "_targets", "missed", "pending", "rate", "reports", "running", "slot",
        "slowdown", "wait", "waiting",
    )  # fmt: skip

    def __init__(self, slot: int | None) -> None:
        self.slot = slot
        """Its place in the masks of the prefix index; None: not in it."""
        self.pending = 0.0
        """Tokens of prefill that are sent to it and have not led to a first token."""
        self.waiting = 0
        """Calls that are sent to it and have had no first token."""
        self.running = 0
        """Calls that have had theirs."""
        self.rate = _FIRST_RATE
        self.slowdown = _FIRST_SLOWDOWN
        self.wait = 0.0
        """Seconds until a call that comes now would be next; what it adds to every call alike is left out."""
        self.missed = 0
        """Answers in a row that had none of what was expected."""
        self.reports = False
        """It says how much of each prompt it had."""
        # Normal equations of (base, rate, slowdown), in thousands of tokens; the first line weighs as one answer.
        self._moments = np.diag([1e-6, 1.0, 1.0])
        self._targets = np.array([0.0, _FIRST_RATE * _THOUSAND, _FIRST_SLOWDOWN])
        self._seen = 0

    @property
    def confidence(self) -> Confidence:
        return "DEGRADED" if self.reports else "GUESS"

    @property
    def holdup(self) -> float:
        """Seconds that a token of prefill costs the calls that it has, all together."""
        return self.rate * (self.waiting + self.running)

    def sent(self, tokens: float) -> None:
        self.waiting += 1
        self.pending += tokens
        self._weigh()

    def began(self, tokens: float) -> None:
        self._leave(tokens)
        self.running += 1
        self._weigh()

    def ended(self, tokens: float, began: bool) -> None:
        if began:
            self.running -= 1
        else:
            self._leave(tokens)
        self._weigh()

    def _leave(self, tokens: float) -> None:
        self.waiting -= 1
        self.pending = self.pending - tokens if self.waiting else 0.0  # sums of fractions drift

    def _weigh(self) -> None:
        self.wait = self.rate * self.pending + self.slowdown * self.running

    def measured(self, tokens: float, running: int, seconds: float) -> None:
        """A first token came ``seconds`` after its call was sent. ``tokens``: its own prefill, and what was before
        it; ``running``: how many had their first token then."""
        row = np.array([1.0, tokens / _THOUSAND, running])
        self._moments = self._moments * _MEMORY + np.outer(row, row)
        self._targets = self._targets * _MEMORY + row * seconds
        self._seen += 1
        if self._seen % _EVERY == 1:
            self._fit()

    def _fit(self) -> None:
        first = np.array([0.0, _FIRST_RATE * _THOUSAND, _FIRST_SLOWDOWN])
        pull = np.array([1e-6, 1e-3, 1e-3])  # keeps it solvable where all answers were alike
        free = [0, 1, 2]
        terms = np.zeros(3)
        while True:  # ends: the last term left is a mean of what is not negative
            part = np.ix_(free, free)
            found = np.linalg.solve(
                self._moments[part] + np.diag(pull[free]), self._targets[free] + pull[free] * first[free]
            )
            negative = [at for at, value in zip(free, found, strict=True) if value < 0]
            if not negative:
                terms[free] = found
                break
            free = [at for at in free if at not in negative]
        _, rate, slowdown = terms.tolist()
        self.rate = max(rate / _THOUSAND, 1e-9)
        self.slowdown = slowdown
        self._weigh()

    def told(self, expected: bool, cached: bool) -> None:
        """An answer said whether it found something in the cache; ``expected``: something was looked for there."""
        self.reports = True
        if expected:
            self.missed = 0 if cached else self.missed + 1
