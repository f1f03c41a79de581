"""How much of the prompts could have come from a prefix cache, how much did, and what kept the rest from it: sums over
any number of calls in bounded memory. Hashes, sizes and counts enter here; no prompt does, and no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from wastegate.core.facts import UNKNOWN, Codes, Floats, Ints
from wastegate.core.ledger import NANO, Entry

BLOCK_BYTES = 512
"""Bytes of prompt that one hash of ``Call.blocks`` stands for."""
SLOTS = 1 << 22
"""Blocks remembered, 8 bytes each; a new one takes the place of an old one. Some 500 million tokens: no cache on an
accelerator holds as many."""
PLACES = 4096
"""Places of divergence told apart; what comes beyond them is summed up by route and kind."""
NEAR = 64
"""Bytes within which two prompts part at the same place: a name before it may be longer or shorter."""
TOP = 5
_MODELS_APART = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: an odd number whose multiples lie far apart."""


class Prompts(Struct, frozen=True, eq=False, kw_only=True):
    """Calls in the order of time; every member has the same length n."""

    route: Codes
    model: Codes
    blocks: Sequence[bytes]
    """As in ``Call``."""
    size: Ints
    """Bytes; 0 where unknown."""
    tokens: Ints
    cached: Ints
    """Tokens, these two; UNKNOWN where nobody said."""
    prefill: Ints
    """Nano-dollars."""
    at: Ints
    """Where it parts from the one before it, in bytes; UNKNOWN where nobody looked, or nothing does."""
    again: Ints
    by: Sequence[str]


class Place(Struct, frozen=True):
    """Where prompts of a route part, and what that costs: what is the same again behind it, computed anew."""

    by: str
    at: int | None
    """Bytes from the start, where it was first seen; None for all further places together."""
    calls: int
    lost_tokens: float
    lost_dollars: float | None
    """None where the route's calls have no price."""


class RoutePrefixes(Struct, frozen=True):
    """One route's prompts. Shares are of its prompt tokens, 0 to 1, over calls with a known count."""

    route: str
    calls: int
    prompt_tokens: int
    could: float
    """Some earlier prompt to the same model began alike, or the engine found it cached."""
    was: float | None
    """The engine says that it found it cached; None where none says anything."""
    lost_dollars: float | None
    """Prefill of what could have come from a cache and did not; None without ``was`` or a price."""
    watched: int
    """Calls that parted from the one before them at a known place."""
    places: tuple[Place, ...]
    """The dearest first."""


