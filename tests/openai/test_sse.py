"""The stream reader: bytes go on unchanged however they are cut, and what it notes does not depend on the cuts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_replies import Sse, events
from wastegate.openai import sse as room
from wastegate.openai.sse import Continued, StreamReader, Usage, read_usage, text_of

DONE = b"data: [DONE]\n\n"


def event(*choices: dict[str, Any], **members: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": choices, **members}) + b"\n\n"


def says(text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text}, "finish_reason": finish}


def usage(prompt: int, output: int) -> bytes:
    return event(usage={"prompt_tokens": prompt, "completion_tokens": output})


TWO_CHOICES_IN_ONE_EVENT = (
    event(says("a"), says("b", index=1)) + event(says("c"), says("d", "stop", 1)) + event(says("", "length")) + DONE
)
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hi"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":5,'
    b'"output_tokens":1,"input_tokens_details":{"cached_tokens":4}}}}\n\n'
)
MESSAGES = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":'
    b'{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)

STREAMS = {
    "plain": events(Sse(chunks=3)),
    "not asked": events(Sse(chunks=2), usage=False),
    "text completion": events(Sse(chunks=2), path="/v1/completions"),
    "reasoning": events(Sse(chunks=2, kind="reasoning")),
    "tool calls": events(Sse(chunks=2, kind="tool_calls")),
    "several tokens": events(Sse(chunks=2, tokens=5)),
    "empty deltas first": events(Sse(chunks=2, empty_deltas=2)),
    "usage beside the end": events(Sse(chunks=2, usage_place="beside")),
    "usage in each": events(Sse(chunks=2, usage_place="each")),
    "usage null in each": events(Sse(chunks=2, usage_place="null")),
    "usage is null": events(Sse(chunks=1, usage=None)),
    "pings": events(Sse(chunks=2, ping=True)),
    "no space": events(Sse(chunks=2, field="data:")),
    "CRLF": events(Sse(chunks=2, eol="\r\n")),
    "CR": events(Sse(chunks=2, eol="\r")),
    "BOM": events(Sse(chunks=1, bom=True)),
    "no [DONE]": events(Sse(chunks=2, done=False)),
    "no finish reason": events(Sse(chunks=2, finish_reason=None)),
    "error inside": events(Sse(chunks=3, error=b'{"error":{"message":"out of memory","type":"x"}}')),
    "error, no [DONE]": events(Sse(chunks=2, error=b'{"error":"gone"}', done=False)),
    "only [DONE]": [DONE],
    "BOM before [DONE]": [b"\xef\xbb\xbf" + DONE],
    "bytes after [DONE]": [event(says("a")), DONE, b": bye\n\n", b"x"],
    "odd lines": [event(says("a")), b"id: 7\nretry: 5\n\n", b"data\n\n", b"data: nonsense\n\n", b"data: [1]\n\n", DONE],
    "two data lines": [b'data: {"choices":[{"delta":{"content":"a"},\ndata: "finish_reason":null}]}\n\n', DONE],
    "two choices in one event": [TWO_CHOICES_IN_ONE_EVENT],
    "spaces in the JSON": [event(says("a")).replace(b":null", b": null") * 3, DONE],
    "half a character held back": [event(says("a")), event(says("")), event(says("é")), usage(1, 3), DONE],
    "responses": [RESPONSES],
    "messages": [MESSAGES],
    "a line feed too many": [event(says("a")) + b"\n", event(says("b")), DONE],
    "the last event has no end": [event(says("a")), b'data: {"choices":[{"delta":{"con'],
}


def read(pieces: Iterable[bytes], hide: bool = True) -> tuple[bytes, StreamReader]:
    reader = StreamReader(hide)
    return b"".join([reader.feed(piece) for piece in pieces]), reader


def facts(reader: StreamReader) -> dict[str, Any]:
    hidden = ("_tail", "_started", "_continued", "_hide_usage")
    return {name: getattr(reader, name) for name in reader.__slots__ if name not in hidden}


def cut(stream: bytes, places: Iterable[int]) -> Iterator[bytes]:
    edges = [0, *sorted(place for place in places if 0 < place < len(stream)), len(stream)]
    return (stream[start:end] for start, end in pairwise(edges))


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> bytes:
    return b"".join(STREAMS[request.param])


@pytest.mark.parametrize("hide", [True, False])
def test_cut_at_every_byte_a_stream_reads_the_same(stream: bytes, hide: bool) -> None:
    relayed, whole = read([stream], hide)
    for place in range(1, len(stream)):
        out, reader = read([stream[:place], stream[place:]], hide)
        assert (out, reader.unfinished, facts(reader)) == (relayed, whole.unfinished, facts(whole)), place


@pytest.mark.parametrize("hide", [True, False])
def test_byte_by_byte_a_stream_reads_the_same(stream: bytes, hide: bool) -> None:
    relayed, whole = read([stream], hide)
    out, reader = read((stream[at : at + 1] for at in range(len(stream))), hide)
    assert (out, reader.unfinished, facts(reader)) == (relayed, whole.unfinished, facts(whole))


@pytest.mark.parametrize("name", STREAMS)
def test_event_by_event_a_stream_reads_the_same(name: str) -> None:
    relayed, whole = read([b"".join(STREAMS[name])])
    out, reader = read(STREAMS[name])
    assert (out, facts(reader)) == (relayed, facts(whole))


def test_every_byte_goes_on_where_usage_is_wanted(stream: bytes) -> None:
    out, reader = read([stream], hide=False)
    assert out + reader.last + reader.unfinished == stream


@settings(deadline=None)  # a loaded machine is no failure
@given(st.data())
def test_cut_anywhere_and_spoilt_anyhow_it_loses_no_byte_and_raises_nothing(data: st.DataObject) -> None:
    stream = bytearray(b"".join(STREAMS[data.draw(st.sampled_from(sorted(STREAMS)))]))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, max(0, len(stream) - 1)))
        size = data.draw(st.integers(0, 40))
        kind = data.draw(st.sampled_from(["drop", "double", "put"]))
        junk = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"\n", b"\r", b"\n\n", b"data:", b"null", b'"usage"', b"{"])
        )
        stream[at : at + size] = {"drop": b"", "double": stream[at : at + size] * 2, "put": junk}[kind]
    spoilt = bytes(stream)
    pieces = list(cut(spoilt, data.draw(st.lists(st.integers(0, len(spoilt)), max_size=12))))
    out, reader = read(pieces, hide=False)
    assert out + reader.last + reader.unfinished == spoilt
    some, hiding = read(pieces, hide=True)
    assert is_inside(some + hiding.last + hiding.unfinished, spoilt)
    assert (hiding.usage, hiding.finish_reason, hiding.done) == (reader.usage, reader.finish_reason, reader.done)


def is_inside(some: bytes, whole: bytes) -> bool:
    """``some`` is ``whole`` with parts left out."""
    left = iter(whole)
    return all(byte in left for byte in some)


# ---- what it notes


def test_the_first_token_is_the_first_delta_that_says_something() -> None:
    reader = StreamReader(True)
    first = events(Sse(chunks=2, empty_deltas=2))
    seen = []
    for piece in first:
        reader.feed(piece)
        seen.append(reader.first_token)
    assert seen.index(True) == 3  # after the role and two empty deltas


@pytest.mark.parametrize("kind", ["content", "reasoning", "reasoning_content", "tool_calls"])
def test_every_kind_of_output_counts(kind: Any) -> None:
    _, reader = read(events(Sse(chunks=4, kind=kind)))
    assert (reader.first_token, reader.tokens, reader.finish_reason) == (True, 4, "stop")


def test_the_end_waits_and_the_usage_is_hidden() -> None:
    stream = events(Sse(chunks=2))
    out, reader = read(stream)
    assert reader.usage == Usage(7, 2)
    assert reader.last == DONE
    assert out == b"".join(stream[:-2])


def test_a_usage_that_was_asked_for_goes_on() -> None:
    stream = events(Sse(chunks=2))
    out, _ = read(stream, hide=False)
    assert out == b"".join(stream[:-1])


@pytest.mark.parametrize("place", ["beside", "each", "null", "own"])
def test_usage_is_found_wherever_it_stands_and_only_a_chunk_of_its_own_is_hidden(place: Any) -> None:
    stream = events(Sse(chunks=3, usage_place=place))
    out, reader = read(stream)
    assert reader.usage == Usage(7, 3)
    hidden = 0 if place == "beside" else 1
    assert out == b"".join(stream[: len(stream) - 1 - hidden])


def test_an_ordinary_delta_after_the_first_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path: one event is one token, nothing is decoded."""
    reader = StreamReader(True)
    reader.feed(event(says("a")))
    monkeypatch.setattr(room, "_decode", None)
    for piece in (event(says("b")) * 2, event(says('"finish_reason":"stop" [DONE] \n\ndata: "usage":{}'))):
        assert reader.feed(piece) == piece
    assert (reader.tokens, reader.events, reader.done, reader.finish_reason) == (4, 4, False, "")


