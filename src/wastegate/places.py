"""Where in a TOML text something is wrong: the line of a key, and the nearest name for one that does not exist. It
knows the shape of Structs, and of no particular setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct


class UnknownKeyError(ValueError):
    """A key that no section has. The text names file, line and the nearest name."""


class Lines:
    """Finds the line on which a key stands."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: dict[tuple[str | int, ...], int] = {}
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if header := re.match(r"\s*\[\[([^\]]+)\]\]", line):
                names = _split(header[1])
                counts[names] = counts.get(names, -1) + 1
                table = (*names, counts[names])
                self._lines.setdefault(table, number)
            elif header := re.match(r"\s*\[([^\]]+)\]", line):
                table = _split(header[1])
                self._lines.setdefault(table, number)
            elif key := re.match(r"\s*([A-Za-z0-9_\-\".]+)\s*=", line):
                self._lines.setdefault((*table, *_split(key[1])), number)

    def of(self, path: tuple[str | int, ...]) -> str:
        """``file:line`` of the key, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._name}:{self._lines[path]}" if path else self._name


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in dotted.split("."))


def explain(error: msgspec.ValidationError, where: Lines) -> str:
    """A conversion's error, with the line that it is about."""
    message, _, at = str(error).partition(" - at `$")
    return f"{where.of(_path(at))}: {message[:1].lower() + message[1:]}{_named(at)}"


def _path(at: str) -> tuple[str | int, ...]:
    """``.replicas[1].url`` as msgspec writes it, taken apart."""
    parts = re.findall(r"\.([A-Za-z0-9_\-]+)|\[(\d+)\]", at)
    return tuple(name or int(index) for name, index in parts)


def _named(at: str) -> str:
    path = at.rstrip("`").lstrip(".")
    return f" (at {path})" if path else ""


def check_names(raw: Any, kind: Any, path: tuple[str | int, ...], where: Lines) -> None:
    """Raise UnknownKeyError at the first key that ``kind`` does not have, with the nearest one that it has."""
    struct = struct_of(kind)
    if struct is None:
        return
    if isinstance(raw, list):
        for index, item in enumerate(raw):
            check_names(item, struct, (*path, index), where)
        return
    if not isinstance(raw, Mapping):
        return  # of the wrong type: the conversion says so
    hints = get_type_hints(struct)
    for key, value in raw.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"valid here: {', '.join(sorted(hints))}"
            inside = ".".join(str(part) for part in path)
            place = f" in [{inside}]" if inside else ""
            raise UnknownKeyError(f"{where.of((*path, key))}: unknown key {key!r}{place}; {hint}")
        check_names(value, hints[key], (*path, key), where)


def struct_of(kind: Any) -> type[Struct] | None:
    """The Struct inside a type such as ``tuple[Route, ...]`` or ``Timers | None``."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    if get_origin(kind) in (tuple, list, Union, UnionType):
        return next((s for s in map(struct_of, get_args(kind)) if s is not None), None)
    return None
