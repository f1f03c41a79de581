"""An incremental reader of server-sent events that runs beside the raw relay: it hands the bytes on unchanged,
whole events at a time, and notes the first token, the usage and the end. No event is rebuilt, no text is kept."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

# A blank line ends an event. The standard allows LF, CRLF and CR.
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

MAX_EVENT_BYTES = 4 << 20
"""An event is held until it is whole; past this size its bytes go on as they are, unread."""


class Usage(Struct, frozen=True, gc=False):
    """Token counts as an engine reported them; None for what it did not say or said unreadably."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class StreamReader:
    """Reads one streamed answer. ``feed`` returns what may go to the client now.

    The event that ends the stream (``[DONE]``) is never returned: it waits in ``last``, so that the caller can
    write the call down before the client can know that it is complete.
    """

    __slots__ = (
        "_hide_usage",
        "_started",
        "_tail",
        "done",
        "error",
        "events",
        "finish_reason",
        "first_token",
        "last",
        "overlong",
        "tokens",
        "usage",
    )

    def __init__(self, hide_usage: bool) -> None:
        self._hide_usage = hide_usage
        """Drop the usage-only event: the client did not ask for it, we did."""
        self._tail = b""
        self._started = False
        self.done = False
        self.error = ""
        """The message of an error event inside the stream."""
        self.events = 0
        self.finish_reason = ""
        self.first_token = False
        """A non-empty delta has passed."""
        self.last = b""
        self.overlong = False
        self.tokens = 0
        """Events with a non-empty delta: a lower bound on tokens, since one event may carry several."""
        self.usage: Usage | None = None

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece of the body; return the whole events that it completes, unchanged."""
        if self.done:
            self.last += piece
            return b""
        if self._tail:
            piece = self._tail + piece
            self._tail = b""
        if not piece.endswith(b"\n\n"):
            whole = _last_boundary(piece)
            piece, self._tail = piece[:whole], piece[whole:]
            if len(self._tail) > MAX_EVENT_BYTES:
                self.overlong = True
                piece, self._tail = piece + self._tail, b""
                return piece
            if not piece:
                return b""
        if self.first_token and self._only_deltas(piece):
            return piece
        return self._read_each(piece)

    def _only_deltas(self, piece: bytes) -> bool:
        """The hot path: every event in the piece is an ordinary delta, so nothing but their count matters.

        An ordinary delta says ``"finish_reason":null``. The usage event, [DONE], errors and the last delta do not.
        """
        events = piece.count(b"\ndata:") + piece.startswith(b"data:")
        unfinished = piece.count(b'"finish_reason":null') or piece.count(b'"finish_reason": null')
        if events != unfinished:
            return False
        at = piece.find(b'"usage"')
        if at >= 0 and piece[at + 7 : at + 14].lstrip(b": ")[:4] != b"null":
            return False
        self.events += events
        self.tokens += events
        return True

    def _read_each(self, piece: bytes) -> bytes:
        """Read events one by one; needed before the first token and at the end."""
        keep: list[bytes] = []
        start = 0
        for match in _BLANK_LINE.finditer(piece):
            event, start = piece[start : match.end()], match.end()
            if self.done:
                self.last += event
            elif self._read(event):
                keep.append(event)
        self.last += piece[start:] if self.done else b""
        return b"".join(keep)

    def _read(self, event: bytes) -> bool:
        """Note what one event says. False if it must not be relayed (now)."""
        if not self._started:
            self._started = True
            event = event.removeprefix(_BOM)
        data = _data(event)
        if not data:
            return True  # a comment, a ping, another field
        if data == b"[DONE]":
            self.done = True
            self.last = event
            return False
        self.events += 1
        try:
            payload = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return True  # not ours to judge: relayed as it is
        return not isinstance(payload, dict) or self._note(payload)

    def _note(self, payload: dict[str, Any]) -> bool:
        if payload.get("error"):
            self.error = self.error or _message(payload["error"])
        choices = payload.get("choices")
        choices = choices if isinstance(choices, list) else []
        for choice in choices:
            if isinstance(choice, dict):
                self._note_choice(choice)
        usage = payload.get("usage")
        if not isinstance(usage, dict):
            return True
        self.usage = read_usage(usage)
        return bool(choices) or not self._hide_usage

    def _note_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, dict) and _says_something(delta)):
            self.first_token = True
            self.tokens += 1
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason

    @property
    def unfinished(self) -> bytes:
        """The beginning of an event that never ended. It must not be relayed: its end is missing."""
        return self._tail


def _last_boundary(piece: bytes) -> int:
    """Where the last whole event ends; 0 if there is none."""
    end = 0
    for match in _BLANK_LINE.finditer(piece):
        end = match.end()
    return end


def _data(event: bytes) -> bytes:
    """The joined ``data`` lines of one event, with or without the space after the colon."""
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def _says_something(delta: dict[str, Any]) -> bool:
    """Any non-empty member but the role is output: text, reasoning, a tool call, a refusal, audio."""
    return any(value for name, value in delta.items() if name != "role")


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)[:200]


def read_usage(usage: dict[str, Any]) -> Usage:
    """Counts that make sense (whole, not negative); what does not is None, never 0."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(cached),
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 0 and value == int(value) else None
