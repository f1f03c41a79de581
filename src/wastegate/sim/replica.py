"""A crude model of a replica: fixed rates, shared equally by the calls in flight. No event heap and no chance here."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from wastegate.core.fleet import Replica

_ROUNDING = 1e-3
"""Of a token: what the clock's rounding may add to a whole number of tokens."""


class Rates(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens a second that the replica makes when it does nothing else."""

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: a rate must be above 0 tokens a second")


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of the calls sent to a replica that it answers with 503, never answers, or cuts halfway."""

    refuse: float = 0.0
    hang: float = 0.0
    cut: float = 0.0

    def __post_init__(self) -> None:
        shares = (self.refuse, self.hang, self.cut)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"shares of faults are {shares}: none may be below 0, nor all together above 1")

    def at(self, luck: float) -> Literal["refuse", "hang", "cut", "none"]:
        """The fault of a call by its draw from [0, 1)."""
        if luck < self.refuse:
            return "refuse"
        if luck < self.refuse + self.hang:
            return "hang"
        return "cut" if luck < self.refuse + self.hang + self.cut else "none"


class Machine(Struct, frozen=True):
    """A replica of the made-up fleet."""

    replica: Replica
    rates: Rates
    faults: Faults = Faults()


class Milestone(Struct, frozen=True):
    """Something that a call's client notices, at a time in seconds."""

    key: str
    what: Literal["first_token", "finished"]
    at: float


class _Job:
    """Work that is left: seconds of an otherwise idle replica until the next milestone."""

    __slots__ = ("decode_work", "left", "output", "prefilled")

    def __init__(self, prefill_work: float, decode_work: float, output: int) -> None:
        self.left = prefill_work
        self.decode_work = decode_work
        self.output = output
        self.prefilled = False


class SharedReplica:
    """Processor sharing: with n calls in flight each runs at 1/n of the speed it would have alone.

    Prefill and decode cost the same in turn as in parallel, so batching gains nothing here: good enough to
    show that the lifecycle runs, wrong for any figure. The first token comes out of the prefill; the others
    take 1/decode seconds each. Times are in seconds and never go back.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._jobs: dict[str, _Job] = {}
        self._now = 0.0

    def __len__(self) -> int:
        """Calls in flight."""
        return len(self._jobs)

    def __contains__(self, key: str) -> bool:
        return key in self._jobs

    def add(self, key: str, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Begin a call. The caller has taken all milestones up to ``now``. ValueError if the key is in flight."""
        if key in self._jobs:
            raise ValueError(f"{key!r} is in flight already")
        self._work_until(now)
        prefill = prompt_tokens / self._rates.prefill
        decode = max(0, output_tokens - 1) / self._rates.decode
        self._jobs[key] = _Job(prefill, decode, output_tokens)

    def drop(self, key: str, now: float) -> int:
        """End a call before its time; the tokens that it had got. KeyError if it is not in flight."""
        self._work_until(now)
        job = self._jobs.pop(key)
        if not job.prefilled:
            return 0
        missing = math.ceil(job.left * self._rates.decode - _ROUNDING)
        return job.output - missing

    def next_change(self) -> float | None:
        """When the next milestone is due if nothing is added or dropped before; None without calls."""
        if not self._jobs:
            return None
        return self._now + len(self._jobs) * max(0.0, min(job.left for job in self._jobs.values()))

    def advance(self, now: float) -> list[Milestone]:
        """Work until ``now``: the milestones passed, in order. Finished calls are gone afterwards."""
        passed: list[Milestone] = []
        while (due := self.next_change()) is not None and due <= now:
            self._work_until(due)
            passed += self._pass_milestones()
        self._work_until(now)
        return passed

    def _work_until(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time went back from {self._now} to {now}")
        if self._jobs:
            share = (now - self._now) / len(self._jobs)
            for job in self._jobs.values():
                job.left -= share
        self._now = now

    def _pass_milestones(self) -> list[Milestone]:
        # Whatever rounding says, the nearest job has arrived: without that the clock could stand still.
        nearest = max(0.0, min(job.left for job in self._jobs.values()))
        passed = []
        for key, job in list(self._jobs.items()):
            if job.left > nearest:
                continue
            ends = job.prefilled or not job.decode_work
            if not job.prefilled:
                job.prefilled = True
                job.left = job.decode_work
                if job.output:
                    passed.append(Milestone(key, "first_token", self._now))
            if ends:
                del self._jobs[key]
                passed.append(Milestone(key, "finished", self._now))
        return passed
