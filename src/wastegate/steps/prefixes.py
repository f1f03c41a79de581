"""The audit's section on prompts: what a prefix cache could have held of each route's, what it did, and what that cost.
It joins what the ledger knows of prompts with tokens and charges; it prints nothing."""

from __future__ import annotations

import numpy as np

from wastegate.core.attribution import Charges
from wastegate.core.facts import UNKNOWN, Facts, cached_tokens
from wastegate.core.prefix_stability import PrefixStability, Prompts, RoutePrefixes
from wastegate.steps.figures import by_call, ended_inside, last_attempts
from wastegate.store.entries import Ledger


def prefixes(ledger: Ledger, facts: Facts, charges: Charges) -> tuple[RoutePrefixes, ...]:
    """One row a route of the calls that ended in the window, most prompt tokens first; none where no prompt was
    measured. Memory does not grow with the number of calls beyond what ``facts`` holds."""
    calls = facts.calls
    if not len(facts.attempts.call):
        return ()
    codes, route = np.unique(calls.route, return_inverse=True)
    last = last_attempts(facts)
    sent = last >= 0
    tokens = np.where(sent, facts.attempts.prompt[last], UNKNOWN)
    cached = np.where(sent, cached_tokens(facts)[last], UNKNOWN)
    prefill = by_call(facts, charges.prefill)
    inside = ended_inside(facts)
    stability = PrefixStability()
    for rows in ledger.prompts(int(calls.key[0]), int(calls.key[-1])):
        place = np.searchsorted(calls.key, rows.key)
        mine = (calls.key[place] == rows.key) & inside[place]
        at = place[mine]
        chosen = np.flatnonzero(mine).tolist()
        stability.add(
            Prompts(
                route=route[at].astype(np.int32),
                model=calls.model[at],
                blocks=[rows.blocks[row] for row in chosen],
                size=rows.size[mine],
                tokens=tokens[at],
                cached=cached[at],
                prefill=prefill[at],
                at=rows.at[mine],
                again=rows.again[mine],
                by=[rows.by[row] for row in chosen],
            )
        )
    return stability.rows({place: facts.names[int(code)] for place, code in enumerate(codes)})
