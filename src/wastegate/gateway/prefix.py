"""A prompt's prefix as hashed blocks: enough to see what two prompts share, and nothing of what they say."""

from __future__ import annotations

import os
import secrets
from array import array
from pathlib import Path

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 512
"""About 128 tokens. A block costs about 1 µs, whatever its size up to here, so that 64 KB cost 0.1 ms."""
_MOST_BLOCKS = 2048
"""1 MiB of prompt; what differs only beyond it counts as the same."""
_SEED_BYTES = 8


def blocks_of(prompt: bytes, seed: int) -> bytes:
    """Chained hashes of the prompt's whole blocks, 8 bytes each in the machine's order.

    Two prompts share exactly the bytes of the blocks that are equal from the start: each hash covers all before it.
    Without the seed nobody can test a guess of a prompt against what is stored.
    """
    view = memoryview(prompt)
    hashes = array("Q")
    chain = seed
    for start in range(0, min(len(view) // BLOCK_BYTES, _MOST_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        chain = xxh3_64_intdigest(view[start : start + BLOCK_BYTES], chain)
        hashes.append(chain)
    return hashes.tobytes()


def load_seed(path: Path) -> int:
    """This installation's secret; made once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    if not path.exists():
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(_SEED_BYTES))
        try:
            os.link(fresh, path)  # unlike a rename it never replaces what another process made meanwhile
        except FileExistsError:
            pass
        fresh.unlink()
    return int.from_bytes(path.read_bytes()[:_SEED_BYTES], "little")
