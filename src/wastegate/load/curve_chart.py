"""A sweep as pictures: charts as plain SVG, and one HTML page with tables and charts that needs no network and no
script. Nothing is measured or concluded here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from msgspec import Struct

from wastegate.core.intervals import Estimate
from wastegate.core.packing import BOTH, Sharing, pack
from wastegate.load.sweep import Packing, Point, Report, Sheet
from wastegate.load.sweep_view import (
    COLUMNS,
    PACKED,
    cells,
    conclusions,
    dropped,
    facts,
    heading,
    level_name,
    packed,
    packing_title,
    packing_words,
    spread,
)

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 44, 52
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Told apart by people who do not see all colours alike (Okabe & Ito 2008)."""
_WIDEST = 3.0
_STEPS = 160
"""Demands at which the staircase of whole devices is drawn."""


class Dot(Struct, frozen=True):
    """A place in a chart, with the ends of its interval upwards and what is written beside it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


class Line(Struct, frozen=True):
    name: str
    dots: tuple[Dot, ...]
    marked: Dot | None = None
    """The knee, with a ring around it."""
    bare: bool = False
    """Drawn without a dot at each place."""


class Axes(Struct, frozen=True):
    title: str
    x: str
    y: str


def svg(report: Report) -> str:
    """The cost curve of the first length (or, without prices, its throughput), as an SVG file.

    Raises ValueError where nothing was measured."""
    if not report.sheets:
        raise ValueError("nothing was measured, so there is nothing to draw")
    return next(_charts(report, report.sheets[0]))


def page(report: Report) -> str:
    """The whole report as one HTML page."""
    parts = [f"<h1>Cost and speed against load</h1><p>{escape(_how(report))}</p>"]
    parts += [f'<p class="bad">INVALID: {escape(why)}</p>' for why in report.invalid]
    for sheet in report.sheets:
        parts.append(f"<h2>{escape(str(sheet.shape))}</h2>")
        parts += [f"<figure>{chart}</figure>" for chart in _charts(report, sheet)]
        parts.append(_list(conclusions(report, sheet)))
        for about, curve in zip(report.targets, sheet.curves, strict=True):
            parts.append(f"<h3>{escape(heading(about, sheet))}</h3><p>{escape(facts(about))}</p>")
            rows = [(f"{point.level:g}", *cells(point, spread)) for point in curve.points]
            parts.append(_table((level_name(report), *COLUMNS), rows))
        if sheet.packing is not None:
            parts += _packing(report, sheet.packing)
    parts.append(_list([*(f"dropped: {line}" for line in dropped(report)), *report.notes]))
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>wastegate bench</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}"
    "td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}"
    "figure{margin:1em 0}svg{max-width:100%;height:auto}.bad{color:#b00;font-weight:bold}"
)


def _how(report: Report) -> str:
    config = report.config
    loop = "closed loop: so many callers at once" if config.asked.mode == "closed" else "open loop: requests offered"
    level = f"intervals at {config.design.level:.0%}"
    return (
        f"{loop}; {config.design.blocks} interleaved repeats; {level}; SLO: {config.asked.slo}; {report.seconds:.0f} s"
    )


def _packing(report: Report, packing: Packing) -> Iterator[str]:
    yield f"<h3>{escape(packing_title(packing))}</h3>"
    rows = [
        (f"{choice.demand:g}/s", one.name, str(one.fits), packed(one), packed(other))
        for choice in packing.choices
        for one, other in zip(choice.scenarios[0].packed, choice.scenarios[1].packed, strict=True)
    ]
    if rows:
        yield _table(PACKED, rows)
    yield _list(packing_words(report, packing))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _list(lines: Iterator[str] | Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _charts(report: Report, sheet: Sheet) -> Iterator[str]:
    """Cost, throughput and latency of one length, and the staircase of whole devices where there is a device.

    Cost is drawn against the level: against its own throughput all curves of one price are the same line."""
    at = level_name(report)
    names = {about.name: about.title for about in report.targets}
    if any(about.price for about in report.targets):
        axes = Axes(f"Cost of 1,000 requests, {sheet.shape}", at, "dollars per 1,000")
        yield draw(axes, _lines(sheet, names, _level, lambda point: point.dollars_per_1000))
    axes = Axes(f"Throughput, {sheet.shape} (ring: the knee)", at, "requests/s")
    yield draw(axes, _lines(sheet, names, _level, lambda point: point.figures.get("qps"), knees=True))
    axes = Axes(f"Latency, {sheet.shape}", f"requests/s (beside each dot: {at})", "E2E P95, seconds")
    yield draw(axes, _lines(sheet, names, _rate, lambda point: point.figures.get("e2e_p95"), labels=True))
    if sheet.packing is not None and sheet.packing.options:
        for sharing in BOTH:
            belief = "share a device's speed" if sharing == "shared" else "are each as fast as one alone"
            axes = Axes(f"Whole devices, if instances {belief}", "demand, requests/s", "dollars per 1,000")
            yield draw(axes, _stairs(sheet.packing, names, sharing))


def _level(point: Point) -> float:
    return point.level


def _rate(point: Point) -> float:
    found = point.figures.get("qps")
    return found.value if found is not None else math.nan


def _lines(
    sheet: Sheet,
    names: dict[str, str],
    x: Callable[[Point], float],
    y: Callable[[Point], Estimate | None],
    knees: bool = False,
    labels: bool = False,
) -> list[Line]:
    found = []
    for curve in sheet.curves:
        dots = [
            Dot(x(point), value.value, value.low, value.high, f"{point.level:g}" if labels else "")
            for point in curve.points
            if (value := y(point)) is not None
        ]
        ring = None
        if knees and curve.knee.level is not None and curve.knee.rate is not None:
            ring = Dot(curve.knee.level.value, curve.knee.rate.value)
        found.append(Line(names[curve.target], tuple(dots), ring))
    return found


def _stairs(packing: Packing, names: dict[str, str], sharing: Sharing) -> list[Line]:
    capacities = [option.capacity.value for option in packing.options]
    first, last = min(capacities) / 4, max(capacities) * 8
    demands = [first * (last / first) ** (step / _STEPS) for step in range(_STEPS + 1)]
    found = []
    for option in packing.options:
        costs = ((demand, pack(option, packing.device, demand, sharing).dollars_per_1000) for demand in demands)
        dots = tuple(Dot(demand, cost) for demand, cost in costs if cost is not None)
        found.append(Line(names[option.name], dots, bare=True))
    return found


def draw(axes: Axes, lines: Sequence[Line]) -> str:
    """Lines on two logarithmic axes. What is not a number above 0 is left out."""
    shown = [Line(line.name, tuple(filter(_drawable, line.dots)), line.marked, line.bare) for line in lines]
    dots = [dot for line in shown for dot in line.dots]
    across, up = (
        _Axis([dot.x for dot in dots], _LEFT, WIDTH - _RIGHT),
        _Axis([value for dot in dots for value in _reach(dot)], HEIGHT - _BOTTOM, _TOP),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(axes.title)}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold">{escape(axes.title)}</text>',
        f'<text x="{(_LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axes.x)}</text>',
        f'<text transform="translate(16 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(axes.y)}</text>',
        *_grid(across, up),
    ]
    for place, line in enumerate(shown):
        parts += _line(line, INKS[place % len(INKS)], across, up)
        parts.append(
            f'<text x="{WIDTH - _RIGHT}" y="{_TOP + 14 + 16 * place}" text-anchor="end" '
            f'fill="{INKS[place % len(INKS)]}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _drawable(dot: Dot) -> bool:
    return all(math.isfinite(value) and value > 0 for value in (dot.x, dot.y))


def _reach(dot: Dot) -> Iterator[float]:
    """What an axis must hold of a dot: itself, and its interval unless that is so wide as to crush all others."""
    yield dot.y
    for end in (dot.low, dot.high):
        if end is not None and dot.y / _WIDEST <= end <= dot.y * _WIDEST:
            yield end


class _Axis:
    """Values above 0 → places, by their logarithm, with room at both ends."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        room = max(1.12, (high / low) ** 0.06)
        self.low, self.high = low / room, high * room
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self._start + share * (self._end - self._start)

    def marks(self) -> list[float]:
        """Round values on the axis: 1, 2 and 5 of each power of ten, or only the powers where these are many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        inside = [value for value in found if self.low <= value <= self.high]
        return inside if len(inside) <= 12 else [value for value in inside if math.log10(value).is_integer()]


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value in across.marks():
        x = across.place(value)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" stroke="#e5e5e5"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
    for value in up.marks():
        y = up.place(value)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#e5e5e5"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'


def _line(line: Line, ink: str, across: _Axis, up: _Axis) -> Iterator[str]:
    path = " ".join(f"{across.place(dot.x):.1f},{up.place(dot.y):.1f}" for dot in line.dots)
    yield f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.8"/>'
    for dot in () if line.bare else line.dots:
        x, y = across.place(dot.x), up.place(dot.y)
        if dot.low is not None and dot.high is not None and dot.low > 0.0 and math.isfinite(dot.high):
            low, high = up.place(dot.low), up.place(dot.high)
            yield f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{ink}" stroke-opacity=".5"/>'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{ink}"/>'
        if dot.label:
            yield f'<text x="{x + 5:.1f}" y="{y - 5:.1f}" font-size="10" fill="{ink}">{escape(dot.label)}</text>'
    if line.marked is not None and _drawable(line.marked):
        x, y = across.place(line.marked.x), up.place(line.marked.y)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="{ink}" stroke-width="1.5"/>'
