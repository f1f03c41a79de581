"""SimHash: texts much alike have hashes much alike; where a prompt went is remembered for a while."""

from __future__ import annotations

import random

from wastegate.core.simhash import NEAR, Sticky, simhash

WORDS = [f"word{number}" for number in range(500)]


def text(seed: int, count: int = 300) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def apart(one: list[str], other: list[str]) -> int:
    return (simhash(" ".join(one).encode()) ^ simhash(" ".join(other).encode())).bit_count()


def test_alike_texts_are_near_and_others_are_far() -> None:
    base = text(1)
    changed = [*base[:150], "another", *base[151:]]
    near = [apart(text(seed), [*text(seed)[:150], "x", *text(seed)[151:]]) for seed in range(50)]
    far = [apart(text(seed), text(seed + 1000)) for seed in range(50)]
    assert apart(base, base) == 0
    assert apart(base, changed) <= 8
    assert sum(near) / len(near) < 6 < 24 < sum(far) / len(far)


def test_short_and_empty_texts_have_a_hash_too() -> None:
    assert simhash(b"") != 0
    assert simhash(b"one two") != simhash(b"two one")


def test_a_prompt_goes_where_the_most_alike_went() -> None:
    sticky = Sticky(300.0)
    sticky.put(0b0, "a", 1, 0.0)
    sticky.put(0xFF00, "b", 2, 0.0)
    assert sticky.find(0b0, 1.0) == "a"
    assert sticky.find(0b11 << 40, 1.0) == "a"  # two bits: near
    assert sticky.find(0xFF01, 1.0) == "b"
    assert sticky.find(0xFFFF_FFFF_FFFF_0000, 1.0) == ""
    assert sticky.find(0b0, 301.0) == ""
    assert NEAR == 3


def test_equal_hashes_of_other_prompts_are_counted() -> None:
    sticky = Sticky(300.0)
    sticky.put(7, "a", 1, 0.0)
    sticky.put(7, "a", 1, 1.0)
    assert sticky.collisions == 0
    sticky.put(7, "a", 2, 2.0)
    assert sticky.collisions == 1
    sticky.put(7, "a", 3, 900.0)  # the earlier one is over
    assert sticky.collisions == 1


def test_it_is_bounded() -> None:
    sticky, draw = Sticky(300.0), random.Random(1)
    for _ in range(40_000):
        sticky.put(draw.getrandbits(64), "a", 1, 0.0)
    assert len(sticky) <= 100_000
