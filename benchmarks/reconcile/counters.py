"""Engines' own counters, and the ledger's sums of the same things. Reads only."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from wastegate.core.attribution import Charges
from wastegate.core.facts import OUTCOMES, UNKNOWN, Facts
from wastegate.store.entries import Ledger

_SAMPLE = re.compile(r"^([a-zA-Z_:]+)(?:\{([^}]*)\})? ([-+0-9.eE]+|NaN)$", re.MULTILINE)

NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "tokens in": ("vllm:prompt_tokens_total",),
        "cached": ("vllm:prompt_tokens_cached_total",),
        "tokens out": ("vllm:generation_tokens_total",),
        "finished": ("vllm:request_success_total",),
    },
    "llamacpp": {
        "tokens in": ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        "cached": ("llamacpp:prompt_tokens_cached_total",),
        "tokens out": ("llamacpp:tokens_predicted_total",),
    },
    "local": {
        "tokens in": ("wastegate_engine_prompt_tokens_total",),
        "cached": ("wastegate_engine_prompt_tokens_cached_total",),
        "tokens out": ("wastegate_engine_output_tokens_total",),
        "finished": ('wastegate_engine_requests_total{"stop"}', 'wastegate_engine_requests_total{"length"}'),
        "aborted": ('wastegate_engine_requests_total{"left"}',),
    },
}
"""What of an engine's counters, summed, a figure is. A name with a label's value counts only samples that have it. vLLM
counts no aborts: those are counted from the plugin's records."""


class Figure(Struct, frozen=True):
    """One thing, counted twice."""

    replica: str
    what: str
    engine: int
    ledger: int
    gateway: int
    """As the gateway alone saw it."""
    unknown: int = 0
    """What the ledger says that it does not know: of a call that its client left, no answer tells what was cached. At
    most so much is missing."""

    @property
    def off(self) -> float:
        """Relative to the larger; a difference of one request is none: a call may end as it is counted."""
        difference = max(self.ledger - self.engine, self.engine - self.ledger - self.unknown, 0)
        if self.what in ("finished", "aborted") and difference <= 1:
            return 0.0
        return difference / max(self.engine, self.ledger, 1)


def scrape(name: str, url: str) -> dict[str, float]:
    """An engine's counters now, by what they count."""
    with urllib.request.urlopen(url.rstrip("/").removesuffix("/v1") + "/metrics", timeout=20) as answer:
        samples = _SAMPLE.findall(answer.read().decode())
    found = {}
    for what, names in NAMES[name.split("-")[0]].items():
        values = [float(value) for metric, labels, value in samples if any(_is(one, metric, labels) for one in names)]
        if not values:
            raise RuntimeError(f"{name} exports nothing of {', '.join(names)}")
        found[what] = sum(values)
    return found


def _is(wanted: str, metric: str, labels: str) -> bool:
    name, _, value = wanted.partition("{")
    return metric == name and value.rstrip("}") in labels


def reconcile(
    facts: Facts, ledger: Ledger, ids: Mapping[int, str], before: Mapping[str, Mapping[str, float]],
    after: Mapping[str, Mapping[str, float]],
) -> list[Figure]:  # fmt: skip
    """Each engine's counters since ``before``, beside the ledger's sums. ``ids``: the calls' ids by their row."""
    attempts, records = facts.attempts, facts.records
    told = np.bincount(records.attempt, minlength=len(attempts.call)) > 0
    best = {
        "tokens in": _better(attempts.prompt, records.attempt, records.prompt, told),
        "cached": _better(attempts.cached, records.attempt, records.cached, told),
        "tokens out": _better(attempts.output, records.attempt, records.output, told),
    }
    seen = {
        "tokens in": np.maximum(attempts.prompt, 0),
        "cached": np.maximum(attempts.cached, 0),
        "tokens out": np.maximum(attempts.output, 0),
    }
    figures = []
    for number, name in enumerate(facts.replicas):
        rows = (attempts.replica == number) & ~np.isnan(attempts.sent)
        rows &= (attempts.output > 0) | (
            attempts.outcome != OUTCOMES.index("finished")
        )  # counting tokens is no request
        ended = {
            kind: int((rows & (attempts.outcome == OUTCOMES.index(kind))).sum()) for kind in ("finished", "hung_up")
        }
        for what in best:
            engine = round(after[name][what] - before[name][what])
            silent = rows & ~told & (attempts.cached == UNKNOWN) & (what == "cached")
            unknown = int(seen["tokens in"][silent].sum())
            figures.append(
                Figure(name, what, engine, int(best[what][rows].sum()), int(seen[what][rows].sum()), unknown)
            )
        for what, kind in (("finished", "finished"), ("aborted", "hung_up")):
            if what in after[name]:
                engine = round(after[name][what] - before[name][what])
            elif what == "aborted" and told[rows].any():
                engine = _aborted(ledger, [ids[int(call)] for call in np.unique(attempts.call[rows])])
            else:
                continue  # this engine does not say
            figures.append(Figure(name, what, engine, ended[kind], ended[kind]))
    return figures


def _better(seen: np.ndarray, place: np.ndarray, said: np.ndarray, told: np.ndarray) -> np.ndarray:
    """By the engine's record where there is one, else as the gateway saw it."""
    sums = np.bincount(place, weights=said, minlength=len(seen)).astype(np.int64)
    return np.where(told, sums, np.maximum(seen, 0))


def _aborted(ledger: Ledger, ids: list[str]) -> int:
    return sum(any(record.finish == "abort" for _, record in ledger.records(id)) for id in ids)


def conservation(facts: Facts, charges: Charges) -> dict[str, float]:
    """Of each replica, how far requests, summed anew from every charge, idle and overhead are from price × up time."""
    off = {}
    for bill in charges.replicas:
        rows = np.array([facts.replicas[number] == bill.replica for number in facts.attempts.replica], np.bool_)
        amounts = charges.amount[rows] if len(rows) else np.zeros(1)
        up = sum(
            span.price * ((span.end if span.end is not None else span.seen) - span.start) / 3600
            for span in facts.spans
            if span.replica == bill.replica
        )
        off[bill.replica] = abs(int(amounts.sum()) + bill.idle + bill.overhead - up) / max(up, 1)
    return off
