"""The values that a trace is read into, and the line that each came from, so that an error can say where. No file
format and no network enter here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

Format = Literal["azure", "mooncake", "messages", "export"]
FORMATS: tuple[str, ...] = get_args(Format)

BLOCK_TOKENS = 512
"""Tokens that one Mooncake hash id stands for; a row's last block may be shorter."""

MOST_TOKENS = 100_000_000
"""A larger count is a mistake in the file: no model takes it, and a prompt of it would fill the memory."""


class TraceError(ValueError):
    """A trace that cannot be read. The text names the file, the line, the column and what to do."""


class HangUp(Struct, frozen=True):
    """When a client leaves before the end: after so many seconds, or so many tokens."""

    seconds: float | None = None
    tokens: int | None = None


class Row(Struct, frozen=True, kw_only=True):
    """One call of a trace. ``at`` is seconds on the trace's own clock; None where the trace has no times."""

    line: int
    at: float | None = None
    input_tokens: int | None = None
    """Length of the prompt to be made; None where the row brings its own text (or nobody counted it)."""
    output_tokens: int | None = None
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks of BLOCK_TOKENS: equal ids at the front of two rows are a shared prefix."""
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    params: dict[str, Any] = {}
    model: str = ""
    stream: bool = True
    tenant: str = ""
    route: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    hang_up: HangUp | None = None


class Trace(Struct, frozen=True):
    path: str
    format: Format
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


class Line(Struct, frozen=True):
    """One line of a file, and where it is: what every error names."""

    path: Path
    number: int
    text: str

    def error(self, problem: str, column: int | None = None) -> TraceError:
        at = f", column {column}" if column else ""
        return TraceError(f"{self.path}, line {self.number}{at}: {problem}")

    def wrong(self, member: str, problem: str) -> TraceError:
        """The error at a JSON member: its column is where the member's name stands."""
        found = self.text.find(f'"{member}"')
        return self.error(f"{member}: {problem}", found + 1 if found >= 0 else 1)

    def number_in(self, members: dict[str, Any], name: str) -> float:
        """A finite number. Raises TraceError where it is missing or something else."""
        value = members.get(name)
        if value is None:
            raise self.error(f"{name} is missing", 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"{value!r} is not a number")
        return float(value)

    def tokens_in(self, members: dict[str, Any], name: str) -> int:
        """A count of tokens, 0 or more. Raises TraceError where it is missing or something else."""
        value = members.get(name)
        if value is None:
            raise self.error(f"{name} is missing", 1)
        if type(value) is not int or not 0 <= value <= MOST_TOKENS:
            raise self.wrong(name, f"{value!r} is not a whole number of tokens")
        return value
