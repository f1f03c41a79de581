"""Request and answer bodies: what is read of them, what is added, and that all else stays as it was written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.openai.chat import (
    Request,
    RequestError,
    essence,
    read_answer,
    read_request,
    with_most_tokens,
    with_text_so_far,
    with_usage,
)
from wastegate.openai.sse import Usage

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_what_policy_needs_is_read_and_the_rest_skipped() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"max_tokens":7,"priority":-1,'
        b'"temperature":0,"stream_options":{"include_usage":true,"other":1},"unknown":{"deep":[1,2]}}'
    )
    request = read_request(body)
    assert (request.model, request.stream, request.n, request.max_tokens, request.priority) == ("m", True, 2, 7, -1)
    assert request.stream_options is not None
    assert request.stream_options.include_usage
    assert request.deterministic
    assert not request.structured


def test_an_empty_object_is_a_request_that_asks_for_nothing() -> None:
    request = read_request(b"{}")
    assert (request.model, request.stream, request.deterministic, request.structured) == (None, None, False, False)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"messages": [ {"role":"user"} ]}', b'[ {"role":"user"} ]'),
        (b'{"prompt":"Once"}', b'"Once"'),
        (b'{"prompt":"x","messages":[]}', b"[]"),
        (b"{}", b""),
    ],
)
def test_the_prompt_is_taken_as_it_stands(body: bytes, text: bytes) -> None:
    assert read_request(body).text == text


@pytest.mark.parametrize(
    "member",
    [
        '"tools":[{"type":"function","function":{"name":"look_up"}}]',
        '"response_format":{"type":"json_object"}',
    ],
)
def test_tools_and_grammars_are_taken_and_known(member: str) -> None:
    assert read_request(f"{{{member}}}".encode()).structured


@pytest.mark.parametrize("member", ['"tools":null', '"response_format":null', '"tool_choice":"auto"'])
def test_none_of_them_is_not_structured(member: str) -> None:
    assert not read_request(f"{{{member}}}".encode()).structured


@pytest.mark.parametrize(
    ("body", "says", "param"),
    [
        (b"", "not JSON", None),
        (b"not json", "not JSON", None),
        (b'{"model":"m"', "not JSON", None),
        (b'{"model":"m"} x', "not JSON", None),
        (b"[]", "Expected `object`, got `array`", None),
        (b'{"model":5}', "Expected `str | null`, got `int`", "model"),
        (b'{"stream":"yes"}', "Expected `bool | null`", "stream"),
        (b'{"stream_options":{"include_usage":1}}', "Expected `bool | null`", "stream_options.include_usage"),
        (b'{"max_tokens":1.5}', "Expected `int | null`", "max_tokens"),
        (b'{"model":"\xff"}', "not JSON: Invalid UTF-8", None),
        (b'{"model":"\\ud800"}', "not JSON", None),
        (b'\xef\xbb\xbf{"model":"m"}', "not JSON", None),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply", None),
    ],
)
def test_a_body_that_does_not_fit_says_what_and_where(body: bytes, says: str, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(body)
    assert says in str(caught.value)
    assert caught.value.param == param


@settings(deadline=None)  # a loaded machine is no failure
@given(st.binary(max_size=60) | JSON.map(msgspec.json.encode))
def test_no_body_raises_anything_else(body: bytes) -> None:
    try:
        request = read_request(body)
    except RequestError:
        return
    with_usage(body, request)


# ---- usage is asked for


def asked(body: bytes) -> bytes:
    return with_usage(body, read_request(body))


def test_salts_and_tools_keep_prompts_apart() -> None:
    def scope(body: bytes) -> int:
        return read_request(body).scope

    scopes = [
        scope(b'{"cache_salt": "a"}'),
        scope(b'{"cache_salt": "b"}'),
        scope(b'{"tools": [1]}'),
        scope(b'{"tools": [1], "cache_salt": "a"}'),
        scope(b"{}"),
    ]
    assert len(set(scopes)) == 5
    assert scopes[-1] == 0
    assert scope(b'{"cache_salt": "a", "messages": [1]}') == scopes[0]


def test_the_usual_body_only_gets_a_prefix() -> None:
    body = b' {"model": "m", "stream":true}'
    assert asked(body) == b' {"stream_options":{"include_usage":true},"model": "m", "stream":true}'


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (b"null", {"include_usage": True}),
        (b"{}", {"include_usage": True}),
        (b'{"include_usage":false}', {"include_usage": True}),
        (b'{"include_usage":null,"other":[1]}', {"include_usage": True, "other": [1]}),
        (b'{"include_usage":true}', {"include_usage": True}),
    ],
)
def test_options_that_are_there_are_completed(options: bytes, want: dict[str, Any]) -> None:
    got = msgspec.json.decode(asked(b'{"stream":true,"stream_options":%s}' % options))
    assert got == {"stream": True, "stream_options": want}


def test_a_key_written_with_escapes_is_found_too() -> None:
    got = msgspec.json.decode(asked(b'{"stream":true,"stream\\u005foptions":{"include_usage":false}}'))
    assert got["stream_options"] == {"include_usage": True}


def test_the_words_in_a_prompt_are_no_member() -> None:
    body = b'{"prompt":"say \\"stream_options\\" twice","stream":true}'
    assert asked(body).endswith(body[1:])


def test_no_other_member_is_touched() -> None:
    """Numbers keep their digits, and bytes that are no UTF-8 go on to whoever judges them."""
    body = b'{"stream_options":{},"t":0.100,"seed":123456789012345678901234567890,"e":1e999,"u":"\xff","stream":true}'
    out = asked(body)
    for member in (b'"t":0.100', b'"seed":123456789012345678901234567890', b'"e":1e999', b'"u":"\xff"'):
        assert member in out


def test_a_body_that_cannot_be_taken_apart_goes_on_as_it_is() -> None:
    body = b'{"stream":true,"stream_options":null,"\xff":1}'
    assert asked(body) == body


@settings(deadline=None)  # a loaded machine is no failure
@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, {}, {"include_usage": False}, {"x": 1}]))
def test_asking_changes_one_member_only(members: dict[str, Any], options: dict[str, Any] | None) -> None:
    members = {**{k: v for k, v in members.items() if k not in Request.__struct_fields__}, "stream": True}
    if options is not None:
        members["stream_options"] = options
    out = msgspec.json.decode(asked(msgspec.json.encode(members)))
    assert out.pop("stream_options") == {**(options or {}), "include_usage": True}
    members.pop("stream_options", None)
    assert out == members


# ---- an answer goes on elsewhere


def test_a_chat_goes_on_from_its_text() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"temperature":0.10,"max_tokens":10,"stream":true}'
    out = with_text_so_far(body, "Hello", 3)
    assert out is not None
    assert b'"temperature":0.10' in out
    got = msgspec.json.decode(out)
    assert got["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    assert (got["continue_final_message"], got["add_generation_prompt"]) == (True, False)
    assert (got["max_tokens"], got["stream"]) == (7, True)


def test_a_completion_goes_on_from_its_text() -> None:
    out = with_text_so_far(b'{"prompt":"Once","max_completion_tokens":5}', " upon", 1)
    assert out is not None
    assert msgspec.json.decode(out) == {"prompt": "Once upon", "max_completion_tokens": 4}


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"a","max_tokens":3}',  # all of them are spent
        b'{"messages":[],"max_completion_tokens":2}',
        b'{"prompt":["a","b"]}',
        b'{"prompt":[1,2,3]}',
        b'{"input":"a"}',
        b"[]",
        b'{"prompt":"a","echo":true}',
        b'{"messages":[{"role":"assistant","content":"a"}],"continue_final_message":true}',
        b'{"messages":["\xff"]}',
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_where_it_cannot_go_on_nothing_is_asked(body: bytes) -> None:
    assert with_text_so_far(body, "text", 3) is None


def test_a_limit_that_is_null_is_none() -> None:
    out = with_text_so_far(b'{"prompt":"a","max_tokens":null}', "b", 3)
    assert out is not None
    assert msgspec.json.decode(out) == {"prompt": "ab", "max_tokens": None}


# ---- whole answers


@pytest.mark.parametrize(
    ("body", "usage", "reason"),
    [
        (
            b'{"choices":[{"finish_reason":"stop","message":{}}],"usage":{"prompt_tokens":3,"completion_tokens":4,'
            b'"prompt_tokens_details":{"cached_tokens":2}}}',
            Usage(3, 4, 2),
            "stop",
        ),
        (b'{"choices":[{"finish_reason":"length"}]}', None, "length"),
        (b'{"choices":[{"finish_reason":null}],"usage":null}', None, ""),
        (b'{"choices":[{"finish_reason":7}],"usage":{}}', Usage(), ""),
        (b'{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":5}}', Usage(5), ""),
        (b'{"data":[],"usage":{"input_tokens":5,"output_tokens":6}}', Usage(5, 6), ""),
        (b'{"choices":"odd"}', None, ""),
        (b'{"usage":[1]}', None, ""),
        (b"half of a", None, ""),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, ""),
    ],
)
def test_usage_and_the_end_of_an_answer(body: bytes, usage: Usage | None, reason: str) -> None:
    assert read_answer(body) == (usage, reason)


# ---- a bound on the answer


@pytest.mark.parametrize(
    ("body", "bounded"),
    [
        (b'{"model":"m","messages":[]}', b'{"max_tokens":9,"model":"m","messages":[]}'),
        (b' {"model":"m"}', b' {"max_tokens":9,"model":"m"}'),
        (b'{"max_tokens":50,"model":"m"}', b'{"max_tokens":9,"model":"m"}'),
        (b'{"max_tokens":5,"model":"m"}', b'{"max_tokens":5,"model":"m"}'),
        (b'{"model":"m","max_completion_tokens":50}', b'{"model":"m","max_completion_tokens":9}'),
        (b'{"max_tokens":5,"max_completion_tokens":50}', b'{"max_tokens":5,"max_completion_tokens":9}'),
        (b'{"model":"m","max_tokens":null}', b'{"model":"m","max_tokens":9}'),
        (b'{"prompt":"say \\"max_tokens\\""}', b'{"max_tokens":9,"prompt":"say \\"max_tokens\\""}'),
        (b'{"prompt":""max_tokens"}', b'{"prompt":""max_tokens"}'),
        (b'{"max\\u005ftokens":50}', b'{"max_tokens":9}'),
        (b'{"prompt":"\\u00e9"}', b'{"prompt":"\\u00e9","max_tokens":9}'),
    ],
    ids=[
        "none",
        "blank first",
        "above",
        "below",
        "new name",
        "both",
        "null",
        "only spoken of",
        "no JSON",
        "a name in disguise",
        "other escapes",
    ],
)
def test_an_answer_is_bounded(body: bytes, bounded: bytes) -> None:
    assert with_most_tokens(body, 9) == bounded


# ---- what is the same


def test_a_body_is_the_same_however_it_is_written() -> None:
    one = b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"Hi"}],"user":"a","priority":3}'
    other = b'{"messages": [{"content": "H\\u0069", "role": "user"}], "temperature": 0, "model": "m", "user": "b"}'
    assert essence(one) == essence(other) is not None


@pytest.mark.parametrize("name", ["model", "max_tokens", "stream", "cache_salt", "logprobs", "anything"])
def test_whatever_may_change_the_answer_makes_it_another(name: str) -> None:
    assert essence(msgspec.json.encode({"prompt": "Hi", name: 1})) != essence(b'{"prompt":"Hi"}')


@pytest.mark.parametrize(
    "body",
    [b'{"tools":[{}]}', b'{"functions":[{}]}', b'{"web_search_options":{"a":1}}', b"{", b"[" * 5000],
    ids=["tools", "functions", "search", "no JSON", "too deep"],
)
def test_what_is_not_to_be_shared_is_nothing(body: bytes) -> None:
    assert essence(body) is None


def test_tools_that_are_none_do_not_matter_here() -> None:
    assert essence(b'{"prompt":"Hi","tools":[]}') is not None


@pytest.mark.parametrize(
    ("members", "repeatable"),
    [({}, False), ({"temperature": 0}, True), ({"temperature": 1}, False), ({"temperature": 1, "seed": 0}, True)],
)
def test_what_may_be_given_the_same_answer(members: dict[str, Any], repeatable: bool) -> None:
    assert read_request(msgspec.json.encode({"prompt": "Hi", **members})).repeatable == repeatable
