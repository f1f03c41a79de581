"""What vLLM 0.32 says of single requests: the ``metrics`` in its responses, and its log of requests. Reading only; no
text of a prompt or an answer is kept.

Responses carry metrics with ``--enable-per-request-metrics``. The log has arrivals with ``--enable-log-requests``, ends
with ``--enable-log-outputs``, and token lists at the level DEBUG.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from wastegate.core.ledger import Entry
from wastegate.load.documents import Line, Unread, Value, decode, lines, values
from wastegate.load.imports import Note, Options, Read
from wastegate.load.imports_rows import (
    RowError,
    call,
    checked,
    identity,
    members,
    number_of,
    objects,
    text_of,
    tokens_of,
)

NO_END = "no last chunk"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG = re.compile(r"(?:\([^)]*\)\s+)?(?:DEBUG|INFO|WARNING|ERROR)\s+(\d\d-\d\d \d\d:\d\d:\d\d)\S*\s+\[[^\]]*\]\s+(.*)")
_RECEIVED = re.compile(r"Received request (\S+): ")
_DETAILS = re.compile(r"Request (\S+) details: .*prompt_token_ids: \[([^\]]*)\]")
_TOKENS = re.compile(r"Generated response (\S+?)(?: \(streaming \w+\))? details: output_token_ids: \[([^\]]*)\]")
_DELTA = re.compile(r"Generated response (\S+) \(streaming delta\): output: .*finish_reason: (\S*)$")
_ABORTED = re.compile(r"Request (\S+?)(?:-[0-9a-f]{8})? aborted\.$")
_ENDED = re.compile(r"Generated response (\S+?)( \(streaming complete\))?: output: .*finish_reason: (\S*)$")


def read(path: Path, options: Options) -> Read:
    """Responses (JSON lines, a list, or the raw ``data:`` lines of streams), or a log."""
    head = next((line for line in lines(path) if isinstance(line, Line)), None)
    if head is None:
        return
    if head.text.lstrip().startswith(("{", "[", "data:")):
        yield from _responses(path, options, raw=head.text.startswith("data:"))
    else:
        yield from _log(path, options)


# ---- responses


def _responses(path: Path, options: Options, raw: bool) -> Read:
    yield Note(
        "vLLM's responses say in whole seconds when a call was created: arrivals, and so how calls in flight "
        "together share, are no finer than that."
    )
    open_: dict[str, str] = {}
    for row in objects(_chunks(path) if raw else values(path)):
        if isinstance(row, Unread):
            yield row
            continue
        where, value = row
        made = checked(where, lambda value=value: _response(value, options))  # type: ignore[misc]
        name = text_of(members(value, "response") or value, "id")
        if isinstance(made, Entry):
            open_.pop(name, None)
        elif made.reason == NO_END:
            open_.setdefault(name, where)
        yield made
    if open_:
        first = next(iter(open_.values()))
        yield Note(
            f"{len(open_):,} streams of {path.name} have no last chunk (the first begins at {first}): they broke off "
            "or were left, and are not imported."
        )


def _chunks(path: Path) -> Iterator[Value | Unread]:
    """The values of ``data:`` lines. What ends a stream is no row."""
    for line in lines(path):
        if isinstance(line, Unread):
            yield line
            continue
        text = line.text.removeprefix("data:").strip()
        if text == "[DONE]":
            continue
        try:
            yield Value(line.where, decode(text))
        except ValueError as error:
            yield Unread(line.where, "not JSON", str(error))


def _response(value: Mapping[str, Any], options: Options) -> Entry:
    value = members(value, "response") or value
    kind = text_of(value, "object")
    metrics, usage = members(value, "metrics"), members(value, "usage")
    if not metrics:
        if kind == "chat.completion.chunk" or ("choices" in value and not usage):
            raise RowError(NO_END, "only the last chunk of a stream has metrics")
        raise RowError("no metrics", "metrics is missing: start vLLM with --enable-per-request-metrics")
    created = number_of(value, "created")
    first = number_of(metrics, "time_to_first_token_ms")
    if created is None or first is None:
        raise RowError("no time", "created or metrics.time_to_first_token_ms is missing")
    # vLLM counts its time to first token from when the request was scheduled: the queue comes before it.
    token = created + ((number_of(metrics, "queue_time_ms") or 0.0) + first) / 1000
    name = text_of(value, "id")
    return call(
        id=f"vllm-{name}" if name else identity("vllm", value),
        arrived=created,
        ended=token + (number_of(metrics, "generation_time_ms") or 0.0) / 1000,
        replica=options.replica or "vllm",
        model=options.model or text_of(value, "model"),
        first_token=token,
        stream=kind.endswith(".chunk"),
        prompt=tokens_of(usage, "prompt_tokens"),
        cached=tokens_of(members(usage, "prompt_tokens_details"), "cached_tokens"),
        output=tokens_of(usage, "completion_tokens"),
        path="/v1/chat/completions" if kind.startswith("chat") else "/v1/completions",
    )


# ---- the log


class _Seen:
    """One request, as far as the log has told of it."""

    def __init__(self, where: str, arrived: datetime, prompt: int | None) -> None:
        self.where, self.arrived, self.prompt = where, arrived, prompt
        self.first: datetime | None = None
        self.output: int | None = None
        self.finish = ""


def _log(path: Path, options: Options) -> Read:
    """A row is a request: one that was received, or whose end stands there without a beginning."""
    clock = _Clock(datetime.fromtimestamp(options.start if options.start is not None else path.stat().st_mtime))
    open_: dict[str, _Seen] = {}
    lengths: dict[str, int] = {}  # of prompts: vllm tells them just before it says that it received the request
    listed = rows = 0
    for line in lines(path):
        if isinstance(line, Unread):
            yield line
            continue
        found = _LOG.match(_COLOUR.sub("", line.text))
        if found is None:
            continue  # another writer's line, or the rest of a message
        when, message = clock.read(found[1]), found[2]
        if when is None:
            yield Unread(line.where, "bad time", f"{found[1]} was in no year about that time")
            continue
        if match := _RECEIVED.match(message):
            open_[match[1]] = _Seen(line.where, when, lengths.pop(match[1], None))
            lengths.clear()
        elif match := _DETAILS.match(message):
            lengths[match[1]] = _listed(match[2])
        elif match := _ENDED.match(message) or _ABORTED.match(message):
            rows += 1
            seen = open_.pop(match[1], None)
            if seen is None:
                yield Unread(line.where, "no beginning", f"{match[1]} ends here; that it was received stands nowhere")
                continue
            listed += seen.output is not None
            yield checked(seen.where, lambda m=match, s=seen, w=when: _logged(m, s, w, options))  # type: ignore[misc]
        else:
            _detail(message, when, open_)
    for name, seen in open_.items():
        yield Unread(
            seen.where,
            "no end",
            f"{name}: vLLM writes ends with --enable-log-outputs, and version 0.32 of chats only",
        )
    if rows:
        yield Note("vLLM's log has times in whole seconds: latencies and shares are no finer than that.")
    if listed:
        yield Note(
            "Token counts are the lengths of the token lists in the log, taken as estimates: --max-log-len would cut "
            "them short."
        )


def _detail(message: str, when: datetime, open_: Mapping[str, _Seen]) -> None:
    """What stands between a request's beginning and its end."""
    if match := _TOKENS.match(message):
        if seen := open_.get(match[1]):
            seen.output = (seen.output or 0) + _listed(match[2])
    elif (match := _DELTA.match(message)) and (seen := open_.get(match[1])):
        seen.first = seen.first or when
        seen.finish = match[2] if match[2] != "None" else seen.finish


