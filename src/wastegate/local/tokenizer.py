"""Text to tokens in the HTTP process: counting, the chat template, and prompts before they reach the loop. No
weights are loaded here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wastegate.local.messages import RUNTIME_ERRORS, last_line

Tokens = NDArray[np.int64]
LONG_TEXT = 1 << 16
"""Characters above which tokenising leaves the event loop, so that others' streams go on."""


class TokenizerError(ValueError):
    """The model's tokenizer cannot be loaded; the sentence says why."""


class ChatTemplateError(ValueError):
    """The model's chat template refused the messages."""


class Tokenizer:
    """A model file's tokenizer and chat template. Raises :class:`TokenizerError`."""

    def __init__(self, model: str) -> None:
        try:
            import openvino_genai as genai
        except ImportError as error:
            raise TokenizerError(
                f"the engine needs openvino-genai ({error}): pip install 'wastegate[local]'"
            ) from error
        try:
            self._tokenizer = genai.Tokenizer(model)
        except RUNTIME_ERRORS as error:
            raise TokenizerError(f"{model}: the runtime cannot load its tokenizer: {last_line(error)}") from error
        self.vocabulary = len(self._tokenizer.get_vocab())
        # The runtime cuts every text at the model's context and does not say so: a text made of one frequent
        # letter and space, far over any context, shows where.
        self._cut = int(self._encode("a " * (1 << 18), special=False).size)

    async def tokens(self, text: str, *, special: bool = True) -> Tokens:
        """As :meth:`encode`, in a thread where the text is long."""
        if len(text) < LONG_TEXT:
            return self.encode(text, special=special)
        return await asyncio.to_thread(self.encode, text, special=special)

    def encode(self, text: str, *, special: bool = True) -> Tokens:
        """Tokens of a text, shape (tokens,); ``special`` adds what the model begins each text with."""
        tokens = self._encode(text, special=special)
        if tokens.size < self._cut:
            return tokens
        pieces = _pieces(text, max(1, self._cut // 4))  # a character is at most four bytes, so four tokens
        return np.concatenate([self._encode(piece, special=special and not at) for at, piece in enumerate(pieces)])

    def render(self, messages: Sequence[dict[str, str]], *, answer: bool = True) -> str:
        """Messages through the chat template. Raises :class:`ChatTemplateError`."""
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=answer))
        except RUNTIME_ERRORS as error:
            raise ChatTemplateError(f"the model's chat template refused the messages: {last_line(error)}") from error

    def _encode(self, text: str, *, special: bool) -> Tokens:
        found: Any = self._tokenizer.encode(text, add_special_tokens=special).input_ids.data
        return np.array(found, dtype=np.int64).reshape(-1)


def _pieces(text: str, size: int) -> list[str]:
    """Cut a text before spaces, where a byte-pair tokenizer cuts too, into pieces of at most ``size``."""
    pieces = []
    at = 0
    while len(text) - at > size:
        space = text.rfind(" ", at + 1, at + size + 1)
        end = space if space > at else at + size
        pieces.append(text[at:end])
        at = end
    pieces.append(text[at:])
    return pieces
