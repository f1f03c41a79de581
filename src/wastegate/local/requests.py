"""A request body, checked: what this engine serves, and a sentence for everything that it does not. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

MAX_ANSWERS = 128
MAX_STOPS = 16
SEED_BITS = (1 << 62) - 1  # the runtime's seed is unsigned, and each of n answers adds its number


class RequestError(ValueError):
    """A request that this engine cannot serve, said for its client."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


class Ask(Struct, frozen=True):
    """What a client asked of ``/v1/chat/completions`` or ``/v1/completions``."""

    messages: tuple[dict[str, str], ...] | None
    """None for a completion; then ``prompt`` holds it, as text or as tokens."""
    prompt: str | tuple[int, ...]
    max_tokens: int | None
    n: int
    stream: bool
    include_usage: bool
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    stop: tuple[str, ...]
    ignore_eos: bool
    priority: int
    continues: bool = False
    """The last message is the beginning of the answer, which goes on from it."""


# No effect on an answer, whatever they hold.
_INDIFFERENT = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})

# Accepted where they ask for nothing; any other value asks for what this engine does not do.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}

_SERVED = frozenset(
    {
        "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "temperature",
        "top_p", "top_k", "min_p", "stream", "stream_options", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "ignore_eos", "priority", "continue_final_message", "add_generation_prompt",
    }
)  # fmt: skip


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises :class:`RequestError`."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, not {_kind(fields)}")
    return fields


def parse_ask(fields: Mapping[str, Any], *, chat: bool, model: str) -> Ask:
    """Check a completion request against what this engine serves. Raises :class:`RequestError`."""
    given = {key: value for key, value in fields.items() if value is not None}
    _refuse_unserved(given, "prompt" if chat else "messages")
    _check_model(given, model)
    stream = _flag(given, "stream")
    messages = parse_messages(given) if chat else None
    return Ask(
        messages=messages,
        prompt="" if chat else _prompt(given),
        max_tokens=_max_tokens(given),
        n=_whole(given, "n", 1, 1, MAX_ANSWERS),
        stream=stream,
        include_usage=_include_usage(given, stream),
        temperature=_number(given, "temperature", 1.0, 0, 2),
        top_p=_top_p(given),
        top_k=max(0, _whole(given, "top_k", 0, -1, 1 << 31)),
        min_p=_min_p(given),
        seed=_seed(given),
        presence_penalty=_number(given, "presence_penalty", 0.0, -2, 2),
        frequency_penalty=_number(given, "frequency_penalty", 0.0, -2, 2),
        repetition_penalty=_number(given, "repetition_penalty", 1.0, 0.01, 10),
        stop=_stops(given),
        ignore_eos=_flag(given, "ignore_eos"),
        priority=_whole(given, "priority", 0, -(1 << 31), 1 << 31),
        continues=_continues(given, messages),
    )


