from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.admission import Limits
from wastegate.local.messages import (
    Cancel,
    Failed,
    Frames,
    Load,
    LoopConfig,
    Piece,
    Ready,
    Refused,
    Report,
    Request,
    Resize,
    Sampling,
    Start,
    Step,
    decode_config,
    decode_report,
    decode_request,
    frame,
)

REQUESTS: list[Request] = [
    Start(7, b"\1\0\0\0\0\0\0\0", Sampling(5, stop=("a", "b"), seed=2**62), n=3, priority=-1),
    Cancel(7),
    Resize(Limits(3, 4)),
]
REPORTS: list[Report] = [
    Ready(1.5, 0.5, {"a": "b"}),
    Step(0.1, 2, 3, 4, 5, 6, True, 0.5, 7, 8, 9, ((1, 0.25),), (Piece(1, 0, "🦜", 2, "stop", 32),)),
    Load(1, 2),
    Refused(1, 503, "full"),
    Failed("why"),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_arrives_as_it_was_sent(message: Request) -> None:
    (body,) = Frames().feed(frame(message))
    assert decode_request(body) == message


@pytest.mark.parametrize("message", REPORTS, ids=lambda message: type(message).__name__)
def test_a_report_arrives_as_it_was_sent(message: Report) -> None:
    (body,) = Frames().feed(frame(message))
    assert decode_report(body) == message


def test_the_configuration_arrives_as_it_was_sent() -> None:
    config = LoopConfig("m.gguf", Limits(), 512, 64, cores=(0, 1))
    (body,) = Frames().feed(frame(config))
    assert decode_config(body) == config


def test_a_request_is_not_taken_for_a_report() -> None:
    (body,) = Frames().feed(frame(Cancel(1)))
    with pytest.raises(msgspec.ValidationError):
        decode_report(body)


@given(st.lists(st.integers(1, 12), min_size=1))
def test_bytes_may_come_in_any_pieces(sizes: list[int]) -> None:
    data = b"".join(frame(message) for message in REQUESTS)
    frames = Frames()
    found = []
    at = step = 0
    while at < len(data):
        size = sizes[step % len(sizes)]
        found += [decode_request(body) for body in frames.feed(data[at : at + size])]
        at += size
        step += 1
    assert found == REQUESTS
