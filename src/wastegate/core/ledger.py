"""The facts that are kept: a call (Entry), its tries (Attempt), a replica's time (ReplicaSpan). Facts only: what they
cost is ``core.attribution``'s."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from wastegate.core.call import Divergence

NANO = 1_000_000_000
"""Nano-dollars in a dollar: money is stored as whole nano-dollars."""

Outcome = Literal["finished", "failed", "refused", "hung_up", "lost"]
"""How a call ended: answered in full, failed upstream or on a timer, never sent to a replica, left by
its client, or in flight when the gateway itself died."""

UsageSource = Literal["engine", "counted", "estimated", "none"]
"""Where a token count comes from: the engine's usage, tokens counted in the stream as it passed, a
guess from bytes, or nowhere."""

ANSWERED = "answer cache:"
"""How the trail of a call begins that was given a stored answer."""

SHUTDOWN = "shutdown"
"""The reason of an attempt that the gateway's own end cut short."""

Phase = Literal["loading", "warmup", "serving", "draining"]

Basis = Literal["EXACT", "DEGRADED", "GATEWAY"]
"""How sure a charge is: the engine's own complete records, records with a gap, or only what the gateway saw."""


class Attempt(Struct, frozen=True, gc=False):
    """One try of a call on one replica. Times in seconds since the epoch; None where it did not happen."""

    number: int
    """From 1. ``<entry>.<number>`` is the id that the replica is given."""
    replica: str
    claimed: float
    """When the replica's slot was taken: load counts from here."""
    ended: float
    outcome: Outcome
    sent: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    status: int | None = None
    """The replica's HTTP status."""
    reason: str = ""
    """Empty, or what went wrong: "connect", "timeout: first byte", "cut", "status 503", …"""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the engine says it found in its prefix cache; None where it does not say."""
    output_tokens: int | None = None
    usage: UsageSource = "none"


class Flew(Struct, frozen=True, gc=False):
    """A call whose answer was another's: nothing was computed for it. Tokens are the other's; None where unknown."""

    call: str
    """The other's id."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class Entry(Struct, frozen=True, gc=False):
    """One call, closed exactly once."""

    id: str
    arrived: float
    ended: float
    route: str
    path: str
    model: str
    tenant: str
    length_class: str
    stream: bool
    outcome: Outcome
    status: int
    """The HTTP status that the client was sent; 499 where it had left before any, 0 where nobody can know (lost)."""
    reason: str = ""
    finish_reason: str = ""
    attempts: tuple[Attempt, ...] = ()
    trail: tuple[str, ...] = ()
    """Why each decision fell as it did, in order: one line a reason."""
    tags: tuple[tuple[str, str], ...] = ()
    client_id: str = ""
    traceparent: str = ""
    blocks: bytes = b""
    """The prompt's blocks as in ``Call``."""
    prompt_bytes: int = 0
    divergence: Divergence | None = None
    flew: Flew | None = None
    """With whom it flew, or whose stored answer it got: it then has no attempt that finished, and costs nothing."""

    @property
    def was_stored(self) -> bool:
        """It was given a stored answer."""
        return self.flew is not None and bool(self.trail) and self.trail[0].startswith(ANSWERED)


class Admission(Struct, frozen=True, gc=False, omit_defaults=True):
    """What the journal knows of a call before its end: enough to close it as ``lost``."""

    id: str
    arrived: float
    route: str
    path: str
    model: str
    tenant: str
    stream: bool
    prompt_tokens: int
    number: int = 0
    """The attempt that was being sent; 0 while the call waits."""
    replica: str = ""
    claimed: float = 0.0
    tags: tuple[tuple[str, str], ...] = ()
    client_id: str = ""
    traceparent: str = ""


class Work(Struct, frozen=True, gc=False):
    """A replica's measured step time, taken apart: seconds for each unit of work.

    One step costs about ``fixed + prefill × prompt tokens computed + decode × sequences decoding +
    kv × tokens of KV held``. ``source`` says where the figures were measured.
    """

    prefill: float
    decode: float
    kv: float
    fixed: float = 0.0
    source: str = ""


class ReplicaSpan(Struct, frozen=True, gc=False):
    """A replica in one phase of its life. Its whole up time is the sum of its spans."""

    replica: str
    phase: Phase
    start: float
    end: float | None
    """None while it lasts; the last time it was seen alive stands in ``seen``."""
    price: int
    """Nano-dollars an hour, for the whole replica; 0 where nobody has said: its work then stays unpriced."""
    seen: float = 0.0
    accelerator: str = ""
    model: str = ""
    engine: str = ""
    probe_seconds: float = 0.0
    """Time that health probes and warm-up calls kept the replica busy within this span."""
    work: Work | None = None
    kv_capacity: int | None = None
    """Tokens of KV cache that the replica can hold; None where the engine does not say."""
    joules: float | None = None
    """Energy that its accelerators have used within this span so far; None where nobody measures it."""


Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""What an engine says that it has counted: beyond this it is a fault, and would not fit where it is stored."""


class Run(Struct, frozen=True, gc=False, array_like=True):
    """Consecutive steps of an engine in which it did the same for one request: a part of its prompt, a stretch of its
    decoding, or nothing but keep its KV. Times in epoch seconds; counts are of all its steps together."""

    start: float
    end: float
    steps: Count
    prefill: Count
    """Prompt tokens computed, those computed anew after a preemption too; cached ones are not."""
    decode: Count
    draft: Count
    """Draft tokens that were verified."""
    kv: float
    """Token-seconds of KV held. A block that several requests held counts for each as its part of it."""


Measured = Literal["steps", "times"]
"""How an engine's record was made: step by step with the blocks held, or from the request's times and counts."""


class EngineRecord(Struct, frozen=True, gc=False):
    """What an engine did for one request, by its own account. It arrives late, and is joined by ``id``."""

    sequence: Count
    """From 1, without a gap, within one life of the engine."""
    id: str
    """The engine's own: the attempt's ``<entry>.<number>`` stands in it."""
    arrived: float
    ended: float
    finish: str
    """"stop", "length", "abort", "error": as the engine says."""
    prompt: Count
    cached: Count
    output: Count
    preemptions: Count = 0
    runs: tuple[Run, ...] = ()
    measured: Measured = "steps"


class RecordGap(Struct, frozen=True, gc=False):
    """A time of which records are missing: the engine's memory overflowed, or it was started anew before they were
    read."""

    replica: str
    start: float
    end: float
    lost: int | None
    """Records; None where nobody can know."""
