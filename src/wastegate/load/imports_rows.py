"""What the readers of other tools' records share: from a row's members to a call, with a reason where there is none. No
file and no tool's names enter here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from wastegate.core.call import length_class
from wastegate.core.ledger import Attempt, Entry, Outcome, UsageSource
from wastegate.load.documents import Unread
from wastegate.load.rows import MOST_TOKENS

HORIZON = 4e9
"""Seconds since the epoch (2096): a later moment is another unit."""


class RowError(ValueError):
    """A row that cannot be a call. ``reason`` is one of few, ``detail`` says what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def checked(where: str, make: Callable[[], Entry | Unread]) -> Entry | Unread:
    """The entry, or why there is none and where."""
    try:
        return make()
    except RowError as error:
        return Unread(where, error.reason, error.detail)


def call(
    *,
    id: str,
    arrived: float,
    ended: float,
    replica: str,
    model: str,
    first_token: float | None = None,
    stream: bool = True,
    outcome: Outcome = "finished",
    reason: str = "",
    finish_reason: str = "",
    prompt: int | None = None,
    cached: int | None = None,
    output: int | None = None,
    usage: UsageSource = "engine",
    path: str = "/v1/chat/completions",
    tenant: str = "",
    tags: tuple[tuple[str, str], ...] = (),
    traceparent: str = "",
    tried: bool = True,
) -> Entry:
    """A call of one attempt (or none, where not ``tried``). Raises RowError for times that cannot be."""
    if not (0 <= arrived <= HORIZON and 0 <= ended <= HORIZON):
        raise RowError("bad time", f"{arrived} to {ended} are no seconds since the epoch")
    if ended < arrived:
        raise RowError("bad time", f"it ended {arrived - ended:.6f} s before it arrived")
    if first_token is not None and not arrived <= first_token <= ended:
        raise RowError("bad time", f"its first token came at {first_token}, outside of {arrived} to {ended}")
    attempt = Attempt(
        number=1,
        replica=one_line(replica) or "unknown",
        claimed=arrived,
        ended=ended,
        outcome=outcome,
        sent=arrived,
        first_token=first_token,
        reason=one_line(reason),
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        usage=usage if prompt is not None or output is not None else "none",
    )
    return Entry(
        id=id,
        arrived=arrived,
        ended=ended,
        route=path,
        path=path,
        model=one_line(model),
        tenant=one_line(tenant) or "default",
        length_class=length_class(prompt or 0, output or 0),
        stream=stream,
        outcome=outcome,
        status=200 if outcome == "finished" else 0,
        reason=one_line(reason),
        finish_reason=one_line(finish_reason),
        attempts=(attempt,) if tried else (),
        tags=tags,
        traceparent=traceparent,
    )


def one_line(text: str, most: int = 200) -> str:
    """A label that fits a line: what cannot be printed becomes a space."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:most]).strip()


def identity(kind: str, *parts: object) -> str:
    """An id for a row that has none: the same for the same row, so that a second import finds it there."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode("utf-8", "replace"))
    return f"{kind}-{digest.hexdigest()[:24]}"


def members(value: object, name: str) -> Mapping[str, Any]:
    """The object of that name in an object; empty where there is none."""
    inner = value.get(name) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def text_of(value: Mapping[str, Any], *names: str) -> str:
    """The first of these members that holds text."""
    return next((found for name in names if isinstance(found := value.get(name), str) and found), "")


def number_of(value: Mapping[str, Any], name: str) -> float | None:
    """A finite number, also one written as text; None where there is none. Raises RowError."""
    found = value.get(name)
    if found is None or found == "":
        return None
    try:
        number = float(found) if not isinstance(found, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) < float("inf"):
        raise RowError("bad number", f"{name} is {found!r:.60}, not a number")
    return number


def tokens_of(value: Mapping[str, Any], *names: str) -> int | None:
    """A count of tokens by the first of these names that is there; None where none is. Raises RowError."""
    for name in names:
        number = number_of(value, name)
        if number is not None:
            if not (0 <= number <= MOST_TOKENS and number == int(number)):
                raise RowError("bad number", f"{name} is {number:g}, not a count of tokens")
            return int(number)
    return None


def moment_of(value: Mapping[str, Any], name: str) -> float | None:
    """Seconds since the epoch from an ISO 8601 moment (UTC where it names no zone); None where there is none.
    Raises RowError."""
    found = value.get(name)
    if found is None or found == "":
        return None
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError:
        raise RowError("bad time", f"{name} is {found!r:.60}, not a moment like 2026-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def objects(rows: Iterable[Any]) -> Iterator[tuple[str, Mapping[str, Any]] | Unread]:
    """(where, object) of values read; what is no object is told."""
    for row in rows:
        if isinstance(row, Unread):
            yield row
        elif isinstance(row.value, Mapping):
            yield row.where, row.value
        else:
            yield Unread(row.where, "no object", f"a {type(row.value).__name__} where a JSON object is needed")
