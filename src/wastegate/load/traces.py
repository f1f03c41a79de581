"""Traces of traffic, read from four formats into rows: when a call came, how long it was, what it shares. Reading
only: no clock, no scaling and no network enter here."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from wastegate.load.rows import BLOCK_TOKENS, MOST_TOKENS, Format, HangUp, Line, Row, Trace, TraceError

_TAG_NAME = re.compile(r"[A-Za-z0-9_-]+")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SAMPLING = (
    "temperature top_p top_k min_p seed stop n presence_penalty frequency_penalty repetition_penalty logit_bias "
    "ignore_eos min_tokens response_format tools tool_choice priority user"
)
_PARAMS = frozenset(_SAMPLING.split())
"""Members of a ``messages`` row that go to the server as they are. Anything else belongs under ``body``."""
_OWN = "timestamp messages prompt max_tokens max_completion_tokens model stream tenant route tags hang_up_after body"
_KNOWN = _PARAMS | set(_OWN.split())


SAMPLE = Path(__file__).with_name("sample.jsonl")
"""Traffic of our own to begin with: a minute and a half of a small shop's assistant, three tenants, some of whose
customers hang up."""


def read(path: Path, form: Format | None = None, limit: int | None = None) -> Trace:
    """The rows of a trace, in the order of the file; at most ``limit``. The format is found from the content.

    Raises TraceError for a file that cannot be read, is empty, or has a bad row.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty; a trace needs at least one row")
    found = form or detect(first)
    strangers: dict[str, int] = {}
    rows: list[Row] = []
    for row in _rows(found, first, lines, strangers):
        rows.append(row)
        if limit is not None and len(rows) >= limit:
            break
    if not rows:
        raise TraceError(f"{path}: there is a header but no row under it; a trace needs at least one")
    timed = sum(row.at is not None for row in rows)
    if 0 < timed < len(rows):
        bare = next(row for row in rows if row.at is None)
        raise TraceError(
            f"{path}, line {bare.line}: this row has no timestamp but others have; give all of them one, or none"
        )
    notes = (
        f"member {name!r} is not known and was left out (first in line {number}); put extras under body"
        for name, number in strangers.items()
    )
    return Trace(str(path), found, tuple(rows), tuple(notes))


def detect(first: Line) -> Format:
    """The format, from a file's first line. Raises TraceError with what each format looks like."""
    if first.text.lstrip().startswith("{"):
        members = _object(first).keys()
        if "messages" in members or "prompt" in members:
            return "messages"
        if "hash_ids" in members or {"input_length", "output_length"} <= members:
            return "mooncake"
        if "arrived" in members:
            return "export"
        said = "a JSON object with the members " + (", ".join(sorted(members)) or "(none)")
    else:
        if set(_AZURE) <= set(_cells(first)):
            return "azure"
        said = f"{first.text.strip()[:60]!r}"
    raise first.error(
        f"not a known trace: it begins with {said}. Known are a CSV with the header {','.join(_AZURE)} (azure); "
        "JSON lines with timestamp, input_length, output_length and hash_ids (mooncake); JSON lines with messages "
        "or prompt (messages); and exported ledger entries with arrived (export). --format NAME forces one"
    )


def _lines(path: Path) -> Iterator[Line]:
    """The lines that hold something. A bad byte is an error with its place, never a replacement sign."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened: {error.strerror or error}") from None
    with file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                text = raw.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TraceError(
                    f"{path}, line {number}, column {error.start + 1}: not UTF-8 text; save the file as UTF-8"
                ) from None
            if text.strip():
                yield Line(path, number, text)


def _rows(form: Format, first: Line, rest: Iterator[Line], strangers: dict[str, int]) -> Iterator[Row]:
    if form == "azure":
        yield from _azure(first, rest)
        return
    readers: dict[str, Callable[[Line, dict[str, Any]], Row]] = {"mooncake": _mooncake, "export": _export}
    reader = readers.get(form, _messages)
    for line in chain((first,), rest):
        yield reader(line, _seen(form, line, strangers))


def _seen(form: Format, line: Line, strangers: dict[str, int]) -> dict[str, Any]:
    """The line's object; names that a ``messages`` row does not know are noted, since one may be misspelt."""
    members = _object(line)
    if form == "messages" and len(strangers) < 20:
        for name in members.keys() - _KNOWN:
            strangers.setdefault(name, line.number)
    return members


# ---- Azure: TIMESTAMP,ContextTokens,GeneratedTokens


def _azure(header: Line, lines: Iterator[Line]) -> Iterator[Row]:
    names = _cells(header)
    missing = [name for name in _AZURE if name not in names]
    if missing:
        raise header.error(f"the header lacks {', '.join(missing)}; it must name {','.join(_AZURE)}", 1)
    at, context, generated = (names.index(name) for name in _AZURE)
    for line in lines:
        cells = _cells(line)
        if len(cells) != len(names):
            raise line.error(f"{len(cells)} cells where the header has {len(names)}", len(line.text) + 1)
        yield Row(
            line=line.number,
            at=_moment(line, cells, at),
            input_tokens=_whole_cell(line, cells, context, _AZURE[1]),
            output_tokens=_whole_cell(line, cells, generated, _AZURE[2]),
        )


def _cells(line: Line) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.text]), [])]
    except csv.Error as error:
        raise line.error(f"not CSV: {error}") from None


def _column(cells: list[str], index: int) -> int:
    return sum(len(cell) + 1 for cell in cells[:index]) + 1


