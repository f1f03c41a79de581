"""Heads of requests: what they say of a call, what of them goes on to the replica, and those that a connection repeats,
which need not be parsed again. No socket and no parser; nothing is judged here."""

from __future__ import annotations

import re

from msgspec import Struct

Headers = list[tuple[bytes, bytes]]
"""Names are in lower case."""

# Not passed on: they belong to the connection, or are written anew for each attempt. Without accept-encoding the
# answer comes uncompressed, so that its usage can be read.
_DROPPED = frozenset(
    (
        b"host", b"connection", b"keep-alive", b"proxy-connection", b"content-length", b"transfer-encoding", b"te",
        b"trailer", b"upgrade", b"expect", b"accept-encoding", b"x-request-id", b"proxy-authorization",
    )
)  # fmt: skip
_TENANT = b"x-wastegate-tenant"
_TAG = b"x-wastegate-tag-"
_OURS = b"x-wastegate-"
_MOST_TAGS = 8
_LABEL_CHARACTERS = 64
_UNSAFE = re.compile(r"[^\x20-\x7e]")

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)(?=\r\n)", re.IGNORECASE)
_DIGITS = 8
"""Longer lengths are the parser's."""
_READ_OTHERWISE = frozenset((b"transfer-encoding", b"expect", b"connection", b"upgrade", b"trailer", b"te"))
"""Headers that change how what follows is read: a head with one of them is always the parser's."""


class Labels(Struct, frozen=True, gc=False):
    """What a head says of its call."""

    tenant: str
    tags: tuple[tuple[str, str], ...]
    client_id: str
    traceparent: str
    authorization: bytes
    """The client's own header lines for the replica; empty if there are none."""
    forwarded: bytes
    """All other header lines that go on to the replica."""


def read_labels(headers: Headers) -> Labels:
    """The labels in a request's headers. Headers that ``connection`` names end here, as HTTP asks."""
    tenant, client_id, traceparent = "", "", ""
    tags: list[tuple[str, str]] = []
    authorization, forwarded = b"", []
    dropped = _DROPPED
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped | {token.strip() for token in value.lower().split(b",")}
    for name, value in headers:
        if name == b"x-request-id":
            client_id = label(value)
        elif name == _TENANT:
            tenant = label(value)
        elif name.startswith(_TAG) and len(tags) < _MOST_TAGS:
            tags.append((label(name[len(_TAG) :]), label(value)))
        elif name in dropped or name.startswith(_OURS):
            continue
        elif name == b"authorization":
            authorization += b"authorization: %s\r\n" % value
        else:
            forwarded.append(b"%s: %s\r\n" % (name, value))
            if name == b"traceparent":
                traceparent = label(value)
    return Labels(tenant or "default", tuple(tags), client_id, traceparent, authorization, b"".join(forwarded))


def label(value: bytes) -> str:
    """A label that a client chose: printable, and not longer than a report can show."""
    return _UNSAFE.sub("?", value[:_LABEL_CHARACTERS].decode("latin-1").strip())


class Known:
    """A head that a parser has passed, in two parts: what stands before the body's length, and what behind it."""

    __slots__ = ("_after", "_before", "headers", "labels", "url")

    def __init__(self, before: bytes, after: bytes, url: bytes, headers: Headers) -> None:
        self._before = before
        self._after = after
        self.url = url
        self.headers = headers
        """Shared by all requests with this head: not to be changed."""
        self.labels = read_labels(headers)

    def body(self, data: bytes) -> bytes | None:
        """The body of the request in ``data``, if that is one request under this head, whole; else None."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + _DIGITS + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        end += len(self._after)
        return data[end:] if len(data) - end == int(digits) else None


def learn(data: bytes, url: bytes, headers: Headers, size: int) -> Known | None:
    """The head of a POST that a parser has read from ``data`` alone: its headers, and its body of ``size`` bytes.

    None where another request with this head might have to be read otherwise.
    """
    head = data.find(b"\r\n\r\n") + 4
    lengths = list(_LENGTH.finditer(data, 0, head))
    if (
        len(lengths) != 1
        or len(data) - head != size
        or not data.startswith(b"POST ")
        or data.count(b"\r\n", 0, head) != len(headers) + 2  # a line a header, the first line and the blank one
        or any(name in _READ_OTHERWISE and value.lower() != b"keep-alive" for name, value in headers)
    ):
        return None
    start, end = lengths[0].span(1)
    return Known(data[:start], data[end:head], url, headers)
