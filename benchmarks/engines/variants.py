"""Writes other precisions and depths of a llama-like GGUF, to compare speed. Weights are only spread out or left out,
never trained or rounded anew.

    .venv/bin/python benchmarks/engines/variants.py MODEL.gguf OUT.gguf [--f16] [--layers N]

--f16 spreads 4-bit and 8-bit weights out to 16-bit floats: the same model, twice to four times the bytes. --layers N
keeps the first N layers: a stand-in for a smaller model's SPEED ONLY, since what it says is worthless.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_VERSION = 3
_ALIGNMENT = 32
_U32, _STRING, _ARRAY = 4, 8, 9
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the format's scalar types (its specification, version 3)."""
_F32, _F16, _Q4_0, _Q4_1, _Q8_0 = 0, 1, 2, 3, 8
_BLOCKS = {_F32: (1, 4), _F16: (1, 2), _Q4_0: (32, 18), _Q4_1: (32, 20), _Q8_0: (32, 34)}
"""Tensor type → numbers and bytes of a block."""
_FILE_IS_F16 = 1


class VariantError(ValueError):
    """The file cannot be rewritten; the sentence says why."""


class Tensor(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    """As the format has it: the fastest dimension first."""
    kind: int
    data: Bytes

    @property
    def layer(self) -> int:
        """The number of its layer; -1 for what belongs to none."""
        first, _, rest = self.name.partition(".")
        return int(rest.partition(".")[0]) if first == "blk" else -1


class Gguf(Struct, frozen=True):
    """A file's fields, each as its bytes behind the key, and its tensors, in order."""

    fields: dict[str, bytes]
    tensors: tuple[Tensor, ...]


def write_variant(source: Path, target: Path, *, f16: bool = False, layers: int | None = None) -> None:
    """Write a variant of ``source`` to ``target``, whole or not at all. Raises VariantError or OSError."""
    model = read(source)
    fields, tensors = dict(model.fields), model.tensors
    if layers is not None:
        name = f"{_text(fields['general.architecture'])}.block_count"
        (has,) = struct.unpack("<I", fields[name][4:])
        if not 1 <= layers <= has:
            raise VariantError(f"{source} has {has} layers, so {layers} of them cannot be kept")
        fields[name] = struct.pack("<II", _U32, layers)
        tensors = tuple(tensor for tensor in tensors if tensor.layer < layers)
    if f16:
        fields["general.file_type"] = struct.pack("<II", _U32, _FILE_IS_F16)
        tensors = tuple(spread_out(tensor) for tensor in tensors)
    write(Gguf(fields, tensors), target)


def spread_out(tensor: Tensor) -> Tensor:
    """The tensor in 16-bit floats; one that is in 32 bits stays (norms, which the runtime wants so)."""
    if tensor.kind in (_F32, _F16):
        return tensor
    numbers = _SPREAD[tensor.kind](tensor.data).astype("<f2")
    return Tensor(tensor.name, tensor.shape, _F16, numbers.reshape(-1).view(np.uint8))


def _halves(rows: Bytes, at: int) -> NDArray[np.float32]:
    """The 16-bit float at byte ``at`` of each block, (blocks, 1)."""
    return np.ascontiguousarray(rows[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(rows: Bytes, at: int) -> NDArray[np.float32]:
    """(blocks, 32) numbers of 4 bits: the low halves of 16 bytes, then the high ones."""
    packed = rows[:, at : at + 16]
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32)


def _from_q4_0(data: Bytes) -> NDArray[np.float32]:
    rows = data.reshape(-1, 18)
    return _halves(rows, 0) * (_nibbles(rows, 2) - 8.0)


def _from_q4_1(data: Bytes) -> NDArray[np.float32]:
    rows = data.reshape(-1, 20)
    return _halves(rows, 0) * _nibbles(rows, 4) + _halves(rows, 2)


def _from_q8_0(data: Bytes) -> NDArray[np.float32]:
    rows = data.reshape(-1, 34)
    return _halves(rows, 0) * rows[:, 2:].view(np.int8).astype(np.float32)


_SPREAD: Mapping[int, Callable[[Bytes], NDArray[np.float32]]] = {
    _Q4_0: _from_q4_0,
    _Q4_1: _from_q4_1,
    _Q8_0: _from_q8_0,
}


def read(path: Path) -> Gguf:
    """Raises VariantError for a file that is no GGUF, or has tensors of a kind that is not known here."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        raw = mapped[:]
    if raw[:4] != b"GGUF":
        raise VariantError(f"{path} is no GGUF file")
    _, count, keys = struct.unpack_from("<IQQ", raw, 4)
    fields, at = {}, 24
    for _ in range(keys):
        name, at = _string(raw, at)
        end = _end(raw, at)
        fields[name] = raw[at:end]
        at = end
    heads: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(count):
        name, at = _string(raw, at)
        (rank,) = struct.unpack_from("<I", raw, at)
        *shape, kind, offset = struct.unpack_from(f"<{rank}QIQ", raw, at + 4)
        at += 4 + 8 * rank + 12
        heads.append((name, tuple(shape), kind, offset))
    begin = -(-at // _ALIGNMENT) * _ALIGNMENT
    return Gguf(fields, tuple(_tensors(np.frombuffer(raw, np.uint8), begin, heads, path)))


def _tensors(
    raw: Bytes, begin: int, heads: list[tuple[str, tuple[int, ...], int, int]], path: Path
) -> Iterator[Tensor]:
    for name, shape, kind, offset in heads:
        if kind not in _BLOCKS:
            raise VariantError(f"{path}: {name} is of tensor type {kind}; known are {sorted(_BLOCKS)}")
        numbers, size = _BLOCKS[kind]
        length = math.prod(shape) // numbers * size
        yield Tensor(name, shape, kind, raw[begin + offset : begin + offset + length])


def write(model: Gguf, path: Path) -> None:
    """Write the file, whole or not at all."""
    beside = path.with_name(path.name + ".partial")
    with beside.open("wb") as file:
        head = struct.pack("<4sIQQ", b"GGUF", _VERSION, len(model.tensors), len(model.fields))
        for name, value in model.fields.items():
            head += _packed(name) + value
        offset = 0
        for tensor in model.tensors:
            head += _packed(tensor.name) + struct.pack("<I", len(tensor.shape))
            head += struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, tensor.kind, offset)
            offset += len(tensor.data) + -len(tensor.data) % _ALIGNMENT
        file.write(head + bytes(-len(head) % _ALIGNMENT))
        for tensor in model.tensors:
            file.write(tensor.data.tobytes() + bytes(-len(tensor.data) % _ALIGNMENT))
    os.replace(beside, path)


def _string(raw: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", raw, at)
    return raw[at + 8 : at + 8 + length].decode(), at + 8 + length


def _packed(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _text(field: bytes) -> str:
    return field[12:].decode()


def _end(raw: bytes, at: int) -> int:
    """Where the value that begins with its type at ``at`` ends."""
    (kind,) = struct.unpack_from("<I", raw, at)
    if kind != _ARRAY:
        return _past(raw, at + 4, kind)
    inner, count = struct.unpack_from("<IQ", raw, at + 4)
    at += 16
    if inner in _WIDTHS:
        return int(at + count * _WIDTHS[inner])
    for _ in range(count):
        at = _past(raw, at, inner)
    return at


def _past(raw: bytes, at: int, kind: int) -> int:
    if kind in _WIDTHS:
        return at + _WIDTHS[kind]
    if kind != _STRING:
        raise VariantError(f"a field has a value of type {kind}, which is not known here")
    (length,) = struct.unpack_from("<Q", raw, at)
    return int(at + 8 + length)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--f16", action="store_true", help="16-bit floats in place of 4 and 8 bits")
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N layers: for speed only")
    given = parser.parse_args()
    try:
        write_variant(given.source, given.target, f16=given.f16, layers=given.layers)
    except (VariantError, OSError) as error:
        print(f"variants: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
