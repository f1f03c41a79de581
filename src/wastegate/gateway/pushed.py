"""Signals that others push: a cloud's alarm, a script beside the engine, a meter of their own. They are checked, kept
for a while, and forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from wastegate.engines.devices import Load

LARGEST_BODY = 64 << 10
MOST_ALARMS = 100

Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]
Word = Annotated[str, Meta(max_length=200)]


class Pushed(Struct, frozen=True, forbid_unknown_fields=True):
    """What is pushed for one replica, or for the whole fleet. None: not said."""

    replica: Word = ""
    """Its name; empty: all of them."""
    at: Amount | None = None
    """When it was measured, epoch seconds; None: now."""
    ttl: Annotated[float, Meta(gt=0, le=86_400)] = 120.0
    """Seconds after which it is forgotten."""
    busy: Share | None = None
    tensor: Share | None = None
    dram: Share | None = None
    memory_used: Amount | None = None
    """Bytes."""
    memory_total: Amount | None = None
    power: Amount | None = None
    """Watts."""
    alarm: Word = ""
    """The name of an alarm that is on; it stays shown until its time is over, or ``clear`` names it."""
    clear: Word = ""


class PushError(ValueError):
    """What was pushed cannot be taken; the text says why."""


class Board:
    """What was pushed lately."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: dict[str, tuple[float, Load]] = {}
        """By the replica's name, with the time when it is forgotten."""
        self._alarms: dict[tuple[str, str], float] = {}

    def take(self, body: bytes, replicas: Collection[str]) -> int:
        """One object or a list of them; how many. All are checked before the first is taken. Raises PushError."""
        items = decode(body)
        for item in items:
            if item.replica and item.replica not in replicas:
                known = ", ".join(sorted(replicas)) or "none yet"
                raise PushError(f"there is no replica {item.replica!r}; there are: {known}")
        for item in items:
            self._keep(item)
        return len(items)

    def _keep(self, item: Pushed) -> None:
        now = self._now()
        at = min(item.at if item.at is not None else now, now)  # a clock that is ahead must not outlive its time
        until = at + item.ttl
        if until <= now:
            return
        self._alarms.pop((item.replica, item.clear), None)
        self._alarms = {key: end for key, end in self._alarms.items() if end > now}
        if item.alarm and (len(self._alarms) < MOST_ALARMS or (item.replica, item.alarm) in self._alarms):
            self._alarms[item.replica, item.alarm] = until
        figures = {name: getattr(item, name) for name in _FIGURES if getattr(item, name) is not None}
        if figures:
            end, before = self._kept.get(item.replica, (0.0, None))
            base = before if before is not None and end > now else Load("pushed", at)
            self._kept[item.replica] = until, replace(base, at=at, **figures)

    def load(self, replica: str) -> Load | None:
        """What was pushed for a replica, else for the whole fleet; None where it is too old, or nothing came."""
        for name in (replica, ""):
            until, load = self._kept.get(name, (-math.inf, None))
            if until > self._now():
                return load
        return None

    def alarms(self, replica: str) -> tuple[str, ...]:
        """Alarms that are on for it, or for the whole fleet."""
        now = self._now()
        return tuple(
            sorted({name for (owner, name), end in self._alarms.items() if owner in ("", replica) and end > now})
        )

    def forget(self, replicas: Collection[str]) -> None:
        """Keep only what was pushed for these, and for the whole fleet."""
        self._kept = {name: kept for name, kept in self._kept.items() if not name or name in replicas}


_FIGURES = ("busy", "tensor", "dram", "memory_used", "memory_total", "power")


def decode(body: bytes) -> list[Pushed]:
    """Raises PushError."""
    if len(body) > LARGEST_BODY:
        raise PushError(f"it has {len(body)} bytes; at most {LARGEST_BODY} are read")
    try:
        read = msgspec.json.decode(body, type=Pushed | list[Pushed])
    except msgspec.MsgspecError as error:
        raise PushError(f"it cannot be read: {error}") from None
    return read if isinstance(read, list) else [read]
