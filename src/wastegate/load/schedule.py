"""When each row of a trace is to be sent, and how long it shall be: selection, scaling in time and in tokens, and
what does not fit a model. Values only: no clock and no network enter here; chance is a seeded generator."""

from __future__ import annotations

from fractions import Fraction
from statistics import median
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from wastegate.load.rows import BLOCK_TOKENS, Row, Trace

Misfit = Literal["clip", "skip"]

NO_LENGTH = "no prompt length in the trace"
NO_OUTPUT = "asks for no output"
EMPTY = "empty prompt"
TOO_LONG = "longer than the model's context"


class Pace(Struct, frozen=True, kw_only=True):
    """How a trace is cut and stretched. ``speed`` 2 sends in half the time; ``rate`` is requests per second, on
    average; ``duration`` is seconds of the run, not of the trace."""

    speed: float | None = None
    rate: float | None = None
    limit: int | None = None
    duration: float | None = None
    token_scale: Fraction = Fraction(1)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.speed is not None and self.rate is not None:
            raise ValueError("--speed and --rate both set the pace; give one of them")
        for name in ("speed", "rate", "limit", "duration", "token_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be above 0")
        if BLOCK_TOKENS * self.token_scale < 1:
            raise ValueError(f"--token-scale {self.token_scale} leaves less than a token of a block of {BLOCK_TOKENS}")


class Planned(Struct, frozen=True, kw_only=True):
    """A row with its place in the run. ``at`` is seconds after the run's start; lengths are scaled."""

    number: int
    """From 1, in the order of sending."""
    row: Row
    at: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    edges: tuple[int, ...] = ()
    """Where each of the row's blocks ends, in tokens of the scaled prompt (the last may end past the prompt)."""
    skip: str = ""
    """Why it will not be sent; empty if it will."""
    clipped: bool = False


def schedule(trace: Trace, pace: Pace) -> tuple[Planned, ...]:
    """The rows of the run, in order of their time.

    Raises ValueError where the trace and the pace do not go together: no timestamps and no rate, or a token
    scale for rows that bring their own text.
    """
    rows = trace.rows[: pace.limit]
    if pace.rate is not None and pace.duration is not None:
        # Cutting first lets the part that is sent have the rate asked for, however uneven the whole trace is.
        rows = rows[: max(1, round(pace.rate * pace.duration))]
    if pace.token_scale != 1 and any(row.messages is not None or row.prompt is not None for row in rows):
        raise ValueError("--token-scale cannot be used here: the rows bring their own text, which cannot be scaled")
    ordered, times = _times(rows, pace)
    rest = _typical_output(rows)
    return tuple(
        _planned(number, row, at, pace.token_scale, rest)
        for number, (row, at) in enumerate(zip(ordered, times, strict=True), 1)
        if pace.duration is None or at <= pace.duration
    )


def _times(rows: tuple[Row, ...], pace: Pace) -> tuple[list[Row], list[float]]:
    if any(row.at is None for row in rows):
        if pace.rate is None:
            raise ValueError("the trace has no timestamps: give --rate, and its rows arrive at random at that rate")
        gaps = np.random.default_rng([pace.seed, 2]).exponential(1 / pace.rate, len(rows))
        return list(rows), [float(at) for at in np.cumsum(gaps) - gaps[0]]
    timed = sorted(((row.at or 0.0, row) for row in rows), key=lambda pair: pair[0])
    first, last = timed[0][0], timed[-1][0]
    factor = 1 / (pace.speed or 1.0)
    if pace.rate is not None and last > first:
        factor = (len(timed) - 1) / pace.rate / (last - first)
    return [row for _, row in timed], [(at - first) * factor for at, _ in timed]


def _typical_output(rows: tuple[Row, ...]) -> int:
    """What a caller who hung up may have been waiting for: the median of those who did not."""
    known = [row.output_tokens for row in rows if row.output_tokens and row.hang_up is None]
    return int(median(known)) if known else 256


def _planned(number: int, row: Row, at: float, scale: Fraction, typical: int) -> Planned:
    if row.messages is not None or row.prompt is not None:
        skip = NO_OUTPUT if row.output_tokens == 0 else EMPTY if row.prompt == "" else ""
        return Planned(number=number, row=row, at=at, output_tokens=row.output_tokens, skip=skip)
    wanted = row.output_tokens
    if row.hang_up is not None or wanted is None:  # an exported row whose answer was not read to its end
        wanted = max(wanted or 0, typical)
    length = row.input_tokens
    skip = NO_LENGTH if length is None else EMPTY if length == 0 else NO_OUTPUT if wanted == 0 else ""
    edges = _edges(len(row.blocks), scale)
    return Planned(
        number=number,
        row=row,
        at=at,
        input_tokens=None if length is None else _shrunk(length, edges, scale),
        output_tokens=max(1, round(wanted * scale)),
        edges=edges,
        skip=skip,
    )


def _edges(blocks: int, scale: Fraction) -> tuple[int, ...]:
    """Block ends, each rounded from its exact place, so that the same block has one length in every row."""
    return tuple(round((index + 1) * BLOCK_TOKENS * scale) for index in range(blocks))


def _shrunk(length: int, edges: tuple[int, ...], scale: Fraction) -> int:
    """The scaled length: at least one token into its last block and not past it, so that no block is lost."""
    short = max(1, round(length * scale))
    if not edges or length > len(edges) * BLOCK_TOKENS:
        return short
    before = edges[-2] if len(edges) > 1 else 0
    return min(max(short, before + 1), max(edges[-1], before + 1))


def fit(planned: Planned, context: int, misfit: Misfit) -> Planned:
    """The row within a context of so many tokens (prompt and output together): unchanged, clipped or skipped.

    Clipping takes from whichever half is over half of the context; a prompt that is clipped loses its end, so
    that what it shares with others stays shared.
    """
    if planned.skip or planned.input_tokens is None:
        return planned
    taken, given = planned.input_tokens, planned.output_tokens or 1
    if taken + given <= context:
        return planned
    if misfit == "skip" or context < 2:
        return replace(planned, skip=TOO_LONG)
    half = context // 2
    if taken <= half:
        given = context - taken
    elif given <= half:
        taken = context - given
    else:
        taken, given = context - half, half
    return replace(planned, input_tokens=taken, output_tokens=given, clipped=True)
