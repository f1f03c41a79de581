"""Connections to replicas: a pool of kept-alive ones each, and the reading of their answers. It knows HTTP and
sockets, but not what a call means: everything it sees goes to the exchange that uses it."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from wastegate.gateway.heads import Headers

MAX_HEAD_BYTES = 64 * 1024
_FRESH_SECONDS = 4.0
"""Most servers close a kept-alive connection after 5 s of silence (uvicorn's default): use none older than this."""
_MAX_IDLE = 256
"""Kept-alive connections a replica, at most."""


class UrlError(ValueError):
    """A replica's URL that cannot be used; the text says why."""


class Exchange(Protocol):
    """One request on one connection, as the connection sees it. Exactly one of on_end and on_lost is called last."""

    def on_head(self, status: int, headers: Headers) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_lost(self, why: str, stale: bool) -> None: ...


class Access(Struct, frozen=True):
    """How a replica is spoken to, beside its address. The key is for the wire only: never for a log or a page."""

    api_key: str = ""
    """Sent as ``authorization: Bearer …`` in place of the client's."""
    api_key_env: str = ""
    """The environment variable that it came from."""
    ca_file: str = ""
    ca: str = ""
    """The certificate authorities in that file, as PEM; empty means those of the system."""


class Origin:
    """Where a replica listens, and how it is spoken to, taken apart once. Raises UrlError."""

    __slots__ = ("access", "authorization", "host", "host_header", "port", "prefix", "tls", "url")

    def __init__(self, url: str, access: Access | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UrlError(f"{_shown(url)!r} is not an http:// or https:// URL with a host")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise UrlError(f"{_shown(url)!r}: a replica's URL may have no user, query or fragment")
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1").encode()
        self.host_header = parts.netloc.encode()
        self.access = access or Access()
        self.authorization = _bearer(self.access)
        """A header line, in place of the client's; empty where the client's own goes on."""
        self.tls = _trusting(self.access) if parts.scheme == "https" else None
        if self.tls is None and self.access.ca_file:
            raise UrlError(f"{url!r} is not https://, so ca_file has no use: remove it, or write https://")


def _shown(url: str) -> str:
    """Without what may be a secret."""
    return re.sub(r"//[^/@]*@", "//…@", url.partition("?")[0])


def origin_of(url: str, *known: Origin | None) -> Origin:
    """The first that is ``known`` to be at this address; else a plain one.

    Making an origin may read the system's certificates, so one that is known is not made anew.
    """
    return next((origin for origin in known if origin is not None and origin.url == url), None) or Origin(url)


def _bearer(access: Access) -> bytes:
    if not access.api_key:
        return b""
    if not re.fullmatch(r"[\x21-\x7e]+", access.api_key):
        raise UrlError(f"the key in {access.api_key_env} holds blanks or signs that no header can carry")
    return b"authorization: Bearer %s\r\n" % access.api_key.encode()


def _trusting(access: Access) -> ssl.SSLContext:
    if not access.ca_file:
        return ssl.create_default_context()
    try:
        if "-----BEGIN CERTIFICATE-----" in access.ca:  # with nothing at all it would trust the system's
            return ssl.create_default_context(cadata=access.ca)
    except (ssl.SSLError, ValueError):
        pass  # said below
    raise UrlError(f"ca_file {access.ca_file} holds no certificate: it must be PEM (-----BEGIN CERTIFICATE-----)")


class Pool:
    """The connections to one replica."""

    def __init__(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self._loop = loop
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection | None:
        """An open connection that has been silent for a short time only, or None: then dial."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < _FRESH_SECONDS:
                return connection
            connection.abort()
        return None

    async def dial(self) -> Connection:
        """A new connection. Raises OSError or ssl.SSLError; the caller's timer bounds the wait."""
        _, connection = await self._loop.create_connection(
            lambda: Connection(self), self.origin.host, self.origin.port, ssl=self.origin.tls
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer has been read to its end."""
        if self._closed or len(self._idle) >= _MAX_IDLE:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The peer has closed an idle connection."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


class Connection(asyncio.Protocol):
    """One connection to a replica; it serves one exchange at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.reused = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._status = 0
        self._framed = False
        self._done = False
        self._keep = False
        self._heard = False

    # ---- used by the exchange

    @property
    def origin(self) -> Origin:
        return self._pool.origin

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Begin an exchange: its request goes out whole."""
        assert self._transport is not None, "send() before the connection was made"
        self._exchange = exchange
        self._transport.writelines([head, body])

    def pause(self) -> None:
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the exchange hears nothing more. For an engine this means: stop generating."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are none by inheritance

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._done:
            self.abort()  # bytes that nobody asked for: an answer too long, or one to an earlier request
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._done:
                self._lose(f"its answer is not HTTP: {error}")
                return
            self._keep = False  # the answer is whole; what follows it is not ours
        if self._exchange is None:
            return  # the head was refused inside the callback
        if self._pieces:
            piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            exchange.on_body(piece)
        if self._done and self._exchange is exchange:
            self._finish(exchange)

    def eof_received(self) -> None:
        """The peer sends no more: the end of an answer that has no length, or a cut."""
        exchange = self._exchange
        if exchange is not None and self._status and not self._framed and not self._done:
            self._done, self._keep = True, False
            self._finish(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        if self._exchange is not None:
            self._lose("it closed the connection" if exc is None else f"the connection broke ({exc})")

    def pause_writing(self) -> None:
        """A request is bounded and written once; nothing more is sent that could be paused."""

    def resume_writing(self) -> None:
        pass

    # ---- called by the parser

    def on_message_begin(self) -> None:
        if self._done:
            self._keep = False
            return
        self._headers = []
        self._framed = False
        self._status = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._lose(f"its answer's headers exceed {MAX_HEAD_BYTES} bytes")
            return
        if not self._status:  # later ones are trailers: the answer's head is complete
            name = name.lower()
            self._headers.append((name, value))
            if name == b"content-length" or name == b"transfer-encoding":
                self._framed = True

    def on_headers_complete(self) -> None:
        if self._done or self._exchange is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim answer: the real one follows
        self._status = status
        self._exchange.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if not self._done:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._status and not self._done:
            self._done = True
            self._keep = self._parser.should_keep_alive()

    # ---- ends

    def _finish(self, exchange: Exchange) -> None:
        self._exchange = None
        if self._keep and self.usable:
            self._reset()
            self.resume()  # a slow client may have held it: the next exchange must not be held for it
            self.reused = True
            self._pool.give_back(self)
        elif self._transport is not None:
            self._transport.abort()
        exchange.on_end()

    def _lose(self, why: str) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            if self._pieces:
                exchange.on_body(b"".join(self._pieces))
                self._pieces.clear()
            exchange.on_lost(why, stale=self.reused and not self._heard)
