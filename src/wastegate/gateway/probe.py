"""Asks each replica whether it is well, which models it serves, and what its steps cost. It never touches load."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import aiohttp
from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.ledger import Work
from wastegate.gateway.roster import Roster
from wastegate.gateway.upstream import Origin, origin_of

log = logging.getLogger(__name__)


_MOST_TOKENS = 1 << 53
"""No cache holds as many: more is a fault, and might not fit where it is stored."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """How replicas are watched."""

    every: float = 2.0
    """Seconds between two probes of a replica."""
    timeout: float = 2.0
    failures: int = 2
    """Failed probes in a row after which a replica counts as down."""
    path: str = "/health"

    def __post_init__(self) -> None:
        if self.every <= 0 or self.timeout <= 0 or self.failures < 1:
            raise ValueError("every and timeout must be above 0 seconds, failures at least 1")


class Prober:
    """One task for each replica. A ``managed`` one is a process of our own: its supervisor says when it loads."""

    def __init__(self, roster: Roster, config: Config) -> None:
        self._roster = roster
        self.config = config
        self.origins: dict[str, Origin] = {}
        """How replicas are reached that take more than an address."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def watch(self, replica: Replica, managed: bool = False) -> None:
        """Begin to watch a replica, or watch it at its new address."""
        self.forget(replica.name)
        self._tasks[replica.name] = asyncio.ensure_future(self._watch(replica, managed))

    def forget(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        for name in list(self._tasks):
            self.forget(name)
        if self._session is not None:
            await self._session.close()

    async def _watch(self, replica: Replica, managed: bool) -> None:
        failures = 0
        named = False
        while True:
            started = time.monotonic()
            try:
                well = await self._well(replica)
                if well:
                    failures = 0
                    named = named or await self._name(replica)
                    await self._measure(replica)
            except Exception:  # an odd answer of one replica must not end its watch for good
                log.exception("replica %s: its probe failed", replica.name)
                well = False
            if well:
                self._roster.probed(replica.name, time.monotonic() - started)
                if named or replica.models:
                    self._roster.state(replica.name, "ready")
            else:
                failures += 1
                if failures >= self.config.failures and not managed:
                    named = False
                    self._roster.state(replica.name, "down")
            # Soon at first, so that a fleet that is up answers at once.
            await asyncio.sleep(self.config.every if named else min(0.25, self.config.every))

    async def _well(self, replica: Replica) -> bool:
        status, _ = await self._get(replica, self.config.path)
        return status == 200

    async def _name(self, replica: Replica) -> bool:
        """Which models, and which engine: ``owned_by`` says "vllm", "sglang", "llamacpp" or ours."""
        status, body = await self._get(replica, "/v1/models")
        if status != 200 or not isinstance(body, dict):
            return False
        data = body.get("data")
        listed = data if isinstance(data, list) else []
        rows = [row for row in listed if isinstance(row, dict) and isinstance(row.get("id"), str)]
        if not rows:
            return False
        engine = replica.engine or str(rows[0].get("owned_by", ""))
        self._roster.named(replica.name, replica.models or tuple(row["id"] for row in rows), engine)
        return True

    async def _measure(self, replica: Replica) -> None:
        """The engine that comes with wastegate says what its steps cost; others answer 404 and are asked no more."""
        if not self._roster.may_measure(replica.name):
            return
        status, body = await self._get(replica, "/admin/work")
        if status == 404:
            self._roster.unmeasurable(replica.name)
        if status == 200 and isinstance(body, dict):
            prefill, decode, kv = (_figure(body.get(key)) for key in ("prefill", "decode", "kv"))
            if prefill is not None and decode is not None and kv is not None:
                work = Work(prefill, decode, kv, _figure(body.get("fixed")) or 0.0, "engine steps")
                capacity = body.get("kv_capacity_tokens")
                known = isinstance(capacity, int) and 0 <= capacity <= _MOST_TOKENS
                self._roster.measured(replica.name, work, capacity if known else None)

    async def _get(self, replica: Replica, path: str) -> tuple[int, Any]:
        """(status, JSON body or None); (0, None) where there was no answer."""
        assert self._session is not None, "watch() before start()"
        base = replica.url.rstrip("/").removesuffix("/v1")
        origin = origin_of(replica.url, self.origins.get(replica.name))
        key = origin.access.api_key
        headers = {"authorization": f"Bearer {key}"} if key else None
        timeout = aiohttp.ClientTimeout(total=self.config.timeout)
        ssl = origin.tls if origin.tls is not None else True
        try:
            async with self._session.get(
                base + path, headers=headers, ssl=ssl, timeout=timeout, allow_redirects=False
            ) as answer:
                try:
                    return answer.status, await answer.json(content_type=None)
                except (ValueError, RecursionError):
                    return answer.status, None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            log.debug("probe of %s %s: %s", replica.name, path, error)
            return 0, None


def _figure(value: Any) -> float | None:
    """Seconds of work; None for what is none: a ledger that held NaN could not be read any more."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if 0 <= number < math.inf else None
