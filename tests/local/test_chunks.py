from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from wastegate.local.chunks import DONE, Answer, Cached, Shape, Usage

USAGE = Usage.of(7, 3, Cached(0, False))


def event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    return json.loads(data[6:])


def chat(*, usage: bool = False) -> Shape:
    return Shape(chat=True, id="chatcmpl-1", created=5, model='a "model"', usage=usage)


def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason() -> None:
    shape = chat()
    events = [event(shape.opening(0)), event(shape.content(0, 'a "b"\n🦜')), event(shape.closing(0, "stop"))]
    for one in events:
        ChatCompletionChunk.model_validate(one, strict=True)
        assert "usage" not in one
        assert (one["id"], one["created"], one["model"]) == ("chatcmpl-1", 5, 'a "model"')
    choices = [one["choices"][0] for one in events]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": 'a "b"\n🦜'},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


def test_each_answer_has_its_index() -> None:
    assert event(chat().content(2, "x"))["choices"][0]["index"] == 2


def test_with_usage_every_chunk_has_the_key_and_the_last_the_counts() -> None:
    shape = chat(usage=True)
    assert event(shape.content(0, "x"))["usage"] is None
    last = event(shape.usage(USAGE))
    chunk = ChatCompletionChunk.model_validate(last)
    assert chunk.choices == []
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, chunk.usage.total_tokens) == (7, 3, 10)


def test_without_it_there_is_no_usage_chunk() -> None:
    assert chat().usage(USAGE) == b""


def test_a_completion_stream_has_text_and_no_role() -> None:
    shape = Shape(chat=False, id="cmpl-1", created=5, model="m")
    assert shape.opening(0) == b""
    Completion.model_validate(event(shape.closing(0, "length")))
    assert event(shape.content(0, "x"))["choices"][0] == {
        "index": 0, "text": "x", "logprobs": None, "finish_reason": None,
    }  # fmt: skip


def test_whole_answers() -> None:
    body = json.loads(chat().whole([Answer("one", "stop"), Answer("two", "length")], Usage.of(7, 3, Cached(64, True))))
    whole = ChatCompletion.model_validate(body)
    assert [choice.message.content for choice in whole.choices] == ["one", "two"]
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "length"]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 64, "estimated": True}
    text = json.loads(Shape(chat=False, id="cmpl-1", created=5, model="m").whole([Answer("x", "stop")], USAGE))
    assert Completion.model_validate(text).choices[0].text == "x"


def test_the_end_is_said_as_openai_says_it() -> None:
    assert DONE == b"data: [DONE]\n\n"
