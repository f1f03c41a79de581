"""From the words of a command line to a span of time. The clock's reading arrives as a value."""

from __future__ import annotations

import math
import re
from datetime import datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_when(text: str, now: float) -> float:
    """Epoch seconds from ``now``, ``90s``, ``15m``, ``1h``, ``7d``, ``2w`` (that long ago) or an ISO date or time.

    A time without a zone is local. Raises ValueError with a sentence for the reader.
    """
    words = text.strip()
    if words == "now":
        return now
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", words):
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(words).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is no time: write how long ago (90s, 15m, 1h, 7d, 2w), or a date or time such as "
            "2026-05-04 or 2026-05-04T13:30"
        ) from None


def parse_window(since: str | None, until: str | None, now: float) -> tuple[float, float]:
    """[start, end) in epoch seconds; infinite where None. Raises ValueError as :func:`parse_when` does."""
    start = parse_when(since, now) if since else -math.inf
    end = parse_when(until, now) if until else math.inf
    return start, end
