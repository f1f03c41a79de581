"""One call, told from its arrival to each part of its cost. Reads the ledger; judges and changes nothing."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import DEFAULT_WORK, WASTE, Charges, attribute
from wastegate.core.facts import Facts
from wastegate.core.ledger import NANO, Attempt, Basis, EngineRecord, Entry, Measured
from wastegate.steps.audit import Where
from wastegate.store.entries import Ledger

_SURENESS: tuple[Basis, ...] = ("GATEWAY", "DEGRADED", "EXACT")
"""The least first."""


class AttemptCost(Struct, frozen=True):
    """One try. Dollars; None where its replica was up at no known price."""

    attempt: Attempt
    dollars: float | None
    prefill: float | None
    decode: float | None
    kv: float | None
    naive: float | None
    memory_known: bool
    """The naive memory share is KV held ÷ capacity; otherwise the whole replica."""
    waste: str
    """Empty, or why its cost is waste."""
    company: float | None
    """Mean number of attempts in flight on its replica while it was, itself counted; None where it took no time."""
    work: str
    """Where the figures come from that weigh its work against that of the others."""
    basis: Basis = "GATEWAY"
    """EXACT where its engine told of it and of all that ran with it; GATEWAY where it did not tell of this one."""
    estimate: float | None = None
    """What the gateway alone would have charged; None where no engine tells more."""
    joules: float | None = None
    engine: Engine | None = None


class Engine(Struct, frozen=True):
    """What the engine did for an attempt, by its own account; sums over the choices of its answer."""

    queued: float | None
    """Seconds from its arrival there to its first step; None if it had none."""
    prompt: int
    cached: int
    prefill: int
    """Prompt tokens computed, those computed anew after a preemption too."""
    output: int
    draft: int
    steps: int
    """Longest of the choices."""
    kv: float
    """Token-seconds of KV held."""
    preemptions: int
    finish: str
    measured: Measured


class Explanation(Struct, frozen=True):
    """A call with what it cost. ``dollars`` sums the attempts that have a price; None where none has."""

    entry: Entry
    dollars: float | None
    naive: float | None
    basis: Basis
    attempts: tuple[AttemptCost, ...]
    guesses: tuple[str, ...]
    """Every figure that is a guess, a sentence each."""


def explain(site: Where, prefix: str) -> Explanation:
    """The call whose id is, or alone begins with, ``prefix``. Raises FileNotFoundError without a ledger, LedgerError
    for one that cannot be read, KeyError (its sentence is for the reader) where no one call fits."""
    with Ledger(site.ledger, create=False) as ledger:
        key = ledger.key(prefix)
        entry = ledger.entry(prefix)
        ends = [entry.ended, *(attempt.ended for attempt in entry.attempts)]
        # All that was in flight meanwhile shares the cost; a moment more, since the end is not in the window.
        facts = ledger.facts(entry.arrived, max(ends) + 1e-6)
        told = ledger.records(entry.id)
    charges = attribute(facts)
    (row,) = np.flatnonzero(facts.calls.key == key)
    rows = np.flatnonzero(facts.attempts.call == row)
    rows = rows[np.argsort(facts.attempts.number[rows])]
    costs = tuple(
        _cost(facts, charges, attempt, int(place), [record for number, record in told if number == attempt.number])
        for attempt, place in zip(entry.attempts, rows, strict=True)
    )
    return Explanation(
        entry=entry,
        dollars=_sum([cost.dollars for cost in costs]),
        naive=_sum([cost.naive for cost in costs]),
        basis=_least([cost.basis for cost in costs]),
        attempts=costs,
        guesses=tuple(_guesses(costs)),
    )


def _least(found: list[Basis]) -> Basis:
    return next((basis for basis in _SURENESS if basis in found), "GATEWAY")


def _cost(facts: Facts, charges: Charges, attempt: Attempt, row: int, told: list[EngineRecord]) -> AttemptCost:
    known = bool(charges.priced[row])
    recorded = bool(charges.recorded[row])
    bill = next(bill for bill in charges.replicas if bill.replica == attempt.replica)
    joules = float(charges.joules[row])

    def dollars(amounts: np.ndarray) -> float | None:
        return int(amounts[row]) / NANO if known else None

    return AttemptCost(
        attempt=attempt,
        dollars=dollars(charges.amount),
        prefill=dollars(charges.prefill),
        decode=dollars(charges.decode),
        kv=dollars(charges.kv),
        naive=dollars(charges.naive),
        memory_known=bool(charges.memory_known[row]),
        waste=WASTE[charges.waste[row]],
        company=_company(facts, attempt),
        work=bill.work.source,
        basis=bill.basis if recorded else "GATEWAY",
        estimate=dollars(charges.estimate) if recorded else None,
        joules=None if np.isnan(joules) else joules,
        engine=_engine(told) if recorded else None,
    )


def _engine(told: list[EngineRecord]) -> Engine:
    runs = [run for record in told for run in record.runs]
    arrived = min(record.arrived for record in told)
    return Engine(
        queued=max(min(run.start for run in runs) - arrived, 0.0) if runs else None,
        prompt=max(record.prompt for record in told),
        cached=max(record.cached for record in told),
        prefill=sum(run.prefill for run in runs),
        output=sum(record.output for record in told),
        draft=sum(run.draft for run in runs),
        steps=max(sum(run.steps for run in record.runs) for record in told),
        kv=sum(run.kv for run in runs),
        preemptions=sum(record.preemptions for record in told),
        finish=", ".join(dict.fromkeys(record.finish for record in told)),
        measured="steps" if all(record.measured == "steps" for record in told) else "times",
    )


def _company(facts: Facts, attempt: Attempt) -> float | None:
    attempts = facts.attempts
    begin = attempt.sent if attempt.sent is not None else attempt.claimed
    if attempt.ended <= begin:
        return None
    same = attempts.replica == facts.replicas.index(attempt.replica)
    starts = np.where(np.isnan(attempts.sent), attempts.claimed, attempts.sent)[same]
    overlap = np.minimum(attempts.ended[same], attempt.ended) - np.maximum(starts, begin)
    return float(np.maximum(overlap, 0.0).sum() / (attempt.ended - begin))


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _guesses(costs: tuple[AttemptCost, ...]) -> list[str]:
    said = []
    for cost in costs:
        name = f"attempt {cost.attempt.number}"
        if cost.attempt.usage == "estimated":
            said.append(f"{name}: its tokens are estimated from bytes, nobody counted them")
        if cost.attempt.usage == "none":
            said.append(f"{name}: nobody counted its tokens; it is charged for its place alone")
        if cost.dollars is None:
            said.append(f"{name}: {cost.attempt.replica} was up at no known price, so it has no cost here")
        elif cost.engine is not None and (cost.company or 0.0) > 1.0:
            said.append(f"{name}: shared with others by what its engine did in each step, weighed as {cost.work}")
        elif (cost.company or 0.0) > 1.0 and cost.work == DEFAULT_WORK.source:
            said.append(f"{name}: shared with others by {DEFAULT_WORK.source}")
        elif (cost.company or 0.0) > 1.0:
            said.append(f"{name}: shared with others by work as the gateway sees it, weighed as {cost.work}")
        if cost.attempt.outcome == "lost":
            said.append(f"{name}: it ended unseen; its end is when the gateway last wrote anything")
        if cost.dollars is not None and not cost.memory_known:
            said.append(
                f"{name}: the KV capacity of {cost.attempt.replica} is not known, so the naive figure takes all of it"
            )
    return said
