"""The clients' side of the gateway: HTTP in, a Call out, the answer's bytes back. Limits are held here; no decision
about where a call runs is made here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools
from msgspec import Struct

from wastegate.core.plan import Refusal
from wastegate.gateway.heads import Headers, Known, learn
from wastegate.gateway.request import Gate, Incoming
from wastegate.openai.errors import error_body

if TYPE_CHECKING:
    from wastegate.gateway.relay import Flight


log = logging.getLogger(__name__)


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on what a client may send or hold open."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 32 * 1024 * 1024
    header_seconds: float = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: float = 60.0
    idle_seconds: float = 75.0
    """A kept-alive connection without a request is closed after this."""
    connections: int = 10_000
    line: int = 1_000
    """Calls that may wait in line for each model."""
    drain_seconds: float = 30.0
    """At shutdown: how long streams may take to finish before they get a terminal event."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: a limit must be above 0")


_REASONS = {
    200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 404: b"Not Found", 405: b"Method Not Allowed",
    408: b"Request Timeout", 413: b"Content Too Large", 429: b"Too Many Requests", 431: b"Headers Too Large",
    500: b"Internal Server Error", 502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip

# Headers that belong to one connection (RFC 9110, 7.6.1), or that the gateway writes itself.
_OWN = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"content-length", b"te", b"trailer",
        b"upgrade", b"x-request-id",
    )
)  # fmt: skip

_OFFER = (b"upgrade", b"connection", b"http2-settings")
_PIPELINE = 16
"""Requests that a client may send ahead on one connection."""
_LAST_CHUNK = b"0\r\n\r\n"
_LINGER_SECONDS = 2.0
"""A client that is refused may still be sending: closed at once, it would get a reset instead of the answer."""


