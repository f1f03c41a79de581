"""Those that cannot ask each other stay within each cap together; a replica is the same one for every gateway."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.shares import Share, alone, among, replica_key


@given(cap=st.integers(1, 200), count=st.integers(1, 20))
def test_shares_of_a_cap_add_up_to_it(cap: int, count: int) -> None:
    parts = [Share(number, count).cap(cap) for number in range(count)]
    assert min(parts) >= 1
    assert sum(parts) == max(cap, count)
    assert max(parts) - min(parts) <= 1


@given(cap=st.integers(1, 100), gateways=st.integers(1, 5), workers=st.integers(1, 5))
def test_shares_of_shares_add_up_as_well(cap: int, gateways: int, workers: int) -> None:
    parts = [Share(w, workers).within(Share(g, gateways)) for g in range(gateways) for w in range(workers)]
    assert len(set(parts)) == len(parts), "no two are the same"
    assert sum(part.cap(cap) for part in parts) == max(cap, gateways * workers)


def test_everybody_finds_its_own_place_whoever_it_has_heard_of_first() -> None:
    assert among("b", ["c", "a"]) == among("b", ["a", "b", "c"]) == Share(1, 3)
    assert among("only", []) == Share(0, 1)


def test_a_share_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="number 2 of 2"):
        Share(2, 2)


def test_alone_only_ones_own_load_counts_against_ones_own_part() -> None:
    fleet = [
        ReplicaState(Replica("a", "http://a", cap=5), "ready", in_flight=5),
        ReplicaState(Replica("b", "http://b"), "ready", in_flight=9),
    ]
    a, b = alone(fleet, {"a": 2}, Share(0, 2))
    assert (a.in_flight, a.replica.cap) == (2, 3)
    assert a.open_to_calls(0.0)
    assert (b.in_flight, b.replica.cap) == (0, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000/"),
        ("http://gpu-1:8000", "http://gpu-1:8000/v1/"),
        ("http://gpu-1", "http://GPU-1:80"),
        ("https://gpu-1", "https://gpu-1:443"),
        ("http://127.0.0.1:8000", "http://localhost:8000"),
        ("http://127.0.0.1:8000", "http://[::1]:8000"),
    ],
)
def test_one_replica_written_in_two_ways(one: str, other: str) -> None:
    assert replica_key(one, "here") == replica_key(other, "here")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8001"),
        ("http://gpu-1", "https://gpu-1"),
        ("http://gpu-1/a", "http://gpu-1/b"),
    ],
)
def test_two_replicas(one: str, other: str) -> None:
    assert replica_key(one, "here") != replica_key(other, "here")


def test_loopback_is_another_machine_on_each_host() -> None:
    assert replica_key("http://127.0.0.1:8000", "here") != replica_key("http://127.0.0.1:8000", "there")
    assert replica_key("http://gpu-1:8000", "here") == replica_key("http://gpu-1:8000", "there")
