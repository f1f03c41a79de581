"""Which prompt blocks the pipeline still holds, reckoned from what was sent to it: the runtime shares blocks but
does not say how many it found. Pure; bounded by the number of blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wastegate.local.messages import BLOCK


def block_keys(tokens: NDArray[np.int64]) -> list[int]:
    """A key for each full block of ``tokens``; it stands for the block and all before it."""
    data = tokens.tobytes()
    width = BLOCK * tokens.itemsize
    keys: list[int] = []
    key = 0
    for at in range(0, len(data) - width + 1, width):
        key = hash((key, data[at : at + width]))
        keys.append(key)
    return keys


class PrefixIndex:
    """The least recently used blocks go first, as in the pipeline. Only full blocks are known here; the pipeline
    also finds some begun ones, so a count from here is a floor."""

    def __init__(self, blocks: int) -> None:
        self._bound = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def found(self, keys: Sequence[int], after: int = 0) -> int:
        """How many of ``keys`` are held without a gap, those before ``after`` taken for granted."""
        at = after
        while at < len(keys) and keys[at] in self._blocks:
            at += 1
        return at

    def keep(self, keys: Sequence[int]) -> None:
        """These blocks have been computed or used just now."""
        for key in reversed(keys):  # a chain's end is dropped before its beginning
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._bound:
            self._blocks.popitem(last=False)
