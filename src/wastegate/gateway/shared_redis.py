"""What several gateways keep together in Redis, and how it is changed: a script a step, each done whole or not at all.
Whoever decides what to do next is not here; no call's content enters.

Keys, all in one hash slot, ``wastegate:{SITE}:…``:

- ``live``: sorted set, gateway → when it counts as gone (ms, by Redis's own clock).
- ``load``: hash, replica → calls in flight of all living gateways.
- ``held``: hash, ``gateway replica`` → how many of these are that gateway's.
- ``health:REPLICA``: hash, its breaker: ``failures`` in a row, ``until`` when it rests, whose ``trial`` is under way.

Whoever comes first after a gateway's time has run out takes back what it held. A gateway that comes back after that is
told that nobody knows it, and joins anew under another name, so that nothing that it said before can count.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

_KEPT_MS = 3_600_000
"""What is known of a replica's health is dropped after an hour without news."""

_HEAD = """
local LIVE, LOAD, HELD = KEYS[1], KEYS[2], KEYS[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local me = ARGV[1]

local function count(key, field, by)
  if redis.call('HINCRBY', key, field, by) <= 0 then redis.call('HDEL', key, field) end
end

local function bury(gateway)
  redis.call('ZREM', LIVE, gateway)
  local held = redis.call('HGETALL', HELD)
  for at = 1, #held, 2 do
    local owner, replica = string.match(held[at], '^(%S+) (.*)$')
    if owner == gateway then
      count(LOAD, replica, -tonumber(held[at + 1]))
      redis.call('HDEL', HELD, held[at])
    end
  end
end

for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', LIVE, '-inf', now)) do bury(gateway) end

local function lives(gateway)
  return redis.call('ZSCORE', LIVE, gateway)
end

local function standing(replica, health)
  local found = redis.call('HMGET', health, 'failures', 'until', 'trial')
  local trial = found[3] and lives(found[3])
  local load = tonumber(redis.call('HGET', LOAD, replica) or 0)
  return load, tonumber(found[1] or 0), math.max(0, tonumber(found[2] or now) - now), trial and 1 or 0
end
"""

_CLAIM = (
    _HEAD
    + """
if not lives(me) then return {-1} end
local replica, cap, force, threshold = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local load, failures, rest, trial = standing(replica, KEYS[4])
local granted, mine = 1, 0
if not force then
  if cap >= 0 and load >= cap then
    granted = 0
  elseif failures >= threshold and (rest > 0 or trial == 1) then
    granted = 0
  elseif failures >= threshold then
    redis.call('HSET', KEYS[4], 'trial', me)
    mine, trial = 1, 1
  end
end
if granted == 1 then
  redis.call('HINCRBY', LOAD, replica, 1)
  redis.call('HINCRBY', HELD, me .. ' ' .. replica, 1)
  load = load + 1
end
return {granted, mine, load, failures, rest, trial}
"""
)

_RELEASE = (
    _HEAD
    + """
if not lives(me) then return {-1} end
local replica, verdict, mine, threshold, rests, kept =
  ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local held = me .. ' ' .. replica
if redis.call('HEXISTS', HELD, held) == 1 then
  count(HELD, held, -1)
  count(LOAD, replica, -1)
end
if mine and redis.call('HGET', KEYS[4], 'trial') == me then redis.call('HDEL', KEYS[4], 'trial') end
if verdict == 'good' then
  redis.call('HDEL', KEYS[4], 'failures', 'until')
elseif verdict == 'bad' then
  local failures = redis.call('HINCRBY', KEYS[4], 'failures', 1)
  if failures >= threshold then redis.call('HSET', KEYS[4], 'until', now + rests) end
  redis.call('PEXPIRE', KEYS[4], math.max(kept, 2 * rests))
end
return {1, 0, standing(replica, KEYS[4])}
"""
)

_RENEW = (
    _HEAD
    + """
local old, lease, joins = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
if not joins and not lives(me) then return {-1} end
if old ~= '' then bury(old) end
redis.call('ZADD', LIVE, now + lease, me)
local answer = {redis.call('ZRANGE', LIVE, 0, -1)}
for at = 4, #KEYS do
  local replica, own = ARGV[2 * at - 3], tonumber(ARGV[2 * at - 2])
  local held = me .. ' ' .. replica
  local astray = own - tonumber(redis.call('HGET', HELD, held) or 0)
  if astray ~= 0 then
    count(HELD, held, astray)
    count(LOAD, replica, astray)
  end
  answer[at - 2] = {standing(replica, KEYS[at])}
end
return answer
"""
)

_LEAVE = _HEAD + "bury(me)\nreturn {1}\n"

_SCRIPTS = {"claim": _CLAIM, "release": _RELEASE, "renew": _RENEW, "leave": _LEAVE}


class SharedError(Exception):
    """Redis cannot be used now; the text says why, and holds no password."""


class ForgottenError(Exception):
    """The others have given up on this gateway: it must join anew."""


# ---- steps


