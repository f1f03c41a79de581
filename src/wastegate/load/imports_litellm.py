"""LiteLLM's spend logs, as its API and a dump of its table give them. Reading only; what a row's labels become is told
in ``docs/reports.md``. Names as in LiteLLM 1.108 (table ``LiteLLM_SpendLogs``)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wastegate.core.ledger import Entry
from wastegate.load.documents import Line, Unread, decode, lines, values
from wastegate.load.imports import Note, Options, Read
from wastegate.load.imports_rows import (
    RowError,
    call,
    checked,
    identity,
    members,
    moment_of,
    number_of,
    objects,
    text_of,
    tokens_of,
)

_PATHS = {
    "completion": "/v1/chat/completions",
    "acompletion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "atext_completion": "/v1/completions",
    "responses": "/v1/responses",
    "aresponses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
"""Calls that write tokens; other types (embeddings, images, speech) are counted as left out."""
_TAG = re.compile(r"([A-Za-z0-9_-]+)[:=](.+)", re.S)
MOST_TAGS = 8


def read(path: Path, options: Options) -> Read:
    """JSON lines, a JSON list, or CSV with a header, a call a row."""
    spent, priced = 0.0, 0
    rows = _csv(path) if ".csv" in path.suffixes else objects(values(path))
    for row in rows:
        if isinstance(row, Unread):
            yield row
            continue
        where, value = row
        made = checked(where, lambda value=value: _call(value, options))  # type: ignore[misc]
        if isinstance(made, Entry) and (spend := _spend(value)):
            spent, priced = spent + spend, priced + 1
        yield made
    if priced:
        yield Note(
            f"LiteLLM's price list puts these {priced:,} calls of {path.name} at ${spent:,.6g}: a tariff, not what "
            "they cost."
        )


def _csv(path: Path) -> Iterator[tuple[str, Mapping[str, Any]] | Unread]:
    """Rows by their header. A cell may hold line breaks; the place is the line on which the row ends."""
    place = ""
    faults: list[Unread] = []

    def texts() -> Iterator[str]:
        nonlocal place
        for line in lines(path):
            place = line.where
            if isinstance(line, Line):
                yield line.text + "\n"
            else:
                faults.append(line)

    reader = csv.DictReader(texts())
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield Unread(place, "not CSV", str(error))
            return
        yield from faults
        faults.clear()
        if row is None:
            return
        if None in row or None in row.values():
            yield Unread(
                place, "not CSV", f"the row has not as many cells as the header ({len(reader.fieldnames or ())})"
            )
            continue
        yield place, row


def _spend(value: Mapping[str, Any]) -> float | None:
    try:
        return number_of(value, "spend")
    except RowError:
        return None


def _call(value: Mapping[str, Any], options: Options) -> Entry | Unread:
    kind = text_of(value, "call_type")
    if kind not in _PATHS:
        raise RowError("not a completion", f"call_type is {kind!r}")
    arrived, ended = moment_of(value, "startTime"), moment_of(value, "endTime")
    if arrived is None or ended is None:
        raise RowError("no time", "startTime or endTime is missing")
    first = moment_of(value, "completionStartTime")
    # Without a stream LiteLLM writes the end there: no first token was seen.
    stream = first is not None and first < ended
    metadata = _object(value.get("metadata"))
    details = members(members(metadata, "usage_object"), "prompt_tokens_details")
    failed = text_of(value, "status") == "failure" or text_of(metadata, "status") == "failure"
    counted = not failed or bool(tokens_of(value, "total_tokens"))
    hit = str(value.get("cache_hit", "")).lower() == "true"
    name = text_of(value, "request_id")
    return call(
        id=f"litellm-{name}" if name else identity("litellm", value.get("startTime"), value.get("endTime"), value),
        arrived=arrived,
        ended=ended,
        replica=options.replica or text_of(value, "api_base", "model_id", "custom_llm_provider"),
        model=options.model or text_of(value, "model_group", "model"),
        first_token=first if stream else None,
        stream=stream,
        outcome="failed" if failed else "finished",
        reason=text_of(members(metadata, "error_information"), "error_class") or "failure" if failed else "",
        prompt=tokens_of(value, "prompt_tokens") if counted else None,
        cached=tokens_of(details, "cached_tokens"),
        output=tokens_of(value, "completion_tokens") if counted else None,
        path=_PATHS[kind],
        tenant=text_of(value, "team_id", "end_user", "user", "api_key"),
        tags=_tags(value.get("request_tags")),
        tried=not hit,  # LiteLLM's own cache answered: no replica did anything
    )


def _object(value: object) -> Mapping[str, Any]:
    """A member that is an object, or (from the table) its text."""
    value = _decoded(value)
    return value if isinstance(value, Mapping) else {}


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        decoded: object = decode(value)
    except ValueError:
        return None
    return decoded


def _tags(value: object) -> tuple[tuple[str, str], ...]:
    """``key:value`` and ``key=value`` as they are; the agent's name, which LiteLLM adds to each, is left out."""
    listed = _decoded(value)
    found = [_TAG.fullmatch(tag) for tag in listed if isinstance(tag, str)] if isinstance(listed, list) else []
    pairs = [(match[1], match[2].strip()) for match in found if match is not None]
    return tuple(pair for pair in pairs if pair[0] != "User-Agent" and pair[1].isprintable())[:MOST_TAGS]
