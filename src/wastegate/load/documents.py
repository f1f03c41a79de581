"""Files of JSON as other tools write them (a value a line, a list, one large object) and plain lines, read a piece at a
time with the line of each. What a value means never enters here."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

MOST = 64 * 2**20
"""Characters of one value or line; a longer one is not read."""
_CHUNK = 1 << 20
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class Unread(Struct, frozen=True):
    """What could not be taken in: the place, the kind of reason (few different ones), and what exactly."""

    where: str
    reason: str
    detail: str = ""


class Value(Struct, frozen=True):
    """One JSON value, and the place where it begins."""

    where: str
    value: Any


class Line(Struct, frozen=True):
    """One line that holds something."""

    where: str
    text: str


def lines(path: Path) -> Iterator[Line | Unread]:
    """The lines of a text file, also of one packed with gzip (``.gz``); empty ones left out. Bad bytes are replaced:
    a log may hold anything. Raises OSError."""
    with _open(path) as file:
        number = 0
        while text := file.readline(MOST + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(text) > MOST:
                while text and not text.endswith("\n"):
                    text = file.readline(MOST)
                yield Unread(where, "too long", f"a line of more than {MOST:,} characters")
            elif text.strip():
                yield Line(where, text.rstrip("\r\n"))


def values(path: Path) -> Iterator[Value | Unread]:
    """The JSON values of a file: one a line, or the members of one list, or one object over many lines.

    A bad line is told and the next one read; where a list or an object breaks off, what stood before counts. Raises
    OSError.
    """
    found = lines(path)
    first = next(found, None)
    if first is None:
        return
    if isinstance(first, Line) and first.text.lstrip().startswith("["):
        with _open(path) as file:
            yield from _members(path, file)
        return
    second = next(found, None)
    head = [line for line in (first, second) if line is not None]
    if all(isinstance(line, Unread) or isinstance(_parsed(line), Unread) for line in head):
        # Bad lines, or the first ones of an object that is written over many.
        yield from _whole(path, first, [*head, *found])
        return
    for line in chain(head, found):
        yield line if isinstance(line, Unread) else _parsed(line)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", errors="replace", newline="\n")
    # Only a line feed ends a line, as for grep and editors: progress bars in logs return without one.
    return path.open(encoding="utf-8-sig", errors="replace", newline="\n")


def decode(text: str) -> Any:
    """The JSON value that a text is. Raises ValueError, also for what is too deep or has too many digits."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parsed(line: Line) -> Value | Unread:
    try:
        return Value(line.where, decode(line.text))
    except ValueError as error:
        return Unread(line.where, "not JSON", str(error))


def _whole(path: Path, first: Line | Unread, found: Sequence[Line | Unread]) -> Iterator[Value | Unread]:
    """One object over all these lines; or each line by itself, where some of them are values."""
    text = "\n".join(line.text for line in found if isinstance(line, Line))
    if len(text) > MOST:
        yield Unread(first.where, "too long", f"one object of more than {MOST:,} characters: write one a line")
        return
    whole = _parsed(Line(first.where, text))
    alone = [line if isinstance(line, Unread) else _parsed(line) for line in found]
    single = isinstance(whole, Value) or not any(isinstance(one, Value) for one in alone)
    yield from (whole,) if single else alone


def _members(path: Path, file: IO[str]) -> Iterator[Value | Unread]:
    """The members of a JSON list (of a file that begins with one, after white space), read as they come: the whole
    need not fit into memory."""
    decoder = json.JSONDecoder()
    held, more = "", True
    while "[" not in held:
        held += file.read(_CHUNK)
    line, at = 1 + held.count("\n", 0, held.index("[")), held.index("[") + 1
    while True:
        start = _BETWEEN.match(held, at).end()  # type: ignore[union-attr]
        line, at = line + held.count("\n", at, start), start
        if held.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(held, at)
        except (ValueError, RecursionError) as error:
            fault, end = str(error), 0
        if end and (end < len(held) or not more):
            yield Value(f"{path}, line {line}", value)
            line, at = line + held.count("\n", at, end), end
        elif not more:
            yield Unread(f"{path}, line {line}", "not JSON", "the list breaks off" if at == len(held) else fault)
            return
        elif len(held) - at > MOST:
            yield Unread(f"{path}, line {line}", "too long", f"a member of more than {MOST:,} characters, or not JSON")
            return
        else:
            chunk = file.read(_CHUNK)
            held, at, more = held[at:] + chunk, 0, bool(chunk)
