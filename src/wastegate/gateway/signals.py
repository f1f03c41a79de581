"""Replicas' own figures, fetched in the background: what each engine says of its batch, its queue, its cache. No call
waits for this, nothing here touches load, and a page that is slow, huge or nonsense costs its replica only signals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.world import World
from wastegate.engines import kinds
from wastegate.engines.exposition import Page, parse
from wastegate.engines.meter import Meter
from wastegate.engines.readback import Effective, Pages, Seen, idle_draft
from wastegate.gateway.pages import Limits, NoPageError, get
from wastegate.gateway.upstream import Origin, origin_of

log = logging.getLogger(__name__)

_METRICS = "/metrics"
_AT_ONCE = 32
"""Replicas that are asked at the same time."""
_LARGE = 256 << 10
"""A page of more bytes is read in a thread: this one belongs to the calls."""
_READ_BACK_EVERY = 60.0
"""Seconds after which it is looked again how the engine runs, if it has not restarted before."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """How often engines are asked for their figures, and what an answer may take."""

    every: float = 5.0
    """Seconds between two looks at a replica; 0: never."""
    timeout: float = 2.0
    max_kb: int = 4096
    """A longer page is not read."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.timeout <= 0 or self.max_kb < 1:
            raise ValueError("every must not be below 0 seconds, timeout must be above 0, and max_kb at least 1")