@pytest.mark.parametrize(
    "hidden",
    [DONE, event(says("", "length")), b'data: {"error":{"message":"no"}}\n\n', usage(1, 1)],
    ids=["[DONE]", "finish", "error", "usage"],
)
def test_two_choices_in_one_event_hide_nothing_behind_them(hidden: bytes) -> None:
    """As many unfinished choices as events, but not one in each: the hot path must see that."""
    stream = [event(says("a")), event(says("b"), says("c", index=1)) + hidden]
    one = read(stream)[1]
    other = read([stream[0], event(says("b"), says("c", index=1)), hidden])[1]
    assert facts(one) == facts(other)
    assert one.done or one.error or one.usage or one.finish_reason


def test_several_choices_are_all_counted() -> None:
    _, reader = read([TWO_CHOICES_IN_ONE_EVENT])
    assert (reader.tokens, reader.finish_reason, reader.done) == (4, "length", True)


def test_an_error_inside_the_stream_is_noted_and_relayed() -> None:
    stream = events(Sse(chunks=3, error=b'{"error":{"message":"out of memory"}}', error_after=2, done=False))
    out, reader = read(stream)
    assert out == b"".join(stream)
    assert (reader.error, reader.tokens, reader.done) == ("out of memory", 2, False)


def test_only_the_first_error_is_kept_and_not_all_of_it() -> None:
    _, reader = read([b'data: {"error":"%s"}\n\n' % (b"x" * 500), b'data: {"error":"second"}\n\n'])
    assert reader.error == "x" * 200


