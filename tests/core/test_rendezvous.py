"""Rendezvous hashing: a name more or less moves its own share, and nothing else."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.rendezvous import home


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=12, unique=True),
    st.binary(min_size=13, max_size=16),
)
def test_a_new_name_takes_keys_and_moves_none_among_the_others(key: int, names: list[bytes], new: bytes) -> None:
    before = names[home(key, names)]
    grown = [*names, new]
    after = grown[home(key, grown)]
    assert after in (before, new)
    assert home(key, names) == home(key, names)


def test_one_replica_more_moves_its_share() -> None:
    for count in (2, 4, 9):
        names = [f"replica-{number}".encode() for number in range(count + 1)]
        keys = [number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for number in range(20_000)]
        moved = sum(home(key, names[:-1]) != home(key, names) for key in keys) / len(keys)
        assert abs(moved - 1 / (count + 1)) < 0.012
        shares = Counter(home(key, names) for key in keys)
        assert max(shares.values()) < 1.1 * len(keys) / (count + 1)
