"""A page fetched from somebody who may be slow, huge or gone. What stands on it is its reader's business."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct


class NoPageError(Exception):
    """A page cannot be had; the text says why."""


class Limits(Struct, frozen=True):
    """What a page may take."""

    timeout: float
    """Seconds, from the first byte sent to the last received."""
    max_kb: int


async def get(
    session: aiohttp.ClientSession,
    url: str,
    limits: Limits,
    key: str = "",
    tls: ssl.SSLContext | None = None,
    query: dict[str, str] | None = None,
) -> bytes:
    """A page's bytes; ``key`` is sent as a bearer token. Redirects are not followed, and what comes compressed is not
    unpacked: a small body could become a huge page. Raises NoPageError."""
    path = urlsplit(url).path
    most = limits.max_kb << 10
    try:
        async with session.get(
            url,
            params=query,
            headers={"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})},
            ssl=tls if tls is not None else True,
            timeout=aiohttp.ClientTimeout(total=limits.timeout),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise NoPageError(f"{path} is answered with status {answer.status}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise NoPageError(f"{path} comes compressed, though that was not asked for")
            body = await answer.content.read(most + 1)
            while len(body) <= most and (more := await answer.content.read(most + 1 - len(body))):
                body += more
    except TimeoutError:
        raise NoPageError(f"{path} is not answered within {limits.timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoPageError(f"{path} cannot be read: {error}") from None
    if len(body) > most:
        raise NoPageError(f"{path} has more than {limits.max_kb} KB; [signals] max_kb allows for more")
    return body
