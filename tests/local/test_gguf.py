from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.local.tiny_gguf import CONTEXT, write_tiny_gguf
from wastegate.local.gguf import GgufError, read_gguf


def test_the_header_is_reduced_to_what_the_engine_needs(tiny: Path) -> None:
    info = read_gguf(tiny)
    assert (info.architecture, info.name, info.file_type, info.context) == ("llama", "tiny", "F16", CONTEXT)
    assert info.kv_elements == 2 * 1 * (32 + 32)  # layers × KV heads × (key + value width)
    assert info.tokenizer == "gpt2"
    assert info.control_tokens == {0, 1, 2}


def test_widths_of_keys_and_values_may_be_given(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"llama.attention.key_length": np.uint32(48), "llama.attention.value_length": np.uint32(16)}
    path = write_tiny_gguf(tmp_path / "wide.gguf", **wide)
    assert read_gguf(path).kv_elements == 2 * (48 + 16)


def test_every_head_has_kv_of_its_own_where_the_file_does_not_say(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", llama__attention__head_count_kv=None)
    assert read_gguf(path).kv_elements == 2 * 2 * (32 + 32)


@pytest.mark.parametrize(("number", "name"), [(np.uint32(3), "Q4_1"), (np.uint32(999), "type 999"), (None, "unknown")])
def test_the_file_type_is_named_where_it_is_known(tmp_path: Path, number: np.uint32 | None, name: str) -> None:
    assert read_gguf(write_tiny_gguf(tmp_path / "m.gguf", general__file_type=number)).file_type == name


def test_a_file_without_a_name_goes_by_its_own(tmp_path: Path) -> None:
    assert read_gguf(write_tiny_gguf(tmp_path / "mine.gguf", general__name=None)).name == "mine"


@pytest.mark.parametrize("length", [0, 3, 4, 23, 24, 30, 200, 2000])
def test_a_file_that_is_cut_short_says_so(tiny: Path, tmp_path: Path, length: int) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny.read_bytes()[:length])
    with pytest.raises(GgufError, match=r"short\.gguf"):
        read_gguf(short)


@pytest.mark.parametrize("missing", [1, 1000, 50_000])
def test_a_file_whose_weights_are_cut_off_says_how_much_is_missing(tiny: Path, tmp_path: Path, missing: int) -> None:
    size = tiny.stat().st_size
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny.read_bytes()[: size - 31 - missing])  # the end is filled up to a multiple of 32
    with pytest.raises(GgufError, match=rf"{size - 31 - missing} bytes of"):
        read_gguf(short)


def test_another_kind_of_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with pytest.raises(GgufError, match="not a GGUF file"):
        read_gguf(path)


def test_another_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 1, 0, 0))
    with pytest.raises(GgufError, match="version 1"):
        read_gguf(path)


def test_an_unknown_value_type_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77) + b"\0" * 8)
    with pytest.raises(GgufError, match="damaged"):
        read_gguf(path)


@pytest.mark.parametrize("key", ["general.architecture", "llama.context_length", "tokenizer.ggml.model"])
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    without: dict[str, Any] = {key: None}
    path = write_tiny_gguf(tmp_path / "m.gguf", **without)
    with pytest.raises(GgufError, match=key):
        read_gguf(path)
