"""Request and answer bodies, read only as far as the gateway needs. The prompt is measured, never kept."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from xxhash import xxh3_64_intdigest

from wastegate.openai.sse import MOST_TOKENS, Usage, read_usage

_WANT_USAGE = b'"stream_options":{"include_usage":true},'
_ABSENT = msgspec.Raw()
_Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


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
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    cache_salt: str | None = None

    @property
    def scope(self) -> int:
        """Requests share KV only where this is equal: engines keep salts apart, and templates put tools first."""
        if self.cache_salt is None and not self.tools:
            return 0
        return xxh3_64_intdigest(b"%s\0%s" % ((self.cache_salt or "").encode(), bytes(self.tools)))

    @property
    def deterministic(self) -> bool:
        return self.temperature == 0

    @property
    def repeatable(self) -> bool:
        """The same request may be given the same answer: nothing is drawn, or the draws are fixed."""
        return self.temperature == 0 or self.seed is not None

    @property
    def text(self) -> bytes:
        """The prompt as it stands in the body, JSON and all."""
        return bytes(self.messages) or bytes(self.prompt)

    @property
    def structured(self) -> bool:
        """Its answer is bound to tools or a grammar, so that it cannot be continued elsewhere."""
        return any(bytes(member) not in (b"", b"null") for member in (self.tools, self.response_format))


_decode = msgspec.json.Decoder(Request).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TOOLS = ("tools", "functions", "web_search_options", "mcp_servers")
_NO_MATTER = frozenset(
    ("user", "metadata", "priority", "request_id", "safety_identifier", "prompt_cache_key", "service_tier", "store")
)
"""Members that say who asks, how urgently, or what else to do with the answer; none changes what it says."""
_READ_AGAIN = ("messages", "prompt", "max_completion_tokens", "max_tokens", "continue_final_message", "echo")


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
    except RecursionError:
        raise RequestError("the request body is nested too deeply to be read") from None
    return request


def with_usage(body: bytes, request: Request) -> bytes:
    """The same body, asking for the usage chunk of a stream. The usual case is a prefix; no other member is touched."""
    if request.stream_options is None and b'"stream_options"' not in body:
        at = body.index(b"{") + 1
        return body[:at] + _WANT_USAGE + body[at:]
    members = _members(body)
    if members is None:
        return body
    options = _members(bytes(members.get("stream_options", b""))) or {}
    return msgspec.json.encode({**members, "stream_options": {**options, "include_usage": True}})


def with_most_tokens(body: bytes, most: int) -> bytes:
    """The same body, asking for at most ``most`` tokens. A body that names no bound gets one as a prefix; in one that
    does, the numbers are lowered where they are above it."""
    named = b'"max_tokens"' in body or b'"max_completion_tokens"' in body
    if not named and b"\\u" not in body:  # an escape may hide either name, and of two the last would count
        at = body.index(b"{") + 1
        return b'%b"max_tokens":%d,%b' % (body[:at], most, body[at:])
    members = _members(body)
    if members is None:
        return body
    asked = {name: _bound(members.get(name)) for name in ("max_completion_tokens", "max_tokens")}
    bounds = {name: min(bound, most) for name, bound in asked.items() if bound is not None} or {"max_tokens": most}
    return msgspec.json.encode({**members, **bounds})


def _bound(member: msgspec.Raw | None) -> int | None:
    value = msgspec.json.decode(member) if member is not None else None
    return value if isinstance(value, int) else None


def essence(body: bytes) -> bytes | None:
    """What of a body decides its answer, in one order: the same for two bodies only if they ask the same. None where
    its answer is not to be shared: a call with tools, whose answer holds ids that must be a single call's."""
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None  # read loosely so far
    if any(members.get(name) for name in _TOOLS):
        return None
    asked = {name: value for name, value in members.items() if name not in _NO_MATTER}
    return msgspec.json.encode(asked, order="sorted")


def with_text_so_far(body: bytes, text: str, tokens: int) -> bytes | None:
    """The same request, going on from ``text``, of which ``tokens`` tokens are spent. None where that cannot be said.

    For chat the text becomes an assistant message that is to be continued: vLLM's and SGLang's
    ``continue_final_message``, which the engine that comes with wastegate takes too; llama.cpp continues a last
    assistant message by itself.
    """
    members = _members(body) or {}
    try:
        said = {name: msgspec.json.decode(members[name]) for name in _READ_AGAIN if name in members}
    except (msgspec.DecodeError, RecursionError):
        return None  # read loosely so far; a replica may have taken it, but it cannot be written anew
    if said.get("continue_final_message") or said.get("echo"):
        return None  # the answer's beginning is the client's own last message, or repeats the prompt
    changed: dict[str, object] = {}
    if isinstance(messages := said.get("messages"), list):
        changed["messages"] = [*messages, {"role": "assistant", "content": text}]
        changed["continue_final_message"] = True
        changed["add_generation_prompt"] = False
    elif isinstance(prompt := said.get("prompt"), str):
        changed["prompt"] = prompt + text
    else:
        return None
    for name in ("max_completion_tokens", "max_tokens"):
        if isinstance(most := said.get(name), int):
            if most <= tokens:
                return None  # nothing is left to say: only the end is missing
            changed[name] = most - tokens
    return msgspec.json.encode({**members, **changed})


def _members(body: bytes) -> dict[str, msgspec.Raw] | None:
    """A JSON object's members, each left as it was written; None if it is none."""
    try:
        return _decode_members(body)
    except (msgspec.DecodeError, RecursionError):
        return None


class _Choice(Struct, gc=False):
    finish_reason: str | None = None


class _Counts(Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _Details | None = None


class _Details(Struct, gc=False):
    cached_tokens: _Count | None = None


class _Answer(Struct, gc=False):
    """An answer as engines write it, read in one pass."""

    usage: _Counts
    choices: list[_Choice] = []


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


def read_answer(body: bytes) -> tuple[Usage | None, str]:
    """(usage, finish reason) of a whole JSON answer; (None, "") where it has none or is not one."""
    try:
        answer = _decode_answer(body)
    except msgspec.DecodeError:
        return _read_loosely(body)
    except RecursionError:
        return None, ""
    counts, details = answer.usage, answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    reason = answer.choices[0].finish_reason if answer.choices else None
    return Usage(counts.prompt_tokens, counts.completion_tokens, cached), reason or ""


def _read_loosely(body: bytes) -> tuple[Usage | None, str]:
    """The same for an answer with other members, or with some that make no sense."""
    try:
        answer = _decode_any(body)
    except (msgspec.DecodeError, RecursionError):
        return None, ""
    usage, choices = answer.get("usage"), answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else ""
    return read_usage(usage) if isinstance(usage, dict) else None, reason if isinstance(reason, str) else ""