def parse_messages(fields: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """``messages`` as role and text. Raises :class:`RequestError`."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", "messages")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages))


def _continues(given: Mapping[str, Any], messages: tuple[dict[str, str], ...] | None) -> bool:
    """vLLM's pair of parameters: ``continue_final_message`` with ``add_generation_prompt`` false."""
    continues = _flag(given, "continue_final_message")
    if continues and (messages is None or messages[-1]["role"] != "assistant"):
        raise RequestError("continue_final_message needs an assistant's message as the last", "continue_final_message")
    opens = given.get("add_generation_prompt", not continues)
    if opens is not (not continues):
        raise RequestError(
            f"add_generation_prompt must be {_short(not continues)} with continue_final_message {_short(continues)}",
            "add_generation_prompt",
        )
    return continues


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object, not {_kind(message)}", where)
    role = message.get("role")
    if role == "developer":  # OpenAI's newer name for the same thing
        role = "system"
    if role not in ("system", "user", "assistant"):
        raise RequestError(
            f"{where}.role is {role!r}; this engine takes system, developer, user and assistant", f"{where}.role"
        )
    for key in ("tool_calls", "function_call", "audio"):
        if message.get(key):
            raise RequestError(f"{where}.{key} is not supported by this engine", f"{where}.{key}")
    return {"role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of text parts, not {_kind(content)}", where)
    texts = []
    for at, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise RequestError(f"{where}[{at}] is of type {kind!r}; this engine takes text only", f"{where}[{at}]")
        texts.append(part["text"])
    return "\n".join(texts)


def _prompt(fields: Mapping[str, Any]) -> str | tuple[int, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("prompt is empty; give at least one token", "prompt")
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_int(token) for token in prompt):
        return tuple(prompt)
    if isinstance(prompt, list) and len(prompt) > 1:
        raise RequestError(f"prompt holds {len(prompt)} prompts; this engine takes one a call", "prompt")
    raise RequestError("prompt must be text or a list of token numbers", "prompt")


def _refuse_unserved(given: Mapping[str, Any], other: str) -> None:
    for key, value in given.items():
        if key == other or (key not in _SERVED and key not in _INDIFFERENT and key not in _NEUTRAL):
            raise RequestError(f"parameter {key!r} is not supported by this engine", key, code="unsupported_parameter")
        if key in _NEUTRAL and not any(_same(value, neutral) for neutral in _NEUTRAL[key]):
            if key == "best_of" and _same(value, given.get("n")):
                continue
            raise RequestError(
                f"parameter {key!r} with value {_short(value)} is not supported by this engine", key,
                code="unsupported_parameter",
            )  # fmt: skip


def _check_model(given: Mapping[str, Any], model: str) -> None:
    asked = given.get("model", model)
    if asked != model:
        raise RequestError(
            f"model {_short(asked)} is not served here; this engine serves {model!r}", "model", status=404,
            code="model_not_found",
        )  # fmt: skip


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    key = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    return _whole(given, key, 0, 1, 1 << 31) or None


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise RequestError(f"stream_options must be an object, not {_kind(options)}", "stream_options")
    if not stream:
        raise RequestError("stream_options is only allowed together with stream", "stream_options")
    for key, value in options.items():
        # include_obfuscation pads chunks against an observer of their sizes: false asks for nothing.
        if key != "include_usage" and not (key == "include_obfuscation" and value in (False, None)):
            raise RequestError(f"stream_options.{key} is not supported by this engine", f"stream_options.{key}")
    return _flag(options, "include_usage", "stream_options.")


def _top_p(given: Mapping[str, Any]) -> float:
    top_p = _number(given, "top_p", 1.0, 0, 1)
    if top_p == 0:
        raise RequestError("top_p is 0; it must be above 0 and at most 1", "top_p")
    return top_p


def _min_p(given: Mapping[str, Any]) -> float:
    min_p = _number(given, "min_p", 0.0, 0, 1)
    if min_p == 1:
        raise RequestError("min_p is 1; it must be at least 0 and below 1", "min_p")
    return min_p


def _seed(given: Mapping[str, Any]) -> int | None:
    if "seed" not in given:
        return None
    return _whole(given, "seed", 0, -(1 << 63), (1 << 64) - 1) & SEED_BITS


def _stops(given: Mapping[str, Any]) -> tuple[str, ...]:
    stop = given.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise RequestError("stop must be a text or a list of texts, none of them empty", "stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop holds {len(stops)} texts; at most {MAX_STOPS} are taken", "stop")
    return tuple(stops)


def _flag(given: Mapping[str, Any], key: str, within: str = "") -> bool:
    value = given.get(key, False)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"{within}{key} must be true or false, not {_short(value)}", within + key)
    return value


def _whole(given: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _is_int(value) or not low <= value <= high:
        raise RequestError(f"{key} is {_short(value)}; it must be a whole number from {low} to {high}", key)
    return int(value)


def _number(given: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise RequestError(f"{key} is {_short(value)}; it must be a number from {low} to {high}", key)
    return float(value)


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and bool(value == neutral)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
