"""Variants of a GGUF hold the numbers that the file held, and nothing that it did not."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines.variants import Gguf, Tensor, VariantError, read, spread_out, write, write_variant
from wastegate.local.gguf import read_gguf


def field(kind: int, *values: bytes) -> bytes:
    return struct.pack("<I", kind) + b"".join(values)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(value: int) -> bytes:
    return field(4, struct.pack("<I", value))


def halves(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


def block_q4_1(scale: float, least: float, *, step: int) -> bytes:
    """32 numbers: 0, step, 2 × step … modulo 16, times the scale, plus the least."""
    nibbles = [(place * step) % 16 for place in range(32)]
    return halves(scale, least) + bytes(low | high << 4 for low, high in zip(nibbles[:16], nibbles[16:], strict=True))


def tensor(name: str, kind: int, data: bytes, shape: tuple[int, ...] = (32, 1)) -> Tensor:
    return Tensor(name, shape, kind, np.frombuffer(data, np.uint8))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three layers, an embedding of 8 bits and a norm of 32, as wastegate's own reader asks for."""
    fields = {
        "general.architecture": field(8, text("llama")),
        "general.file_type": number(3),
        "llama.block_count": number(3),
        "llama.context_length": number(64),
        "llama.embedding_length": number(32),
        "llama.attention.head_count": number(2),
        "tokenizer.ggml.model": field(8, text("gpt2")),
        "tokenizer.ggml.tokens": field(9, struct.pack("<IQ", 8, 2), text("a"), text("b")),
        "tokenizer.ggml.scores": field(9, struct.pack("<IQ", 6, 2), struct.pack("<2f", 1.0, 2.0)),
    }
    tensors = [tensor("token_embd.weight", 8, halves(0.5) + bytes(range(32)))]
    tensors += [tensor(f"blk.{layer}.ffn_up.weight", 3, block_q4_1(2.0, -1.0, step=layer + 1)) for layer in range(3)]
    tensors.append(tensor("output_norm.weight", 0, np.ones(32, "<f4").tobytes(), (32,)))
    path = tmp_path / "m.gguf"
    write(Gguf(fields, tuple(tensors)), path)
    return path


def test_without_a_change_it_is_the_same_file(model: Path) -> None:
    same = model.with_name("same.gguf")
    write_variant(model, same)
    assert same.read_bytes() == model.read_bytes()
    assert read_gguf(model).kv_elements == 3 * 2 * 32


def test_spread_out_it_holds_the_same_numbers(model: Path) -> None:
    wide = model.with_name("wide.gguf")
    write_variant(model, wide, f16=True)
    found = {one.name: one for one in read(wide).tensors}
    up = found["blk.1.ffn_up.weight"]
    assert up.kind == 1
    assert up.data.view("<f2").tolist() == [2.0 * ((place * 2) % 16) - 1.0 for place in range(32)]
    embedding = found["token_embd.weight"]
    assert embedding.data.view("<f2").tolist() == [0.5 * place for place in range(32)]
    assert found["output_norm.weight"].kind == 0, "norms stay as they are"
    assert read_gguf(wide).file_type == "F16"


def test_four_bits_around_0() -> None:
    packed = halves(3.0) + bytes([0xF0] * 16)
    assert spread_out(tensor("x", 2, packed)).data.view("<f2").tolist() == [-24.0] * 16 + [21.0] * 16


def test_the_first_layers_are_kept_and_what_belongs_to_none(model: Path) -> None:
    short = model.with_name("short.gguf")
    write_variant(model, short, layers=2)
    whole, cut = read(model), read(short)
    assert [one.name for one in cut.tensors] == [one.name for one in whole.tensors if one.layer < 2]
    assert cut.tensors[-1].name == "output_norm.weight"
    for one in cut.tensors:
        (other,) = (tensor for tensor in whole.tensors if tensor.name == one.name)
        assert (one.data == other.data).all()
    assert read_gguf(short).kv_elements == 2 * 2 * 32


@pytest.mark.parametrize("layers", [0, 4])
def test_layers_that_are_not_there_cannot_be_kept(model: Path, layers: int) -> None:
    with pytest.raises(VariantError, match="has 3 layers"):
        write_variant(model, model.with_name("x.gguf"), layers=layers)
    assert not model.with_name("x.gguf").exists()


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    with pytest.raises(VariantError, match="no GGUF"):
        read(other)
    odd = tmp_path / "odd.gguf"
    write(Gguf({}, (tensor("x", 14, bytes(210), (256,)),)), odd)
    with pytest.raises(VariantError, match="tensor type 14"):
        read(odd)
    strange = tmp_path / "strange.gguf"
    write(Gguf({"x": field(99)}, ()), strange)
    with pytest.raises(VariantError, match="value of type 99"):
        read(strange)
