"""Lent slots come back exactly once, whatever becomes of who held them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.leases import Leases


def test_a_lease_ends_once() -> None:
    leases: Leases[str, str] = Leases(5.0)
    number = leases.grant("w1", "a", 0.0)
    assert len(leases) == 1
    assert leases.end("w2", number) is None, "it is another's"
    assert leases.end("w1", number) == "a"
    assert leases.end("w1", number) is None
    assert len(leases) == 0


def test_a_dead_owners_slots_come_back_at_once() -> None:
    leases: Leases[str, str] = Leases(5.0)
    leases.grant("w1", "a", 0.0)
    leases.grant("w1", "b", 0.0)
    leases.grant("w2", "a", 0.0)
    assert leases.gone("w1") == ["a", "b"]
    assert leases.gone("w1") == []
    assert len(leases) == 1


def test_a_silent_owners_slots_expire_and_a_late_return_changes_nothing() -> None:
    leases: Leases[str, str] = Leases(5.0)
    number = leases.grant("w1", "a", 0.0)
    leases.grant("w2", "b", 4.0)
    assert leases.expired(5.0) == []
    assert leases.expired(5.1) == ["a"]
    assert leases.expired(5.2) == []
    assert leases.end("w1", number) is None
    leases.renew("w1", 6.0)
    assert leases.end("w1", leases.grant("w1", "a", 6.0)) == "a"


@given(st.lists(st.tuples(st.sampled_from(["grant", "end", "gone", "expire"]), st.sampled_from("xyz")), max_size=40))
def test_every_granted_slot_comes_back_at_most_once(steps: list[tuple[str, str]]) -> None:
    leases: Leases[str, str] = Leases(3.0)
    granted, back = 0, 0
    numbers: dict[str, list[int]] = {"x": [], "y": [], "z": []}
    for now, (step, owner) in enumerate(steps):
        if step == "grant":
            numbers[owner].append(leases.grant(owner, "a", float(now)))
            granted += 1
        elif step == "end" and numbers[owner]:
            back += leases.end(owner, numbers[owner].pop()) is not None
        elif step == "gone":
            back += len(leases.gone(owner))
        else:
            back += len(leases.expired(float(now)))
        assert granted - back == len(leases)
    assert max(Counter(n for held in numbers.values() for n in held).values(), default=1) == 1