def _moment(line: Line, cells: list[str], index: int) -> float:
    """Seconds since the epoch, UTC where no zone is given. Digits past the microsecond are dropped."""
    try:
        moment = datetime.fromisoformat(cells[index])
    except ValueError:
        raise line.error(
            f"TIMESTAMP is {cells[index]!r}; it must look like 2023-11-16 18:15:46.6805900", _column(cells, index)
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _whole_cell(line: Line, cells: list[str], index: int, name: str) -> int:
    cell = cells[index]
    if not (cell.isascii() and cell.isdigit() and len(cell) <= 12 and int(cell) <= MOST_TOKENS):
        raise line.error(f"{name} is {cell[:20]!r}; it must be a whole number of tokens", _column(cells, index))
    return int(cell)


# ---- JSON lines


def _object(line: Line) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(line.text)
    except RecursionError:
        raise line.error("not JSON: nested too deeply", 1) from None
    except msgspec.DecodeError as error:
        problem, column = str(error), 1
        try:
            json.loads(line.text)  # slower, but it knows the column
        except json.JSONDecodeError as place:
            problem, column = place.msg, place.colno
        raise line.error(f"not JSON: {problem}", column) from None
    if not isinstance(members, dict):
        raise line.error(f"a {type(members).__name__} where a JSON object is needed", 1)
    return members


def _mooncake(line: Line, members: dict[str, Any]) -> Row:
    length = line.tokens_in(members, "input_length")
    blocks = members.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise line.wrong("hash_ids", "must be a list of whole numbers")
    most = -(-length // BLOCK_TOKENS)
    if len(blocks) > most:
        raise line.wrong(
            "hash_ids", f"{len(blocks)} blocks of {BLOCK_TOKENS} tokens, but input_length is {length}: {most} suffice"
        )
    return Row(
        line=line.number,
        at=line.number_in(members, "timestamp") / 1000,
        input_tokens=length,
        output_tokens=line.tokens_in(members, "output_length"),
        blocks=tuple(blocks),
    )


def _messages(line: Line, members: dict[str, Any]) -> Row:
    messages, prompt = members.get("messages"), members.get("prompt")
    if (messages is None) == (prompt is None):
        raise line.error("a row needs either messages or prompt", 1)
    if prompt is not None and not isinstance(prompt, str):
        raise line.wrong("prompt", "must be a string")
    if messages is not None and not _are_messages(messages):
        raise line.wrong("messages", "must be a list of objects, each with a role, and at least one")
    name = "max_tokens" if "max_tokens" in members else "max_completion_tokens"
    body = members.get("body", {})
    if not isinstance(body, dict):
        raise line.wrong("body", "must be an object: it is added to the request as it is")
    stream = members.get("stream", True)
    if not isinstance(stream, bool):
        raise line.wrong("stream", "must be true or false")
    return Row(
        line=line.number,
        at=_time(line, members),
        output_tokens=line.tokens_in(members, name) if name in members else None,
        messages=tuple(messages) if messages is not None else None,
        prompt=prompt,
        params={**{key: members[key] for key in members if key in _PARAMS}, **body},
        stream=stream,
        hang_up=_hang_up(line, members),
        **_labels(line, members),
    )


def _are_messages(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)


def _time(line: Line, members: dict[str, Any]) -> float | None:
    """``timestamp`` in seconds, or as an ISO 8601 moment."""
    value = members.get("timestamp")
    if value is None:
        return None
    if not isinstance(value, str):
        return line.number_in(members, "timestamp")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise line.wrong("timestamp", f"{value!r} is neither seconds nor a moment like 2026-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _hang_up(line: Line, members: dict[str, Any]) -> HangUp | None:
    """``2.5`` (seconds), ``{"seconds": 2.5}`` or ``{"tokens": 12}``."""
    value = members.get("hang_up_after")
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {"tokens"}:
        if type(value["tokens"]) is int and value["tokens"] >= 1:
            return HangUp(tokens=value["tokens"])
    else:
        seconds = value.get("seconds") if isinstance(value, dict) and len(value) == 1 else value
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
            return HangUp(seconds=float(seconds))
    raise line.wrong("hang_up_after", 'must be seconds above 0, {"seconds": 2.5} or {"tokens": 12}')


def _export(line: Line, members: dict[str, Any]) -> Row:
    """A ledger entry. Counts stand in the entry or in its attempts, where the last one that knows is taken."""
    attempts = members.get("attempts", [])
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise line.wrong("attempts", "must be a list of objects")
    counts: dict[str, int | None] = {}
    for name in ("prompt_tokens", "output_tokens"):
        holders = [holder for holder in (members, *reversed(attempts)) if holder.get(name) is not None]
        counts[name] = line.tokens_in(holders[0], name) if holders else None
    arrived = line.number_in(members, "arrived")
    left = members.get("outcome") == "hung_up" and members.get("ended") is not None
    patience = line.number_in(members, "ended") - arrived if left else 0.0
    stream = members.get("stream", True)
    return Row(
        line=line.number,
        at=arrived,
        input_tokens=counts["prompt_tokens"],
        output_tokens=counts["output_tokens"],
        stream=stream is not False,
        hang_up=HangUp(seconds=patience) if patience > 0 else None,
        **_labels(line, members),
    )


def _labels(line: Line, members: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for name in ("tenant", "route", "model"):
        value = members.get(name)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise line.wrong(name, "must be a string on one line")
        labels[name] = value or ""
    tags = members.get("tags") or {}
    pairs = list(tags.items()) if isinstance(tags, dict) else tags
    try:
        labels["tags"] = msgspec.convert(pairs, tuple[tuple[str, str], ...])
    except msgspec.ValidationError:
        raise line.wrong("tags", 'must be an object of strings, such as {"feature": "search"}') from None
    for name, value in labels["tags"]:
        if not _TAG_NAME.fullmatch(name) or not value.isprintable():
            raise line.wrong("tags", f"{name!r} cannot be sent as a header: use letters, digits, - and _ in its name")
    return labels
