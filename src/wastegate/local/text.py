"""Tokens to text while they come: UTF-8 that is cut between tokens, and stop strings that span them. Pure: no
engine and no clock may enter."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

SPACE = "▁".encode()  # how a SentencePiece vocabulary writes a space


def token_bytes(vocabulary: Sequence[bytes], control: frozenset[int], kind: str) -> list[bytes]:
    """The bytes that each token adds to a text; control tokens add none.

    ``vocabulary`` is by token id. ``kind`` is GGUF's ``tokenizer.ggml.model``: "gpt2" holds plain bytes, "llama"
    writes a space as ▁ and single bytes as <0x0A>. Raises ValueError for another kind.
    """
    if kind == "gpt2":
        return [b"" if token in control else piece for token, piece in enumerate(vocabulary)]
    if kind == "llama":
        return [b"" if token in control else _sentencepiece(piece) for token, piece in enumerate(vocabulary)]
    raise ValueError(f"the tokenizer is of kind {kind!r}; this engine turns 'gpt2' and 'llama' tokens into text")


def _sentencepiece(piece: bytes) -> bytes:
    if len(piece) == 6 and piece.startswith(b"<0x") and piece.endswith(b">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, b" ")


class Writer:
    """The text of one sequence, as far as it may be shown.

    A character whose bytes are not all there yet is held back, and so is a tail that could be the beginning of a
    stop string. Bytes that are no UTF-8 come out as U+FFFD.
    """

    def __init__(self, table: Sequence[bytes], stops: Sequence[str] = ()) -> None:
        self._table = table
        self._stops = tuple(stop for stop in stops if stop)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """One token on: the text that may be shown now. Sets ``stopped`` where a stop string is complete."""
        return self._release(self._decode(self._table[token]))

    def close(self) -> str:
        """The sequence has ended without a stop string: what was held back."""
        text = self._release(self._decode(b"", True))
        if self.stopped:
            return text
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
        if not self._stops:
            return new
        if not new:
            return ""
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop`` (the whole of it excluded)."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
