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
from wastegate.core.runs import CEILING, QUANTUM, Chains, Told, quanta
from wastegate.core.timeline import HOUR, PARTS, Timeline, nanoseconds

FLOOR = 1e-4
"""Density of an attempt in flight whose work nobody knows: it holds a slot, so alone it owns the time, and in
company next to nothing."""


class Loads(NamedTuple):
    """How hard each attempt works at each instant."""

    points: Chains
    """Every attempt has a chain of its own, and one for each run that its engine tells of."""
    memory: Floats
    """An attempt: the naive formula's memory share, mean KV held ÷ capacity, or 1 where that is not known."""
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


def loads(attempts: Attempts, rows: Ints, costs: Costs, told: Told | None = None) -> Loads:
    """The weights of the attempts ``rows``, all on one replica; of those that ``told`` tells of, as it tells them."""
    told = told if told is not None else Told.nothing(len(rows))
    sent = attempts.sent[rows]
    start = np.where(np.isnan(sent), attempts.claimed[rows], sent)
    begin = nanoseconds(start)
    end = np.maximum(nanoseconds(attempts.ended[rows]), begin)
    token = attempts.first_token[rows]
    split = ~np.isnan(token)
    first = np.where(split, np.clip(nanoseconds(np.where(split, token, 0.0)), begin, end), end)

    work = costs.table[np.searchsorted(costs.starts, start, side="right") - 1]
    a, b, c, f = work.T
    prompt = np.maximum(attempts.prompt[rows], 0)
    output = np.maximum(attempts.output[rows], 0)
    # Never sent: it held a slot, and the replica computed nothing. Cached tokens are held, not computed.
    computed = np.where(np.isnan(sent), 0, np.maximum(prompt - np.maximum(attempts.cached[rows], 0), 0))
    held = prompt + output / 2
    # Its engine tells what it did, in chains of their own: here it only holds its place.
    computed, output = np.where(told.rows, 0, computed), np.where(told.rows, 0, output)
    writing = np.where(split, end - first, end - begin)
    decode, kv = _density(b * output, writing, told.step), _density(c * output * held, writing, told.step)
    # The floor falls to the phase: waiting for the first token is prefill, after it decode.
    floor = max(round(FLOOR * told.step / QUANTUM), 1)
    prefill = np.maximum(_density(a * computed, first - begin, told.step), floor - np.where(split, 0, decode + kv))
    decode = np.where(split, np.maximum(decode, floor - kv), decode)
    spread = np.where(split, 0, 1)  # without a first token the first phase holds all work

    nothing, each = np.zeros_like(begin), np.ones_like(begin)
    fixed = _density(f * output, writing, told.step)
    own = Chains(
        np.stack((begin, first, end), 1),
        np.repeat(np.arange(len(rows)), 3).reshape(-1, 3),
        np.stack((each, each, nothing), 1),
        np.stack((prefill, nothing, nothing), 1),
        *(np.stack((spread * amount, amount, nothing), 1) for amount in (decode, kv, fixed)),
    )
    mean_held = np.where(told.whole, told.held / np.maximum((end - begin) / 1e9, 1e-9), held)
    memory, known = _memory(mean_held, told.whole | (attempts.prompt[rows] != UNKNOWN), costs.capacity)
    return Loads(own.then(told.chains(begin, end, work)), memory, known)


def _memory(held: Floats, counted: Flags, capacity: float) -> tuple[Floats, Flags]:
    """(shares of the KV that there is, which of them are known); the whole of it where not."""
    known = counted & (capacity > 0)
    return np.where(known, np.minimum(held / (capacity if capacity > 0 else 1.0), 1.0), 1.0), known


def _density(work: Floats, duration: Ints, step: float) -> Ints:
    """Seconds of work over nanoseconds, for each ``step`` seconds, in quanta."""
    share = np.clip(work / (np.maximum(duration, 1) / 1e9), 0.0, CEILING)
    return quanta(share * step)


class Shared(NamedTuple):
    """What one replica's time cost each attempt, in nano-dollars before rounding, and what fell to nobody."""

    prefill: Floats
    decode: Floats
    kv: Floats
    naive: Floats
    joules: Floats
    """Of each attempt, shared like money; 0 where nobody measured."""
    idle: float
    overhead: float
    busy: int
    """Nanoseconds, up and with an attempt in flight."""
    covered: Ints
    """Nanoseconds of each attempt, within the window, in which the replica was up at a known price."""
    present: Ints
    """Nanoseconds of each attempt within the window."""


