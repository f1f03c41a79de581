"""Messages between workers and their coordinator survive any cut of the stream that carries them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.shares import Share
from wastegate.core.world import Result
from wastegate.gateway.claims import (
    Ask,
    Back,
    Beat,
    Fleet,
    Frames,
    FromCoordinator,
    FromWorker,
    Have,
    Hello,
    Order,
    Told,
    decode_coordinator,
    decode_worker,
    frame,
)
from wastegate.gateway.tally import Report

NAMES = st.text(max_size=8)
NUMBERS = st.integers(0, 2**40)
FROM_WORKER: st.SearchStrategy[FromWorker] = st.one_of(
    st.builds(Hello, NUMBERS),
    st.builds(Ask, NUMBERS, NAMES, NUMBERS),
    st.builds(Have, NUMBERS, NAMES, NUMBERS),
    st.builds(Back, NUMBERS, st.builds(Result, NAMES, st.sampled_from(["finished", "lost"]), st.none() | NUMBERS)),
    st.builds(Beat, st.builds(Report, NUMBERS, NUMBERS)),
)
STATES = st.builds(ReplicaState, st.builds(Replica, NAMES, NAMES, cap=st.none() | st.integers(1, 9)))
FROM_COORDINATOR: st.SearchStrategy[FromCoordinator] = st.one_of(
    st.builds(Told, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Fleet, st.lists(STATES, max_size=3).map(tuple), st.booleans(), st.just(Share(1, 2))),
    st.builds(Order, NAMES, st.binary(max_size=300)),
)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces, cut at these places."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes], decode: Callable[[bytes], Any]) -> list[Any]:
    frames = Frames()
    return [decode(found) for piece in pieces for found in frames.cut(piece)]


@given(st.lists(FROM_WORKER, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_whatever_a_worker_says_arrives(messages: list[FromWorker], places: list[int]) -> None:
    pieces = cut(b"".join(map(frame, messages)), places)
    assert read(pieces, decode_worker) == messages


@given(st.lists(FROM_COORDINATOR, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_whatever_the_coordinator_says_arrives(messages: list[FromCoordinator], places: list[int]) -> None:
    pieces = cut(b"".join(map(frame, messages)), places)
    assert read(pieces, decode_coordinator) == messages


def test_byte_by_byte() -> None:
    messages: list[FromWorker] = [Hello(1), Ask(2, "a", 1), Back(3, Result("a", "finished", 200))]
    stream = b"".join(map(frame, messages))
    assert read([stream[at : at + 1] for at in range(len(stream))], decode_worker) == messages


def test_a_message_that_is_not_whole_waits() -> None:
    frames = Frames()
    whole = frame(Hello(7))
    assert frames.cut(whole[:-1]) == []
    assert [decode_worker(found) for found in frames.cut(whole[-1:])] == [Hello(7)]


def test_a_length_that_makes_no_sense_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ValueError, match="a message of 1195725856 bytes"):
        Frames().cut(b"GET / HTTP/1.1\r\n\r\n")


def test_what_is_no_message_is_refused() -> None:
    (found,) = Frames().cut(b"\0\0\0\2\x91\x63")
    with pytest.raises(msgspec.DecodeError):
        decode_worker(found)