class ClientConnection(asyncio.Protocol):
    """One client's connection. It serves its requests one after another."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Incoming | None = None
        """The request that is being read."""
        self._read = b""
        """The piece that the parser is given, where a request begins with it."""
        self._known: Known | None = None
        """The head of the first call on this connection."""
        self._ready: deque[Incoming] = deque()
        """Requests that are whole, and wait for the one before them."""
        self._flight: Flight | None = None
        self._busy = False
        self._keep = True
        self._chunked = False
        self._http_10 = False
        self._request_id = b""
        self._head = b""
        self._bodiless = False
        self._closing = False
        self._deaf = False
        """Nothing is read from the client before it has read its answers."""
        self._lingers = False
        """It was refused, and what it sends is thrown away until it closes."""
        self._offered: Incoming | None = None
        """A request that offers another protocol: it is read again without the offer."""
        self.since = gate.hub.tick
        """When the connection last began to wait for its client."""

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are none by inheritance
        self._gate.connections.add(self)
        if len(self._gate.connections) > self._gate.limits.connections:
            self._reject(503, "the gateway holds as many connections as it may; try again shortly", "connections")

    def data_received(self, data: bytes) -> None:
        if self._incoming is None and not self._busy and not self._ready and not self._closing:
            if self._known is not None and self._serve_known(self._known, data):
                return
            self._read = data
        while data and not self._closing:
            try:
                self._parser.feed_data(data)
                self._read = b""
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_offer() + data[upgrade.args[0] :]
            except httptools.HttpParserCallbackError as error:
                self._fault(error.__context__)
                return
            except httptools.HttpParserError as error:
                if not self._closing:
                    self._reject(400, f"the request is not valid HTTP: {error}", "unreadable")
                return

    def _serve_known(self, known: Known, data: bytes) -> bool:
        """Serve a request whose head has been read before. False: it is the parser's."""
        body = known.body(data)
        if body is None or len(body) > self._gate.limits.body_bytes:
            return False
        incoming = Incoming(known)
        incoming.body.append(body)
        try:
            self._serve(incoming)
        except Exception as error:
            self._fault(error)
        return True

    def _without_offer(self) -> bytes:
        """The head of a request that offers another protocol, as Java's client offers HTTP/2 with every first one. An
        offer may be ignored, but the parser then leaves the body unread: it gets the head again, without it."""
        offered, self._offered = self._offered, None
        self._parser = httptools.HttpRequestParser(self)
        if offered is None:
            return b""
        lines = [b"%s %s HTTP/%s" % (offered.method, offered.url, b"1.0" if offered.http_10 else b"1.1")]
        lines += [b"%s: %s" % pair for pair in offered.headers if pair[0] not in _OFFER]
        lines += [b"connection: " + (b"keep-alive" if offered.keep else b"close"), b"", b""]
        return b"\r\n".join(lines)

    def _fault(self, error: BaseException | None) -> None:
        """A mistake of ours, not the client's: said, and this connection ended."""
        log.error("a request could not be served: %s", error, exc_info=error)
        if self._flight is None and self._transport is not None:
            self._keep = False
            self.respond(
                500, b"application/json", error_body(500, "the gateway has failed on this request; its log says how")
            )
        elif self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._gate.connections.discard(self)
        self._ready.clear()
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.hang_up()

    def pause_writing(self) -> None:
        if self._flight is not None:
            self._flight.pause()
        elif self._transport is not None:  # it asks and asks, and reads no answer
            self._deaf = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._flight is not None:
            self._flight.resume()
        if self._deaf and self._transport is not None:
            self._deaf = False
            self._transport.resume_reading()

    # ---- called by the parser

    def on_message_begin(self) -> None:
        self._incoming = Incoming()
        self.since = self._gate.hub.tick

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None and self._fits(self._incoming, len(url)):
            self._incoming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self._incoming
        if incoming is not None and self._fits(incoming, len(name) + len(value) + 4):
            incoming.headers.append((name.lower(), value))

    def _fits(self, incoming: Incoming, more: int) -> bool:
        incoming.header_bytes += more
        if incoming.header_bytes <= self._gate.limits.header_bytes:
            return True
        self._reject(431, f"the headers exceed {self._gate.limits.header_bytes} bytes", "headers_too_large")
        return False

    def on_headers_complete(self) -> None:
        incoming = self._incoming
        if incoming is None:
            return
        incoming.method = self._parser.get_method()
        incoming.keep = self._parser.should_keep_alive()
        incoming.http_10 = self._parser.get_http_version() != "1.1"
        incoming.headers_done = True
        if incoming.method == b"CONNECT":
            self._reject(400, "this gateway is no tunnel: CONNECT is not served", "unreadable")
            return
        if self._parser.should_upgrade() or not self._framing_is_clear(incoming):
            return
        if incoming.header(b"expect").lower() == b"100-continue" and not self._busy and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _framing_is_clear(self, incoming: Incoming) -> bool:
        """The parser refuses most of what two servers could read in two ways; this is the rest."""
        length = 0
        for name, value in incoming.headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or incoming.http_10):
                self._reject(400, "transfer-encoding may only be 'chunked', and only in HTTP/1.1", "unreadable")
                return False
        if length > self._gate.limits.body_bytes:  # before it is sent, where the client waits for our 100
            self._reject(413, f"the body exceeds {self._gate.limits.body_bytes} bytes", "body_too_large")
            return False
        return True

    def on_body(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            return
        incoming.body_size += len(data)
        ahead = sum(other.body_size for other in self._ready) if self._ready else 0
        if incoming.body_size + ahead > self._gate.limits.body_bytes:
            self._reject(413, f"the body exceeds {self._gate.limits.body_bytes} bytes", "body_too_large")
            return
        incoming.body.append(data)

    def on_message_complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or self._closing:
            return
        if self._parser.should_upgrade():
            self._offered = incoming
            return
        if self._busy or self._ready:  # also between two: a later request must not overtake one that waits
            if len(self._ready) >= _PIPELINE:
                self._reject(400, f"more than {_PIPELINE} requests were sent ahead", "pipelined")
                return
            self._ready.append(incoming)
            return
        if self._known is None and incoming.keep and not incoming.http_10:
            self._known = incoming.known = learn(self._read, incoming.url, incoming.headers, incoming.body_size)
        self._serve(incoming)

    # ---- one request

    def _serve(self, incoming: Incoming) -> None:
        self._busy = True
        self._keep = incoming.keep
        self._http_10 = incoming.http_10
        self._bodiless = incoming.method == b"HEAD"
        self._request_id = b""
        self._gate.serve(incoming, self)

    def fly(self, flight: Flight, request_id: bytes) -> None:
        """The request is a call: it flies now."""
        self._flight = flight
        self._request_id = b"x-request-id: %s\r\n" % request_id
        flight.start()

    def _next(self) -> None:
        """The answer is out. Close, or take the next request."""
        self._flight = None
        self._busy = False
        self.since = self._gate.hub.tick
        if not self._keep or self._gate.draining:
            self._close()
        elif self._ready and not self._closing:
            self._gate.hub.loop.call_soon(self._serve_next)

    def _serve_next(self) -> None:
        if self._ready and not self._busy and not self._closing:
            self._serve(self._ready.popleft())

    # ---- the answer (relay.Client)

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """The head of a relayed answer. It waits to be sent with the first body bytes."""
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"Status")), self._request_id]
        lines += [b"%s: %s\r\n" % (name, value) for name, value in headers if name not in _OWN]
        self._chunked = length is None and not self._http_10
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self._keep = False  # HTTP/1.0 ends an answer of unknown length by closing
        lines += [self._connection_line(), b"\r\n"]
        self._head = b"".join(lines)

    def _connection_line(self) -> bytes:
        """What becomes of the connection, where the client cannot know it by its HTTP version."""
        if not self._keep or self._gate.draining:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self._http_10 else b""

    def write(self, data: bytes) -> None:
        """Body bytes, as they come."""
        if self._transport is None or self._closing:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data = self._head + data
            self._head = b""
        self._transport.write(data)

    def finish(self, last: bytes) -> None:
        """The end of the answer, with its last bytes."""
        if self._transport is not None and not self._closing:
            if self._chunked:
                last = (b"%x\r\n%b\r\n" % (len(last), last) if last else b"") + _LAST_CHUNK
            self._transport.write(self._head + last)
        self._head = b""
        self._next()

    def cut(self, last: bytes) -> None:
        """The answer stays incomplete, and must look so: a last event where there can be one, then no proper end."""
        if last:
            self.write(last)
        self._head = b""
        self._flight = None
        self._close()

    def refuse(self, refusal: Refusal) -> None:
        """The gateway's own answer to a call."""
        extra = b""
        if refusal.retry_after is not None:
            extra = b"retry-after: %d\r\n" % max(1, round(refusal.retry_after))
        body = error_body(refusal.status, refusal.message, code=refusal.code)
        self.respond(refusal.status, b"application/json", body, extra)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A replica's answer that was read whole: an error that nobody could better."""
        self.begin(status, headers, len(body))
        self.finish(body)

    def respond(self, status: int, content_type: bytes, body: bytes, extra: bytes = b"") -> None:
        """An answer of our own."""
        if self._transport is not None and not self._closing:
            self._transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s%s\r\n%s"
                % (
                    status,
                    _REASONS.get(status, b"Status"),
                    content_type,
                    len(body),
                    self._request_id,
                    extra,
                    self._connection_line(),
                    b"" if self._bodiless else body,
                )
            )
        self._next()

    # ---- closing

    def _reject(self, status: int, message: str, reason: str) -> None:
        """A request that cannot be read. What follows it on this connection cannot be trusted either."""
        self._gate.hub.tally.reject(reason)
        self._incoming = None
        if self._busy:  # an answer is going out: it cannot be followed by an error, only by the end
            self._keep = False
            self._ready.clear()
            return
        self._keep = False
        self._busy = True
        self._bodiless = False
        self._request_id = b""
        self._lingers = reason != "connections"
        self.respond(status, b"application/json", error_body(status, message))

    def _close(self) -> None:
        self._closing = True
        if self._transport is None:
            return
        if self._lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def check(self, now: float) -> None:
        """Close a connection that its client has left hanging. Called a few times a second."""
        waited = now - self.since
        if self._closing and waited > _LINGER_SECONDS and self._transport is not None:
            self._transport.abort()
        if self._busy or self._closing:
            return
        limits = self._gate.limits
        incoming = self._incoming
        if incoming is None:
            if waited > limits.idle_seconds:
                self._close()
        elif not incoming.headers_done and waited > limits.header_seconds:
            self._reject(408, f"the headers took longer than {limits.header_seconds:g} s", "slow_headers")
        elif waited > limits.header_seconds + limits.body_seconds:
            self._reject(408, f"the body took longer than {limits.body_seconds:g} s", "slow_body")

    def drain(self) -> None:
        """The gateway shuts down: an idle connection goes at once, a busy one after its answer."""
        self._keep = False
        if not self._busy:
            self._close()