class _Follower:
    """One replica at one address. Its meter outlives the engine's restarts, but not a change of address or kind."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.meter: Meter | None = None
        self.engine = ""
        self.busy = False
        self.read_back_at = float("-inf")
        self.seen = Seen()


class Watcher:
    """Looks at every replica of the world now and then."""

    def __init__(self, world: World, config: Config, now: Callable[[], float]) -> None:
        self._world = world
        self.config = config
        self.origins: dict[str, Origin] = {}
        """How replicas are reached that take more than an address."""
        self._now = now
        self._followers: dict[str, _Follower] = {}
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._looks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=_AT_ONCE, limit_per_host=2)
        )
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            for task in (self._task, *self._looks):
                task.cancel()
            await asyncio.wait([self._task, *self._looks])
        if self._session is not None:
            await self._session.close()

    def seen(self, name: str) -> Seen:
        """What is known of a replica; nothing at all before the first look."""
        follower = self._followers.get(name)
        return follower.seen if follower is not None else Seen()

    async def _run(self) -> None:
        while True:
            if self.config.every > 0:
                self.look()
            await asyncio.sleep(self.config.every or 1.0)

    def look(self) -> None:
        """Begin to look at each replica that has an address and is not down, unless the last look still lasts: one that
        answers slowly is looked at less often, and delays no other."""
        present = {state.replica.name: state for state in self._world.states if state.replica.url}
        for name in self._followers.keys() - present.keys():
            del self._followers[name]
        for name, state in present.items():
            follower = self._followers.get(name)
            if follower is None or follower.replica.url != state.replica.url:
                follower = self._followers[name] = _Follower(state.replica)
            follower.replica = state.replica
            if state.state == "down":
                follower.seen = msgspec.structs.replace(follower.seen, signals=None, error="the replica is down")
            elif not follower.busy:
                follower.busy = True
                task = asyncio.ensure_future(self._in_turn(follower))
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)

    async def _in_turn(self, follower: _Follower) -> None:
        try:
            async with self._turns:
                await self._follow(follower)
        except Exception as error:  # whatever a page holds, the others' signals go on
            log.exception("the signals of %s cannot be read", follower.replica.name)
            follower.seen = msgspec.structs.replace(
                follower.seen, signals=None, error=f"{type(error).__name__}: {error}"
            )
        finally:
            follower.busy = False

    async def _follow(self, follower: _Follower) -> None:
        try:
            text = await self._get(follower.replica, _METRICS)
        except NoPageError as error:
            await self._without_metrics(follower, str(error))
            return
        page = await self._parse(text, follower)
        if page is None:
            why = "/metrics shows no engine that is known; set engine for this replica"
            follower.seen = Seen(error=why)
            return
        meter = follower.meter
        assert meter is not None
        if not page.samples and not kinds.named(follower.replica.engine):
            follower.meter = None  # the engine at this address is another now, or none: it is recognised next time
        now = self._now()
        reading = meter.read(page, now)
        restarted = reading.restarts != follower.seen.restarts
        effective = follower.seen.effective
        if effective is None or restarted or now - follower.read_back_at >= _READ_BACK_EVERY:
            follower.read_back_at = now
            effective = await self._read_back(follower.replica, follower.engine, page)
        warning = idle_draft(reading.signals)
        warnings = (*effective.notes, *((warning,) if warning else ()))
        seen = Seen(
            follower.engine, reading.signals, effective, reading.restarts, reading.absent, reading.renamed, warnings
        )
        self._say(follower.replica.name, follower.seen, seen)
        follower.seen = seen

    async def _without_metrics(self, follower: _Follower, why: str) -> None:
        """It may still show who it is and how it runs, and so why it has no metrics."""
        now = self._now()
        if now - follower.read_back_at < _READ_BACK_EVERY:
            follower.seen = msgspec.structs.replace(follower.seen, signals=None, error=why)
            return
        follower.read_back_at = now
        engine = kinds.named(follower.replica.engine)
        if not engine:
            paths = [path for path, _ in kinds.MARKS.values()]
            engine = kinds.by_pages(await self._pages(follower.replica, paths))
        effective = await self._read_back(follower.replica, engine, Page({}, frozenset())) if engine else None
        notes = effective.notes if effective is not None else ()
        seen = Seen(engine, None, effective, follower.seen.restarts, warnings=notes, error=why)
        self._say(follower.replica.name, follower.seen, seen)
        follower.seen = seen

    async def _parse(self, text: str, follower: _Follower) -> Page | None:
        """The page, read for its engine's names; None where the engine is not known."""

        async def read(wanted: frozenset[str]) -> Page:
            if len(text) > _LARGE:
                return await asyncio.to_thread(parse, text, wanted)
            return parse(text, wanted)

        named = kinds.named(follower.replica.engine)
        if follower.meter is None or (named and named != follower.engine):
            engine = named or kinds.by_metrics((await read(frozenset())).names)
            if not engine:
                return None
            follower.engine, follower.read_back_at = engine, float("-inf")
            follower.meter = Meter(kinds.ENGINES[engine].RULES)
        return await read(follower.meter.wanted)

    async def _read_back(self, replica: Replica, engine: str, metrics: Page) -> Effective:
        room = kinds.ENGINES[engine]
        return room.effective(Pages(metrics, await self._pages(replica, room.PAGES)))

    async def _pages(self, replica: Replica, paths: Iterable[str]) -> dict[str, Any]:
        """Those that are there and are JSON."""
        pages: dict[str, Any] = {}
        for path in paths:
            try:
                pages[path] = msgspec.json.decode(await self._get(replica, path))
            except (NoPageError, msgspec.DecodeError) as error:
                log.debug("%s of %s: %s", path, replica.name, error)
        return pages

    def _say(self, name: str, before: Seen, seen: Seen) -> None:
        """In the log what has come to be wrong, once."""
        if before.engine != seen.engine:
            log.info("%s is %s %s", name, seen.engine, (seen.effective and seen.effective.version) or "")
        old = {*before.absent, *before.renamed, *before.warnings}
        new = [sentence for sentence in (*seen.absent, *seen.renamed, *seen.warnings) if sentence not in old]
        if new:
            log.warning("%s: %s", name, "; ".join(new))

    async def _get(self, replica: Replica, path: str) -> str:
        """A page's text. Raises NoPageError."""
        assert self._session is not None, "look() before start()"
        origin = origin_of(replica.url, self.origins.get(replica.name))
        url = replica.url.rstrip("/").removesuffix("/v1") + path
        limits = Limits(self.config.timeout, self.config.max_kb)
        body = await get(self._session, url, limits, origin.access.api_key, origin.tls)
        return body.decode("utf-8", "replace")
