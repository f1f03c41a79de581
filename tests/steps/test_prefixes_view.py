"""What a reader sees of prompts: shares, dollars, and what to move."""

from __future__ import annotations

import io
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from wastegate.core.prefix_stability import Place, RoutePrefixes
from wastegate.steps.prefixes_view import prefixes_view

ROW = RoutePrefixes(
    route="chat [draft]",
    calls=1200,
    prompt_tokens=600_000,
    could=0.83,
    was=0.41,
    lost_dollars=1.25,
    watched=900,
    places=(Place("time", 1042, 800, 50_000.0, 0.75), Place("id", None, 1, 40.0, None), Place("text", 9, 99, 0.0, 0.0)),
)


def seen(*rows: RoutePrefixes) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(prefixes_view(rows))
    said: Any = console.file
    return " ".join(str(said.getvalue()).split())


def test_every_figure_is_there() -> None:
    said = seen(ROW)
    assert "chat [draft] 1,200 600,000 83 % 41 % $1.25" in said
    assert "800 prompts part at byte 1,042, by a date or a time; what is the same again" in said
    assert "behind it is 50,000 tokens, $0.7500: put it behind the part that never changes" in said
    assert "1 prompt part at many more places, by an id; what is the same again behind it is 40 tokens:" in said
    assert "other text" not in said, "nothing is lost there"


def test_what_is_not_known_is_said() -> None:
    said = seen(replace(ROW, was=None, lost_dollars=None, places=()))
    assert "83 % – –" in said
    assert "Engines do not say what they found cached on chat [draft]." in said
    assert "Engines" not in seen(replace(ROW, places=()))
