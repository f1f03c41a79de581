"""Charts as inline SVG. Figures and words in, text out; no figure is made here, and nothing outside the text is ever
referred to.

Widths and places across are per cent, so that a chart fills a desk's screen and a phone's alike while its letters
keep their size. Colours are classes: the page says what they look like in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from msgspec import Struct

LETTERS = 26
"""Longest label drawn: what fits beside its figures on a phone. All of it stands in the tooltip and in the tables."""
_ROW, _BAR = 44, 16


class Part(Struct, frozen=True):
    """A piece of a bar. ``kind`` is its colour's class: useful, waste, idle, overhead, plain or pale."""

    name: str
    amount: float
    kind: str


class Bar(Struct, frozen=True):
    """One bar: its label, what is written at its end, and its pieces."""

    label: str
    text: str
    parts: tuple[Part, ...]


class Range(Struct, frozen=True):
    """One line of quantiles, rising."""

    label: str
    text: str
    points: tuple[tuple[str, float], ...]


class Column(Struct, frozen=True):
    """One column over time, as wide as it lasts."""

    start: float
    end: float
    text: str
    parts: tuple[Part, ...]


def plain(text: str) -> str:
    """Text from outside as text of the page: no tag, no quote that ends an attribute, no control character."""
    return escape("".join("\ufffd" if ord(sign) < 32 and sign not in "\n\t" else sign for sign in text))


def short(label: str, most: int = LETTERS) -> str:
    """The head and the tail of a label that is too long: both may be what tells it from its neighbour."""
    if len(label) <= most:
        return label
    tail = (most - 1) // 3
    return f"{label[: most - 1 - tail]}…{label[-tail:]}"


def bars(title: str, rows: Sequence[Bar], full: float | None = None) -> str:
    """Bars below one another. ``full`` is the amount of a whole width; the longest bar's where None."""
    widest = full or max((sum(part.amount for part in row.parts) for row in rows), default=0.0) or 1.0
    marks = [_bar(row, _ROW * place, widest) for place, row in enumerate(rows)]
    return _svg(title, _ROW * len(rows), marks)


def _bar(row: Bar, top: int, widest: float) -> str:
    label = short(row.label)
    marks = [f'<text x="0" y="{top + 14}">{plain(label)}{_tip(row.label) if label != row.label else ""}</text>']
    marks.append(f'<text x="100%" y="{top + 14}" class="end">{plain(row.text)}</text>')
    marks.append(f'<rect x="0" y="{top + 20}" width="100%" height="{_BAR}" rx="3" class="track"/>')
    left = 0.0
    for part in row.parts:
        wide = max(0.0, min(part.amount / widest * 100, 100 - left))
        if wide > 0:
            marks.append(
                f'<rect x="{left:.3f}%" y="{top + 20}" width="{wide:.3f}%" height="{_BAR}" rx="3" '
                f'class="{part.kind}">{_tip(part.name)}</rect>'
            )
        left += wide
    return "".join(marks)


def ranges(title: str, rows: Sequence[Range], write: Callable[[float], str]) -> str:
    """Quantiles on one logarithmic axis: a line from the first to the last, a dot for each. Amounts above 0."""
    values = [value for row in rows for _, value in row.points if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    bottom = _ROW * len(rows)

    def place(value: float) -> float:
        return 2 + 96 * (math.log10(max(value, 10.0**low)) - low) / (high - low)

    marks = []
    for power in range(low, high + 1):
        at = place(10.0**power)
        side = "start" if power == low else "end" if power == high else "middle"
        marks.append(f'<line x1="{at:.3f}%" x2="{at:.3f}%" y1="0" y2="{bottom}" class="grid"/>')
        marks.append(f'<text x="{at:.3f}%" y="{bottom + 14}" class="{side} faint">{plain(write(10.0**power))}</text>')
    for number, row in enumerate(rows):
        top = _ROW * number
        marks.append(f'<text x="0" y="{top + 14}">{plain(row.label)}</text>')
        marks.append(f'<text x="100%" y="{top + 14}" class="end">{plain(row.text)}</text>')
        first, last = place(row.points[0][1]), place(row.points[-1][1])
        marks.append(f'<line x1="{first:.3f}%" x2="{last:.3f}%" y1="{top + 28}" y2="{top + 28}" class="span"/>')
        for name, value in row.points:
            tip = _tip(f"{row.label}: {name} {write(value)}")
            marks.append(f'<circle cx="{place(value):.3f}%" cy="{top + 28}" r="6" class="dot">{tip}</circle>')
    return _svg(title, bottom + 22, marks)


def columns(title: str, rows: Sequence[Column], ends: tuple[str, str], write: Callable[[float], str]) -> str:
    """Stacked columns over time, the first and last instants written below. Heights are the parts' amounts."""
    height, foot = 200, 22
    start, end = rows[0].start, rows[-1].end
    tallest = max((sum(part.amount for part in row.parts) for row in rows), default=0.0) or 1.0
    marks = []
    for part in (0.5, 1.0):
        y = 16 + (height - 16) * (1 - part)
        marks.append(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        marks.append(f'<text x="0" y="{y - 4:.1f}" class="faint">{plain(write(tallest * part))}</text>')
    for row in rows:
        left, wide = ((row.start - start) / (end - start) * 100, (row.end - row.start) / (end - start) * 100)
        floor = float(height)
        pieces = []
        for piece in row.parts:
            tall = piece.amount / tallest * (height - 16)
            floor -= tall
            if tall > 0:
                pieces.append(
                    f'<rect x="{left:.3f}%" y="{floor:.2f}" width="{wide:.3f}%" height="{tall:.2f}" '
                    f'class="{piece.kind} column"/>'
                )
        marks.append(f"<g>{_tip(row.text)}{''.join(pieces)}</g>")
    marks.append(f'<line x1="0" x2="100%" y1="{height}" y2="{height}" class="axis"/>')
    for x, side, text in (("0", "start", ends[0]), ("100%", "end", ends[1])):
        marks.append(f'<text x="{x}" y="{height + 16}" class="{side} faint">{plain(text)}</text>')
    return _svg(title, height + foot, marks)


def legend(kinds: Sequence[tuple[str, str]]) -> str:
    """(kind, word): which colour is what."""
    items = "".join(
        f'<li><svg aria-hidden="true" width="12" height="12"><rect width="12" height="12" rx="3" '
        f'class="{kind}"/></svg> {plain(word)}</li>'
        for kind, word in kinds
    )
    return f'<ul class="legend">{items}</ul>'


def _tip(text: str) -> str:
    return f"<title>{plain(text)}</title>"


def _svg(title: str, height: int, marks: Sequence[str]) -> str:
    return f'<svg role="img" aria-label="{plain(title)}" width="100%" height="{height}">{"".join(marks)}</svg>'
