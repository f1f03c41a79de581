"""Spans of model calls in OTLP's JSON, as a collector's file exporter writes them. Reading only. Attribute names are
those of OpenTelemetry's GenAI conventions, old and new, and of vLLM 0.32's own spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from wastegate.core.ledger import Entry
from wastegate.load.documents import Unread, values
from wastegate.load.imports import Options, Read
from wastegate.load.imports_rows import RowError, call, checked, identity, number_of, objects, text_of, tokens_of

OPERATIONS = {
    "chat": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "generate_content": "/v1/chat/completions",
}
_VLLM = "llm_request"
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
_FIRST = (
    "gen_ai.latency.time_to_first_token",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.server.time_to_first_token",
)
"""Seconds from the span's start."""
_TENANT = ("wastegate.tenant", "tenant.id", "enduser.id", "user.id")


class _Span(Struct, frozen=True):
    where: str
    body: Mapping[str, Any]
    resource: Mapping[str, Any]


def read(path: Path, options: Options) -> Read:
    """Export requests as JSON, one a line or one a file; a span is a row. A span within another model call's span (the
    engine's within its client's) is that call seen twice: it is left out, and what only it knows is taken over."""
    family = _Family(path)
    for span in _spans(path):
        if isinstance(span, Unread):
            yield span
            continue
        yield checked(span.where, lambda span=span: _call(span, family, options))  # type: ignore[misc]


def _spans(path: Path) -> Iterator[_Span | Unread]:
    for row in objects(values(path)):
        if isinstance(row, Unread):
            yield row
            continue
        where, request = row
        groups = request.get("resourceSpans")
        if not isinstance(groups, list):
            yield Unread(where, "no spans", "resourceSpans is missing: not an OTLP request for traces")
            continue
        count = 0
        for group in groups:
            resource = _attributes(_inner(group, "resource"))
            for scope in _list(group, "scopeSpans"):
                for span in _list(scope, "spans"):
                    count += 1
                    yield _Span(f"{where}, span {count}", span if isinstance(span, Mapping) else {}, resource)


