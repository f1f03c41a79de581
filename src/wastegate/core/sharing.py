"""How hard each attempt works at each instant, and the one pass over time that shares a replica's cost by it.
Densities and integrals only; which call, whose money, is ``core.attribution``'s.

Densities are whole multiples of 1e-9 of a replica and times whole nanoseconds, so that sums over millions of
events come back to exactly nothing when nobody is in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wastegate.core.facts import UNKNOWN, Attempts, Flags, Floats, Ints
from wastegate.core.ledger import ReplicaSpan, Work
from wastegate.core.timeline import HOUR, PARTS, Timeline, nanoseconds

FLOOR = 1e-4
"""Density of an attempt in flight whose work nobody knows: it holds a slot, so alone it owns the time, and in
company next to nothing."""
QUANTUM = 1e-9
CEILING = 1e3
"""No density counts as more than this many whole replicas: a phase of a microsecond must not drown the rest, and
sums must stay below 2**63."""


class Loads(NamedTuple):
    """A row an attempt: its bounds in nanoseconds, its densities in quanta. Where a phase has no length, its
    densities mean nothing and charge nothing."""

    begin: Ints
    first: Ints
    end: Ints
    prefill: Ints
    decode: Ints
    kv: Ints
    fixed: Ints
    split: Flags
    """There is a first token: prefill before it, decode after it. Otherwise all work is spread over the whole."""
    memory: Floats
    """The naive formula's memory share: mean KV held ÷ capacity, or 1 where that is not known."""
    memory_known: Flags


class Costs(NamedTuple):
    """The cost of work on one replica, by the time from which it holds."""

    starts: Floats
    table: Floats
    """A row a measurement: prefill, decode, kv, fixed."""
    capacity: float
    """Tokens of KV that it holds; NaN where unknown."""
    last: Work

    @classmethod
    def of(cls, spans: Sequence[ReplicaSpan], default: Work) -> Costs:
        """From spans sorted by start. The first measurement also stands for the time before it."""
        measured = [(span.start, span.work) for span in spans if span.work is not None] or [(0.0, default)]
        capacities = [span.kv_capacity for span in spans if span.kv_capacity]
        return cls(
            starts=np.array([-np.inf, *(start for start, _ in measured[1:])]),
            table=np.array([(work.prefill, work.decode, work.kv, work.fixed) for _, work in measured]),
            capacity=capacities[-1] if capacities else np.nan,
            last=measured[-1][1],
        )


def loads(attempts: Attempts, rows: Ints, costs: Costs) -> Loads:
    """The densities of the attempts ``rows``, all on one replica."""
    sent = attempts.sent[rows]
    start = np.where(np.isnan(sent), attempts.claimed[rows], sent)
    begin = nanoseconds(start)
    end = np.maximum(nanoseconds(attempts.ended[rows]), begin)
    token = attempts.first_token[rows]
    split = ~np.isnan(token)
    first = np.where(split, np.clip(nanoseconds(np.where(split, token, 0.0)), begin, end), end)

    a, b, c, f = costs.table[np.searchsorted(costs.starts, start, side="right") - 1].T
    prompt = np.maximum(attempts.prompt[rows], 0)
    output = np.maximum(attempts.output[rows], 0)
    # Never sent: it held a slot, and the replica computed nothing. Cached tokens are held, not computed.
    computed = np.where(np.isnan(sent), 0, np.maximum(prompt - np.maximum(attempts.cached[rows], 0), 0))
    held = prompt + output / 2
    writing = np.where(split, end - first, end - begin)
    decode, kv = _density(b * output, writing), _density(c * output * held, writing)
    # The floor falls to the phase: waiting for the first token is prefill, after it decode.
    floor = round(FLOOR / QUANTUM)
    prefill = np.maximum(_density(a * computed, first - begin), floor - np.where(split, 0, decode + kv))
    known = (attempts.prompt[rows] != UNKNOWN) & (costs.capacity > 0)
    memory = np.where(known, np.minimum(held / (costs.capacity if costs.capacity > 0 else 1.0), 1.0), 1.0)
    return Loads(
        begin=begin,
        first=first,
        end=end,
        prefill=prefill,
        decode=np.where(split, np.maximum(decode, floor - kv), decode),
        kv=kv,
        fixed=_density(f * output, writing),
        split=split,
        memory=memory,
        memory_known=known,
    )


def _density(work: Floats, duration: Ints) -> Ints:
    """Seconds of work over nanoseconds, in quanta."""
    share = np.clip(work / (np.maximum(duration, 1) / 1e9), 0.0, CEILING)
    density: Ints = np.rint(share / QUANTUM).astype(np.int64)
    return density


class Shared(NamedTuple):
    """What one replica's time cost each attempt, in nano-dollars before rounding, and what fell to nobody."""

    prefill: Floats
    decode: Floats
    kv: Floats
    naive: Floats
    idle: float
    overhead: float
    busy: int
    """Nanoseconds, up and with an attempt in flight."""
    covered: Ints
    """Nanoseconds of each attempt, within the window, in which the replica was up at a known price."""
    present: Ints
    """Nanoseconds of each attempt within the window."""


