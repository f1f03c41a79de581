from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.tiny_gguf import CONTEXT, vocabulary, write_tiny_gguf
from wastegate.local.tokenizer import LONG_TEXT, ChatTemplateError, Tokenizer, TokenizerError, _pieces


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer(str(tiny))


def test_text_becomes_tokens(tokenizer: Tokenizer) -> None:
    words = vocabulary()
    found = tokenizer.encode("the a!")
    assert found.dtype == np.int64
    assert [words[token] for token in found] == ["the", "Ġa", "!"]
    assert tokenizer.encode("").size == 0


def test_the_template_frames_messages_and_its_marks_are_single_tokens(tokenizer: Tokenizer) -> None:
    text = tokenizer.render([{"role": "user", "content": "a"}])
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(text, special=False).tolist().count(1) == 2
    assert not tokenizer.render([{"role": "user", "content": "a"}], answer=False).endswith("assistant\n")


async def test_a_text_beyond_the_runtimes_own_limit_is_counted_to_its_end(tokenizer: Tokenizer) -> None:
    text = "a b" * CONTEXT * 3
    assert tokenizer.encode(text).size == len(text) - text.count(" a")  # " a" is one token, all else a letter each
    assert (await tokenizer.tokens(text)).size == tokenizer.encode(text).size


async def test_a_very_long_text_is_counted_too(tokenizer: Tokenizer) -> None:
    text = "🦜" * (LONG_TEXT + 1)
    assert (await tokenizer.tokens(text)).size == 4 * len(text)


def test_a_template_that_refuses_says_so(tmp_path: Path) -> None:
    template = "{{ raise_exception('only one message') }}"
    fields: dict[str, Any] = {"tokenizer.chat_template": template}
    tokenizer = Tokenizer(str(write_tiny_gguf(tmp_path / "m.gguf", **fields)))
    with pytest.raises(ChatTemplateError, match="refused"):
        tokenizer.render([{"role": "user", "content": "a"}])


def test_a_file_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    without: dict[str, Any] = {"tokenizer.ggml.tokens": None}
    with pytest.raises(TokenizerError, match=r"bare\.gguf: the runtime cannot load its tokenizer"):
        Tokenizer(str(write_tiny_gguf(tmp_path / "bare.gguf", **without)))


def test_a_missing_runtime_is_said_with_what_to_install(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(TokenizerError, match=r"pip install 'wastegate\[local\]'"):
        Tokenizer(str(tiny))


@given(st.text(alphabet="ab ", max_size=60), st.integers(1, 9))
def test_pieces_are_the_text_and_end_before_spaces_where_there_are_any(text: str, size: int) -> None:
    pieces = _pieces(text, size)
    assert "".join(pieces) == text
    assert all(len(piece) <= size for piece in pieces)
    assert all(piece.startswith(" ") or " " not in before[1:] for before, piece in pairwise(pieces))
