"""Which replica holds which prompt prefix, as far as what was sent there tells. Hashes only, bounded; no text enters.

A prompt is a chain of block hashes, each of which covers all before it. Four tables, each a stretch of time, say for
a block which replicas were sent it then. Whoever was sent a block was sent all before it, so that in each table a
replica's blocks are closed towards the front, and a longest prefix is found by halving. Time and memory take the
oldest table as a whole: nothing is deleted singly, nothing is swept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

_TABLES = 4
_FULL = 0.625
"""Of a table's places: beyond, probing for what is not there takes ever longer."""
_PLACE_BYTES = 16
_SLOTS = 64
_MOST_STEPS = 6
"""Prefix lengths that are told apart for one prompt; the longest is always among them."""

Step = tuple[int, int]
"""(blocks, mask): the replicas of the mask hold so many blocks, and none of them more but those of the next step."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on what is remembered."""

    max_bytes: int = 64 << 20
    """Of all tables together: 25.6 bytes a block, so about 2.6 million blocks of 512 bytes in 64 MiB."""
    idle_seconds: float = 300.0
    """A prefix that was not sent to a replica for so long is no longer expected there (a third later at most)."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 << 16:
            raise ValueError(f"max_bytes is {self.max_bytes}: the prefix index needs at least {1 << 16}")
        if self.idle_seconds <= 0:
            raise ValueError(f"idle_seconds is {self.idle_seconds}: it must be above 0")


class _Table:
    """Block → mask of replicas: open addressing in two flat arrays."""

    __slots__ = ("_masks", "_most", "_size", "count", "keys", "masks")

    def __init__(self, size: int) -> None:
        self._size = size
        self._most = int(size * _FULL)
        self._masks = np.zeros(size, np.uint64)
        self.keys = np.zeros(size, np.uint64).data  # reads plain ints, in half the time of an array
        self.masks = self._masks.data
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= self._most

    def place(self, key: int) -> int:
        """Where the key stands; or the empty place where it would, as a negative number: -1 for place 0."""
        keys = self.keys
        at = ((key >> 32) * self._size) >> 32
        while found := keys[at]:
            if found == key:
                return at
            at += 1
            if at == self._size:
                at = 0
        return -1 - at

    def put(self, key: int, bit: int) -> None:
        """The caller has seen to it that there is room."""
        at = self.place(key)
        if at >= 0:
            self.masks[at] |= bit
            return
        self.keys[-1 - at] = key
        self.masks[-1 - at] = bit
        self.count += 1

    def has(self, key: int, bit: int) -> bool:
        at = self.place(key)
        return at >= 0 and bool(self.masks[at] & bit)

    def clear(self, key: int, bit: int) -> None:
        """The bit only: the block keeps its place, since others may stand behind it."""
        at = self.place(key)
        if at >= 0:
            self.masks[at] &= ~bit

    def keep(self, bits: int) -> None:
        """Clear all other bits."""
        self._masks &= np.uint64(bits)


class Prefixes:
    """Told what is sent where, asked who holds how much of a prompt. 64 replicas at most: others are never found."""

    def __init__(self, config: Config, now: float) -> None:
        self._config = config
        self._size = config.max_bytes // (_TABLES * _PLACE_BYTES)
        self._tables = [_Table(self._size) for _ in range(_TABLES)]
        self._since = now
        self._turns = 0
        """Tables that were begun."""
        self._slots: dict[str, int] = {}
        self._retired: list[tuple[int, int]] = []
        """(slot, turns): bits that may still stand in tables begun before; nobody may be given them."""
        self._alive = 0

    @property
    def bytes(self) -> int:
        """What the tables take at most; the system gives the memory as they fill."""
        return _TABLES * self._size * _PLACE_BYTES

    @property
    def blocks(self) -> int:
        """Blocks in all tables; one that stands in several is counted in each."""
        return sum(table.count for table in self._tables)

    def slot(self, replica: str) -> int | None:
        """The replica's place in a mask; None where there are too many replicas."""
        slot = self._slots.get(replica)
        return self._new_slot(replica) if slot is None else slot

    def _new_slot(self, replica: str) -> int | None:
        if len(self._slots) >= _SLOTS:
            return None
        self._retired = [(slot, turns) for slot, turns in self._retired if turns + _TABLES > self._turns]
        if len(self._slots) + len(self._retired) >= _SLOTS:
            self._wipe()
        taken = {*self._slots.values(), *(slot for slot, _ in self._retired)}
        slot = next(number for number in range(_SLOTS) if number not in taken)
        self._slots[replica] = slot
        self._alive |= 1 << slot
        return slot

    def _wipe(self) -> None:
        for table in self._tables:
            table.keep(self._alive)
        self._retired = []

    def forget(self, replica: str) -> None:
        """Its cache is gone: it restarted, or left. It gets another place, so that nothing need be searched for."""
        slot = self._slots.pop(replica, None)
        if slot is not None:
            self._alive &= ~(1 << slot)
            self._retired.append((slot, self._turns))

    def keep(self, replicas: Iterable[str]) -> None:
        """Forget all others."""
        for name in self._slots.keys() - set(replicas):
            self.forget(name)

    def holders(self, chain: Sequence[int], scope: int, now: float) -> list[Step]:
        """Who holds how much of the prompt, shortest prefix first; empty where nobody holds its first block."""
        self._turn(now)
        count = len(chain)
        mask = self._mask(chain[0] ^ scope, self._alive) if count else 0
        if not mask:
            return []
        steps: list[Step] = []
        low = 0
        known = [(count, 0)]  # what was found farther on, the nearest last
        if count > 1:
            known.append((count - 1, self._mask(chain[count - 1] ^ scope, mask)))
        while mask:
            last = len(steps) == _MOST_STEPS - 1  # then only who holds the most is asked for
            while known[-1][1] == mask or (last and known[-1][1]):
                low, mask = known.pop()
            high = known[-1][0]
            while high - low > 1:
                probe = (low + high) // 2
                found = self._mask(chain[probe] ^ scope, mask)
                if found == mask or (last and found):
                    low, mask = probe, found
                else:
                    high = probe
                    known.append((probe, found))
            steps.append((low + 1, mask))
            low, mask = known.pop()
        return steps

    def _mask(self, key: int, among: int) -> int:
        """As :meth:`_Table.place` in all tables, written out: it is what a decision spends its time on."""
        mask, size = 0, self._size
        first = ((key >> 32) * size) >> 32
        for table in self._tables:
            if not table.count:
                continue
            keys, at = table.keys, first
            while found := keys[at]:
                if found == key:
                    mask |= table.masks[at]
                    break
                at += 1
                if at == size:
                    at = 0
        return mask & among

    def add(self, replica: str, chain: Sequence[int], scope: int, now: float) -> None:
        """The replica is sent this prompt, so that its cache will hold it."""
        self._turn(now)
        slot = self.slot(replica)
        if slot is None:
            return
        bit = 1 << slot
        table = self._tables[0]
        low, high = -1, len(chain)  # nothing is written twice: what this table has reaches up to ``low``
        while high - low > 1:
            middle = (low + high) // 2
            if table.has(chain[middle] ^ scope, bit):
                low = middle
            else:
                high = middle
        for block in chain[high:]:
            if table.full:
                return  # from here on it is as if the prompt had been shorter
            table.put(block ^ scope, bit)

    def remove(self, replica: str, chain: Sequence[int], scope: int) -> None:
        """The replica does not hold these after all: the end of a prompt, whose front may stay."""
        slot = self._slots.get(replica)
        if slot is not None:
            for block in chain:
                for table in self._tables:
                    table.clear(block ^ scope, 1 << slot)

    def _turn(self, now: float) -> None:
        """New tables, where the newest is full or a third of the idle time has passed; the oldest go."""
        due = int((now - self._since) / self._config.idle_seconds * (_TABLES - 1))
        if due < 1 and not self._tables[0].full:
            return
        for _ in range(min(max(due, 1), _TABLES)):
            self._tables.pop()
            self._tables.insert(0, _Table(self._size))
        self._since = now
        self._turns += max(due, 1)
