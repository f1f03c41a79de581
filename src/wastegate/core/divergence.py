"""Where two prompts part, and by what kind of thing: a time, a number, an id. It reads prompts; what it returns holds
no piece of them."""

from __future__ import annotations

import re

from wastegate.core.call import Divergence

_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("uuid", rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
        ("time", rb"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?Z|[+-]\d\d:?\d\d)?)?"),
        ("time", rb"\d\d?[./]\d\d?[./]\d{4}|\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?"),
        ("time", rb"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b)"
                 rb"(?:,? \d?\d?(?:st|nd|rd|th)?\.? ?[A-Z][a-z]{2,8}(?: \d\d?)?(?:st|nd|rd|th)?,?(?: \d{4})?)?"),
        ("time", rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.? \d\d?(?:st|nd|rd|th)?,? \d{4}"),
        ("time", rb"\b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b"),
        ("id", rb"\b[0-9a-fA-F]{16,}\b|\b(?=[A-Za-z_-]*\d)[A-Za-z]{1,12}[_-][0-9A-Za-z]{6,}\b"),
        ("number", rb"-?\d+(?:[.,]\d+)*"),
    )
)  # fmt: skip
"""What changes from call to call in prompts that programs put together. The first that fits counts. "1[5-9]…" is the
time in seconds or milliseconds since the epoch, from 2017 on."""
_AROUND = 64
"""Bytes looked at on each side: longer than any of these."""
_STEP = 4096
_SAME_AGAIN = 64
"""Bytes that must be the same behind a difference before the prompts count as together again: fewer are chance."""
_MOST_PLACES = 8
_MOST_COUNTED = 1000
"""A whole number that has risen by no more than this is a counter."""
_TAIL = 3
"""Bytes that close a JSON list of messages: a prompt that parts only there has grown, or asks the same."""


def diverge(before: bytes, now: bytes) -> Divergence | None:
    """Where ``now`` parts from ``before``. None where it does not, or where one only goes on from the other.

    ``again`` counts what is the same once more behind the places that differ: what a cache could have held if the
    first of them, and those like it, stood behind the rest.
    """
    at = same(before, 0, now, 0)
    if min(len(before), len(now)) - at <= _TAIL:
        return None
    kind, one, other = _thing(before, at, now, at)
    again = 0
    for _ in range(_MOST_PLACES):
        run = same(before, one, now, other)
        if run < _SAME_AGAIN:
            break
        again += run
        if min(len(before) - one, len(now) - other) - run <= _TAIL:
            break
        _, one, other = _thing(before, one + run, now, other + run)
    return Divergence(at, kind, again)


def same(one: bytes, i: int, other: bytes, j: int) -> int:
    """How many bytes are equal from ``one[i]`` and ``other[j]`` on."""
    most = min(len(one) - i, len(other) - j)
    low = 0
    while low < most and one[i + low : i + low + _STEP] == other[j + low : j + low + _STEP]:
        low += _STEP
    if low >= most:
        return max(most, 0)
    high = min(low + _STEP, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[i + low : i + middle] == other[j + low : j + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _thing(before: bytes, i: int, now: bytes, j: int) -> tuple[str, int, int]:
    """(its kind, where it ends in the one, where in the other): what stands at two places that differ."""
    for kind, pattern in _KINDS:
        one, other = _around(pattern, before, i), _around(pattern, now, j)
        if one is not None and other is not None:
            if kind == "number" and _counts(one[0], other[0]):
                kind = "counter"
            return kind, one[1], other[1]
    return "text", _line_end(before, i), _line_end(now, j)


def _around(pattern: re.Pattern[bytes], text: bytes, at: int) -> tuple[bytes, int] | None:
    """The match that holds the byte at ``at``, or ends just before it, and its end."""
    start = max(0, at - _AROUND)
    for found in pattern.finditer(text, start, at + _AROUND):
        if found.start() <= at <= found.end():
            return found[0], found.end()
    return None


def _counts(before: bytes, now: bytes) -> bool:
    return before.isdigit() and now.isdigit() and 0 < int(now) - int(before) <= _MOST_COUNTED


def _line_end(text: bytes, at: int) -> int:
    """The end of the line, as JSON writes it, or of the string."""
    ends = [end for mark in (b"\\n", b'"') if (end := text.find(mark, at)) >= 0]
    return min(ends, default=len(text))
