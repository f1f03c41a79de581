"""The columns of an export: what each is called, what it means, and where it comes from. No file format and no file
enter here; ``docs/reports.md`` shows the same columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from wastegate.core.ledger import Attempt, Entry
from wastegate.store.export import Bill, Call, Charge

Kind = Literal["string", "int64", "double", "bool"]
Item = TypeVar("Item")


class Column(Struct, Generic[Item], frozen=True):
    """One column: its name, its kind as Arrow calls it, what it means, and how it is read."""

    name: str
    kind: Kind
    about: str
    read: Callable[[Item], Any]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _of(part: Struct | None, name: str) -> Any:
    """A member of something that a call need not have."""
    return None if part is None else getattr(part, name)


class Tried(Struct, frozen=True, gc=False):
    """One attempt of a call, with what it cost."""

    entry: Entry
    attempt: Attempt
    charge: Charge


ENTRIES: tuple[Column[Call], ...] = (
    Column("id", "string", "the call's id: x-request-id of its response", lambda c: c.entry.id),
    Column("arrived", "double", "when it arrived, seconds since the epoch", lambda c: c.entry.arrived),
    Column("ended", "double", "when its client had the end, or was gone", lambda c: c.entry.ended),
    Column("route", "string", "what kind of call it is", lambda c: c.entry.route),
    Column("path", "string", "the HTTP path", lambda c: c.entry.path),
    Column("model", "string", "the model asked for", lambda c: c.entry.model),
    Column("tenant", "string", "who is billed", lambda c: c.entry.tenant),
    Column("length_class", "string", "short, medium or long, by its prompt", lambda c: c.entry.length_class),
    Column("stream", "bool", "whether a stream was asked for", lambda c: c.entry.stream),
    Column("outcome", "string", "finished, failed, refused, hung_up or lost", lambda c: c.entry.outcome),
    Column("status", "int64", "the HTTP status that the client was sent; 0: nobody knows", lambda c: c.entry.status),
    Column("reason", "string", "what went wrong, or empty", lambda c: c.entry.reason),
    Column("finish_reason", "string", "why the model stopped", lambda c: c.entry.finish_reason),
    Column("attempts", "int64", "how many attempts it had", lambda c: len(c.charges)),
    Column("cost_nano", "int64", "what all its attempts cost, nano-dollars", lambda c: sum(x.cost for x in c.charges)),
    Column("naive_nano", "int64", "by the usual formula, nano-dollars", lambda c: sum(x.naive for x in c.charges)),
    Column("priced", "bool", "false: part of it ran at no known price", lambda c: all(x.priced for x in c.charges)),
    Column("tags", "string", "a JSON list of [key, value]", lambda c: _json(c.entry.tags)),
    Column("trail", "string", "a JSON list: why each decision fell as it did", lambda c: _json(c.entry.trail)),
    Column("client_id", "string", "the id that the client sent, or empty", lambda c: c.entry.client_id),
    Column("traceparent", "string", "the trace context that the client sent", lambda c: c.entry.traceparent),
    Column("prompt_bytes", "int64", "of the prompt as it stood in the body", lambda c: c.entry.prompt_bytes),
    Column("flew_with", "string", "the id of the call whose answer it shared", lambda c: _of(c.entry.flew, "call")),
    Column("diverges_at", "int64", "bytes shared with a prompt before", lambda c: _of(c.entry.divergence, "at")),
    Column("diverges_by", "string", "what parts them: time, id, text …", lambda c: _of(c.entry.divergence, "by")),
    Column("same_again", "int64", "bytes that are the same behind it", lambda c: _of(c.entry.divergence, "again")),
)
ATTEMPTS: tuple[Column[Tried], ...] = (
    Column("entry", "string", "the id of its call", lambda t: t.entry.id),
    Column("number", "int64", "from 1", lambda t: t.attempt.number),
    Column("replica", "string", "where it ran", lambda t: t.attempt.replica),
    Column("claimed", "double", "when its slot was taken", lambda t: t.attempt.claimed),
    Column("sent", "double", "when it was sent; empty where it was not", lambda t: t.attempt.sent),
    Column("first_byte", "double", "when the first byte of the answer came", lambda t: t.attempt.first_byte),
    Column("first_token", "double", "when the first token came", lambda t: t.attempt.first_token),
    Column("ended", "double", "when it was over", lambda t: t.attempt.ended),
    Column("outcome", "string", "as of a call", lambda t: t.attempt.outcome),
    Column("status", "int64", "the replica's HTTP status", lambda t: t.attempt.status),
    Column("reason", "string", "what went wrong, or empty", lambda t: t.attempt.reason),
    Column("prompt_tokens", "int64", "empty where nobody counted", lambda t: t.attempt.prompt_tokens),
    Column("cached_tokens", "int64", "of them in the prefix cache", lambda t: t.attempt.cached_tokens),
    Column("output_tokens", "int64", "empty where nobody counted", lambda t: t.attempt.output_tokens),
    Column("usage", "string", "who counted: engine, counted, estimated or none", lambda t: t.attempt.usage),
    Column("cost_nano", "int64", "its part of the bill, nano-dollars", lambda t: t.charge.cost),
    Column("prefill_nano", "int64", "of that, prefill", lambda t: t.charge.prefill),
    Column("decode_nano", "int64", "of that, decode", lambda t: t.charge.decode),
    Column("kv_nano", "int64", "of that, KV held", lambda t: t.charge.kv),
    Column("naive_nano", "int64", "rate × duration × memory share", lambda t: t.charge.naive),
    Column("estimate_nano", "int64", "its cost by what the gateway alone saw", lambda t: t.charge.estimate),
    Column("joules", "double", "its part of the energy; empty where unknown", lambda t: t.charge.joules),
    Column("recorded", "bool", "true: its engine told what it did for it", lambda t: t.charge.recorded),
    Column("priced", "bool", "false: its replica had no known price", lambda t: t.charge.priced),
    Column("waste", "string", "why its cost is waste; empty: it is not", lambda t: t.charge.waste),
)
REPLICAS: tuple[Column[Bill], ...] = (
    Column("replica", "string", "its name", lambda b: b.replica),
    Column("bill_nano", "int64", "price × up time, nano-dollars", lambda b: b.bill),
    Column("requests_nano", "int64", "of that, what its attempts cost", lambda b: b.requests),
    Column("idle_nano", "int64", "of that, up with nobody in flight", lambda b: b.idle),
    Column("overhead_nano", "int64", "of that, loading, warm-up, draining, probes", lambda b: b.overhead),
    Column("up_seconds", "double", "up at a known price", lambda b: b.up),
    Column("busy_seconds", "double", "of that, with an attempt in flight", lambda b: b.busy),
    Column("serving_seconds", "double", "of that, ready to serve", lambda b: b.serving),
    Column("unpriced_seconds", "double", "up at no known price", lambda b: b.unpriced),
    Column("outside_seconds", "double", "attempts outside its known up time", lambda b: b.outside),
    Column("joules", "double", "energy; empty where unknown", lambda b: b.joules),
    Column("basis", "string", "EXACT, DEGRADED or GATEWAY: how sure the shares are", lambda b: b.basis),
    Column("work", "string", "where its cost of work comes from", lambda b: b.work),
)