def share(line: Timeline, load: Loads) -> Shared:
    """Charge = weight × ∫ rate ÷ W, between any two points; W is the summed weight in flight.

    ``fixed`` is shared equally by those who decode: its charge is weight × ∫ rate ÷ (W × how many decode).
    """
    points = load.points
    axis = _Axis.of(line, points)
    count = len(load.memory)
    cost, live = axis.cost(line), axis.live(line, points)
    idle, overhead = axis.unshared(line, cost, live)
    own = points.prefill + points.decode + points.kv
    writers = np.maximum(axis.level(points.fixed > 0), 1)
    weight = np.where(live, axis.level(own) + axis.level(points.fixed) / writers, 1.0)

    def each(amounts: Floats) -> Floats:
        """Summed for each attempt: over its own three points, and those of its runs."""
        sums: Floats = amounts[: 3 * count].reshape(count, 3).sum(1)
        if len(amounts) > 3 * count:
            sums = sums + np.bincount(points.owner[3 * count :], weights=amounts[3 * count :], minlength=count)
        return sums

    rate = np.where(live, cost, 0.0) / weight
    alone, common = axis.integral(rate), axis.integral(rate / writers)
    joules = np.zeros(count)
    if line.joules:
        power = np.where(live, axis.on(line.power) * (axis.length / 1e15), 0.0) / weight  # µW × ns
        joules = each(own * axis.integral(power) + points.fixed * axis.integral(power / writers))
    up = axis.integral(np.where(axis.on(line.up) > 0, axis.length, 0).astype(np.float64))
    begin, _, end = np.clip(points.time[: 3 * count].reshape(-1, 3), line.start, line.end).T  # the attempts' own chains
    return Shared(
        prefill=each(points.prefill * alone),
        decode=each(points.decode * alone + points.fixed * common),
        kv=each(points.kv * alone),
        naive=each(points.inside * axis.integral(cost)) * load.memory,
        joules=joules,
        idle=idle,
        overhead=overhead,
        busy=int(axis.length[live].sum()),
        covered=np.rint(each(points.inside * up)).astype(np.int64),
        present=end - begin,
    )


class _Axis(NamedTuple):
    """All points of one replica in order of time, and its own bounds."""

    order: Ints
    length: Ints
    """Nanoseconds from each event to the next."""
    points: int
    edges: int
    at: Ints
    """Where each point came to lie in the order."""

    @classmethod
    def of(cls, line: Timeline, points: Chains) -> _Axis:
        times = np.concatenate((np.clip(points.time, line.start, line.end), line.bounds))
        order = np.argsort(times, kind="stable")
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        length: Ints = np.diff(times[order], append=times.max(initial=-(2**62)))
        return cls(order, length, len(points.time), len(line.bounds), at[: len(points.time)])

    def level(self, weights: Ints | Flags) -> Ints:
        """After each event, the sum of a quantity over all chains. Each chain's last point weighs nothing, so the
        steps of the next begin from there."""
        steps = np.concatenate((np.diff(weights.astype(np.int64), prepend=0), np.zeros(self.edges, np.int64)))
        return np.cumsum(steps[self.order])

    def on(self, steps: Ints) -> Ints:
        """After each event, a quantity of the replica itself."""
        return np.cumsum(np.concatenate((np.zeros(self.points, np.int64), steps))[self.order])

    def cost(self, line: Timeline) -> Floats:
        """Nano-dollars from each event to the next."""
        cost: Floats = self.on(line.price) * (self.length / HOUR)
        return cost

    def live(self, line: Timeline, points: Chains) -> Flags:
        """Time passes, the replica is up, and somebody is in flight."""
        live: Flags = (self.level(points.inside) > 0) & (self.on(line.up) > 0) & (self.length > 0)
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

    def integral(self, amounts: Floats) -> Floats:
        """Sums of ``amounts`` (≥ 0, one from each event to the next) from each point to the next in its chain; of a
        chain's last point it means nothing.

        A running float sum would drown a short attempt's amount in all that came before it, so the sum runs in
        whole numbers: of a unit, and of fractions of that unit. Differences are then as exact as the amounts.
        """
        unit = float(amounts.sum()) / 2**61 or 1.0
        fractions = 2 ** (62 - len(amounts).bit_length())
        units = np.floor(amounts / unit)
        coarse = self._running(units)
        fine = self._running(np.rint((amounts / unit - units) * fractions))
        after = np.append(self.at[1:], self.at[-1:])
        sums: Floats = (coarse[after] - coarse[self.at]) + (fine[after] - fine[self.at]) / fractions
        return sums * unit

    @staticmethod
    def _running(whole: Floats) -> Ints:
        total = np.zeros(len(whole) + 1, np.int64)
        np.cumsum(whole.astype(np.int64), out=total[1:])
        return total