def _listed(text: str) -> int:
    return text.count(",") + 1 if text.strip() else 0


def _logged(match: re.Match[str], seen: _Seen, when: datetime, options: Options) -> Entry:
    aborted = match.re is _ABORTED
    stream = seen.first is not None or (not aborted and bool(match[2]))
    return call(
        id=f"vllm-{match[1]}",
        arrived=seen.arrived.timestamp(),
        ended=when.timestamp(),
        replica=options.replica or "vllm",
        model=options.model,
        first_token=seen.first.timestamp() if seen.first is not None else None,
        stream=stream,
        outcome="hung_up" if aborted else "finished",
        reason="aborted" if aborted else "",
        finish_reason=seen.finish or ("" if aborted else match[3]),
        prompt=seen.prompt,
        output=seen.output,
        usage="estimated",
        path="/v1/chat/completions" if match[1].startswith("chatcmpl") else "/v1/completions",
    )


class _Clock:
    """Dates without a year, of a log that ends about ``near``, which is local time: the year that comes closest."""

    def __init__(self, near: datetime) -> None:
        self._near = near

    def read(self, text: str) -> datetime | None:
        years = [self._near.year + step for step in (-1, 0, 1)]
        found = []
        for year in years:
            try:
                found.append(datetime.strptime(f"{year}-{text}", "%Y-%m-%d %H:%M:%S"))
            except ValueError:  # the 29th of February, in another year
                pass
        return min(found, key=lambda moment: abs(moment - self._near), default=None)
