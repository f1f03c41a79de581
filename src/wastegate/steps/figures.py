"""The audit's figures, from columns of facts and charges. Sums and quantiles only: no file is opened, and nothing is
printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import WASTE, Charges
from wastegate.core.facts import OUTCOMES, UNKNOWN, USAGES, Codes, Facts, Flags, Floats, Ints
from wastegate.core.ledger import NANO
from wastegate.core.stats import Summary, dearest, summary

TOP = 20
"""Rows shown of one split; the rest is summed up in one more."""
DEAREST = (0.01, 0.05, 0.10, 0.20)


class Row(Struct, frozen=True):
    """One line of a split: calls that ended in the window, and what all its calls cost within it."""

    name: str
    calls: int
    dollars: float
    share: float
    """Of what all requests cost; 0 where they cost nothing."""
    unpriced: int
    """Calls that ran, partly or wholly, on a replica without a price: ``dollars`` lacks what that cost."""


class Split(Struct, frozen=True):
    """The cost of requests by one label, the dearest first."""

    by: str
    rows: tuple[Row, ...]
    more: int
    """Labels beyond the rows; their sums stand in the last row."""


class PerCall(Struct, frozen=True):
    """Dollars a call, of the calls that lie whole in the window, reached a replica and have a price."""

    cost: Summary | None
    dearest: tuple[tuple[float, float], ...]
    """(share of the calls, the part of their cost that the dearest of them make up)."""
    million_in: float | None
    """Prefill dollars a million prompt tokens, cached ones counted too, of finished calls with known counts."""
    million_out: float | None
    """Decode and KV dollars a million output tokens, of the same calls."""
    tokens_in: int
    tokens_out: int
    energy: Summary | None = None
    """Joules a call, of those whose energy is known."""


class Told(Struct, frozen=True):
    """Tokens of attempts that an engine told of, by the gateway's count and by the engine's own."""

    replica: str
    attempts: int
    """Those that finished, with a count at the gateway: what is compared."""
    prompt: tuple[int, int]
    """(gateway, engine), as the next two."""
    cached: tuple[int, int] | None
    """None where the gateway knows of none."""
    output: tuple[int, int]


class Latency(Struct, frozen=True):
    """Seconds, of calls that finished in the window. TTFT and TPOT are known for streamed calls only."""

    ttft: Summary | None
    tpot: Summary | None
    e2e: Summary | None


class Usage(Struct, frozen=True):
    """Where token counts come from."""

    source: str
    attempts: int
    tokens: int


def ended_inside(facts: Facts) -> Flags:
    """Calls that count for this window: each call ends once, so adjacent windows count it once."""
    return (facts.calls.ended >= facts.start) & (facts.calls.ended < facts.end)


def by_call(facts: Facts, amounts: Ints) -> Ints:
    """Amounts of attempts summed for each call."""
    sums = np.bincount(facts.attempts.call, weights=amounts, minlength=len(facts.calls.key))
    return np.rint(sums).astype(np.int64)


def without_price(facts: Facts, charges: Charges) -> Flags:
    """Calls with an attempt, in this window, that nobody knows the price of."""
    return by_call(facts, (~charges.priced).astype(np.int64)) > 0


def answered(facts: Facts, charges: Charges) -> int:
    """Calls that finished in the window and ran at known prices: what the whole bill was for."""
    finished = facts.calls.outcome == OUTCOMES.index("finished")
    return int((finished & ended_inside(facts) & ~without_price(facts, charges)).sum())


def last_attempts(facts: Facts) -> Ints:
    """For each call the row of its last attempt, -1 where it had none."""
    order = np.lexsort((facts.attempts.number, facts.attempts.call))
    last = np.full(len(facts.calls.key), -1)
    last[facts.attempts.call[order]] = order
    return last


def outcomes(facts: Facts) -> dict[str, int]:
    """Calls that ended in the window, by how; only what happened."""
    counts = np.bincount(facts.calls.outcome[ended_inside(facts)], minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True) if count}


def waste(charges: Charges) -> dict[str, float]:
    """Dollars by why they were wasted; only what happened."""
    sums = np.bincount(charges.waste, weights=charges.amount, minlength=len(WASTE))
    happened = np.bincount(charges.waste, minlength=len(WASTE)) > 0
    return {name: float(sums[n]) / NANO for n, name in enumerate(WASTE) if n and happened[n]}


def split(facts: Facts, charges: Charges, by: str, labels: Codes, name: Callable[[Ints], Mapping[int, str]]) -> Split:
    """By one label a call. ``name`` turns the label codes that are shown into their texts."""
    calls = np.arange(len(labels))
    return _split(facts, charges, by, calls, labels, name)


def tag_splits(facts: Facts, charges: Charges, name: Callable[[Ints], Mapping[int, str]]) -> tuple[Split, ...]:
    """One split a tag key. Calls without the tag are not in it."""
    splits = []
    for key in np.unique(facts.tags.key):
        chosen = facts.tags.key == key
        title = f"tag {facts.names[int(key)]}"
        splits.append(_split(facts, charges, title, facts.tags.call[chosen], facts.tags.value[chosen], name))
    return tuple(sorted(splits, key=lambda split: split.by))


def _split(
    facts: Facts,
    charges: Charges,
    by: str,
    calls: Ints,
    labels: Codes,
    name: Callable[[Ints], Mapping[int, str]],
) -> Split:
    codes, place = np.unique(labels, return_inverse=True)

    def by_label(amounts: Ints | Flags) -> Floats:
        sums: Floats = np.bincount(place, weights=amounts[calls], minlength=len(codes)).astype(np.float64)
        return sums

    cost = by_label(by_call(facts, charges.amount))
    count = by_label(ended_inside(facts))
    unpriced = by_label(without_price(facts, charges))
    order = np.lexsort((codes, -count, -cost))
    shown = order[:TOP]
    names = name(codes[shown].astype(np.int64))
    total = charges.requests

    def row(title: str, chosen: Ints) -> Row:
        sum_ = float(cost[chosen].sum())
        share = sum_ / total if total else 0.0
        return Row(title, int(count[chosen].sum()), sum_ / NANO, share, int(unpriced[chosen].sum()))

    rows = [row(names[int(codes[one])], np.array([one])) for one in shown]
    rest = order[TOP:]
    if len(rest):
        rows.append(row(f"{len(rest)} more", rest))
    return Split(by, tuple(rows), len(rest))


def per_call(facts: Facts, charges: Charges) -> PerCall:
    """What a call costs by itself: idle time and overhead are nobody's."""
    calls, attempts = facts.calls, facts.attempts
    tried = np.bincount(attempts.call, minlength=len(calls.key)) > 0
    whole = ended_inside(facts) & (calls.arrived >= facts.start) & tried & ~without_price(facts, charges)
    cost = by_call(facts, charges.amount)[whole]
    counted = (
        whole[attempts.call]
        & (attempts.outcome == OUTCOMES.index("finished"))
        & (attempts.prompt != UNKNOWN)
        & (attempts.output != UNKNOWN)
    )
    tokens_in, tokens_out = int(attempts.prompt[counted].sum()), int(attempts.output[counted].sum())
    prefill = int(charges.prefill[counted].sum())
    decode = int(charges.decode[counted].sum() + charges.kv[counted].sum())
    return PerCall(
        cost=summary(cost / NANO),
        dearest=tuple(dearest(cost, DEAREST)),
        million_in=prefill / NANO / tokens_in * 1e6 if tokens_in else None,
        million_out=decode / NANO / tokens_out * 1e6 if tokens_out else None,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        energy=summary(_energy(facts, charges)[whole]),
    )


