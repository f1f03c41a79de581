"""The blocks of KV that a replica keeps after they were computed: shared by who begins with the same prompt, the oldest
given up first, perhaps to a larger and slower tier. It counts tokens; no time enters here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct


class Found(Struct, frozen=True, gc=False):
    """Of a prompt's blocks, from its first on: how many are at hand, and how many more the tier holds."""

    here: int
    tier: int


class Blocks:
    """Hashes of whole blocks of ``tokens`` tokens each. A block in use is pinned; the others go when room is needed."""

    def __init__(self, tokens: int, tier_tokens: int = 0) -> None:
        self._tokens = tokens
        self._tier_most = tier_tokens // tokens
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tier: OrderedDict[int, None] = OrderedDict()

    @property
    def pinned(self) -> int:
        """Tokens in blocks that somebody uses."""
        return len(self._pins) * self._tokens

    @property
    def idle(self) -> int:
        """Tokens in blocks that nobody uses now."""
        return len(self._idle) * self._tokens

    def find(self, hashes: Sequence[int]) -> Found:
        """Leading blocks only: KV is of use to a prompt up to the first difference."""
        here = 0
        while here < len(hashes) and (hashes[here] in self._pins or hashes[here] in self._idle):
            here += 1
        tier = here
        while tier < len(hashes) and hashes[tier] in self._tier:
            tier += 1
        return Found(here, tier - here)

    def unpinned(self, hashes: Sequence[int]) -> int:
        """Tokens in those of these blocks that pinning would take from the room of others."""
        return sum(each not in self._pins for each in hashes) * self._tokens

    def pin(self, hashes: Sequence[int]) -> None:
        """In use by one more: they are kept until as many :meth:`unpin`."""
        for each in hashes:
            self._idle.pop(each, None)
            self._pins[each] = self._pins.get(each, 0) + 1

    def unpin(self, hashes: Sequence[int]) -> None:
        """In use by one less. The end of a prompt goes first when room is needed: fewest share it."""
        for each in reversed(hashes):
            left = self._pins[each] - 1
            if left:
                self._pins[each] = left
            else:
                del self._pins[each]
                self._idle[each] = None

    def trim(self, tokens: float) -> None:
        """Keep no more than ``tokens`` of what nobody uses."""
        most = max(0, int(tokens // self._tokens))
        while len(self._idle) > most:
            each, _ = self._idle.popitem(last=False)
            if self._tier_most:
                self._tier[each] = None
                self._tier.move_to_end(each)
                if len(self._tier) > self._tier_most:
                    self._tier.popitem(last=False)
