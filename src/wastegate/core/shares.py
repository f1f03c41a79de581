"""What one of several that serve the same replicas may do by itself, when it cannot ask the others. Values only: who
the others are, and when they count as gone, is found out elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import ReplicaState


class Share(Struct, frozen=True):
    """One of ``of`` equals: the one with this number, from 0. All of them together take each cap exactly, as long as
    there are no more of them than the cap has places."""

    number: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"number {self.number} of {self.of}: they are counted from 0")

    def cap(self, cap: int) -> int:
        """Places out of ``cap``. Never none: a call must not wait for somebody who cannot be asked."""
        return max(1, cap // self.of + (self.number < cap % self.of))

    def within(self, outer: Share) -> Share:
        """A share of a share: worker 2 of 4 in gateway 1 of 3."""
        return Share(outer.number + self.number * outer.of, outer.of * self.of)


def among(mine: str, all_of_them: Iterable[str]) -> Share:
    """The share of one who knows the others' names: each finds its own number in the same order."""
    names = sorted({mine, *all_of_them})
    return Share(names.index(mine), len(names))


def alone(states: Iterable[ReplicaState], held: Mapping[str, int], share: Share) -> tuple[ReplicaState, ...]:
    """The fleet for one who cannot ask any more: its own load, its own part of each cap."""
    own = tuple(replace(state, in_flight=held.get(state.replica.name, 0)) for state in states)
    return tuple(
        replace(state, replica=replace(state.replica, cap=share.cap(state.replica.cap)))
        if state.replica.cap is not None
        else state
        for state in own
    )


def replica_key(url: str, host: str) -> str:
    """Which replica this is, for gateways on any host: its address. One on loopback is another on each host."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    if _is_loopback(name):
        name = f"{host} itself"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{name}:{parts.port or (443 if parts.scheme == 'https' else 80)}{path}"


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