def test_streams_of_other_routes_show_their_tokens_and_usage() -> None:
    out, reader = read([RESPONSES], hide=False)
    assert (out, reader.usage, reader.first_token, reader.tokens) == (RESPONSES, Usage(5, 1, 4), True, 1)
    out, reader = read([MESSAGES], hide=False)
    assert (out, reader.usage, reader.first_token) == (MESSAGES, Usage(9, 2), True)


def test_an_event_that_never_ends_is_not_relayed() -> None:
    out, reader = read([event(says("a")), b'data: {"choices":[{"delta":{"content":"b"}'])
    assert out == event(says("a"))
    assert reader.unfinished.endswith(b'"content":"b"}')


def test_an_event_that_is_too_long_goes_on_unread_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_EVENT_BYTES", 1000)
    long = event(says("x" * 3000))
    reader = StreamReader(True)
    out = reader.feed(event(says("a")) + long[:900])
    assert out == event(says("a"))
    out += reader.feed(long[900:2000])
    assert reader.overlong
    out += reader.feed(long[2000:]) + reader.feed(event(says("", "stop"))) + reader.feed(DONE)
    assert out + reader.last == event(says("a")) + long + event(says("", "stop")) + DONE
    assert (reader.finish_reason, reader.done, reader.unfinished) == ("stop", True, b"")


def test_what_was_whole_before_an_event_too_long_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_EVENT_BYTES", 1000)
    reader = StreamReader(True)
    tail = b"data: " + b"x" * 2000
    assert reader.feed(event(says("a", "stop")) + usage(1, 1) + tail) == event(says("a", "stop")) + tail
    assert (reader.finish_reason, reader.usage) == ("stop", Usage(1, 1))


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":5}',
        b'{"choices":[null,7,{"delta":8,"finish_reason":9}]}',
        b'{"choices":{"delta":{}},"usage":[]}',
        b'{"response":3,"message":{"usage":4}}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b'"text"',
    ],
)
def test_an_odd_event_is_not_ours_to_judge(data: bytes) -> None:
    stream = b"data: " + data + b"\n\n"
    out, reader = read([stream])
    assert out == stream
    assert (reader.usage, reader.error, reader.first_token, reader.done) == (None, "", False, False)


