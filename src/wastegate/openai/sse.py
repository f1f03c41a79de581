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

MOST_TOKENS = 1 << 40
"""More than any answer can have: a count beyond it is a fault, and might not fit where it is stored."""

MAX_EVENT_BYTES = 4 << 20
"""An event is held until it is whole; past this size its bytes go on as they are, unread."""


class Usage(Struct, frozen=True, gc=False):
    """Token counts as an engine reported them; None for what it did not say or said unreadably."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Continued(Struct, frozen=True, gc=False):
    """This stream goes on from one that broke: its client has ``tokens`` tokens already."""

    tokens: int


class StreamReader:
    """Reads one streamed answer. ``feed`` returns what may go to the client now.

    The event that ends the stream (``[DONE]``) is never returned: it waits in ``last``, so that the caller can
    write the call down before the client can know that it is complete.
    """

    __slots__ = (
        "_continued",
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

    def __init__(self, hide_usage: bool, continued: Continued | None = None) -> None:
        self._continued = continued
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
        """Deltas from the first that says something on: a lower bound on tokens, since one may carry several."""
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
            if not piece and len(self._tail) <= MAX_EVENT_BYTES:
                return b""
        out = piece if self.first_token and self._only_deltas(piece) else self._read_each(piece)
        if self.done:
            self.last, self._tail = self.last + self._tail, b""
        elif len(self._tail) > MAX_EVENT_BYTES:
            self.overlong = True
            out, self._tail = out + self._tail, b""
        return out

    def _only_deltas(self, piece: bytes) -> bool:
        """The hot path: every event in the piece is an ordinary delta, so nothing but their count matters.

        An ordinary delta says ``"finish_reason":null``. The usage event, [DONE], errors and the last delta do not.
        """
        events = piece.count(b"\ndata:") + piece.startswith(b"data:")
        mark = b'"finish_reason":null' if b'"finish_reason":null' in piece else b'"finish_reason": null'
        if not piece.count(mark) == piece.count(b'"finish_reason"') == events:
            return False
        if events > 1 and not all(mark in event for event in piece.split(b"data:")[1:]):
            return False  # one event has two choices, and another none
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
                keep.append(event if self._continued is None else self._as_continued(event))
        if self.done:
            self.last += piece[start:]
        else:  # a third line feed at the end belongs to the next event
            self._tail = piece[start:] + self._tail
        return b"".join(keep)

    def _read(self, event: bytes) -> bool:
        """Note what one event says. False if it must not be relayed (now)."""
        data = _data(event if self._started else event.removeprefix(_BOM))
        self._started = True
        if not data:
            return True  # a comment, a ping, another field
        if data == b"[DONE]":
            self.done = True
            self.last = event
            return False
        self.events += 1
        payload = _decode(data)
        return payload is None or self._note(payload)

    def _note(self, payload: dict[str, Any]) -> bool:
        if payload.get("error"):
            self.error = self.error or _message(payload["error"])
        choices = _choices(payload)
        for choice in choices:
            self._note_choice(choice)
        if payload.get("delta"):  # /v1/responses and /v1/messages say it beside no choices
            self.first_token = True
            self.tokens += 1
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._note_usage(usage)
            return bool(choices) or not self._hide_usage
        for name in ("response", "message"):  # the same two wrap it
            inner = payload.get(name)
            if isinstance(inner, dict) and isinstance(inner.get("usage"), dict):
                self._note_usage(inner["usage"])
        return True

    def _note_usage(self, usage: dict[str, Any]) -> None:
        """The latest word counts; what it does not say stays as it was said before."""
        new, old = read_usage(usage), self.usage or Usage()
        self.usage = Usage(
            new.prompt_tokens if new.prompt_tokens is not None else old.prompt_tokens,
            new.output_tokens if new.output_tokens is not None else old.output_tokens,
            new.cached_tokens if new.cached_tokens is not None else old.cached_tokens,
        )

    def _note_choice(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        if _says_something(choice):
            self.first_token = True
            self.tokens += 1
        elif self.first_token and reason is None:
            self.tokens += 1  # a token whose text is still held back, such as half a character

    def _as_continued(self, event: bytes) -> bytes:
        """One answer in the client's eyes: no second role delta, and the usage of both parts together."""
        assert self._continued is not None
        payload = _payload(event)
        if payload is None:
            return event
        choices = _choices(payload)
        if choices and all(_only_a_role(choice) for choice in choices):
            return b""
        usage = payload.get("usage")
        if not isinstance(usage, dict) or self.usage is None:
            return event
        prompt, output = self.usage.prompt_tokens, self.usage.output_tokens
        if prompt is None or output is None:
            return event
        sent = self._continued.tokens
        payload["usage"] = {
            **usage,
            "prompt_tokens": max(0, prompt - sent),
            "completion_tokens": output + sent,
            "total_tokens": max(0, prompt - sent) + output + sent,
        }
        return b"data: " + msgspec.json.encode(payload) + b"\n\n"

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


def _decode(data: bytes) -> dict[str, Any] | None:
    """The event's object; None for one that is not ours to judge: it is relayed as it is."""
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _payload(event: bytes) -> dict[str, Any] | None:
    return _decode(_data(event))


def text_of(events: bytes) -> str | None:
    """The text of a stream's first choice, from its whole events; None where it said anything but text."""
    parts: list[str] = []
    start = 0
    for match in _BLANK_LINE.finditer(events):
        payload, start = _payload(events[start : match.end()]), match.end()
        for choice in _choices(payload or {}):
            text = _text(choice)
            if not text and _says_something(choice):
                return None  # reasoning, a tool call: the text alone does not hold what was said
            parts.append(text)
    return "".join(parts)


def _choices(payload: dict[str, Any]) -> list[dict[str, Any]]:
    choices = payload.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _says_something(choice: dict[str, Any]) -> bool:
    """Any non-empty member of the delta but the role is output: text, reasoning, a tool call, a refusal, audio."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text"))


def _only_a_role(choice: dict[str, Any]) -> bool:
    """The delta that opens an answer: it names the speaker and says nothing yet."""
    delta = choice.get("delta")
    return (
        isinstance(delta, dict) and "role" in delta and not _says_something(choice) and not choice.get("finish_reason")
    )


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)[:200]


def read_usage(usage: dict[str, Any]) -> Usage:
    """Counts that make sense (whole, not negative); what does not is None, never 0.

    ``/v1/responses`` and ``/v1/messages`` say input and output where completions say prompt and completion.
    """
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        output_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        cached_tokens=_count(cached),
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= MOST_TOKENS and value == int(value) else None