class Claim(Struct, frozen=True):
    """A slot. ``cap`` None: as many as may be; ``force``: it is taken already, count it."""

    replica: str
    cap: int | None
    threshold: int
    """Failures in a row that open the breaker."""
    force: bool = False


class Release(Struct, frozen=True):
    """A slot comes back. ``verdict``: good, bad or neutral, for the breaker, which rests for so many seconds."""

    replica: str
    verdict: str
    trial: bool
    threshold: int
    rest: float


class Renew(Struct, frozen=True):
    """A sign of life that lasts for so many seconds, with all that the gateway holds. ``old``: it was this before."""

    lease: float
    held: Mapping[str, int]
    joins: bool = False
    old: str = ""


class Trust(Struct, frozen=True):
    """A replica has come up anew: its breaker is closed."""

    replica: str


class Leave(Struct, frozen=True):
    """Give everything back."""


Step = Claim | Release | Renew | Trust | Leave


# ---- answers


class Standing(Struct, frozen=True):
    """A replica as all gateways see it."""

    load: int = 0
    failures: int = 0
    rest: float = 0.0
    """Seconds until its breaker lets a trial through."""
    trial: bool = False
    """One is under way."""


class Done(Struct, frozen=True):
    """The answer to a claim or a release; ``trial``: the slot is the one trial of a half-open breaker."""

    granted: bool
    trial: bool
    standing: Standing


class News(Struct, frozen=True):
    """The answer to a sign of life: who lives, and how each named replica stands."""

    gateways: tuple[str, ...]
    standings: Mapping[str, Standing]


Answer = Done | News | None


class Conversation:
    """One connection to Redis. Steps are done in the order in which they are sent, one batch after another."""

    def __init__(self, url: str, site: str, me: str) -> None:
        """``me``: this gateway's name, used by no other and never again."""
        self._url = url
        self._prefix = f"wastegate:{{{site}}}:"
        self._shared = [f"{self._prefix}{name}" for name in ("live", "load", "held")]
        self._me = me
        self._client: Any = None
        self._hashes: dict[str, str] = {}

    async def open(self) -> None:
        """Connect. Raises SharedError; whoever calls bounds the wait."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        try:
            self._client = Redis.from_url(self._url, max_connections=1, retry=Retry(NoBackoff(), 0))
            for name, text in _SCRIPTS.items():
                self._hashes[name] = await self._client.script_load(text)
        except (RedisError, OSError) as error:
            raise SharedError(_why(error)) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def send(self, steps: Sequence[Step]) -> list[Answer]:
        """One answer a step. Raises SharedError, and ForgottenError; whoever calls bounds the wait."""
        from redis.exceptions import RedisError

        pipe = self._client.pipeline(transaction=False)
        for step in steps:
            pipe.execute_command(*self._command(step))
        try:
            raw = await pipe.execute()
        except (RedisError, OSError) as error:
            raise SharedError(_why(error)) from None
        return [_read(step, answer) for step, answer in zip(steps, raw, strict=True)]

    def _command(self, step: Step) -> list[str | int]:
        match step:
            case Claim(replica, cap, threshold, force):
                return self._call("claim", [replica], replica, -1 if cap is None else cap, int(force), threshold)
            case Release(replica, verdict, trial, threshold, rest):
                rest_ms = round(rest * 1000)
                return self._call("release", [replica], replica, verdict, int(trial), threshold, rest_ms, _KEPT_MS)
            case Renew(lease, held, joins, old):
                pairs = [part for pair in held.items() for part in pair]
                return self._call("renew", list(held), old, round(lease * 1000), int(joins), *pairs)
            case Trust(replica):
                return ["DEL", self._health(replica)]
            case Leave():
                return self._call("leave", [])

    def _call(self, script: str, replicas: Sequence[str], *arguments: str | int) -> list[str | int]:
        keys = [*self._shared, *map(self._health, replicas)]
        return ["EVALSHA", self._hashes[script], len(keys), *keys, self._me, *arguments]

    def _health(self, replica: str) -> str:
        return f"{self._prefix}health:{replica}"


def _read(step: Step, raw: Any) -> Answer:
    if isinstance(step, Trust | Leave):
        return None
    if raw[0] == -1:
        raise ForgottenError
    if isinstance(step, Renew):
        names = tuple(name.decode() if isinstance(name, bytes) else name for name in raw[0])
        return News(names, {replica: _standing(row) for replica, row in zip(step.held, raw[1:], strict=True)})
    return Done(raw[0] == 1, raw[1] == 1, _standing(raw[2:]))


def _standing(raw: Sequence[int]) -> Standing:
    load, failures, rest, trial = raw
    return Standing(load, failures, rest / 1000, trial == 1)


def check_installed() -> None:
    """Raises SharedError where the client for Redis is missing."""
    if importlib.util.find_spec("redis") is None:
        raise SharedError("the client for Redis is not installed: pip install 'wastegate[redis]'")


def where(url: str) -> str:
    """Host and port of a Redis URL, without what must not be shown."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path


def _why(error: Exception) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