def _energy(facts: Facts, charges: Charges) -> Floats:
    """Joules a call; NaN where one of its attempts' is not known."""
    sums = np.bincount(facts.attempts.call, weights=charges.joules, minlength=len(facts.calls.key))
    return sums.astype(np.float64)


def told(facts: Facts) -> tuple[Told, ...]:
    """What engines counted, beside what the gateway did, for each replica whose engine tells."""
    attempts, records = facts.attempts, facts.records
    if not len(records.attempt):
        return ()
    count = len(attempts.call)
    # An answer with several choices has a record for each: its prompt is computed, and counted, once.
    prompt = np.zeros(count, np.int64)
    np.maximum.at(prompt, records.attempt, records.prompt)
    cached = np.zeros(count, np.int64)
    np.maximum.at(cached, records.attempt, records.cached)
    output = np.bincount(records.attempt, weights=records.output, minlength=count)
    known = (np.bincount(records.attempt, minlength=count) > 0) & (attempts.prompt != UNKNOWN)
    known &= (attempts.output != UNKNOWN) & (attempts.outcome == OUTCOMES.index("finished"))
    found = []
    for number, name in enumerate(facts.replicas):
        rows = known & (attempts.replica == number)
        if not rows.any():
            continue
        said = rows & (attempts.cached != UNKNOWN)
        found.append(
            Told(
                replica=name,
                attempts=int(rows.sum()),
                prompt=(int(attempts.prompt[rows].sum()), int(prompt[rows].sum())),
                cached=(int(attempts.cached[said].sum()), int(cached[said].sum())) if said.any() else None,
                output=(int(attempts.output[rows].sum()), int(output[rows].sum())),
            )
        )
    return tuple(found)


def latency(facts: Facts) -> Latency:
    """TTFT from arrival to the first token; TPOT = (E2E − TTFT) ÷ (output tokens − 1), each call counting once."""
    finished = np.flatnonzero(ended_inside(facts) & (facts.calls.outcome == OUTCOMES.index("finished")))
    last = last_attempts(facts)[finished]
    reached, last = finished[last >= 0], last[last >= 0]
    streamed = facts.calls.stream[reached]
    first = np.where(streamed, facts.attempts.first_token[last], np.nan)
    ttft = first - facts.calls.arrived[reached]
    e2e = facts.calls.ended[reached] - facts.calls.arrived[reached]
    later = facts.attempts.output[last] - 1
    tpot = np.where(later > 0, (e2e - ttft) / np.maximum(later, 1), np.nan)
    return Latency(summary(ttft), summary(tpot), summary(e2e))


def usage(facts: Facts) -> tuple[Usage, ...]:
    """Attempts that ended in the window, by the source of their token counts."""
    attempts = facts.attempts
    inside = (attempts.ended >= facts.start) & (attempts.ended < facts.end)
    tokens = np.maximum(attempts.prompt, 0) + np.maximum(attempts.output, 0)
    count = np.bincount(attempts.usage[inside], minlength=len(USAGES))
    sums = np.bincount(attempts.usage[inside], weights=tokens[inside], minlength=len(USAGES))
    return tuple(Usage(name, int(count[n]), int(sums[n])) for n, name in enumerate(USAGES) if count[n])
