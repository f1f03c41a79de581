"""Request and answer bodies, read only as far as the gateway needs. The prompt is measured, never kept."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from wastegate.openai.sse import Usage, read_usage

_WANT_USAGE = b'"stream_options":{"include_usage":true},'


class RequestError(ValueError):
    """The body cannot be served as it is. The text says what and where; ``param`` names the member."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class _Options(Struct, gc=False):
    include_usage: bool | None = None


class Request(Struct, gc=False):
    """The members of a completion request that policy needs; all others are skipped unread."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _Options | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    seed: int | None = None
    priority: int | None = None
    tools: msgspec.Raw | None = None
    response_format: msgspec.Raw | None = None

    @property
    def deterministic(self) -> bool:
        return self.temperature == 0

    @property
    def structured(self) -> bool:
        """Its answer is bound to tools or a grammar, so that it cannot be continued elsewhere."""
        return self.tools is not None or self.response_format is not None


_decode = msgspec.json.Decoder(Request).decode


def read_request(body: bytes) -> Request:
    """Raises RequestError with the member and the position that do not fit."""
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        param = message.partition("$.")[2].rstrip("`") or None
        raise RequestError(f"the request body does not fit: {message}", param) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the request body is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the request body is not UTF-8: byte {error.start}") from None
    return request


def with_usage(body: bytes, request: Request) -> bytes:
    """The same body, asking for the usage chunk of a stream. The usual case is a prefix; nothing is re-encoded."""
    if request.stream_options is None and b'"stream_options"' not in body:
        at = body.index(b"{") + 1
        return body[:at] + _WANT_USAGE + body[at:]
    members = msgspec.json.decode(body)
    options = members.get("stream_options") or {}
    members["stream_options"] = {**options, "include_usage": True}
    return msgspec.json.encode(members)


def with_text_so_far(body: bytes, text: str, tokens: int) -> bytes | None:
    """The same request, going on from ``text``, of which ``tokens`` tokens are spent. None where that cannot be said.

    For chat the text becomes an assistant message that is to be continued: vLLM's and SGLang's
    ``continue_final_message``, which the engine that comes with wastegate takes too; llama.cpp continues a last
    assistant message by itself.
    """
    members = msgspec.json.decode(body)
    messages, prompt = members.get("messages"), members.get("prompt")
    if isinstance(messages, list):
        members["messages"] = [*messages, {"role": "assistant", "content": text}]
        members["continue_final_message"] = True
        members["add_generation_prompt"] = False
    elif isinstance(prompt, str):
        members["prompt"] = prompt + text
    else:
        return None
    for name in ("max_completion_tokens", "max_tokens"):
        most = members.get(name)
        if isinstance(most, int):
            if most <= tokens:
                return None  # nothing is left to say: only the end is missing
            members[name] = most - tokens
    return msgspec.json.encode(members)


class _Choice(Struct, gc=False):
    finish_reason: Any = None


class _Answer(Struct, gc=False):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def read_answer(body: bytes) -> tuple[Usage | None, str]:
    """(usage, finish reason) of a whole JSON answer; (None, "") where it has none or is not one."""
    try:
        answer = _decode_answer(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, ""
    reason = answer.choices[0].finish_reason if answer.choices else ""
    usage = read_usage(answer.usage) if answer.usage is not None else None
    return usage, reason if isinstance(reason, str) else ""
