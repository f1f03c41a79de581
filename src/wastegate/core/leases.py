"""Slots that were lent to other processes, and taken back when their holder is silent. No clock: time is handed in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)
Slot = TypeVar("Slot")


class Leases(Generic[Owner, Slot]):
    """Each lease is one slot. An owner that renews nothing for ``seconds`` loses all of its leases."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sequence = 0
        self._held: dict[Owner, dict[int, Slot]] = {}
        self._renewed: dict[Owner, float] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def renew(self, owner: Owner, now: float) -> None:
        """A sign of life: all of the owner's leases last from now on."""
        self._held.setdefault(owner, {})
        self._renewed[owner] = now

    def grant(self, owner: Owner, slot: Slot, now: float) -> int:
        """A new lease; its number is never given again."""
        self.renew(owner, now)
        self._sequence += 1
        self._held[owner][self._sequence] = slot
        return self._sequence

    def end(self, owner: Owner, number: int) -> Slot | None:
        """Give a slot back. None if the lease has expired already, or was never this owner's."""
        return self._held.get(owner, {}).pop(number, None)

    def gone(self, owner: Owner) -> list[Slot]:
        """The owner is dead: the slots that it held."""
        self._renewed.pop(owner, None)
        return list(self._held.pop(owner, {}).values())

    def expired(self, now: float) -> list[Slot]:
        """Take back what silent owners hold. They keep their place: what they renew later counts anew."""
        slots: list[Slot] = []
        for owner, renewed in self._renewed.items():
            if now - renewed > self._seconds:
                slots += self._held[owner].values()
                self._held[owner] = {}
        return slots
