"""The audit's section on prompts for the terminal. Layout only: every figure comes from the report."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from wastegate.core.prefix_stability import Place, RoutePrefixes
from wastegate.steps.words import counted, dollars, share

_KINDS = {
    "time": "a date or a time",
    "uuid": "a UUID",
    "id": "an id",
    "counter": "a counter",
    "number": "a number",
    "text": "other text",
}


def prefixes_view(routes: Sequence[RoutePrefixes]) -> Group:
    """A row a route, and a sentence for each place that keeps a route's prompts from being cached."""
    table = Table(title="Prompts: what a prefix cache could have held", title_justify="left", title_style="bold")
    table.box, table.pad_edge, table.collapse_padding = box.SIMPLE_HEAD, False, True
    table.add_column("route", overflow="fold")
    for column in ("calls", "prompt tokens", "could", "was", "lost"):
        table.add_column(column, justify="right")
    for row in routes:
        table.add_row(
            Text(row.route),
            f"{row.calls:,}",
            f"{row.prompt_tokens:,}",
            share(row.could),
            share(row.was),
            dollars(row.lost_dollars),
        )
    lines = [_place(row, place) for row in routes for place in row.places if place.lost_tokens >= 1]
    unsaid = [row.route for row in routes if row.was is None]
    if unsaid:
        lines.append(f"Engines do not say what they found cached on {', '.join(unsaid)}.")
    return Group(table, Text("\n".join(lines), style="dim")) if lines else Group(table)


def _place(row: RoutePrefixes, place: Place) -> str:
    where = f"part at byte {place.at:,}, by" if place.at is not None else "part at many more places, by"
    cost = f", {dollars(place.lost_dollars)}" if place.lost_dollars is not None else ""
    return (
        f"{row.route}: {counted(place.calls, 'prompt')} {where} {_KINDS[place.by]}; what is the same again behind it "
        f"is {place.lost_tokens:,.0f} tokens{cost}: put it behind the part that never changes."
    )
