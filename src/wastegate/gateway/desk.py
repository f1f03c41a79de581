"""Slots, load and breakers that several gateways keep together through Redis. Here it is decided what to ask, when the
answer has taken too long, and what this gateway does alone; what Redis keeps, and how, is ``shared_redis``'s.

The rules of this room:
- A claim waits for Redis for a bounded time. Then the gateway goes on alone, with its share of each cap, and says so.
- One exchange at a time, in order: what Redis has counted for this gateway is known exactly.
- What is taken or given back while alone is told when it joins again, so that no slot is lost and none counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.shares import Share, among, replica_key
from wastegate.core.world import Result, World
from wastegate.gateway.claims import Asker
from wastegate.gateway.shared import Config, Status
from wastegate.gateway.shared_redis import (
    Claim,
    Conversation,
    Done,
    ForgottenError,
    Leave,
    News,
    Release,
    Renew,
    SharedError,
    Standing,
    Step,
    Trust,
    check_installed,
    where,
)

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
_CROWDED_SECONDS = 0.05
"""Between two looks while a cap is full with other gateways' calls too: a place of theirs may have become free."""
_BATCH = 256


class _Asked:
    """A step on its way. A claim knows who waits for it."""

    __slots__ = ("asker", "name", "number", "step")

    def __init__(self, step: Step, name: str = "", number: int = 0, asker: Asker | None = None) -> None:
        self.step = step
        self.name = name
        self.number = number
        self.asker = asker


class _Held(Struct, frozen=True):
    """A slot in use."""

    key: str
    name: str
    trial: bool


