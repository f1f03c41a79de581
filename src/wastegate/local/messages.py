"""What the HTTP process and the step loop say to each other, and how it is framed on their socket: values only,
no socket is opened here."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from wastegate.core.admission import CapConfig, Limits
from wastegate.core.widths import Point

BLOCK = 32
"""Tokens in a KV block of OpenVINO's CPU plugin."""


class LoopConfig(Struct, frozen=True):
    """How the step loop loads its model. Fixed for the process's life; limits can change while it runs."""

    model: str
    """Path of a GGUF file."""
    limits: Limits
    context: int
    """Prompt and answer together, in tokens."""
    kv_blocks: int
    cores: tuple[int, ...] = ()
    """Cores that the loop is bound to, before the runtime counts them; empty for all."""
    threads: int = 0
    """0 lets the runtime choose."""
    hint: str = "LATENCY"
    kv_precision: str = "u8"
    inference_precision: str = ""
    batched_tokens: int = 256
    max_sequences: int = 256
    """The pipeline's own ceiling; the cap before it is ``limits.cap``."""
    prefix_caching: bool = True
    caps: CapConfig = CapConfig(policy="fixed")
    """How the cap follows the load, from ``limits.cap`` on."""


class Sampling(Struct, frozen=True, array_like=True):
    """How tokens are chosen and when a sequence ends."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class Start(Struct, frozen=True, array_like=True, tag="start"):
    """A call: its prompt as little-endian int64 tokens, and how many answers it wants."""

    call: int
    prompt: bytes
    sampling: Sampling
    n: int = 1
    priority: int = 0


class Cancel(Struct, frozen=True, array_like=True, tag="cancel"):
    call: int


class Resize(Struct, frozen=True, array_like=True, tag="resize"):
    limits: Limits


class Steer(Struct, frozen=True, array_like=True, tag="steer"):
    """Another way for the cap to follow the load."""

    caps: CapConfig


Request = Start | Cancel | Resize | Steer


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """The loop serves. Times in seconds; what runs is read back, not repeated from the request."""

    loading: float
    warmup: float
    settings: dict[str, str]


class Piece(Struct, frozen=True, array_like=True):
    """What one step added to one answer. ``tokens`` counts all that were generated, also those held back."""

    call: int
    index: int
    text: str
    tokens: int
    finish: str = ""
    """Empty while it goes on, else "stop" or "length"."""
    cached: int = 0
    """Prompt tokens that were found in the cache: reckoned by the loop, and a floor."""


class Step(Struct, frozen=True, array_like=True, tag="step"):
    """One step: what it did, how long it took, and everything that it produced."""

    seconds: float
    prefill: int
    """Prompt tokens that it computed, by the loop's own reckoning."""
    decoding: int
    """Sequences that it carried on."""
    generated: int
    """Tokens that it made."""
    sequences: int
    """Sequences in its batch, in prefill or decoding."""
    kv_tokens: int
    """Tokens of KV that its sequences held."""
    clean: bool
    """False where the reckoning may be off, as after a preemption."""
    kv_use: float
    """Share of the KV blocks in use, 0 to 1."""
    kv_bytes: int
    running: int
    waiting: int
    admitted: tuple[tuple[int, float], ...]
    """Calls that left the line since the last step, and the seconds that they waited."""
    pieces: tuple[Piece, ...]


class Load(Struct, frozen=True, array_like=True, tag="load"):
    """The line has changed without a step."""

    running: int
    waiting: int


class Capped(Struct, frozen=True, array_like=True, tag="capped"):
    """The cap has followed the load."""

    cap: int
    why: str
    points: tuple[Point, ...] = ()
    """Step times by width of the batch, as far as they are known."""


class Refused(Struct, frozen=True, array_like=True, tag="refused"):
    """A call that will not run, or not run on: HTTP status and the sentence for its client."""

    call: int
    status: int
    message: str
    fresh: bool = True
    """It had not begun."""


class Failed(Struct, frozen=True, array_like=True, tag="failed"):
    """The loop cannot go on; its process ends after this."""

    message: str


Report = Ready | Step | Load | Capped | Refused | Failed

_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_config = msgspec.msgpack.Decoder(LoopConfig).decode


def frame(message: Request | Report | LoopConfig) -> bytes:
    """A message with its length before it."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come off the socket → whole message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """All bodies that are complete now."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - 4 < length:
                break
            yield bytes(self._buffer[at + 4 : at + 4 + length])
            at += 4 + length
        del self._buffer[:at]


RUNTIME_ERRORS = (RuntimeError, LookupError, ValueError)
"""What the runtime's C++ errors become in Python."""


def last_line(error: Exception) -> str:
    """What one of the runtime's errors comes down to: its lines before name source files of its own."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
