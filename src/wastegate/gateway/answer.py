"""One attempt's answer as it comes in: which of its bytes may go on to the client now, and what is known of it. No
socket and no decision: the flight asks, and acts."""

from __future__ import annotations

import zlib

from wastegate.core.call import BYTES_PER_TOKEN, Call
from wastegate.core.ledger import Outcome, UsageSource
from wastegate.gateway.heads import Headers
from wastegate.openai.chat import read_answer
from wastegate.openai.sse import Continued, StreamReader, Usage

MAX_HELD_BYTES = 4 << 20
"""Of an answer that is read whole (an error, or JSON whose usage is wanted), at most this much is kept."""
_GZIP_OR_ZLIB = 47
_MOST_INFLATED = 32 << 20
"""What one read may inflate to: text compresses tenfold, so more than this is no answer."""


class Answer:
    """What a replica has said so far. Times in epoch seconds."""

    __slots__ = (
        "_call",
        "_inflate",
        "_left",
        "_pieces",
        "_size",
        "first_byte",
        "first_token",
        "headers",
        "last",
        "reader",
        "seen",
        "status",
    )

    def __init__(self, call: Call, claimed: float) -> None:
        self._call = call
        self._inflate: zlib._Decompress | None = None
        self._left: int | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.status = 0
        self.headers: Headers = []
        self.first_byte: float | None = None
        self.first_token: float | None = None
        self.seen = claimed
        """When the replica last gave a sign of life."""
        self.last = b""
        """The bytes that end the answer: they may go out once the call is written down."""
        self.reader: StreamReader | None = None

    # ---- what comes in

    def on_head(self, status: int, headers: Headers, now: float, continued: Continued | None) -> None:
        self.status = status
        self.headers = headers
        self.first_byte = self.seen = now
        kind = length = encoding = b""
        for name, value in headers:
            if name == b"content-type":
                kind = kind or value
            elif name == b"content-length":
                length = length or value
            elif name == b"content-encoding":
                encoding = encoding or value
        if encoding and encoding.strip().lower() in (b"gzip", b"deflate"):
            # Not asked for; undone here, so that the answer can be read.
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            self.headers = [pair for pair in headers if pair[0] != b"content-encoding"]
        if status >= 400:
            return
        if kind.lower().startswith(b"text/event-stream"):
            self.reader = StreamReader(not self._call.wants_usage, continued)
        elif self._inflate is None:
            self._left = int(length) if length.isdigit() else None

    def feed(self, data: bytes, now: float) -> bytes:
        """The next piece of the body; returns what may go to the client now. Raises zlib.error."""
        self.seen = now
        if self._inflate is not None:
            data = self._inflate.decompress(data, _MOST_INFLATED)
            if self._inflate.unconsumed_tail:
                raise zlib.error(f"one read inflates to more than {_MOST_INFLATED} bytes")
        reader = self.reader
        if reader is None:
            return self._plain(data)
        out = reader.feed(data)
        if self.first_token is None and reader.first_token:
            self.first_token = now
        self.last = reader.last
        return out

    def _plain(self, data: bytes) -> bytes:
        """A body that is not a stream of events goes on as it comes; the piece that makes it whole is held."""
        if self._size < MAX_HELD_BYTES:
            self._pieces.append(data)
        self._size += len(data)
        if self.status >= 400:
            return b""  # held back whole: the call may be tried elsewhere
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self.last = data
                return b""
        return data

    # ---- what is known of it

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    @property
    def body(self) -> bytes:
        """A body that was held back."""
        return b"".join(self._pieces)

    def length(self, waiting: int) -> int | None:
        """The body's whole length while ``waiting`` bytes of it are about to go out first; None if unknown."""
        return None if self._left is None else self._left + waiting

    @property
    def whole(self) -> bool:
        """Nothing of the answer itself is missing, whatever happens to the connection now."""
        return self.reader is not None and self.reader.done

    def verdict(self) -> tuple[Outcome, str]:
        """(outcome, reason) of an answer that the replica has ended properly."""
        reader = self.reader
        if self.is_error:
            return "failed", f"status {self.status}"
        if reader is not None and reader.error:
            return "failed", f"error event: {reader.error}"
        if reader is not None and not reader.done and not reader.finish_reason and self._completes:
            return "failed", "cut: its stream ended without [DONE]"
        return "finished", ""

    @property
    def _completes(self) -> bool:
        """Only streams of completions end with [DONE]: for others it must do that HTTP ends them properly."""
        return self._call.path.endswith("/completions")

    def usage(self) -> tuple[Usage | None, str]:
        """(the engine's token counts, finish reason)."""
        if self.reader is not None:
            return self.reader.usage, self.reader.finish_reason
        if self._pieces and not self.is_error:
            return read_answer(self.body)
        return None, ""

    def count(self, usage: Usage | None) -> tuple[int | None, int | None, UsageSource]:
        """(prompt tokens, output tokens, where they come from) of a request that was sent. Unknown is not 0."""
        if self.is_error or not self._call.model_runs:
            return None, None, "none"
        if usage is not None and usage.prompt_tokens is not None and usage.output_tokens is not None:
            return usage.prompt_tokens, usage.output_tokens, "engine"
        if usage is not None and usage.prompt_tokens is not None and not self._completes:
            return usage.prompt_tokens, 0, "engine"  # embeddings and scores: there is no output to count
        prompt = self._call.prompt_tokens
        if self.reader is not None:
            return prompt, self.reader.tokens, "counted"
        return prompt, self._size // BYTES_PER_TOKEN, "estimated"

    def retry_after(self) -> float | None:
        """Seconds; a date, which HTTP also allows, is read as 1 s: the replica wants a pause, how long is unclear."""
        value = header(self.headers, b"retry-after").strip()
        if not value:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            return 1.0


def header(headers: Headers, name: bytes) -> bytes:
    """The first value of a header; empty if it is not there."""
    for key, value in headers:
        if key == name:
            return value
    return b""
