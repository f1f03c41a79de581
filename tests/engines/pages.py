"""Pages of real engines, as they were recorded: see the first line of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from wastegate.engines.exposition import parse
from wastegate.engines.kinds import Engine
from wastegate.engines.meter import Meter, Reading
from wastegate.engines.readback import Pages

FOLDER = Path(__file__).parents[1] / "fixtures" / "engines"


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def json(name: str) -> Any:
    return msgspec.json.decode(text(name))


def readings(engine: Engine, *names: str) -> list[Reading]:
    """One engine's recorded pages, looked at five seconds apart."""
    meter = Meter(engine.RULES)
    return [meter.read(parse(text(name), meter.wanted), 5.0 * at) for at, name in enumerate(names)]


def shown(engine: Engine, metrics: str, **pages: Any) -> Pages:
    """What an engine shows: a recorded /metrics, and other pages."""
    return Pages(parse(text(metrics), Meter(engine.RULES).wanted), pages)


def devices_text(name: str) -> str:
    """A page of a machine's meter."""
    return (FOLDER.parent / "devices" / name).read_text(encoding="utf-8")
