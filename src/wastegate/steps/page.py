"""A report as one HTML page that needs nothing else: what the terminal shows, turned into HTML, around charts.
Layout only, and the one place where text from outside becomes part of a page: no figure is made here."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.steps.charts import plain

# Colours that people with the usual colour-blindnesses tell apart, each dark enough for its ground.
_STYLE = """
:root { color-scheme: light dark; --ground: #fcfcfb; --card: #fff; --ink: #0b0b0b; --faint: #5f5e5a; --rule: #e1e0d9;
  --track: #f0efec; --useful: #2a78d6; --waste: #e34948; --idle: #eda100; --overhead: #4a3aa7; --plain: #2a78d6;
  --pale: #9aa3ad; --pass: #006300; --hold: #8a5a00; --fail: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ground: #0d0d0d; --card: #1a1a19; --ink: #fff; --faint: #b3b2aa;
  --rule: #33332f; --track: #2c2c2a; --useful: #3987e5; --waste: #e66767; --idle: #c98500; --overhead: #9085e9;
  --plain: #3987e5; --pale: #6f7780; --pass: #5ecb5e; --hold: #f0b545; --fail: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 16px; max-width: 1120px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.45rem; line-height: 1.25; margin: 1.2rem 0 .5rem }
h2 { font-size: 1.05rem; margin: 0 0 .6rem }
p { margin: .4rem 0 } .faint { color: var(--faint) } pre { font: inherit; white-space: pre-wrap; margin: .6rem 0 }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; margin: 1rem 0;
  padding: 0; list-style: none }
.tiles li, figure, section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px }
.tiles b { display: block; font-size: 1.3rem; line-height: 1.3 } .tiles span { color: var(--faint); font-size: .85rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 12px }
figure { margin: 0; min-width: 0 } figure.wide { grid-column: 1 / -1 } section { margin: 12px 0; overflow-x: auto }
figcaption { font-weight: 600; margin-bottom: .5rem } figure p { color: var(--faint); font-size: .85rem }
.verdict { border-left: 5px solid; padding: 4px 12px; margin: 1rem 0 }
.verdict.pass { border-color: var(--pass) } .verdict.hold { border-color: var(--hold) }
.verdict.fail { border-color: var(--fail) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; text-align: left }
th, td.right { white-space: nowrap; overflow-wrap: normal } td.left { min-width: 4em }
th { color: var(--faint); font-weight: 600 } th.right, td.right { text-align: right }
tr.strong td { font-weight: 600 } tr.dim td { color: var(--faint) } tr.last td { border-bottom: 2px solid var(--rule) }
.legend { list-style: none; padding: 0; margin: .3rem 0 .6rem; display: flex; flex-wrap: wrap; gap: 4px 16px;
  font-size: .85rem } .legend svg { vertical-align: -1px }
svg { display: block; overflow: visible } .legend svg { display: inline }
svg text { fill: var(--ink); font-size: 13px } svg text.faint { fill: var(--faint); font-size: 12px }
svg text.end { text-anchor: end } svg text.middle { text-anchor: middle }
svg .track { fill: var(--track) } svg .grid { stroke: var(--rule) } svg .axis { stroke: var(--faint) }
svg .useful { fill: var(--useful) } svg .waste { fill: var(--waste) } svg .idle { fill: var(--idle) }
svg .overhead { fill: var(--overhead) } svg .plain { fill: var(--plain) } svg .pale { fill: var(--pale) }
svg .column { stroke: var(--card); stroke-width: 1 } svg .span { stroke: var(--plain); stroke-width: 3 }
svg .dot { fill: var(--plain); stroke: var(--card); stroke-width: 2 }
footer { color: var(--faint); font-size: .85rem; margin: 1.5rem 0 }
@media print { body { max-width: none } figure, section { break-inside: avoid } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""No script runs and nothing is fetched, whatever a label holds."""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document. ``body`` is HTML; ``title`` is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer"><title>{plain(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """(what, figure): the few figures that everybody asks for first."""
    items = "".join(f"<li><span>{plain(name)}</span><b>{plain(figure)}</b></li>" for name, figure in facts)
    return f'<ul class="tiles">{items}</ul>'


def figure(title: str, chart: str, note: str = "", *, wide: bool = False) -> str:
    """A chart (HTML) with its title and a note (text)."""
    below = f"<p>{plain(note)}</p>" if note else ""
    kind = ' class="wide"' if wide else ""
    return f"<figure{kind}><figcaption>{plain(title)}</figcaption>{chart}{below}</figure>"


def verdict(ruling: str, said: str, reasons: Iterable[str]) -> str:
    """The judgement and why."""
    lines = "".join(f"<p>{plain(reason)}</p>" for reason in reasons)
    return f'<div class="verdict {plain(ruling)}"><b>{plain(said)}</b>{lines}</div>'


def shown(part: RenderableType) -> str:
    """What would be printed, as HTML: tables, texts and groups of them; anything else as the text that it prints."""
    if isinstance(part, Group):
        return "".join(shown(one) for one in part.renderables)
    if isinstance(part, Table):
        return _table(part)
    text = _words(part)
    return f"<pre>{plain(text)}</pre>" if text.strip() else ""


def _table(table: Table) -> str:
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    heads = "".join(
        f'<th class="{side}">{plain(_words(column.header))}</th>'
        for side, column in zip(sides, table.columns, strict=True)
    )
    rows = []
    cells = [list(column.cells) for column in table.columns]
    for number, row in enumerate(table.rows):
        kinds = [name for name, on in (("strong", "bold" in str(row.style)), ("dim", "dim" in str(row.style))) if on]
        kinds += ["last"] if row.end_section else []
        # bdi: a label written from right to left must not turn the figures beside it.
        columns = "".join(
            f'<td class="{side}"><bdi>{plain(_words(column[number]))}</bdi></td>'
            for side, column in zip(sides, cells, strict=True)
        )
        rows.append(f'<tr class="{" ".join(kinds)}">{columns}</tr>')
    title = f"<h2>{plain(_words(table.title))}</h2>" if table.title else ""
    return f"<section>{title}<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"


def _words(part: RenderableType) -> str:
    if isinstance(part, Text):
        return part.plain
    if isinstance(part, str):
        return part
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as printed:
        console.print(part)
    return printed.get()


def write(path: Path, text: str) -> None:
    """Write the page, whole or not at all. Raises OSError where the place cannot be written."""
    beside = path.with_name(path.name + ".partial")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
