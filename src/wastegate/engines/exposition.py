"""A Prometheus exposition, read line by line: of its samples those that somebody wants. It knows no engine's names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

_LABEL = re.compile(r'\s*([a-zA-Z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=}))')
_CLOSE = re.compile(r"\s*}")
_ESCAPED = re.compile(r"\\(.)")


class Sample(Struct, frozen=True, gc=False):
    """One series at one instant."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """By their names, in alphabetical order."""
    value: float

    def label(self, name: str) -> str:
        """The label's value; empty where the series has none of this name."""
        return next((value for key, value in self.labels if key == name), "")


class Page(Struct, frozen=True):
    """One scrape."""

    samples: Mapping[str, tuple[Sample, ...]]
    """By name: those that were wanted, in the page's order."""
    names: frozenset[str]
    """All names on the page, with those that are only announced (``# TYPE``) and have no sample yet."""
    unread: int = 0
    """Lines that make no sense. They are left out, and no other sample suffers."""


def parse(text: str, wanted: Collection[str]) -> Page:
    """Read the text format 0.0.4, and OpenMetrics 1.0 as far as they agree. Never fails: what makes no sense counts as
    ``unread``. ``wanted`` are sample names, so a histogram's end in ``_bucket``, ``_sum`` and ``_count``.

    The labels of what nobody wants are not looked at: an engine's page has a thousand lines of which a hundred count.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in wanted}
    names: set[str] = set()
    unread = 0
    for line in text.split("\n"):
        if not line or line.isspace():
            continue
        if line[0] == "#":
            words = line.split(None, 3)
            if len(words) > 2 and words[1] == "TYPE":
                names.add(words[2])
            continue
        brace = line.find("{")
        name = line[:brace].rstrip() if brace > 0 else line.split(None, 1)[0]
        names.add(name)
        if name not in samples:
            continue
        sample = _sample(name, line, brace)
        if sample is None:
            unread += 1
        else:
            samples[name].append(sample)
    return Page({name: tuple(rows) for name, rows in samples.items() if rows}, frozenset(names), unread)


def _sample(name: str, line: str, brace: int) -> Sample | None:
    labels: tuple[tuple[str, str], ...] = ()
    at = len(name)
    if brace > 0:
        read = _labels(line, brace + 1)
        if read is None:
            return None
        labels, at = read
    words = line[at:].split(None, 1)
    try:
        return Sample(name, labels, float(words[0]))  # float() reads NaN and +Inf as Prometheus writes them
    except (ValueError, IndexError):
        return None


def _labels(line: str, at: int) -> tuple[tuple[tuple[str, str], ...], int] | None:
    """The labels, and where the line goes on behind them; None where they make no sense."""
    pairs = []
    while (close := _CLOSE.match(line, at)) is None:
        found = _LABEL.match(line, at)
        if found is None:
            return None
        value = found[2]
        pairs.append((found[1], _ESCAPED.sub(_unescaped, value) if "\\" in value else value))
        at = found.end()
    return tuple(sorted(pairs)), close.end()


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
