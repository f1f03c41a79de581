"""The two loads: when each request comes, what it shares with others, how long its answer is."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet.model import BLOCK_BYTES

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
_TRACE_SCALE = 8
"""Prompts and answers of the trace are cut to an eighth: its blocks of 512 tokens become blocks of 64."""


@dataclass(frozen=True)
class Ask:
    """``parts``: a name for each stretch of the prompt; prompts that begin with the same names begin alike."""

    at: float
    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of each part."""
    output: int
    session: str


def mooncake(count: int, rate: float, start: int = 0) -> list[Ask]:
    """Requests of the trace in its own order and rhythm, at ``rate`` a second on the whole. Raises OSError."""
    rows = []
    with TRACE.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number >= start + count:
                break
            if number >= start:
                rows.append(json.loads(line))
    begin, end = rows[0]["timestamp"], rows[-1]["timestamp"]
    draw = random.Random(start)
    stretch = len(rows) / rate / max(1, end - begin)
    asks = []
    for row in rows:
        ids = row["hash_ids"]
        sizes = [BLOCK_BYTES] * len(ids)
        sizes[-1] = max(8, (row["input_length"] * 4 // _TRACE_SCALE) - BLOCK_BYTES * (len(ids) - 1))
        # The trace's clock ticks in seconds: within a tick its requests are spread.
        at = (row["timestamp"] - begin + draw.random() * 3000) * stretch
        asks.append(
            Ask(
                at,
                tuple(map(str, ids)),
                tuple(sizes),
                max(2, row["output_length"] // _TRACE_SCALE),
                str(ids[1] if len(ids) > 1 else ids[0]),
            )
        )
    return sorted(asks, key=lambda ask: ask.at)


def shop(count: int, rate: float, seed: int = 0, hot: float = 0.0) -> list[Ask]:
    """Questions about 200 products, of which a few are asked about most (Zipf): one system prompt, one description a
    product, a question of its own. ``hot``: share of the questions that are about the first product."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(200)]
    sizes = [draw.randrange(2048, 8192) for _ in weights]
    asks, at = [], 0.0
    for number in range(count):
        at += draw.expovariate(rate)
        product = 0 if draw.random() < hot else draw.choices(range(200), weights)[0]
        asks.append(
            Ask(
                at,
                ("system", f"product {product}", f"question {number}"),
                (2048, sizes[product], draw.randrange(64, 512)),
                draw.randrange(8, 48),
                f"customer {draw.randrange(count // 3 + 1)}",
            )
        )
    return asks


_SYLLABLES = ("ka", "lo", "mi", "nu", "pe", "ra", "so", "ti", "vu", "we", "zo", "ba", "du", "fe", "gi", "ho")
_ENDS = ("n", "r", "s", "t", "l", "m", "x", "d", "g", "k", "p", "b", "f", "c", "h", "v")
_WORDS = [f"{syllable}{end}" for syllable in _SYLLABLES for end in _ENDS]


def text(part: str, size: int, turn: str) -> str:
    """A stretch of words, the same for the same name within a turn."""
    draw = random.Random(f"{turn} {part}")
    return " ".join(draw.choices(_WORDS, k=size // 4))[: size - 1] + " "


def prompt(ask: Ask, turn: str) -> str:
    return "".join(text(part, size, turn) for part, size in zip(ask.parts, ask.sizes, strict=True))


def chain(content: str) -> list[int]:
    """The prompt's whole blocks as the model engine hashes them."""
    data = content.encode()
    hashes, last = [], 0
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hash((last, data[start : start + BLOCK_BYTES]))
        hashes.append(last)
    return hashes
