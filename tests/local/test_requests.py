from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.local.requests import MAX_STOPS, SEED_BITS, Ask, RequestError, parse_ask, parse_body

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def chat(**fields: Any) -> Ask:
    return parse_ask({**HI, **fields}, chat=True, model="m")


def completion(**fields: Any) -> Ask:
    return parse_ask({"prompt": "hi", **fields}, chat=False, model="m")


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    return caught.value


def test_what_is_not_given_takes_openais_defaults() -> None:
    ask = chat()
    assert (ask.temperature, ask.top_p, ask.n, ask.max_tokens, ask.seed) == (1.0, 1.0, 1, None, None)
    assert (ask.stream, ask.include_usage, ask.ignore_eos, ask.stop, ask.priority) == (False, False, False, (), 0)
    assert (ask.top_k, ask.min_p, ask.repetition_penalty) == (0, 0.0, 1.0)


def test_everything_that_is_served_is_taken() -> None:
    ask = chat(
        model="m", max_tokens=5, temperature=0, top_p=0.5, top_k=4, min_p=0.1, n=2, stop="x", seed=3, stream=True,
        stream_options={"include_usage": True}, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1,
        ignore_eos=True, priority=-2,
    )  # fmt: skip
    assert (ask.max_tokens, ask.temperature, ask.top_p, ask.top_k, ask.min_p, ask.n) == (5, 0.0, 0.5, 4, 0.1, 2)
    assert (ask.stop, ask.seed, ask.stream, ask.include_usage) == (("x",), 3, True, True)
    assert (ask.presence_penalty, ask.frequency_penalty, ask.repetition_penalty) == (1.0, -1.0, 1.1)
    assert (ask.ignore_eos, ask.priority) == (True, -2)


def test_null_is_the_same_as_nothing() -> None:
    names = (
        "temperature",
        "n",
        "stop",
        "seed",
        "stream",
        "stream_options",
        "max_tokens",
        "logprobs",
        "tools",
        "unheard_of",
    )
    assert chat(**dict.fromkeys(names)) == chat()


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    "key", ["logit_bias", "logprobs", "tools", "response_format", "functions", "echo", "suffix", "best_of"]
)
def test_a_parameter_that_it_cannot_serve_is_named(key: str) -> None:
    problem = refusal(**{key: {"type": "json_object"}})
    assert (problem.status, problem.param, problem.code) == (400, key, "unsupported_parameter")
    assert repr(key) in str(problem)


@pytest.mark.parametrize("key", ["guided_json", "top_kk", "prompt"])
def test_a_parameter_that_it_does_not_know_is_named(key: str) -> None:
    assert refusal(**{key: 1}).param == key


def test_messages_are_unknown_to_a_completion() -> None:
    with pytest.raises(RequestError) as caught:
        completion(**HI)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False}, {"logit_bias": {}}, {"tools": []}, {"response_format": {"type": "text"}}, {"echo": False},
        {"tool_choice": "auto"}, {"best_of": 1}, {"best_of": 3, "n": 3}, {"modalities": ["text"]}, {"suffix": ""},
        {"store": False}, {"top_logprobs": 0}, {"service_tier": "auto"}, {"user": "me"}, {"metadata": {"a": "b"}},
        {"parallel_tool_calls": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields).messages == ({"role": "user", "content": "hi"},)


def test_nothing_is_not_zero_is_not_false() -> None:
    assert refusal(logprobs=0).param == "logprobs"
    assert refusal(top_logprobs=False).param == "top_logprobs"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("temperature", True), ("top_p", 0),
        ("top_p", 1.1), ("n", 0), ("n", 129), ("n", 1.5), ("n", True), ("max_tokens", 0), ("max_tokens", -1),
        ("max_completion_tokens", "many"), ("seed", "x"), ("seed", 1 << 64), ("presence_penalty", 3),
        ("frequency_penalty", -3), ("repetition_penalty", 0), ("stream", "yes"), ("ignore_eos", 1), ("stop", 5),
        ("stop", ""), ("stop", ["a", ""]), ("stop", ["a", 1]), ("stop", ["a"] * (MAX_STOPS + 1)), ("top_k", -2),
        ("min_p", 2), ("min_p", 1), ("priority", "high"), ("stream_options", {"include_usage": True}),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused_by_name(key: str, value: Any) -> None:
    problem = refusal(**{key: value})
    assert (problem.status, problem.param) == (400, key)
    assert key in str(problem)


