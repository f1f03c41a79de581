"""Answers in OpenAI's shape, as bytes: whole bodies and stream events. Pure; what is constant over a stream is
encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Cached(Struct, frozen=True):
    """Prompt tokens that the prefix cache held. ``estimated`` where the runtime does not say and the engine reckons:
    then it is a floor, in whole blocks."""

    cached_tokens: int
    estimated: bool


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached

    @classmethod
    def of(cls, prompt: int, completion: int, cached: Cached) -> Usage:
        return cls(prompt, completion, prompt + completion, cached)


class Answer(Struct, frozen=True):
    """One of a call's n answers, whole."""

    text: str
    finish: str


class Shape:
    """The bytes of one call's answers."""

    def __init__(self, *, chat: bool, id: str, created: int, model: str, usage: bool = False) -> None:
        self._chat = chat
        self._usage = usage
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat else "")
        head = _encode({"id": id, "object": kind, "created": created, "model": model})[:-1]
        self._head = b"data: " + head + b',"choices":['
        # With include_usage every chunk carries the key, null until the last.
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"
        self._whole: dict[str, object] = {
            "id": id,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
        }

    def opening(self, index: int) -> bytes:
        """The chunk that names the role; empty for text completions, which have none."""
        if not self._chat:
            return b""
        return self._choice(index, b'"delta":{"role":"assistant","content":""}', b"null")

    def content(self, index: int, text: str) -> bytes:
        body = b'"delta":{"content":' + _encode(text) + b"}" if self._chat else b'"text":' + _encode(text)
        return self._choice(index, body, b"null")

    def closing(self, index: int, finish: str) -> bytes:
        body = b'"delta":{}' if self._chat else b'"text":""'
        return self._choice(index, body, _encode(finish))

    def usage(self, usage: Usage) -> bytes:
        """The chunk with the token counts; empty where the client did not ask for it."""
        if not self._usage:
            return b""
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n"

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        return _encode({**self._whole, "choices": choices, "usage": usage})

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, object]:
        if self._chat:
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return {"index": index, "text": answer.text, "logprobs": None, "finish_reason": answer.finish}

    def _choice(self, index: int, body: bytes, finish: bytes) -> bytes:
        return b"%s{\"index\":%d,%s,\"logprobs\":null,\"finish_reason\":%s}%s" % (
            self._head, index, body, finish, self._tail,
        )  # fmt: skip
