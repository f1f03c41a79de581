"""Signals that others leave in Redis for the gateway to find: so a cloud's alarm reaches one that it cannot call.
A key for each replica, ``wastegate:{SITE}:signals:NAME``, and one without a name for the whole fleet; each holds what
would be pushed over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from wastegate.gateway.pushed import LARGEST_BODY, Board, PushError, decode

log = logging.getLogger(__name__)


class RedisError(Exception):
    """Redis cannot be read now; the text says why, and holds no password."""


def key(site: str, replica: str) -> str:
    """Where a replica's signals lie; an empty name is the whole fleet."""
    return f"wastegate:{{{site}}}:signals:{replica}"


async def collect(url: str, site: str, replicas: Sequence[str], board: Board, seconds: float) -> None:
    """Read all keys once and put them on the board; Redis may take so many seconds. Raises RedisError."""
    names = ["", *replicas]
    for name, body in zip(names, await _read(url, [key(site, name) for name in names], seconds), strict=True):
        if body is None:
            continue
        try:
            items = [msgspec.structs.replace(item, replica=name) for item in decode(body)]
            board.take(msgspec.json.encode(items), replicas)
        except PushError as error:
            log.debug("%s: %s", key(site, name), error)


async def _read(url: str, keys: Sequence[str], seconds: float) -> list[bytes | None]:
    try:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError as ClientError
    except ImportError:
        raise RedisError("the client for Redis is not installed: pip install 'wastegate[redis]'") from None
    try:
        client = Redis.from_url(url, max_connections=1)
    except ValueError:  # its text may hold a part of the password
        raise RedisError(
            "[devices] redis is no URL of a Redis; in a password @, : and / are written %40, %3A, %2F"
        ) from None
    try:
        async with asyncio.timeout(seconds):
            # No more of a value than is allowed is fetched.
            pipe = client.pipeline(transaction=False)
            for one in keys:
                pipe.getrange(one, 0, LARGEST_BODY)
            return [value or None for value in await pipe.execute()]
    except (ClientError, OSError, TimeoutError) as error:
        raise RedisError(str(error).strip() or type(error).__name__) from None
    finally:
        await client.aclose()
