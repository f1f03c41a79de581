"""What a GGUF file says of itself: architecture, context, vocabulary kind. Reads the header only; weights never
enter, and nothing is written."""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from msgspec import Struct

# Value types of the GGUF format (its specification, version 3): struct codes for the scalar ones.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL = 3  # tokenizer.ggml.token_type: a token that steers the model and is never shown

# general.file_type, for the kinds that a reader is likely to meet; others are shown by number.
_FILE_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 12: "Q3_K_M", 15: "Q4_K_M", 17: "Q5_K_M",
               18: "Q6_K", 32: "BF16"}  # fmt: skip

# Bytes of a block of numbers, and how many numbers are in it, by tensor type (the format's ggml types).
_BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256),
           11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 30: (2, 1)}  # fmt: skip
_ALIGNMENT = 32  # general.alignment, where the file does not say


class GgufError(ValueError):
    """The file is no GGUF, is cut short, or lacks what the engine needs; the sentence says which."""


class GgufInfo(Struct, frozen=True):
    """The header, reduced to what the engine needs."""

    architecture: str
    name: str
    file_type: str
    context: int
    """Positions that the model was trained for, in tokens."""
    kv_elements: int
    """Numbers of KV that one token holds, over all layers."""
    tokenizer: str
    control_tokens: frozenset[int]


def read_gguf(path: Path) -> GgufInfo:
    """Read a GGUF header. Raises :class:`GgufError`, or OSError where the file cannot be opened."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                fields, at, tensors = _fields(data, path)
                _check_tensors(data, at, tensors, int(fields.get("general.alignment", _ALIGNMENT)), path)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            if isinstance(error, GgufError):
                raise
            raise GgufError(f"{path}: the GGUF header is cut short or damaged ({error}); fetch it again") from error
    return _info(fields, path)


def _fields(data: mmap.mmap, path: Path) -> tuple[dict[str, Any], int, int]:
    """The header's fields, where the list of tensors begins, and how many there are."""
    if data[:4] != b"GGUF":
        raise GgufError(f"{path}: not a GGUF file (it does not begin with 'GGUF')")
    version, tensors, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise GgufError(f"{path}: GGUF version {version}; this engine reads 2 and 3")
    fields: dict[str, Any] = {}
    at = 24
    for _ in range(count):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        fields[key], at = _value(data, at + 4, kind)
    return fields, at, tensors


def _check_tensors(data: mmap.mmap, at: int, tensors: int, alignment: int, path: Path) -> None:
    """A file whose weights are cut off has a whole header, and the runtime would read on past its end."""
    end = 0
    for _ in range(tensors):
        _, at = _string(data, at)
        (rank,) = struct.unpack_from("<I", data, at)
        *shape, kind, offset = struct.unpack_from(f"<{rank}QIQ", data, at + 4)
        at += 4 + 8 * rank + 12
        size, numbers = _BLOCKS.get(kind, (0, 1))
        end = max(end, offset + math.prod(shape) // numbers * size)
    need = -(-at // alignment) * alignment + end
    if len(data) < need:
        raise GgufError(f"{path}: cut short: {len(data)} bytes of {need}; fetch it again")


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError("a string runs past the end")
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind in _SCALARS:
        code = "<" + _SCALARS[kind]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    if kind == _STRING:
        return _string(data, at)
    if kind != _ARRAY:
        raise ValueError(f"unknown value type {kind}")
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _SCALARS:
        code = f"<{count}{_SCALARS[inner]}"
        return struct.unpack_from(code, data, at), at + struct.calcsize(code)
    items = []
    for _ in range(count):
        item, at = _value(data, at, inner)
        items.append(item)
    return tuple(items), at


def _info(fields: dict[str, Any], path: Path) -> GgufInfo:
    def need(key: str) -> Any:
        if key not in fields:
            raise GgufError(f"{path}: the header has no {key!r}; is it a language model?")
        return fields[key]

    kind = str(need("general.architecture"))
    heads = int(need(f"{kind}.attention.head_count"))
    kv_heads = int(fields.get(f"{kind}.attention.head_count_kv", heads))
    width = int(need(f"{kind}.embedding_length")) // heads
    key_width = int(fields.get(f"{kind}.attention.key_length", width))
    value_width = int(fields.get(f"{kind}.attention.value_length", width))
    types = fields.get("tokenizer.ggml.token_type", ())
    number = fields.get("general.file_type")
    return GgufInfo(
        architecture=kind,
        name=str(fields.get("general.name", path.stem)),
        file_type=_FILE_TYPES.get(number, f"type {number}") if isinstance(number, int) else "unknown",
        context=int(need(f"{kind}.context_length")),
        kv_elements=int(need(f"{kind}.block_count")) * kv_heads * (key_width + value_width),
        tokenizer=str(need("tokenizer.ggml.model")),
        control_tokens=frozenset(token for token, what in enumerate(types) if what == _CONTROL),
    )