# ---- usage


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4)),
        ({"prompt_tokens": 3.0, "completion_tokens": 0}, Usage(3, 0)),
        ({"prompt_tokens": -1, "completion_tokens": 1.5}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": "4"}, Usage()),
        ({"prompt_tokens": 10**30, "completion_tokens": 1e300}, Usage()),
        ({"prompt_tokens": None}, Usage()),
        ({"prompt_tokens_details": {"cached_tokens": 8}}, Usage(cached_tokens=8)),
        ({"prompt_tokens_details": None}, Usage()),
        ({"prompt_tokens_details": {"cached_tokens": None}}, Usage()),
        ({"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 1}}, Usage(5, 6, 1)),
        ({}, Usage()),
    ],
)
def test_a_count_that_makes_no_sense_is_unknown_and_never_0(said: dict[str, Any], want: Usage) -> None:
    assert read_usage(said) == want


def test_a_later_usage_that_says_less_takes_nothing_back() -> None:
    _, reader = read([usage(5, 1), event(says("a"), usage={"completion_tokens": 2})])
    assert reader.usage == Usage(5, 2)


# ---- a stream that goes on from one that broke


def go_on(stream: Iterable[bytes], tokens: int = 2, hide: bool = False) -> bytes:
    reader = StreamReader(hide, Continued(tokens))
    return b"".join([reader.feed(piece) for piece in stream])


def test_the_second_half_has_no_role_of_its_own() -> None:
    stream = events(Sse(chunks=2), usage=False)
    assert go_on(stream) == b"".join(stream[1:-1])
    assert go_on([b"".join(stream)]) == b"".join(stream[1:-1])


def test_the_usage_is_that_of_both_halves() -> None:
    stream = events(Sse(chunks=3))
    out = go_on(stream, tokens=2)
    last = msgspec.json.decode(out.split(b"data: ")[-1])
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert out.startswith(b"".join(stream[1:-2]))


def test_a_usage_that_is_hidden_stays_hidden() -> None:
    stream = events(Sse(chunks=3))
    assert go_on(stream, hide=True) == b"".join(stream[1:-2])


@pytest.mark.parametrize("odd", [{"prompt_tokens": "x", "completion_tokens": 1}, {"prompt_tokens": 5}, {}])
def test_a_usage_that_cannot_be_read_goes_on_as_it_is(odd: dict[str, Any]) -> None:
    stream = [event(says("b")), event(usage=odd)]
    assert go_on(stream) == b"".join(stream)


@pytest.mark.parametrize("data", [b"nonsense", b'{"choices":7}', b'{"choices":[9]}', b'{"usage":null,"choices":[]}'])
def test_an_odd_event_of_the_second_half_goes_on_as_it_is(data: bytes) -> None:
    stream = b"data: " + data + b"\n\n"
    assert go_on([stream]) == stream


def test_a_role_that_says_something_stays() -> None:
    whole = event({"delta": {"role": "assistant", "content": "a"}, "finish_reason": None})
    last = event({"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"})
    assert go_on([whole, last]) == whole + last


# ---- the text so far


def test_the_text_of_chat_and_of_completions() -> None:
    assert text_of(b"".join(events(Sse(chunks=4)))) == "Hello there, this"
    assert text_of(b"".join(events(Sse(chunks=2), path="/v1/completions"))) == "Hello there"
    assert text_of(b": ping\n\ndata: x\n\n" + event() + event({"delta": 5}) + event({"text": 6}) + DONE) is None
    assert text_of(b": ping\n\ndata: x\n\n" + event() + event({"delta": 5}) + DONE) == ""


@pytest.mark.parametrize("kind", ["reasoning", "reasoning_content", "tool_calls"])
def test_where_more_than_text_was_said_there_is_no_text_to_go_on_from(kind: Any) -> None:
    assert text_of(b"".join(events(Sse(chunks=2, kind=kind)))) is None
