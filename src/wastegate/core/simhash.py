"""SimHash: 64 bits of which prompts much alike share most. It says how alike texts are, never what KV they share: that
takes an identical beginning."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from msgspec import Struct
from xxhash import xxh3_64_intdigest

_SHINGLE = 4
"""Words that stand together in one shingle."""
_MOST_SHINGLES = 4096
_BANDS = 4
NEAR = _BANDS - 1
"""Bits in which two hashes may differ and still count as alike: one of the four bands is then the same in both."""
_MOST_STICKY = 100_000


def simhash(text: bytes) -> int:
    """Of the text's shingles of four words, each counted once; never 0. Of a text below four words: of the whole."""
    words = text.split()
    found = {b" ".join(words[at : at + _SHINGLE]) for at in range(min(len(words) - _SHINGLE + 1, _MOST_SHINGLES))}
    hashes = np.fromiter(map(xxh3_64_intdigest, found or {text}), np.uint64)
    bits = np.unpackbits(hashes.view(np.uint8)).reshape(-1, 64)
    majority = 2 * bits.sum(axis=0, dtype=np.int64) > len(bits)
    return int(np.packbits(majority).view(np.uint64)[0]) or 1


class _Stuck(Struct, frozen=True, gc=False):
    likeness: int
    replica: str
    until: float
    prompt: int
    """Its last block's hash: equal for equal prompts only, but for what follows the last whole block."""


class Sticky:
    """Where prompts of some likeness went last, for a while. Bounded: the oldest goes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.collisions = 0
        """Prompts that had all 64 bits in common with an earlier one, and were another."""
        self._bands: OrderedDict[tuple[int, int], _Stuck] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bands)

    def find(self, likeness: int, now: float) -> str:
        """The replica that the most alike prompt went to; empty where none is near."""
        best, distance = "", NEAR + 1
        for band in _bands(likeness):
            stuck = self._bands.get(band)
            if stuck is not None and stuck.until > now:
                apart = (stuck.likeness ^ likeness).bit_count()
                if apart < distance:
                    best, distance = stuck.replica, apart
        return best

    def put(self, likeness: int, replica: str, prompt: int, now: float) -> bool:
        """A prompt of this likeness goes to the replica. True: it has the hash of an earlier one, and is another."""
        new = _Stuck(likeness, replica, now + self.seconds, prompt)
        old = self._bands.get(_bands(likeness)[0])
        collides = old is not None and old.until > now and old.likeness == likeness and old.prompt != prompt
        self.collisions += collides
        for band in _bands(likeness):
            self._bands[band] = new
            self._bands.move_to_end(band)
        while len(self._bands) > _MOST_STICKY:
            self._bands.popitem(last=False)
        return collides


def _bands(likeness: int) -> list[tuple[int, int]]:
    return [(band, likeness >> 16 * band & 0xFFFF) for band in range(_BANDS)]