def _inner(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _list(value: object, name: str) -> list[Any]:
    found = _inner(value, name)
    return found if isinstance(found, list) else []


def _attributes(value: object) -> dict[str, Any]:
    """Plain values by name; lists and maps are left out. Whole numbers are texts in OTLP's JSON."""
    found: dict[str, Any] = {}
    for pair in _list(value, "attributes"):
        inner = _inner(pair, "value")
        for kind in ("stringValue", "intValue", "doubleValue", "boolValue"):
            if isinstance(inner, Mapping) and kind in inner:
                found[str(_inner(pair, "key"))] = inner[kind]
    return found


class _Known(NamedTuple):
    """What one span says of its call."""

    first: float | None
    """When the first token came, seconds since the epoch."""
    prompt: int | None
    cached: int | None
    output: int | None

    @classmethod
    def of(cls, body: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Known:
        wait = next((wait for name in _FIRST if (wait := number_of(attributes, name)) is not None), None)
        return cls(
            first=_time(body, "startTimeUnixNano") + max(wait, 0.0) if wait is not None else None,
            prompt=tokens_of(attributes, *_PROMPT),
            cached=tokens_of(attributes, *_CACHED),
            output=tokens_of(attributes, *_OUTPUT),
        )

    def filled(self, other: _Known) -> _Known:
        """Where this one says nothing, the other."""
        return _Known(
            self.first if self.first is not None else other.first,
            self.prompt if self.prompt is not None else other.prompt,
            self.cached if self.cached is not None else other.cached,
            self.output if self.output is not None else other.output,
        )


class _Family:
    """Which spans of a file are model calls, and which stand within which: a parent may come after its children."""

    def __init__(self, path: Path) -> None:
        self._parents: dict[str, str] = {}
        self._calls: dict[str, _Known | None] = {}
        for span in _spans(path):
            if isinstance(span, _Span):
                name, attributes = _id(span.body, "spanId"), _attributes(span.body)
                self._parents[name] = _id(span.body, "parentSpanId")
                if _is_call(span.body, attributes):
                    self._calls[name] = _known(span.body, attributes)
        self._within: dict[str, list[str]] = {}
        for name in self._calls:
            if outer := self.around(name):
                self._within.setdefault(outer, []).append(name)

    def around(self, name: str) -> str:
        """The nearest model call that the span stands within; empty where there is none."""
        above, steps = self._parents.get(name, ""), 0
        while above and above not in self._calls and steps < len(self._parents):
            above, steps = self._parents.get(above, ""), steps + 1
        return above if above in self._calls and above != name else ""

    def within(self, name: str) -> _Known | None:
        """What the only model call within this one says; of several nobody knows which answered."""
        inner = self._within.get(name, [])
        return self._calls[inner[0]] if len(inner) == 1 else None


def _known(body: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Known | None:
    try:
        return _Known.of(body, attributes)
    except RowError:
        return None  # told when it is read as a row


def _id(body: Mapping[str, Any], name: str) -> str:
    """Unique within the file: span ids are unique within a trace only."""
    span = text_of(body, name)
    return f"{text_of(body, 'traceId')}/{span}" if span else ""


def _is_call(body: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in OPERATIONS
    return body.get("name") == _VLLM or any(name in attributes for name in (*_PROMPT, *_OUTPUT))


def _call(span: _Span, family: _Family, options: Options) -> Entry:
    body, attributes = span.body, _attributes(span.body)
    if not _is_call(body, attributes):
        raise RowError("not a model call", f"span {body.get('name')!r:.60}")
    name = _id(body, "spanId")
    if family.around(name):
        raise RowError("part of another call", f"span {body.get('name')!r:.60} is within another model call's span")
    arrived, ended = _time(body, "startTimeUnixNano"), _time(body, "endTimeUnixNano")
    known = _Known.of(body, attributes)
    if inner := family.within(name):
        known = known.filled(inner)
    failed = bool(attributes.get("error.type")) or _inner(body.get("status"), "code") in (2, "STATUS_CODE_ERROR")
    trace, own = text_of(body, "traceId"), text_of(body, "spanId")
    return call(
        id=f"otlp-{trace}-{own}" if trace and own else identity("otlp", body),
        arrived=arrived,
        ended=ended,
        replica=options.replica or _replica(attributes, span.resource),
        model=options.model or text_of(attributes, "gen_ai.request.model", "gen_ai.response.model"),
        # A first token a little outside of the span is two clocks that differ, not another call.
        first_token=None if known.first is None else min(max(known.first, arrived), max(ended, arrived)),
        stream=known.first is not None or attributes.get("gen_ai.request.stream") is True,
        outcome="failed" if failed else "finished",
        reason=str(attributes.get("error.type", "error")) if failed else "",
        prompt=known.prompt,
        cached=known.cached,
        output=known.output,
        path=OPERATIONS.get(str(attributes.get("gen_ai.operation.name")), "/v1/chat/completions"),
        tenant=text_of({**span.resource, **attributes}, *_TENANT),
        traceparent=f"00-{trace}-{own}-01" if len(trace) == 32 and len(own) == 16 else "",
    )


def _time(body: Mapping[str, Any], name: str) -> float:
    nanoseconds = number_of(body, name)
    if not nanoseconds:
        raise RowError("no time", f"{name} is missing")
    return nanoseconds / 1e9


def _replica(attributes: Mapping[str, Any], resource: Mapping[str, Any]) -> str:
    """The server that was called; for a server's own span, that server."""
    if server := text_of(attributes, "server.address"):
        port = attributes.get("server.port")
        return f"{server}:{port}" if port else server
    return text_of(resource, "service.instance.id", "host.name", "service.name")
