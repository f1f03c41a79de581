"""The words that prompts are made of."""

from __future__ import annotations

from wastegate.load.words import WORDS


def test_every_word_is_plain_and_different() -> None:
    assert len(set(WORDS)) == len(WORDS) > 1000
    assert all(word.isascii() and word.isalpha() and word == word.lower() for word in WORDS)
