"""Prompts of a wanted length: text from words whose token count was measured, so that thousands of prompts need no
call to a tokenizer. Only generated words enter here: no text of a user, no network, no clock."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from wastegate.load.rows import BLOCK_TOKENS
from wastegate.load.schedule import Planned

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"

Endpoint = Literal["auto", "chat", "completions"]
Source = Literal["tokenizer", "usage", "guess"]


def tolerance(tokens: int) -> float:
    """How far a prompt's length may be off: 2 % of it, and never less than 2 tokens."""
    return max(0.02 * tokens, 2.0)


class Frame(Struct, frozen=True):
    """Tokens that the wire format adds to a text: a chat template, or the sign that begins every text."""

    before: float = 0.0
    after: float = 0.0

    @property
    def tokens(self) -> float:
        return self.before + self.after


class Recipe(Struct, frozen=True, kw_only=True):
    """How a model's tokenizer counts our words. Joined by single spaces, each is ``per_word`` tokens."""

    words: tuple[str, ...]
    per_word: float
    chat: Frame | None
    """None where the server has no chat route or the model no template."""
    plain: Frame | None
    source: Source
    exact: bool
    """Every sample had exactly the length that was computed for it."""


class Made(Struct, frozen=True):
    path: str
    text: str
    tokens: int
    """The length that it was made for, template counted."""


class Prompts:
    """Makes the text of planned rows. Equal seeds make equal prompts.

    Rows that share blocks at the front share those tokens; all others begin with words of their own, so that no
    prefix cache finds what the trace did not have.
    """

    def __init__(self, recipe: Recipe, *, seed: int, token_scale: float = 1.0, endpoint: Endpoint = "auto") -> None:
        self._recipe = recipe
        self._seed = seed
        self._endpoint = endpoint
        self._block_words = math.ceil(BLOCK_TOKENS * token_scale / recipe.per_word) + 2

    def make(self, planned: Planned) -> Made:
        """The prompt of a row that has a length. Raises ValueError for one that has none."""
        if planned.input_tokens is None:
            raise ValueError(f"row {planned.number} has no prompt length: it brings its own text")
        path, frame = self._route(planned.input_tokens)
        per_word = self._recipe.per_word
        count = max(1, round((planned.input_tokens - frame.tokens) / per_word))
        # What stands before the text is the same in every prompt. It takes the place of the first words, so that
        # a block ends at the same token as in the trace.
        skipped = round(frame.before / per_word) if planned.row.blocks else 0
        chosen = self._sequence(planned, skipped + count)[skipped:]
        words = self._recipe.words
        return Made(path, " ".join([words[index] for index in chosen.tolist()]), planned.input_tokens)

    def _route(self, tokens: int) -> tuple[str, Frame]:
        chat, plain = self._recipe.chat, self._recipe.plain
        if plain is None or self._endpoint == "chat":
            return CHAT, chat or Frame()
        if chat is None or self._endpoint == "completions" or tokens < chat.tokens + self._recipe.per_word:
            return PLAIN, plain
        return CHAT, chat

    def _sequence(self, planned: Planned, count: int) -> npt.NDArray[np.int64]:
        """Indices of ``count`` words: the row's blocks, then words that are its alone."""
        parts: list[npt.NDArray[np.int64]] = []
        end = 0
        for block, edge in zip(planned.row.blocks, planned.edges, strict=True):
            start, end = end, round(edge / self._recipe.per_word)
            parts.append(self._draw(1, block % 2**64, self._block_words)[: end - start])
        if end < count:
            parts.append(self._draw(0, planned.number, count - end))
        return np.concatenate(parts)[:count]

    def _draw(self, kind: int, key: int, count: int) -> npt.NDArray[np.int64]:
        chance = np.random.default_rng([self._seed, kind, key])
        return chance.integers(0, len(self._recipe.words), count)
