"""Figures as people read them: dollars, times, shares, instants. Text only; no figure is made here."""

from __future__ import annotations

import math
from datetime import datetime

NOTHING = "–"


def dollars(amount: float | None) -> str:
    """Cents from a dollar up; below, four figures that count: a call may cost millionths of a dollar."""
    if amount is None:
        return NOTHING
    if amount == 0:
        return "$0"
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    digits = 3 - math.floor(math.log10(abs(amount)))
    return f"${amount:.{min(digits, 12)}f}"


def seconds(amount: float | None) -> str:
    """Milliseconds below one second; minutes, hours and days above two minutes."""
    if amount is None:
        return NOTHING
    if amount < 1:
        return f"{amount * 1000:.0f} ms" if amount >= 0.01 or amount == 0 else f"{amount * 1000:.2f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if amount < limit:
            return f"{amount / unit:.2f} {name}"
    return f"{amount / 86400:.1f} d"


def joules(amount: float | None) -> str:
    """Joules, from an hour of a kilowatt up as kilowatt-hours."""
    if amount is None:
        return NOTHING
    return f"{amount:.3g} J" if amount < 3.6e6 else f"{amount / 3.6e6:,.4g} kWh"


def share(part: float | None) -> str:
    """Per cent, with a decimal below ten: 0.4 % is not nothing."""
    if part is None:
        return NOTHING
    if 0 < part < 0.0005:
        return "< 0.1 %"
    return f"{part * 100:.1f} %" if part < 0.0995 else f"{part * 100:.0f} %"


def instant(when: float) -> str:
    """Local time, to the second, with its zone's offset."""
    return datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")


def counted(number: int, noun: str) -> str:
    """ "1 call", "2,000 calls"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
