"""How a sweep is shown in a terminal: a table a curve, then what is concluded and what is not. Nothing is concluded
here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.core.intervals import Estimate
from wastegate.core.packing import Packed, Stretch
from wastegate.load.sweep import About, Curve, Packing, Point, Report, Sheet
from wastegate.load.sweep_arm import Slo

NONE = "–"
_FAR = 9.0
"""An interval that reaches further than so many times the figure says nothing but that."""


def table(report: Report) -> RenderableType:
    """The report as it is printed."""
    parts: list[RenderableType] = []
    for sheet in report.sheets:
        for about, curve in zip(report.targets, sheet.curves, strict=True):
            parts += [Text(), Text(heading(about, sheet), style="bold"), Text(facts(about)), _points(curve, report)]
            parts += [Text(line, style="yellow") for line in marks(curve)]
        parts += [Text(), *(Text(line) for line in conclusions(report, sheet))]
        if sheet.packing is not None:
            parts += [Text(), Text(packing_title(sheet.packing), style="bold")]
            parts += [_choices(sheet.packing)] if sheet.packing.choices else []
            parts += [*(Text(line) for line in packing_words(report, sheet.packing))]
    parts += [Text(f"dropped: {line}") for line in dropped(report)]
    parts += [Text(f"· {note}") for note in report.notes]
    parts += [Text(f"INVALID: {why}", style="bold red") for why in report.invalid]
    return Group(*parts)


def heading(about: About, sheet: Sheet) -> str:
    return f"{about.title}: {sheet.shape}"


def facts(about: About) -> str:
    """What the target is, costs and takes."""
    price = f"${about.price.dollars_per_hour:.4g} an hour ({about.price.source})" if about.price else "no price given"
    memory = f", {about.memory / 1e9:.2f} GB" if about.memory is not None else ""
    return f"{about.made_of}; {price}{memory}"


COLUMNS = (
    "requests/s", "output tokens/s", "TTFT P50, ms", "TTFT P95, ms", "TPOT P50, ms", "E2E P95, ms", "good/s",
    "$ per 1,000", "$ per M output", "",
)  # fmt: skip
GOOD = COLUMNS.index("good/s")
NARROW = (
    "requests\n/s", "output\ntokens/s", "TTFT\nP50 ms", "TTFT\nP95 ms", "TPOT\nP50 ms", "E2E\nP95 ms", "good\n/s",
    "$ per\n1,000", "$ per\nM out",
)  # fmt: skip
"""The same in a terminal of 80 columns; what must be known of a level stands below its table there."""


def level_name(report: Report) -> str:
    return "at once" if report.config.asked.mode == "closed" else "offered/s"


def _points(curve: Curve, report: Report) -> Table:
    """As narrow as it can be: goodput only where there is an SLO to keep."""
    shown = [place for place in range(len(NARROW)) if place != GOOD or report.config.asked.slo != Slo()]
    found = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for name in (level_name(report).replace(" ", "\n"), *(NARROW[place] for place in shown)):
        found.add_column(name, justify="right", no_wrap=True)
    for point in curve.points:
        row = cells(point, give_or_take)
        found.add_row(f"{point.level:g}", *(row[place] for place in shown))
    return found


def marks(curve: Curve) -> Iterator[str]:
    """What must be known of levels before their figures are believed."""
    for point in curve.points:
        if said := mark(point):
            yield f"at {point.level:g}: {said}"


def cells(point: Point, rate: Callable[[Estimate | None], str]) -> tuple[str, ...]:
    """One level, column by column; ``rate`` writes requests per second, whose interval the others share for the most
    part."""
    seen = point.figures.get
    return (
        rate(seen("qps")),
        plain(seen("output_tokens_per_s")),
        millis(seen("ttft_p50")),
        millis(seen("ttft_p95")),
        millis(seen("tpot_p50")),
        millis(seen("e2e_p95")),
        plain(seen("goodput")),
        plain(point.dollars_per_1000),
        plain(point.dollars_per_million_output),
        mark(point),
    )


def give_or_take(found: Estimate | None) -> str:
    """A figure and how far its interval reaches: 7.38 ±4 %."""
    if found is None or not found.bounded or not found.value:
        return plain(found)
    reach = (found.high - found.low) / 2 / found.value
    return f"{digits(found.value)} " + (f"±{reach:.0%}" if reach < _FAR else f"±>{_FAR:.0%}")


def mark(point: Point) -> str:
    """What must be known of a level before its figures are believed."""
    found = []
    if not point.blocks:
        found.append("no block kept")
    settled, failed = point.figures.get("settled"), point.figures.get("failed_share")
    if settled is not None and settled.value < 1.0:
        found.append(f"{1.0 - settled.value:.0%} of turns had not settled")
    if failed is not None and failed.value > 0.0:
        found.append(f"{failed.value:.1%} failed")
    return "; ".join(found)


def conclusions(report: Report, sheet: Sheet) -> Iterator[str]:
    """The knee and the capacity of each curve, then each pair."""
    unit = report.config.design.unit
    for curve in sheet.curves:
        if curve.knee.level is not None and curve.knee.rate is not None:
            where, speed = spread(curve.knee.level), spread(curve.knee.rate)
            yield f"{curve.target}: the knee is at {where}{unit}, {speed} requests/s"
        else:
            yield f"{curve.target}: no knee is concluded: {curve.knee.why}"
    for curve in sheet.curves:
        kept = curve.capacity
        slo = f"SLO ({report.config.asked.slo})"
        if kept is None:
            yield f"{curve.target}: no level keeps the {slo} for {report.config.enough:.0%} of its calls"
        else:
            yield f"{curve.target}: {spread(kept.rate)} good requests/s at most, at {kept.level:g}{unit}; {slo}"
    for what, meetings in sheet.meetings.items():
        for meeting in meetings:
            yield f"{' against '.join(meeting.names)}, {what}: {meeting.says}"


def _choices(packing: Packing) -> Table:
    found = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for name in PACKED:
        found.add_column(name, justify="left" if name == "target" else "right")
    for choice in packing.choices:
        shared, multiplied = (scenario.packed for scenario in choice.scenarios)
        for one, other in zip(shared, multiplied, strict=True):
            found.add_row(f"{choice.demand:g}/s", one.name, str(one.fits), packed(one), packed(other))
    return found


PACKED = ("demand", "target", "fit", "devices: $ per 1,000, if shared", "devices: $ per 1,000, if each as alone")


def packing_title(packing: Packing) -> str:
    device = packing.device
    gb, usable = device.memory / 1e9, device.usable
    return f"packed on {device.name}: {gb:.1f} GB ({usable:.0%} usable), ${device.dollars_per_hour:.4g} an hour"


def packed(one: Packed) -> str:
    """Devices and dollars of one option."""
    if one.devices is None or one.dollars_per_1000 is None:
        return "cannot"
    known = f"{one.devices:,}: {digits(one.dollars_per_1000)}"
    return known if one.low == one.high else f"{known} ({ends(one.low, one.high)})"


def packing_words(report: Report, packing: Packing) -> Iterator[str]:
    for choice in packing.choices:
        yield f"at {choice.demand:g} requests/s: {choice.says}"
    if len(packing.options) > 1:
        yield f"as demand rises, if instances share a device's speed: {along(packing.along['shared'])}"
        yield f"as demand rises, if each is as fast as one alone: {along(packing.along['multiplied'])}"
    yield from packing.missing


def along(stretches: Sequence[Stretch]) -> str:
    """Who is cheapest from where to where; the many short ones of whole devices are summed up."""
    if len(stretches) <= 6:
        return "; ".join(
            f"{digits(one.first)} to {digits(one.last)}/s {one.cheapest or 'none surely'}" for one in stretches
        )
    names = dict.fromkeys(one.cheapest for one in stretches if one.cheapest)
    firsts = [f"{name} from {next(one.first for one in stretches if one.cheapest == name):.3g}/s on" for name in names]
    return f"it changes {len(stretches) - 1} times, with whole devices; surely cheapest in places: {', '.join(firsts)}"


def dropped(report: Report) -> Iterator[str]:
    """Why blocks do not count, with how many."""
    blocks = [block.dropped for sheet in report.sheets for block in sheet.run.blocks if block.dropped]
    for why in dict.fromkeys(blocks):
        yield f"{blocks.count(why)} blocks, since {why}"


def plain(found: Estimate | None) -> str:
    return NONE if found is None or not math.isfinite(found.value) else digits(found.value)


def millis(found: Estimate | None) -> str:
    """Seconds as milliseconds; a call that failed never ends."""
    if found is None:
        return NONE
    return digits(1000.0 * found.value) if math.isfinite(found.value) else "never"


def digits(value: float) -> str:
    """Three digits that count, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def spread(found: Estimate | None, sign: str = "") -> str:
    """A figure with its interval."""
    if found is None or not math.isfinite(found.value):
        return NONE
    return f"{sign}{digits(found.value)}" + (f" ({ends(found.low, found.high, sign)})" if found.bounded else "")


def ends(low: float | None, high: float | None, sign: str = "") -> str:
    first = f"{sign}{digits(low)}" if low is not None and math.isfinite(low) else "?"
    last = f"{sign}{digits(high)}" if high is not None and math.isfinite(high) else "?"
    return f"{first}–{last}"
