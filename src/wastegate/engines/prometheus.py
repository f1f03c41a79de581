"""A Prometheus server's query API: what to ask it for, and its answer as a page. It opens no socket."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from wastegate.engines.exposition import Page, Sample


class QueryError(ValueError):
    """The server did not answer the query; the text is its own reason."""


class _Series(Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(Struct):
    resultType: str  # noqa: N815 - the API's own name
    result: list[Any] = []


class _Answer(Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def query(names: Collection[str], match: str = "") -> str:
    """PromQL for the newest sample of each of these metrics; ``match``: labels that they must have, as PromQL writes
    them (``cluster="a",namespace="b"``)."""
    wanted = f'__name__=~"{"|".join(sorted(names))}"'
    return f"{{{wanted}{',' if match else ''}{match}}}"


def page(answer: bytes) -> Page:
    """Raises QueryError."""
    try:
        read = msgspec.json.decode(answer, type=_Answer)
        if read.status != "success" or read.data is None:
            raise QueryError(read.error or f"it answers {read.status!r}")
        if read.data.resultType != "vector":
            raise QueryError(f"it answers with a {read.data.resultType}, not a vector")
        series = msgspec.convert(read.data.result, list[_Series])
    except msgspec.MsgspecError as error:
        raise QueryError(f"its answer is no query result: {error}") from None
    samples: dict[str, list[Sample]] = {}
    unread = 0
    for row in series:
        name = row.metric.pop("__name__", "")
        try:
            samples.setdefault(name, []).append(Sample(name, tuple(sorted(row.metric.items())), float(row.value[1])))
        except ValueError:
            unread += 1
    return Page({name: tuple(rows) for name, rows in samples.items() if rows}, frozenset(samples), unread)
