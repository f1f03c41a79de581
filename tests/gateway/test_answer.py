"""One attempt's answer as it comes in: what may go on, what is held, and what is known of it at the end."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_replies import Sse, events
from wastegate.core.call import Call
from wastegate.gateway import answer as room
from wastegate.gateway.answer import Answer
from wastegate.gateway.heads import Headers
from wastegate.openai.sse import Continued

CHAT = "/v1/chat/completions"
STREAM: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON: Headers = [(b"content-type", b"application/json")]
BODY = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}'


def begin(headers: Headers, status: int = 200, continued: Continued | None = None, **members: Any) -> Answer:
    """An answer whose head has come, at 101 s."""
    defaults: dict[str, Any] = {"path": CHAT, "prompt_tokens": 11}
    answer = Answer(Call("c", 100.0, "r", model="m", **{**defaults, **members}), 100.5)
    answer.on_head(status, headers, 101.0, continued)
    return answer


def sized(body: bytes) -> Headers:
    return [*JSON, (b"content-length", b"%d" % len(body))]


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1))
def test_the_piece_that_makes_a_sized_body_whole_is_held(pieces: list[bytes]) -> None:
    answer = begin(sized(b"".join(pieces)))
    out = [answer.feed(piece, 102.0) for piece in pieces]
    assert out == [*pieces[:-1], b""]
    assert answer.last == pieces[-1]
    assert answer.length(len(pieces[-1])) == len(pieces[-1])


def test_a_body_without_a_length_goes_on_as_it_comes() -> None:
    answer = begin(JSON)
    assert [answer.feed(piece, 102.0) for piece in (b"a", b"b")] == [b"a", b"b"]
    assert (answer.last, answer.length(1)) == (b"", None)


def test_the_whole_length_is_known_when_the_first_piece_goes_out() -> None:
    answer = begin(sized(b"x" * 10))
    out = answer.feed(b"xxxx", 102.0)
    assert answer.length(len(out)) == 10


def test_an_error_is_held_whole() -> None:
    answer = begin(sized(b"no no"), 503)
    assert [answer.feed(piece, 102.0) for piece in (b"no ", b"no")] == [b"", b""]
    assert (answer.is_error, answer.body, answer.verdict()) == (True, b"no no", ("failed", "status 503"))
    assert answer.usage() == (None, "")
    assert answer.count(None) == (None, None, "none")


def test_a_streamed_error_is_held_as_well() -> None:
    answer = begin(STREAM, 500)
    assert answer.reader is None
    assert answer.feed(b"data: x\n\n", 102.0) == b""


def test_times_are_those_of_the_replica() -> None:
    answer = begin(STREAM)
    assert (answer.first_byte, answer.first_token, answer.seen) == (101.0, None, 101.0)
    for at, event in enumerate(events(Sse(chunks=2)), 102):
        answer.feed(event, float(at))
    assert answer.first_token == 103.0  # the event after the one with the role
    assert answer.seen == 107.0


def test_a_stream_is_whole_at_done_and_only_then() -> None:
    answer = begin(STREAM)
    stream = events(Sse(chunks=2))
    for event in stream[:-1]:
        answer.feed(event, 102.0)
    assert not answer.whole
    assert answer.feed(stream[-1], 102.0) == b""
    assert answer.whole
    assert answer.last == b"data: [DONE]\n\n"
    assert answer.verdict() == ("finished", "")
    usage, reason = answer.usage()
    assert (answer.count(usage), reason) == ((7, 2, "engine"), "stop")


@pytest.mark.parametrize(
    ("sse", "path", "verdict"),
    [
        (Sse(done=False), CHAT, ("finished", "")),
        (Sse(done=False, finish_reason=None), CHAT, ("failed", "cut: its stream ended without [DONE]")),
        (Sse(done=False, finish_reason=None), "/v1/completions", ("failed", "cut: its stream ended without [DONE]")),
        (Sse(done=False, finish_reason=None), "/v1/responses", ("finished", "")),
        (Sse(error=b'{"error":{"message":"oom"}}'), CHAT, ("failed", "error event: oom")),
        (Sse(error=b'{"error":{"message":"oom"}}', done=False), CHAT, ("failed", "error event: oom")),
    ],
)
def test_how_a_stream_has_ended(sse: Sse, path: str, verdict: tuple[str, str]) -> None:
    answer = begin(STREAM, path=path)
    answer.feed(b"".join(events(sse)), 102.0)
    assert answer.verdict() == verdict


# ---- what was counted


def test_tokens_that_the_engine_does_not_count_are_counted_as_they_pass() -> None:
    answer = begin(STREAM)
    answer.feed(b"".join(events(Sse(chunks=5, usage_when="never"))), 102.0)
    assert answer.count(answer.usage()[0]) == (11, 5, "counted")


@pytest.mark.parametrize(
    ("body", "path", "want"),
    [
        (BODY, CHAT, (7, 3, "engine")),
        (b"x" * 40, CHAT, (11, 10, "estimated")),
        (b'{"usage":{"prompt_tokens":7,"completion_tokens":-1}}', CHAT, (11, 13, "estimated")),
        (b'{"usage":{"prompt_tokens":7,"total_tokens":7}}', "/v1/embeddings", (7, 0, "engine")),
        (b"", CHAT, (11, 0, "estimated")),
    ],
)
def test_tokens_of_a_whole_answer(body: bytes, path: str, want: tuple[int, int, str]) -> None:
    answer = begin(sized(body), path=path)
    if body:
        answer.feed(body, 102.0)
    assert answer.count(answer.usage()[0]) == want


def test_where_no_model_runs_there_are_no_tokens() -> None:
    answer = begin(sized(BODY), path="/tokenize", model_runs=False)
    answer.feed(BODY, 102.0)
    assert answer.count(answer.usage()[0]) == (None, None, "none")


def test_an_answer_that_is_too_long_to_be_kept_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_HELD_BYTES", 100)
    answer = begin(JSON)
    for _ in range(10):
        assert answer.feed(b"x" * 60, 102.0) == b"x" * 60
    assert len(answer.body) == 120
    assert answer.count(answer.usage()[0]) == (11, 150, "estimated")


# ---- compressed though nobody asked


@pytest.mark.parametrize(("encoding", "wbits"), [(b"gzip", 31), (b" GZIP ", 31), (b"deflate", 15)])
def test_compression_is_undone(encoding: bytes, wbits: int) -> None:
    answer = begin([*JSON, (b"content-encoding", encoding), (b"content-length", b"9")])
    packed = zlib.compress(BODY, wbits=wbits)
    out = b"".join(answer.feed(packed[at : at + 7], 102.0) for at in range(0, len(packed), 7))
    assert out == BODY
    assert answer.length(1) is None, "the length was that of the compressed body"
    assert answer.headers == [*JSON, (b"content-length", b"9")]
    assert answer.count(answer.usage()[0]) == (7, 3, "engine")


def test_a_compressed_error_is_undone_too() -> None:
    answer = begin([*JSON, (b"content-encoding", b"gzip")], 500)
    answer.feed(zlib.compress(b"no", wbits=31), 102.0)
    assert (answer.body, answer.headers) == (b"no", JSON)


def test_what_is_not_compressed_as_it_says_is_an_error() -> None:
    answer = begin([*JSON, (b"content-encoding", b"gzip")])
    with pytest.raises(zlib.error):
        answer.feed(b"plain", 102.0)


def test_a_bomb_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MOST_INFLATED", 1000)
    answer = begin([*JSON, (b"content-encoding", b"gzip")])
    with pytest.raises(zlib.error, match="1000 bytes"):
        answer.feed(zlib.compress(b"a" * 5000, wbits=31), 102.0)


def test_an_encoding_that_is_not_known_goes_on_untouched() -> None:
    headers: Headers = [*JSON, (b"content-encoding", b"br")]
    answer = begin(headers)
    assert answer.feed(b"\x8b\x02", 102.0) == b"\x8b\x02"
    assert answer.headers == headers


# ---- Retry-After


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"", None),
        (b"7", 7.0),
        (b" 0.5 ", 0.5),
        (b"-3", 0.0),
        (b"nan", 0.0),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        (b"\xff", 1.0),
    ],
)
def test_retry_after(value: bytes, seconds: float | None) -> None:
    answer = begin([(b"retry-after", value)] if value else [], 503)
    assert answer.retry_after() == seconds