def share(line: Timeline, load: Loads) -> Shared:
    """Charge = density × ∫ rate ÷ W, over each attempt's two phases; W is the summed density in flight.

    ``fixed`` is shared equally by those who decode: its charge is density × ∫ rate ÷ (W × how many decode).
    """
    axis = _Axis.of(line, load)
    spread = np.where(load.split, 0, 1)  # without a first token the first phase holds all work
    cost, live = axis.cost(line), axis.live(line)
    idle, overhead = axis.unshared(line, cost, live)
    alone = axis.level(load.prefill + spread * (load.decode + load.kv), load.decode + load.kv)
    writers = np.maximum(axis.level(spread * (load.fixed > 0), load.fixed > 0), 1)
    weight = alone + axis.level(spread * load.fixed, load.fixed) / writers
    rate = np.where(live, cost, 0.0) / np.where(live, weight, 1.0)
    own, own_after = axis.phases(rate)
    common, common_after = axis.phases(rate / writers)
    own_whole, common_whole = own_after + spread * own, common_after + spread * common
    up, up_after = axis.phases(np.where(axis.on(line.up) > 0, axis.length, 0).astype(np.float64))
    naive, naive_after = axis.phases(cost)
    return Shared(
        prefill=load.prefill * own,
        decode=load.decode * own_whole + load.fixed * common_whole,
        kv=load.kv * own_whole,
        naive=(naive + naive_after) * load.memory,
        idle=idle,
        overhead=overhead,
        busy=int(axis.length[live].sum()),
        covered=np.rint(up + up_after).astype(np.int64),
        present=axis.present,
    )


class _Axis(NamedTuple):
    """All events of one replica in order of time: begins, first tokens, ends, and its own bounds."""

    order: Ints
    length: Ints
    """Nanoseconds from each event to the next."""
    attempts: int
    edges: int
    at: Ints
    """Where each event came to lie in the order."""
    present: Ints

    @classmethod
    def of(cls, line: Timeline, load: Loads) -> _Axis:
        begin, first, end = (np.clip(times, line.start, line.end) for times in (load.begin, load.first, load.end))
        times = np.concatenate((begin, first, end, line.bounds))
        order = np.argsort(times, kind="stable")
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        length: Ints = np.diff(times[order], append=times.max(initial=-(2**62)))
        return cls(order, length, len(begin), len(line.bounds), at, end - begin)

    def level(self, first: Ints | Flags, second: Ints | Flags) -> Ints:
        """After each event, the sum of a quantity that an attempt has in its first and in its second phase."""
        one, two = first.astype(np.int64), second.astype(np.int64)
        steps = np.concatenate((one, two - one, -two, np.zeros(self.edges, np.int64)))
        return np.cumsum(steps[self.order])

    def on(self, steps: Ints) -> Ints:
        """After each event, a quantity of the replica itself."""
        return np.cumsum(np.concatenate((np.zeros(3 * self.attempts, np.int64), steps))[self.order])

    def cost(self, line: Timeline) -> Floats:
        """Nano-dollars from each event to the next."""
        cost: Floats = self.on(line.price) * (self.length / HOUR)
        return cost

    def live(self, line: Timeline) -> Flags:
        """Time passes, the replica is up, and somebody is in flight."""
        each = np.ones(self.attempts, np.int64)
        live: Flags = (self.level(each, each) > 0) & (self.on(line.up) > 0) & (self.length > 0)
        return live

    def unshared(self, line: Timeline, cost: Floats, live: Flags) -> tuple[float, float]:
        """(idle, overhead): what passed with nobody in flight. Probes are taken to fall evenly over a span, so
        their share of what would be idle is overhead."""
        alone = np.where(live, 0.0, cost)
        serving = self.on(line.serving) > 0
        probing = self.on(line.probing) / PARTS
        idle = float((alone * serving * (1.0 - probing)).sum())
        overhead = float((alone * np.where(serving, probing, 1.0)).sum())
        return idle, overhead

    def phases(self, amounts: Floats) -> tuple[Floats, Floats]:
        """Sums of ``amounts`` (≥ 0, one from each event to the next) over each attempt's first and second phase.

        A running float sum would drown a short attempt's amount in all that came before it, so the sum runs in
        whole numbers: of a unit, and of fractions of that unit. Differences are then as exact as the amounts.
        """
        unit = float(amounts.sum()) / 2**61 or 1.0
        fractions = 2 ** (62 - len(amounts).bit_length())
        units = np.floor(amounts / unit)
        coarse = self._running(units)
        fine = self._running(np.rint((amounts / unit - units) * fractions))

        def between(one: int, two: int) -> Floats:
            first, second = (self.at[part * self.attempts : (part + 1) * self.attempts] for part in (one, two))
            sums: Floats = (coarse[second] - coarse[first]) + (fine[second] - fine[first]) / fractions
            return sums * unit

        return between(0, 1), between(1, 2)

    @staticmethod
    def _running(whole: Floats) -> Ints:
        total = np.zeros(len(whole) + 1, np.int64)
        np.cumsum(whole.astype(np.int64), out=total[1:])
        return total
