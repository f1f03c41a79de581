from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wastegate.sim.kv import Blocks, Found


def test_what_was_used_last_is_kept_longest() -> None:
    blocks = Blocks(16)
    for prompt in ([1, 2], [1, 3], [4, 5]):
        blocks.pin(prompt)
    assert blocks.pinned == 5 * 16
    assert blocks.find([1, 3, 9]) == Found(2, 0)
    for prompt in ([1, 2], [1, 3], [4, 5]):
        blocks.unpin(prompt)
    assert (blocks.pinned, blocks.idle) == (0, 5 * 16)
    blocks.trim(3 * 16)
    assert blocks.find([1, 3]) == Found(1, 0), "2 and 3 were given back before 1"
    assert blocks.find([4, 5]) == Found(2, 0)
    blocks.trim(16)
    assert blocks.find([1]) == Found(0, 0)
    assert blocks.find([4, 5]) == Found(1, 0), "the end of a prompt goes before its beginning"


def test_only_the_beginning_counts() -> None:
    blocks = Blocks(16)
    blocks.pin([1, 2, 3])
    assert blocks.find([7, 2, 3]) == Found(0, 0)
    assert blocks.unpinned([2, 3, 8, 9]) == 2 * 16


def test_a_tier_holds_what_was_given_up_until_it_is_full_itself() -> None:
    blocks = Blocks(16, tier_tokens=32)
    blocks.pin([1, 2, 3])
    blocks.unpin([1, 2, 3])
    blocks.trim(0)
    assert blocks.find([1, 2, 3]) == Found(0, 2), "3 went first, and from the tier as well"
    blocks.pin([1])
    assert blocks.find([1, 2]) == Found(1, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.booleans()), max_size=40), st.integers(0, 200))
def test_pins_and_room_add_up(moves: list[tuple[int, int, bool]], room: int) -> None:
    blocks = Blocks(16)
    held: list[list[int]] = []
    for start, count, comes in moves:
        if comes or not held:
            held.append(list(range(start * 10, start * 10 + count)))
            blocks.pin(held[-1])
        else:
            blocks.unpin(held.pop(start % len(held)))
        blocks.trim(room)
        assert blocks.idle <= max(0, room)
        assert blocks.pinned == 16 * len({each for hashes in held for each in hashes})
