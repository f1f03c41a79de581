"""Reads what engines tell of their requests, from those that run the plugin, and hands it on to be kept. It changes no
engine and no call; whatever an engine does or does not answer, calls go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import aiohttp
import msgspec
from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.ledger import Work
from wastegate.core.records import Cursor, Heard, Lead, Page, hear, lead
from wastegate.gateway.upstream import Origin, origin_of

log = logging.getLogger(__name__)

LIMIT = 1_000
"""Records asked for at once."""
_BODY_BYTES = 64 << 20
_LONG_SECONDS = 60.0
"""An engine without the plugin, or with another token, is asked again after this."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """How engines with the plugin are asked for their records. Without a token none is asked."""

    token_env: str = ""
    """The environment variable that holds the token; vLLM has the same as WASTEGATE_PLUGIN_TOKEN."""
    token: str = ""
    every: float = 1.0
    """Seconds between two looks."""
    timeout: float = 20.0
    """Seconds for an answer: an engine answers between two of its steps."""

    def __post_init__(self) -> None:
        if self.every <= 0 or self.timeout <= 0:
            raise ValueError("every and timeout must be above 0 seconds")


class Collector:
    """One task for each replica that has an address."""

    def __init__(
        self,
        config: Config,
        save: Callable[[Heard], bool],
        cursors: Mapping[str, Cursor],
        now: Callable[[], float],
        measured: Callable[[str, Work | None, int | None], None] = lambda *_: None,
    ) -> None:
        """``cursors``: how far each replica was read before. ``save`` says whether it had room; if not, the same is
        read again. ``measured`` is told what the engine's steps cost, and how many tokens of KV it holds."""
        self.config = config
        self.origins: Mapping[str, Origin] = {}
        """How replicas are reached that take more than an address."""
        self._save = save
        self._cursors = dict(cursors)
        self._now = now
        self._measured = measured
        self._tasks: dict[str, tuple[Replica, asyncio.Task[None]]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._leads: dict[str, Lead] = {}
        self._said: dict[str, str] = {}
        self._saved: dict[str, float] = {}
        """When something of each replica was last kept."""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def watch(self, replicas: Iterable[Replica]) -> None:
        """Read these from now on, and no others."""
        wanted = {replica.name: replica for replica in replicas if replica.url} if self.config.token else {}
        for name, (replica, task) in list(self._tasks.items()):
            if wanted.get(name) != replica:
                task.cancel()
                del self._tasks[name]
        for name, replica in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = replica, asyncio.ensure_future(self._follow(replica))

    async def stop(self) -> None:
        """Read once more what has ended since, for a moment, then no more."""
        replicas = [replica for replica, _ in self._tasks.values()]
        self.watch(())
        if self._session is not None:
            reads = [asyncio.ensure_future(self._read(one)) for one in replicas if one.name in self._cursors]
            if reads:
                _, late = await asyncio.wait(reads, timeout=2.0)
                for read in late:
                    read.cancel()
            await self._session.close()

    async def _follow(self, replica: Replica) -> None:
        while True:
            try:
                pause = await self._read(replica)
            except Exception:  # whatever it answered, it must be asked again
                log.exception("the records of %s cannot be read", replica.name)
                pause = _LONG_SECONDS
            await asyncio.sleep(pause)

    async def _read(self, replica: Replica) -> float:
        """One answer; the seconds until the next is due."""
        before = self._cursors.get(replica.name)
        status, body = await self._get(replica, before)
        if status == 200:
            try:
                return self._take(replica, msgspec.json.decode(body, type=Page), before)
            except msgspec.DecodeError as error:
                self._say(replica.name, f"its records make no sense: {error}")
                return _LONG_SECONDS
        if status in (401, 403):
            self._say(
                replica.name,
                "it does not take the token: WASTEGATE_PLUGIN_TOKEN in vLLM's environment and the variable that "
                "[records] token_env names here must be the same",
            )
        if status == 503:
            self._say(replica.name, f"it has no records: {body[:300].decode(errors='replace')}")
        return _LONG_SECONDS if status in (401, 403, 404, 405) else self.config.every

    def _take(self, replica: Replica, page: Page, before: Cursor | None) -> float:
        """Hand on what is new in a page; the seconds until the next is due."""
        self._measured(replica.name, page.work, page.kv_capacity)
        self._say(replica.name, f"its records say less than they could: {page.lacks}" if page.lacks else "")
        now = self._now()
        clock = self._leads[replica.name] = lead(page, now, self._leads.get(replica.name))
        heard = hear(replica.name, page, before, now, clock.seconds)
        if not self._kept(heard, before):
            return self.config.every
        if heard.gap is not None:
            log.warning("some records of %s are lost; its charges are less sure for that time", replica.name)
        self._cursors[replica.name] = heard.cursor
        return 0.0 if heard.cursor.sequence < page.last else self.config.every

    def _kept(self, heard: Heard, before: Cursor | None) -> bool:
        """Hand it on, if it says anything new; that an idle engine was heard, only now and then."""
        new = heard.records or before is None or heard.cursor.boot != before.boot
        if not new and self._now() - self._saved.get(heard.replica, 0.0) < _LONG_SECONDS:
            return True
        if not self._save(heard):
            return False
        self._saved[heard.replica] = self._now()
        return True

    async def _get(self, replica: Replica, before: Cursor | None) -> tuple[int, bytes]:
        """(status, body); (0, nothing) where there was no answer."""
        assert self._session is not None, "watch() before start()"
        base = replica.url.rstrip("/").removesuffix("/v1")
        origin = origin_of(replica.url, self.origins.get(replica.name))
        query: dict[str, str | int] = {
            "boot": before.boot if before else "",
            "after": before.sequence if before else 0,
            "limit": LIMIT,
        }
        headers = {"authorization": f"Bearer {self.config.token}"}
        timeout = aiohttp.ClientTimeout(total=self.config.timeout)
        ssl = origin.tls if origin.tls is not None else True
        try:
            async with self._session.get(
                f"{base}/wastegate/records", params=query, headers=headers, ssl=ssl, timeout=timeout,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > _BODY_BYTES:
                        self._say(replica.name, f"its answer is over {_BODY_BYTES >> 20} MB")
                        return 413, b""
                return answer.status, bytes(body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("records of %s: %s", replica.name, error)
            return 0, b""

    def _say(self, name: str, what: str) -> None:
        """Once, until it is something else."""
        if self._said.get(name, "") != what:
            self._said[name] = what
            if what:
                log.warning("replica %s: %s", name, what)