@pytest.mark.parametrize("options", [5, {"include_usage": 1}, {"chunk": True}, {"include_obfuscation": True}])
def test_stream_options_are_checked(options: Any) -> None:
    param = refusal(stream=True, stream_options=options).param
    assert param is not None
    assert param.startswith("stream_options")


def test_stream_options_may_say_no() -> None:
    ask = chat(stream=True, stream_options={"include_usage": None, "include_obfuscation": False})
    assert not ask.include_usage


def test_another_model_is_not_found() -> None:
    problem = refusal(model="gpt-9")
    assert (problem.status, problem.code) == (404, "model_not_found")
    assert "'m'" in str(problem)


@pytest.mark.parametrize(("seed", "kept"), [(5, 5), (-1, SEED_BITS), (1 << 62, 0), ((1 << 64) - 1, SEED_BITS)])
def test_any_seed_becomes_one_that_the_runtime_takes(seed: int, kept: int) -> None:
    assert chat(seed=seed).seed == kept


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert chat(n=2.0).n == 2


@pytest.mark.parametrize("messages", [None, [], "hi", [5], [{}], [{"role": "tool", "content": "x"}], [{"role": "user"}],
    [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "user", "content": ["x"]}], [{"role": "assistant", "content": "", "tool_calls": [{}]}]])  # fmt: skip
def test_messages_that_it_cannot_read_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_ask({"messages": messages}, chat=True, model="m")
    assert (caught.value.param or "").startswith("messages")


def test_text_parts_are_joined_and_developers_are_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = parse_ask({"messages": [{"role": "developer", "content": parts, "name": "x"}]}, chat=True, model="m")
    assert ask.messages == ({"role": "system", "content": "a\nb"},)


@pytest.mark.parametrize(("prompt", "taken"), [("x", "x"), (["x"], "x"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))], ids=str)
def test_a_prompt_is_text_or_tokens(prompt: Any, taken: Any) -> None:
    assert completion(prompt=prompt).prompt == taken


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], ["a", "b"], [[1], [2]], [1, "a"], [True], 5, {}], ids=str)
def test_a_prompt_that_it_cannot_take_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"5", b"null", b"true"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="body"):
        parse_body(body)


def test_a_long_value_is_shown_in_part() -> None:
    assert len(str(refusal(logit_bias={str(token): 1 for token in range(1000)}))) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["model", "messages", "prompt", "max_tokens", "n", "stop", "seed", "temperature", "stream", "stream_options",
     "tools", "logprobs", "priority", "best_of"]
)  # fmt: skip


@given(st.dictionaries(NAMES, JSON), st.booleans())
def test_any_body_is_either_taken_or_refused_in_a_sentence(fields: dict[str, Any], chat: bool) -> None:
    try:
        ask = parse_ask(fields, chat=chat, model="m")
    except RequestError as problem:
        sentence = str(problem)
    else:
        sentence = f"{ask.n} answers"
    assert 0 < len(sentence) < 400


@given(st.binary(max_size=40))
def test_any_bytes_are_either_an_object_or_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_body(body), dict)
    except RequestError as problem:
        msgspec.json.encode(str(problem))


ANSWER: list[dict[str, str]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]


def test_an_answer_may_go_on_from_its_beginning() -> None:
    assert chat(messages=ANSWER, continue_final_message=True, add_generation_prompt=False).continues
    assert chat(messages=ANSWER, continue_final_message=True).continues
    assert not chat(messages=ANSWER, add_generation_prompt=True).continues


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": ANSWER, "continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": ANSWER, "add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_a_beginning_that_is_none_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_a_completion_goes_on_from_its_prompt_anyway() -> None:
    with pytest.raises(RequestError, match="assistant"):
        completion(continue_final_message=True)
