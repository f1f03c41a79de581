"""A language model small enough to be made in a test: a llama of two layers with made-up weights and a byte-level
vocabulary, as a GGUF file. It talks nonsense, but the real runtime loads and runs it in a second."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 2
CONTEXT = 512
WIDTH, HEADS, KV_HEADS, LAYERS, INNER = 64, 2, 1, 2, 128
MERGES = ("t h", "th e", "Ġ a", "Ġ the")
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5
_TENSOR_F32, _TENSOR_F16 = 0, 1


def write_tiny_gguf(path: Path, *, seed: int = 0, wide: bool = False, **fields: Any) -> Path:
    """Write the model; ``fields`` replace header values (``__`` for a dot), None leaves one out. ``wide`` writes 32-bit
    weights, which the runtime does not read."""
    header = _header()
    for name, value in fields.items():
        key = name.replace("__", ".")
        if value is None:
            del header[key]
        else:
            header[key] = value
    tensors = _tensors(np.random.default_rng(seed))
    out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(header)))
    for key, value in header.items():
        out += _string(key) + _value(value)
    offset = 0
    data = bytearray()
    for name, tensor in tensors.items():
        out += _string(name) + struct.pack("<I", tensor.ndim)
        out += struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape))
        kind, number = ("<f2", _TENSOR_F16) if tensor.ndim == 2 and not wide else ("<f4", _TENSOR_F32)
        out += struct.pack("<IQ", number, offset)
        data += tensor.astype(kind).tobytes()
        data += b"\0" * (-len(data) % 32)
        offset = len(data)
    out += b"\0" * (-len(out) % 32)
    path.write_bytes(out + data)
    return path


def vocabulary() -> list[str]:
    """Control tokens, every byte as byte-pair vocabularies write it, and a few merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [*CONTROL, *(letters[byte] for byte in range(256)), *(merge.replace(" ", "") for merge in MERGES)]


def _header() -> dict[str, Any]:
    tokens = vocabulary()
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": np.uint32(1),
        "llama.block_count": np.uint32(LAYERS),
        "llama.context_length": np.uint32(CONTEXT),
        "llama.embedding_length": np.uint32(WIDTH),
        "llama.feed_forward_length": np.uint32(INNER),
        "llama.attention.head_count": np.uint32(HEADS),
        "llama.attention.head_count_kv": np.uint32(KV_HEADS),
        "llama.rope.freq_base": np.float32(10000.0),
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "llama.vocab_size": np.uint32(len(tokens)),
        "llama.rope.dimension_count": np.uint32(WIDTH // HEADS),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(END),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
        "tokenizer.ggml.padding_token_id": np.uint32(END),
        "tokenizer.chat_template": TEMPLATE,
    }


def _tensors(random: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    head = WIDTH // HEADS

    def weight(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return random.normal(0, columns**-0.5, (rows, columns))

    # Attention weighs more than the last token's own embedding, so that what is said depends on the whole prompt.
    tensors = {"token_embd.weight": weight(len(vocabulary()), WIDTH), "output_norm.weight": np.ones(WIDTH) * 4}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {
            block + "attn_norm.weight": np.ones(WIDTH),
            block + "ffn_norm.weight": np.ones(WIDTH),
            block + "attn_q.weight": weight(WIDTH, WIDTH) * 2,
            block + "attn_k.weight": weight(KV_HEADS * head, WIDTH),
            block + "attn_v.weight": weight(KV_HEADS * head, WIDTH) * 4,
            block + "attn_output.weight": weight(WIDTH, WIDTH) * 4,
            block + "ffn_gate.weight": weight(INNER, WIDTH),
            block + "ffn_up.weight": weight(INNER, WIDTH),
            block + "ffn_down.weight": weight(WIDTH, INNER),
        }
    return tensors


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, np.float32):
        return struct.pack("<If", _F32, value)
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
        return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _I32, len(value), *value)
    return struct.pack("<II", _U32, int(value))