class PrefixStability:
    """Add calls in order of time, then ask for the rows."""

    def __init__(self, slots: int = SLOTS) -> None:
        """``slots``: a power of two."""
        self._seen = np.zeros(slots, np.uint64)
        self._mask = np.uint64(slots - 1)
        self._sums: Floats = np.zeros((0, len(_SUMS)))
        self._places: dict[tuple[int, str, int | None], list[float]] = {}

    def add(self, prompts: Prompts) -> None:
        known = np.flatnonzero(prompts.tokens > 0)
        shared = self._shared(prompts)[known]
        route, tokens, cached = prompts.route[known], prompts.tokens[known], prompts.cached[known]
        counts = np.array([len(prompts.blocks[row]) // 8 for row in known.tolist()], np.int64)
        size = np.where(prompts.size[known] > 0, prompts.size[known], counts * BLOCK_BYTES + BLOCK_BYTES // 2)
        said = cached != UNKNOWN
        found = np.maximum(cached, 0)
        could = np.maximum(np.minimum(shared * BLOCK_BYTES / size, 1.0) * tokens, found)
        told = np.where(said, tokens, 0)
        computed = np.maximum(tokens - found, 0)
        columns = (np.ones(len(known)), tokens, could, told, found, computed, prompts.prefill[known])
        self._grow(int(route.max(initial=-1)) + 1)
        for place, column in enumerate(columns):
            self._sums[:, place] += np.bincount(route, weights=column, minlength=len(self._sums))
        lost = prompts.again[known] / size * tokens
        self._part(prompts, known[prompts.at[known] != UNKNOWN], lost[prompts.at[known] != UNKNOWN])

    def _shared(self, prompts: Prompts) -> Ints:
        """(n,) whole blocks at the start of each prompt that an earlier one began with."""
        counts = np.array([len(blocks) // 8 for blocks in prompts.blocks], np.int64)
        shared = np.zeros(len(counts), np.int64)
        some = np.flatnonzero(counts)
        if not len(some):
            return shared
        each = counts[some]
        starts = np.cumsum(each) - each
        flat = np.frombuffer(b"".join(prompts.blocks), np.uint64) ^ np.repeat(
            prompts.model[some].astype(np.uint64) * _MODELS_APART, each
        )
        slots = flat & self._mask
        _, first, which = np.unique(flat, return_index=True, return_inverse=True)
        known = (self._seen[slots] == flat) | (first[which] < np.repeat(starts, each))
        self._seen[slots] = flat
        within = np.arange(len(flat)) - np.repeat(starts, each)
        shared[some] = np.minimum.reduceat(np.where(known, np.repeat(each, each), within), starts)
        return shared

    def _grow(self, routes: int) -> None:
        if routes > len(self._sums):
            self._sums = np.vstack((self._sums, np.zeros((routes - len(self._sums), len(_SUMS)))))

    def _part(self, prompts: Prompts, rows: Ints, lost: Floats) -> None:
        """Sum up by place: a step of Python for each place, not for each call."""
        kinds = sorted({prompts.by[row] for row in rows.tolist()})
        code = {kind: place for place, kind in enumerate(kinds)}
        kind = np.array([code[prompts.by[row]] for row in rows.tolist()], np.int64)
        near = prompts.at[rows] // NEAR
        places, first, which = np.unique(
            np.stack((prompts.route[rows], kind, near), 1), axis=0, return_index=True, return_inverse=True
        )
        calls = np.bincount(which.ravel(), minlength=len(places))
        sums = np.bincount(which.ravel(), weights=lost, minlength=len(places))
        for at, (route, by, step) in enumerate(places.tolist()):
            key: tuple[int, str, int | None] = (route, kinds[by], step)
            if key not in self._places and len(self._places) >= PLACES:
                key = (route, kinds[by], None)
            row = self._places.setdefault(key, [float(prompts.at[rows[first[at]]]), 0.0, 0.0])
            row[1] += int(calls[at])
            row[2] += float(sums[at])

    def rows(self, names: Mapping[int, str]) -> tuple[RoutePrefixes, ...]:
        """One a route with prompts of known length, most tokens first."""
        order = np.argsort(-self._sums[:, 1], kind="stable")
        return tuple(self._row(int(route), names[int(route)]) for route in order if self._sums[route, 0])

    def _row(self, route: int, name: str) -> RoutePrefixes:
        calls, tokens, could, told, found, computed, prefill = self._sums[route].tolist()
        price = prefill / NANO / computed if computed and prefill else None
        was = found / told if told else None
        mine = [(key, row) for key, row in self._places.items() if key[0] == route]
        mine.sort(key=lambda item: (-item[1][2], -item[1][1]))
        lost = max(could / tokens - was, 0.0) * tokens * price if was is not None and price is not None else None
        return RoutePrefixes(
            route=name,
            calls=int(calls),
            prompt_tokens=int(tokens),
            could=could / tokens,
            was=was,
            lost_dollars=lost,
            watched=int(sum(row[1] for _, row in mine)),
            places=tuple(
                Place(
                    by=by,
                    at=int(row[0]) if near is not None else None,
                    calls=int(row[1]),
                    lost_tokens=row[2],
                    lost_dollars=row[2] * price if price is not None else None,
                )
                for (_, by, near), row in mine[:TOP]
            ),
        )


_SUMS = ("calls", "tokens", "could", "told", "found", "computed", "prefill")


def of_entries(entries: Sequence[Entry]) -> tuple[RoutePrefixes, ...]:
    """The same from single entries, in order of arrival: for few calls, without their prices."""
    calls = sorted(entries, key=lambda entry: entry.arrived)
    codes: dict[str, int] = {}
    routes = [codes.setdefault(entry.route, len(codes)) for entry in calls]
    models: dict[str, int] = {}
    last = [entry.attempts[-1] if entry.attempts else None for entry in calls]
    prompts = Prompts(
        route=np.array(routes, np.int32),
        model=np.array([models.setdefault(entry.model, len(models)) for entry in calls], np.int32),
        blocks=[entry.blocks for entry in calls],
        size=np.array([entry.prompt_bytes for entry in calls], np.int64),
        tokens=_counts([one.prompt_tokens if one is not None else None for one in last]),
        cached=_counts([one.cached_tokens if one is not None else None for one in last]),
        prefill=np.zeros(len(calls), np.int64),
        at=_counts([entry.divergence.at if entry.divergence is not None else None for entry in calls]),
        again=np.array([entry.divergence.again if entry.divergence is not None else 0 for entry in calls], np.int64),
        by=[entry.divergence.by if entry.divergence is not None else "" for entry in calls],
    )
    stability = PrefixStability(slots=1 << 18)
    stability.add(prompts)
    return stability.rows({code: name for name, code in codes.items()})


def _counts(values: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)