class Desk:
    """The slots of a gateway that shares its replicas with others. ``start`` begins, ``stop`` gives everything back."""

    def __init__(
        self, config: Config, world: World, now: Callable[[], float], changed: Callable[[], None], host: str
    ) -> None:
        """``changed`` is called when others have changed what the world shows; ``host``: this machine's name.

        Raises SharedError where the client for Redis is not installed.
        """
        check_installed()
        self._config = config
        self._world = world
        self._now = now
        self._changed = changed
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._me = ""
        self._share = Share()
        self._apart = False
        """It keeps to its share: it is alone, or others that it knew have not been heard again yet."""
        self._apart_until = 0.0
        self._why = "it has not joined yet"
        self._claims_alone = 0
        self._sequence = 0
        self._held: dict[int, _Held] = {}
        self._names: dict[str, set[str]] = {}
        """Of each key, what its replica is called here."""
        self._counted: Counter[tuple[str, str]] = Counter()
        """What Redis has for us, by key and name: what it has acknowledged, not what has happened since."""
        self._standings: dict[str, Standing] = {}
        self._steps: list[_Asked] = []
        """To be sent, in order."""
        self._claims: dict[_Asked, None] = {}
        """Claims without an answer, on their way or not, in order."""
        self._joining = False
        self._due = asyncio.Event()
        self._beat_at = 0.0
        self._were_ready: dict[str, bool] = {}
        self._stopping = asyncio.Event()
        self._settled = asyncio.Event()
        """It has joined, or found that it cannot."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to share; returns once it has joined, or goes on alone."""
        self._task = asyncio.ensure_future(self._run())
        await self._settled.wait()

    async def stop(self) -> None:
        """After the last call: tell the others that this gateway is gone."""
        self._stopping.set()
        self._due.set()
        if self._task is not None:
            await self._task

    @property
    def alone(self) -> bool:
        return bool(self._why)

    @property
    def share(self) -> Share:
        """What is this gateway's own of the caps that its world shows, if it cannot ask."""
        return Share() if self._apart else self._share  # apart, the world shows shares already

    @property
    def status(self) -> Status:
        state = "alone" if self.alone else "joined"
        return Status(state, where(self._config.redis), self._share.of, self._why, self._claims_alone)

    # ---- used by the hub, or by the workers' coordinator

    def claim(self, replica: str, number: int, asker: Asker) -> None:
        """Ask for a slot; ``asker.claimed`` is called with the answer, never from within this call."""
        now = self._now()
        state = self._world.state(replica, now)
        if state is None or not state.fit(now) or (self._apart and not self.alone and not state.open_to_calls(now)):
            self._loop.call_soon(asker.claimed, False, 0)
            return
        step = Claim(self._key(state.replica), state.replica.cap, self._world.breaker.failures)
        asked = _Asked(step, replica, number, asker)
        self._claims[asked] = None
        if self.alone:
            self._loop.call_soon(self._decide, asked)
        else:
            self._send(asked)

    def hold(self, replica: str, number: int, asker: Asker) -> None:
        """Have a slot counted that is in use already."""
        state = self._world.state(replica, self._now())
        granted = state is not None and self._world.grant(replica, number, False)
        lease = self._hold(self._key(state.replica), replica) if state is not None and granted else 0
        asker.claimed(granted, lease)

    def back(self, lease: int, result: Result) -> None:
        """A slot is free again."""
        held = self._held.pop(lease, None)
        if held is not None:
            self._world.give_back(result, self._now())
            self._release(held, result.verdict)

    def _hold(self, key: str, name: str) -> int:
        """A slot that was taken without asking."""
        self._tell(_Asked(Claim(key, None, self._world.breaker.failures, force=True), name))
        return self._lend(_Held(key, name, False))

    def _release(self, held: _Held, verdict: str) -> None:
        breaker = self._world.breaker
        self._tell(_Asked(Release(held.key, verdict, held.trial, breaker.failures, breaker.rest), held.name))

    def _lend(self, held: _Held) -> int:
        self._sequence += 1
        self._held[self._sequence] = held
        return self._sequence

    def _tell(self, asked: _Asked) -> None:
        """Something that has happened. While alone Redis is not told: joining says what is held by then."""
        if not self.alone or self._joining:
            self._send(asked)

    def _send(self, asked: _Asked) -> None:
        self._steps.append(asked)
        self._due.set()

    def _key(self, replica: Replica) -> str:
        key = replica_key(replica.url, self._host)
        self._names.setdefault(key, set()).add(replica.name)
        return key

    # ---- the conversation

    async def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._config.retry_seconds
            try:
                await self._session()
            except ForgottenError:
                self._go_alone(f"the others had heard nothing of it for {self._config.lease_seconds:g} s")
                pause = 0.0
            except TimeoutError:
                self._go_alone("Redis did not answer in time")
            except SharedError as error:
                self._go_alone(str(error))
            except Exception as error:  # whatever goes wrong with sharing, calls must go on
                log.exception("sharing failed")
                self._go_alone(f"{type(error).__name__}: {error}")
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pass

    async def _session(self) -> None:
        """Join, and share until something goes wrong."""
        old, self._me = self._me, secrets.token_hex(8)
        talk = Conversation(self._config.redis, self._config.site, self._me)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await talk.open()
                await self._join(talk, old)
            while not self._stopping.is_set():
                batch = await self._batch()
                async with asyncio.timeout(self._config.wait_seconds / 2):  # a claim may wait for two
                    answers = await talk.send([asked.step for asked in batch])
                for asked, answer in zip(batch, answers, strict=True):
                    self._heard(asked, answer)
            await _ended(talk.send([Leave()]))
        finally:
            self._joining = False
            await _ended(talk.close())

    async def _join(self, talk: Conversation, old: str) -> None:
        """Tell what is held. What happens while this is on its way is told next."""
        counted = Counter((held.key, held.name) for held in self._held.values())
        self._joining = True
        (news,) = await talk.send([self._renew(counted, joins=True, old=old)])
        assert isinstance(news, News)
        self._counted = counted
        self._why = ""
        # Redis may have been emptied, and others may not have told it yet what they hold.
        self._apart_until = self._loop.time() + self._config.lease_seconds
        self._hear_news(news)
        others = len(news.gateways) - 1
        log.warning("shares its replicas through Redis at %s; other gateways: %d", where(self._config.redis), others)
        self._settled.set()
        self._changed()

    async def _batch(self) -> list[_Asked]:
        """What is to be sent next: all that waits, and a sign of life when that is due."""
        if not self._steps:
            try:
                async with asyncio.timeout_at(self._beat_at):
                    await self._due.wait()
            except TimeoutError:
                pass
        self._due.clear()
        batch, self._steps = self._steps[:_BATCH], self._steps[_BATCH:]
        if self._loop.time() >= self._beat_at:
            batch[:0] = [_Asked(self._renew(self._counted)), *self._come_up_anew()]
        return batch

    def _renew(self, counted: Counter[tuple[str, str]], joins: bool = False, old: str = "") -> Renew:
        self._names.clear()
        held = {self._key(state.replica): 0 for state in self._world.states if state.replica.url}
        for (key, _), number in counted.items():
            held[key] = held.get(key, 0) + number
        return Renew(self._config.lease_seconds, held, joins, old)

    def _come_up_anew(self) -> list[_Asked]:
        """A replica that was ready, was not, and is again is trusted, by all. One seen for the first time may be known
        better by others."""
        ready = {self._key(s.replica): s.state == "ready" for s in self._world.states if s.replica.url}
        risen = [key for key, now in ready.items() if now and self._were_ready.get(key) is False]
        self._were_ready = {key: now for key, now in ready.items() if now or key in self._were_ready}
        return [_Asked(Trust(key)) for key in risen]

    # ---- what Redis answers

    def _heard(self, asked: _Asked, answer: Done | News | None) -> None:
        step = asked.step
        if isinstance(answer, News):
            self._hear_news(answer)
        elif isinstance(answer, Done) and isinstance(step, Release):
            self._counted[step.replica, asked.name] -= 1
            if self._counted[step.replica, asked.name] <= 0:
                del self._counted[step.replica, asked.name]
            self._see(step.replica, answer.standing)
        elif isinstance(answer, Done) and isinstance(step, Claim):
            self._counted[step.replica, asked.name] += answer.granted
            if asked.asker is None:
                self._see(step.replica, answer.standing)
            else:
                self._hear_claim(step.replica, asked, asked.asker, answer)

    def _hear_claim(self, key: str, asked: _Asked, asker: Asker, answer: Done) -> None:
        del self._claims[asked]
        held = _Held(key, asked.name, answer.trial)
        kept = answer.granted and self._world.grant(asked.name, asked.number, answer.trial)
        self._see(key, answer.standing)
        if answer.granted and not kept:
            self._release(held, "neutral")  # its replica has left the fleet meanwhile
        asker.claimed(kept, self._lend(held) if kept else 0)

    def _hear_news(self, news: News) -> None:
        share = among(self._me, news.gateways)
        if share.of >= self._share.of or not self._apart or self._loop.time() >= self._apart_until:
            self._share, self._apart = share, False
            self._world.together()
        self._beat_at = self._loop.time() + self._config.beat_seconds
        for key, standing in news.standings.items():
            self._see(key, standing)

    def _see(self, key: str, standing: Standing) -> None:
        """How a replica stands, as of the last step that was heard of."""
        now = self._now()
        for name in self._names.get(key, ()):
            elsewhere = max(0, standing.load - self._counted[key, name])
            self._world.told(name, elsewhere, standing.failures, now + standing.rest, standing.trial)
            state = self._world.state(name, now)
            cap = state.replica.cap if state is not None else None
            if elsewhere and cap is not None and standing.load >= cap:
                self._beat_at = min(self._beat_at, self._loop.time() + _CROWDED_SECONDS)
        if self._standings.get(key) != standing:
            self._standings[key] = standing
            self._changed()

    # ---- alone

    def _go_alone(self, why: str) -> None:
        if not self.alone:
            self._apart = True
            self._world.alone(self._share)
        if not self.alone or not self._settled.is_set():
            share = f"one part in {self._share.of}" if self._share.of > 1 else "the whole"
            log.error(
                "this gateway goes on alone, with %s of every cap: Redis at %s: %s",
                share,
                where(self._config.redis),
                why,
            )
        self._why = why
        self._standings.clear()
        self._steps.clear()
        for asked in list(self._claims):
            self._decide(asked)
        self._settled.set()
        self._changed()

    def _decide(self, asked: _Asked) -> None:
        """By this gateway's own world."""
        if asked not in self._claims or asked.asker is None:
            return
        del self._claims[asked]
        assert isinstance(asked.step, Claim)
        granted = self._world.take(asked.name, asked.number, self._now())
        self._claims_alone += 1
        asked.asker.claimed(granted, self._hold(asked.step.replica, asked.name) if granted else 0)


async def _ended(last: Coroutine[Any, Any, object]) -> None:
    """A last word, which may go unheard: leases run out by themselves."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await last
    except (SharedError, ForgottenError, TimeoutError, OSError) as error:
        log.debug("parting from Redis: %s", error)
