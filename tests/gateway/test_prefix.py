"""Hashed blocks tell what prompts share, and no more."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from wastegate.gateway.prefix import BLOCK_BYTES, blocks_of, load_seed


@given(shared=st.integers(0, 5), own=st.integers(1, 3), tail=st.integers(0, BLOCK_BYTES - 1))
def test_prompts_share_as_many_hashes_as_they_share_whole_blocks(shared: int, own: int, tail: int) -> None:
    same = b"s" * BLOCK_BYTES * shared
    one = blocks_of(same + b"a" * BLOCK_BYTES * own + b"x" * tail, 7)
    other = blocks_of(same + b"b" * BLOCK_BYTES * own + b"y" * tail, 7)
    assert len(one) == len(other) == 8 * (shared + own)
    assert one[: 8 * shared] == other[: 8 * shared]
    pairs = zip(memoryview(one[8 * shared :]).cast("Q"), memoryview(other[8 * shared :]).cast("Q"), strict=True)
    assert all(a != b for a, b in pairs), "each hash covers all before it"


def test_a_short_prompt_has_none_and_a_huge_one_is_bounded() -> None:
    assert blocks_of(b"x" * (BLOCK_BYTES - 1), 7) == b""
    assert len(blocks_of(b"x" * (4 << 20), 7)) == 8 * 2048


def test_another_seed_makes_other_hashes() -> None:
    assert blocks_of(b"x" * BLOCK_BYTES, 1) != blocks_of(b"x" * BLOCK_BYTES, 2)


def test_the_seed_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "prefix.seed"
    seeds: list[int] = []
    threads = [threading.Thread(target=lambda: seeds.append(load_seed(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seeds)) == 1
    assert load_seed(path) == seeds[0]
    assert path.stat().st_mode & 0o077 == 0
    assert [found.name for found in path.parent.iterdir()] == ["prefix.seed"]
