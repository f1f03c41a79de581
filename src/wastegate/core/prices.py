"""What an hour of an accelerator costs, by its name: the catalogue that stands in until the user gives a price.
The rows are data, in ``prices.toml`` beside this file; no price is written in code."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Sequence
from importlib import resources

import msgspec
from msgspec import Struct


class PriceError(ValueError):
    """No price is known for an accelerator, or the catalogue is wrong; the message says what to do."""


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """One row: US dollars for an hour of one accelerator, the day that was read, and where."""

    accelerator: str
    names: tuple[str, ...]
    dollars_per_hour: float
    date: datetime.date
    source: str

    def __post_init__(self) -> None:
        if not self.dollars_per_hour > 0:
            raise ValueError(f"{self.accelerator} costs {self.dollars_per_hour} an hour: a price is above 0")


class _Catalogue(Struct, frozen=True, forbid_unknown_fields=True):
    price: tuple[Price, ...]


def parse_prices(text: str, where: str) -> tuple[Price, ...]:
    """The rows of a catalogue file called ``where``. Raises PriceError; a name may stand only once."""
    try:
        rows = msgspec.convert(tomllib.loads(text), _Catalogue).price
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PriceError(f"{where}: {error}") from None
    seen: set[str] = set()
    for row in rows:
        for name in map(_plain, (row.accelerator, *row.names)):
            if name in seen:
                raise PriceError(f"{where}: the accelerator {name!r} has two prices")
            seen.add(name)
    return rows


def catalogue() -> tuple[Price, ...]:
    """The rows that come with wastegate."""
    file = resources.files("wastegate.core") / "prices.toml"
    return parse_prices(file.read_text(encoding="utf-8"), "prices.toml")


def find_row(accelerator: str, rows: Sequence[Price]) -> Price:
    """The row of one accelerator; case, "NVIDIA", blanks and underscores do not matter. Raises PriceError."""
    wanted = _plain(accelerator)
    names = {_plain(name): row for row in rows for name in (row.accelerator, *row.names)}
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(row.accelerator for row in rows)}."
    raise PriceError(f"no price is known for the accelerator {accelerator!r}; {hint} Or give price_per_hour")


def find_price(accelerator: str, rows: Sequence[Price] | None = None) -> float:
    """US dollars an hour; ``2xh100`` is twice ``h100``. From the catalogue that comes along where no ``rows`` are
    given. Raises PriceError for a name that it does not have."""
    many = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(.+)", accelerator, re.IGNORECASE)
    count, name = (int(many[1]), many[2]) if many else (1, accelerator)
    if count < 1:
        raise PriceError(f"{accelerator!r} is no accelerator at all: count from 1")
    return count * find_row(name, catalogue() if rows is None else rows).dollars_per_hour


def _plain(name: str) -> str:
    words = re.sub(r"[\s_]+", "-", name.strip().lower())
    return words.removeprefix("nvidia-")
