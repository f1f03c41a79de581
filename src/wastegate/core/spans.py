"""A ledger's entry as OpenTelemetry spans: one for the call, one within it for each attempt. Names and values only; no
prompt, no answer, and nothing of what sends them belongs here.

Attributes ``gen_ai.*`` are those of OpenTelemetry's GenAI conventions (semantic-conventions-genai 0.1.0), on the call's
span only: a backend that adds tokens up then counts each once. What is ours is called ``wastegate.*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

from msgspec import Struct

from wastegate.core.ledger import Attempt, Entry

PROVIDER = "wastegate"
"""Not a vendor's name: a backend would put that vendor's price list to our tokens."""

Value = str | bool | int | float | tuple[str, ...]

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_HALF = 1 << 64
_FAILURES = ("failed", "refused", "lost")


class Context(Struct, frozen=True):
    """Where a client's trace goes on: W3C's ``traceparent`` taken apart."""

    trace: int
    span: int
    sampled: bool


class Event(Struct, frozen=True):
    """A moment within a span; seconds since the epoch."""

    name: str
    at: float


class Span(Struct, frozen=True):
    """One span. Times in seconds since the epoch; ``parent`` 0 where there is none."""

    name: str
    kind: Literal["server", "client"]
    trace: int
    id: int
    parent: int
    start: float
    end: float
    attributes: dict[str, Value]
    events: tuple[Event, ...] = ()
    error: str = ""
    """Empty, or what went wrong."""


class Usage(Struct, frozen=True):
    """Tokens of a call, all attempts together, as /metrics counts them; None where no attempt knows."""

    prompt: int | None
    cached: int | None
    output: int | None


def context_of(traceparent: str) -> Context | None:
    """None where a header is absent or not one, as W3C's recommendation says: a new trace then begins."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return Context(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))


def sampled(entry: Entry, share: float) -> bool:
    """Whether the call's spans are wanted. Its client's word counts; where it says none, this share of the calls."""
    context = context_of(entry.traceparent)
    if context is not None:
        return context.sampled
    return _trace(entry) % _HALF < share * _HALF


def usage(entry: Entry) -> Usage:
    """What was computed for the call; of a call that flew with another's that is nothing."""
    attempts = entry.attempts
    return Usage(
        _sum(attempts, lambda attempt: attempt.prompt_tokens),
        _sum(attempts, lambda attempt: attempt.cached_tokens),
        _sum(attempts, lambda attempt: attempt.output_tokens),
    )


def first_token(entry: Entry) -> float | None:
    """Seconds from its arrival to the first token of any attempt."""
    firsts = [attempt.first_token for attempt in entry.attempts if attempt.first_token is not None]
    return min(firsts) - entry.arrived if firsts else None


def operation(entry: Entry) -> str:
    """What the conventions call it; paths that they have no name for are named by their last part."""
    return _OPERATIONS.get(entry.path) or entry.path.rpartition("/")[2]


def labels(entry: Entry) -> dict[str, Value]:
    """A call's attributes in metrics: few values each. A model's name is the client's until a replica has served it."""
    out: dict[str, Value] = {
        "gen_ai.operation.name": operation(entry),
        "gen_ai.provider.name": PROVIDER,
        "wastegate.route": entry.route,
        "wastegate.outcome": entry.outcome,
    }
    if entry.outcome == "finished":
        out["gen_ai.request.model"] = entry.model
    if entry.outcome in _FAILURES:
        out["error.type"] = entry.outcome
    return out


def spans(entry: Entry, tenant: bool = False) -> tuple[Span, ...]:
    """The call's span, then its attempts'. Ids follow from the entry's id, so an entry sent twice is the same spans.

    ``tenant``: say who is billed, and the tags that the client gave.
    """
    context = context_of(entry.traceparent)
    trace = context.trace if context is not None else _trace(entry)
    id = _id(entry.id)
    call = Span(
        f"{operation(entry)} {entry.model}".strip(),
        "server",
        trace,
        id,
        context.span if context is not None else 0,
        entry.arrived,
        entry.ended,
        _call(entry, tenant),
        error=(entry.reason or entry.outcome) if entry.outcome in _FAILURES else "",
    )
    return (call, *(_attempt(entry, attempt, trace, id) for attempt in entry.attempts))


def _call(entry: Entry, tenant: bool) -> dict[str, Value]:
    used = usage(entry)
    wait = first_token(entry) if entry.stream else None
    out: dict[str, Value | None] = {
        **labels(entry),
        "gen_ai.request.model": entry.model or None,
        "gen_ai.request.stream": entry.stream,
        "gen_ai.response.finish_reasons": (entry.finish_reason,) if entry.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": wait,
        "gen_ai.usage.input_tokens": used.prompt,
        "gen_ai.usage.cache_read.input_tokens": used.cached,
        "gen_ai.usage.output_tokens": used.output,
        "http.response.status_code": entry.status or None,
        "wastegate.call.id": entry.id,
        "wastegate.reason": entry.reason or None,
        "wastegate.trail": entry.trail or None,
        "wastegate.flew_with": entry.flew.call if entry.flew is not None else None,
    }
    if tenant:
        out["wastegate.tenant"] = entry.tenant
        out.update({f"wastegate.tag.{name}": value for name, value in entry.tags})
    return _known(out)


def _attempt(entry: Entry, attempt: Attempt, trace: int, parent: int) -> Span:
    moments = (("sent", attempt.sent), ("first byte", attempt.first_byte), ("first token", attempt.first_token))
    failed = attempt.outcome in _FAILURES
    attributes: dict[str, Value | None] = {
        "wastegate.attempt": attempt.number,
        "wastegate.replica": attempt.replica,
        "wastegate.outcome": attempt.outcome,
        "wastegate.reason": attempt.reason or None,
        "wastegate.usage": attempt.usage,
        "wastegate.input_tokens": attempt.prompt_tokens,
        "wastegate.cached_tokens": attempt.cached_tokens,
        "wastegate.output_tokens": attempt.output_tokens,
        "http.response.status_code": attempt.status,
        "error.type": attempt.outcome if failed else None,
    }
    return Span(
        f"attempt {attempt.replica}",
        "client",
        trace,
        _id(f"{entry.id}.{attempt.number}"),
        parent,
        attempt.claimed,
        attempt.ended,
        _known(attributes),
        tuple(Event(name, at) for name, at in moments if at is not None),
        (attempt.reason or attempt.outcome) if failed else "",
    )


def _known(attributes: dict[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _sum(attempts: tuple[Attempt, ...], of: Callable[[Attempt], int | None]) -> int | None:
    known = [count for attempt in attempts if (count := of(attempt)) is not None]
    return sum(known) if known else None


def _trace(entry: Entry) -> int:
    """16 bytes for a trace of our own; never 0, which means none."""
    return _digest(entry.id, 16)


def _id(name: str) -> int:
    return _digest(name, 8)


def _digest(name: str, size: int) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=size).digest(), "big") or 1
