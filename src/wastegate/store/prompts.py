"""What the ledger knows of prompts, some thousand calls at a time. Reads only; what it means is
``core.prefix_stability``'s."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from wastegate.core.facts import UNKNOWN, Ints

ROWS = 8192
"""Calls at once: of the longest prompts their blocks are 16 KiB each."""


class PromptRows(NamedTuple):
    """Calls in the order in which they ended; every member has the same length."""

    key: Ints
    """As in ``Calls.key``."""
    blocks: tuple[bytes, ...]
    size: Ints
    at: Ints
    """UNKNOWN where nothing parts it from another, or nobody looked."""
    again: Ints
    by: tuple[str, ...]


def read_prompts(db: sqlite3.Connection, first: int, last: int) -> Iterator[PromptRows]:
    """Of the calls with keys from ``first`` to ``last``, those whose prompt was measured."""
    cursor = db.execute(
        f"""SELECT seq, blocks, prompt_bytes, ifnull(diverges_at, {UNKNOWN}), ifnull(same_again, 0),
            ifnull(diverges_by, '') FROM entry_text WHERE seq BETWEEN ? AND ? AND prompt_bytes > 0 ORDER BY seq""",
        (first, last),
    )
    while rows := list(islice(cursor, ROWS)):
        key, blocks, size, at, again, by = zip(*rows, strict=True)
        yield PromptRows(
            np.array(key, np.int64),
            blocks,
            np.array(size, np.int64),
            np.array(at, np.int64),
            np.array(again, np.int64),
            by,
        )
