"""What each request has had of the engine's steps so far. Counts and times only: nothing of vLLM is known here, and no
clock is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wastegate.core.ledger import Run

RUN_STEPS = 256
"""Steps in one run at most: what a request holds grows while it decodes, and a run tells of its mean."""
MOST_RUNS = 64
"""Runs kept of one request; what comes later is told as part of the last."""
MOST_OPEN = 65_536
"""Requests at once. More means that their ends are not heard of, and memory must have a bound."""


class Part(NamedTuple):
    """What one request had computed in one step: tokens of its prompt, of its answer, and drafts that were verified."""

    prefill: int = 0
    decode: int = 0
    draft: int = 0


DECODE = Part(decode=1)
"""What most requests have in most steps."""


class Account:
    """One request's runs."""

    __slots__ = ("_kind", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[Any]] = []
        """The fields of a Run: they grow with each step, and a step has hundreds of requests."""
        self._kind = -2

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(Run(*fields) for fields in self._runs)

    def add(self, part: Part, start: float, end: float, kv: float) -> None:
        """One step, and the token-seconds of KV held in it."""
        prefill, decode, draft = part
        kind = -1 if decode else prefill  # steps of one kind make a run
        if self._runs:
            last = self._runs[-1]
            alike = kind == self._kind and last[1] == start and last[2] < RUN_STEPS
            if alike or len(self._runs) >= MOST_RUNS:
                last[1] = end
                last[2] += 1
                last[3] += prefill
                last[4] += decode
                last[5] += draft
                last[6] += kv
                self._kind = kind
                return
        self._runs.append([start, end, 1, prefill, decode, draft, kv])
        self._kind = kind


class Meter:
    """Follows the steps. A step lasts until the next begins, or for a request that ends, until its end."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._parts: dict[str, tuple[Part, float]] = {}
        self._began = 0.0

    def step(self, now: float, parts: Iterable[tuple[str, Part, float]]) -> None:
        """A step begins: every request that runs, its part of the step, and the tokens of KV that it holds."""
        self.pause(now)
        self._parts = {id: (part, held) for id, part, held in parts}
        self._began = now

    @property
    def busy(self) -> bool:
        """Somebody is in a step that has begun."""
        return bool(self._parts)

    def pause(self, now: float) -> None:
        """The last step is over, and none begins."""
        for id, (part, held) in self._parts.items():
            self._account(id).add(part, self._began, now, held * (now - self._began))
        self._parts = {}

    def end(self, now: float, id: str) -> tuple[Run, ...]:
        """A request has ended, however; what it had."""
        part = self._parts.pop(id, None)
        if part is not None:
            self._account(id).add(part[0], self._began, now, part[1] * (now - self._began))
        account = self._accounts.pop(id, None)
        return account.runs if account is not None else ()

    def _account(self, id: str) -> Account:
        account = self._accounts.get(id)
        if account is None:
            if len(self._accounts) >= MOST_OPEN:
                raise OverflowError(f"{MOST_OPEN} requests are open: their ends are not heard of")
            account = self._accounts[id] = Account()
        return account


class Holdings:
    """Tokens of KV that requests hold. A block that several hold counts for each as its part of it.

    To look at every block in every step would cost more than it tells: how many blocks a request has is asked every
    time, with whom it shares them now and then, a bounded number of blocks a step.
    """

    def __init__(self, block_tokens: int, budget: int = 256) -> None:
        self._block_tokens = block_tokens
        self._budget = budget
        self._looked: dict[str, tuple[int, float]] = {}
        """Of each request, how many blocks it had when they were last looked at, and what they counted as."""
        self._turn = 0

    def of(self, blocks: Mapping[str, tuple[Sequence[object], ...]]) -> dict[str, float]:
        """Tokens, by request. ``blocks``: of every running request, its blocks by group."""
        for gone in self._looked.keys() - blocks.keys():
            del self._looked[gone]
        left = self._budget
        ids = list(blocks)
        turn = self._turn
        for place in range(turn, turn + len(ids)):
            id = ids[place % len(ids)]
            if left > 0 or id not in self._looked:
                counted, visited = _look(blocks[id])
                self._looked[id] = sum(map(len, blocks[id])), counted
                if left > 0:
                    self._turn = (place + 1) % len(ids)
                left -= visited
        return {id: self._tokens(id, groups) for id, groups in blocks.items()}

    def _tokens(self, id: str, groups: tuple[Sequence[object], ...]) -> float:
        then, counted = self._looked[id]
        grown = sum(map(len, groups)) - then  # new blocks are its own
        return max(counted + grown, 0.0) * self._block_tokens / max(len(groups), 1)


def _look(groups: tuple[Sequence[object], ...]) -> tuple[float, int]:
    """(blocks, a shared one as its part; how many were looked at). Requests share beginnings: from the first block that
    is a request's own, all are."""
    counted = 0.0
    visited = 0
    for group in groups:
        for place, block in enumerate(group):
            visited += 1
            if getattr(block, "is_null", False):
                continue
            holders = getattr(block, "ref_cnt", 1)
            if holders <= 1:
                counted += len(group) - place
                break
            counted += 1 / holders
    return counted, visited
