"""A fixed number of clients that each ask again as soon as they are answered, as benchmark tools do it, against one
replica. No gateway, no fleet: what an engine by itself would show."""

from __future__ import annotations

import heapq
import random

from msgspec import Struct

from wastegate.sim.batch import BatchedReplica
from wastegate.sim.replica import Settings, Spent, Work
from wastegate.sim.timing import Timing


class Ask(Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked."""

    clients: int
    prompt: int
    output: int
    calls: int
    """In all."""
    prompt_spread: float = 0.0
    """Prompts are drawn evenly from this part below ``prompt`` up to it; answers likewise."""
    output_spread: float = 0.0
    front: float = 0.0
    """Seconds between a client's asking and the engine's knowing."""
    stagger: float = 0.0
    """Seconds over which the clients begin."""


class Seen(Struct, frozen=True):
    """What the clients saw: one figure a call, in the order of its end; seconds, and tokens."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    e2e: tuple[float, ...]
    output: int
    seconds: float
    spent: Spent

    @property
    def rate(self) -> float:
        """Tokens a second that came out, of all clients together."""
        return self.output / self.seconds


def ask(settings: Settings, timing: Timing, what: Ask, seed: int = 0) -> Seen:
    """Run it to its end. Raises ValueError where a call does not fit the replica."""
    chance = random.Random(seed)
    replica = BatchedReplica(settings, timing)
    coming = [(what.stagger * index / what.clients, index) for index in range(min(what.clients, what.calls))]
    heapq.heapify(coming)
    asked = len(coming)
    begun: dict[str, tuple[float, int]] = {}
    first: dict[str, float] = {}
    ttft, tpot, e2e, output = [], [], [], 0
    now = 0.0
    while coming or len(replica):
        due = replica.next_change()
        if coming and (due is None or coming[0][0] + what.front <= due):
            at, index = heapq.heappop(coming)
            now = at + what.front
            replica.advance(now)
            work = Work(
                _length(what.prompt, what.prompt_spread, chance), _length(what.output, what.output_spread, chance)
            )
            if (verdict := replica.add(str(index), work, now)) not in ("run", "wait"):
                raise ValueError(f"a call of {work.prompt} + {work.output} tokens was refused: {verdict}")
            begun[str(index)] = at, work.output
            continue
        assert due is not None, "calls in flight have a next change"
        for milestone in replica.advance(due):
            if milestone.what == "first_token":
                first[milestone.key] = milestone.at
                continue
            now = milestone.at
            began, tokens = begun.pop(milestone.key)
            ttft.append(first.get(milestone.key, now) - began)
            e2e.append(now - began)
            tpot.append((e2e[-1] - ttft[-1]) / max(1, tokens - 1))
            output += tokens
            if asked < what.calls:
                heapq.heappush(coming, (now, asked))
                asked += 1
    return Seen(tuple(ttft), tuple(tpot), tuple(e2e), output, now, replica.spent)


def _length(longest: int, spread: float, chance: random.Random) -> int:
    return longest if not spread else max(1, round(longest * (1 - spread * chance.random())))
