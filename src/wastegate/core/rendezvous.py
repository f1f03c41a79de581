"""Rendezvous hashing: every key ranks the names by itself, so that a name more or less moves only its own share."""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest


def home(key: int, names: Sequence[bytes]) -> int:
    """The place of the key's first choice among ``names``, which must not be empty. ``key`` has 64 bits.

    With one name more, 1 key in N + 1 moves, all of them to the new one.
    """
    best, most = 0, -1
    for place, name in enumerate(names):
        weight = xxh3_64_intdigest(name, key)
        if weight > most:
            best, most = place, weight
    return best
