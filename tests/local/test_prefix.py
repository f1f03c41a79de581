from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wastegate.local.messages import BLOCK
from wastegate.local.prefix import PrefixIndex, block_keys


def tokens(*blocks: int, more: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Full blocks of one repeated token each, and some tokens after them."""
    return np.array([token for token in blocks for _ in range(BLOCK)] + [9] * more, dtype=np.int64)


def test_only_full_blocks_have_keys() -> None:
    assert len(block_keys(tokens(1, 2, more=BLOCK - 1))) == 2
    assert block_keys(tokens(more=5)) == []


def test_a_key_stands_for_its_block_and_all_before_it() -> None:
    first, second = block_keys(tokens(1, 2)), block_keys(tokens(3, 2))
    assert first[1] != second[1]
    assert first == block_keys(tokens(1, 2, 4))[:2]


def test_blocks_are_found_up_to_the_first_gap() -> None:
    keys = block_keys(tokens(1, 2, 3, 4))
    index = PrefixIndex(100)
    index.keep([keys[0], keys[1], keys[3]])
    assert index.found(keys) == 2
    assert index.found(keys, after=3) == 4


def test_the_least_recently_used_chain_goes_first_and_from_its_end() -> None:
    old, new = block_keys(tokens(1, 2)), block_keys(tokens(3, 4))
    index = PrefixIndex(3)
    index.keep(old)
    index.keep(new)
    assert (index.found(old), index.found(new)) == (1, 2)
    index.keep(old[:1])
    index.keep(block_keys(tokens(5)))
    assert (index.found(old), index.found(new)) == (1, 1)


def test_without_room_nothing_is_found() -> None:
    index = PrefixIndex(0)
    index.keep(block_keys(tokens(1)))
    assert index.found(block_keys(tokens(1))) == 0


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=40), st.integers(0, 12))
def test_it_stays_within_its_bound_and_finds_only_what_was_kept(chains: list[list[int]], bound: int) -> None:
    index = PrefixIndex(bound)
    kept: set[int] = set()
    for chain in chains:
        keys = block_keys(tokens(*chain))
        assert all(key in kept for key in keys[: index.found(keys)])
        index.keep(keys)
        kept.update(keys)
        assert len(index) <= bound
