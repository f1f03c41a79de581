from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.local.tiny_gguf import CONTEXT
from tests.running_engine import RunningEngine, chat, events, running_engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COLD = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny, "--cap", "2", "--queue", "1") as running:
        yield running


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url, timeout=aiohttp.ClientTimeout(30)) as session:
        yield session


async def post(client: aiohttp.ClientSession, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    async with client.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def stream(client: aiohttp.ClientSession, path: str, body: Any) -> list[Any]:
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        return [event async for event in events(response)]


def text_of(chunks: list[Any], index: int = 0) -> str:
    """What a stream says for one answer."""
    choices = [
        choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"] if choice["index"] == index
    ]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


async def test_a_chat_answer(client: aiohttp.ClientSession) -> None:
    status, body = await post(client, CHAT, chat(max_tokens=6, **COLD), **{"X-Request-Id": "abc.1"})
    assert status == 200
    assert (body["id"], body["object"], body["model"]) == ("chatcmpl-abc.1", "chat.completion", "tiny")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert usage["prompt_tokens_details"]["estimated"] is True


async def test_a_streamed_answer_says_the_same_as_a_whole_one(client: aiohttp.ClientSession) -> None:
    for path, body in ((CHAT, chat(max_tokens=40, **COLD)), (TEXT, {"prompt": "the a", "max_tokens": 40, **COLD})):
        _, whole = await post(client, path, body)
        chunks = await stream(client, path, body)
        (choice,) = whole["choices"]
        assert text_of(chunks) == (choice["message"]["content"] if path == CHAT else choice["text"])
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"
        assert len({chunk["id"] for chunk in chunks[:-1]}) == 1
        assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_a_stream_gives_the_counts_where_they_are_asked_for(client: aiohttp.ClientSession) -> None:
    body = chat(max_tokens=9, stream_options={"include_usage": True}, **COLD)
    chunks = await stream(client, CHAT, body)
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 9
    assert all(chunk["usage"] is None for chunk in chunks[:-2])


async def test_several_answers_are_told_apart(client: aiohttp.ClientSession) -> None:
    body = chat(max_tokens=12, n=2, temperature=1.5, seed=4, ignore_eos=True)
    _, whole = await post(client, CHAT, body)
    said = [choice["message"]["content"] for choice in whole["choices"]]
    assert said[0] != said[1]
    assert whole["usage"]["completion_tokens"] == 24
    _, again = await post(client, CHAT, body)
    assert [choice["message"]["content"] for choice in again["choices"]] == said
    chunks = await stream(client, CHAT, body)
    assert [text_of(chunks, index) for index in (0, 1)] == said


async def test_without_a_seed_answers_differ(client: aiohttp.ClientSession) -> None:
    body = chat(max_tokens=20, temperature=2, ignore_eos=True)
    said = {(await post(client, CHAT, body))[1]["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(said) > 1


async def test_tokens_may_be_the_prompt(client: aiohttp.ClientSession) -> None:
    status, body = await post(client, TEXT, {"prompt": [70, 71, 72], "max_tokens": 2, **COLD})
    assert (status, body["usage"]["prompt_tokens"]) == (200, 3)
    assert body["id"].startswith("cmpl-")
    status, body = await post(client, TEXT, {"prompt": [70, 99999]})
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert "99999" in body["error"]["message"]


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: aiohttp.ClientSession) -> None:
    status, body = await post(client, TEXT, {"prompt": "x" * 700})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "700" in body["error"]["message"]
    assert str(CONTEXT) in body["error"]["message"]
    status, body = await post(client, TEXT, {"prompt": "x" * 500, "max_tokens": 13})
    assert (status, body["error"]["param"]) == (400, "max_tokens")
    assert all(number in body["error"]["message"] for number in ("500", "13", str(CONTEXT), "at most 12"))


async def test_an_answer_without_a_bound_ends_with_the_context(client: aiohttp.ClientSession) -> None:
    status, body = await post(client, TEXT, {"prompt": "x" * 500, **COLD})
    assert (status, body["usage"]["total_tokens"]) == (200, CONTEXT)


async def test_what_is_wrong_with_a_request_is_said(client: aiohttp.ClientSession) -> None:
    assert (await post(client, CHAT, chat(logprobs=True)))[1]["error"]["param"] == "logprobs"
    assert (await post(client, CHAT, chat(model="other")))[0] == 404
    async with client.post(CHAT, data=b"{") as response:
        assert response.status == 400
        assert "not JSON" in (await response.json())["error"]["message"]


async def test_an_id_that_is_odd_is_not_taken(client: aiohttp.ClientSession) -> None:
    _, body = await post(client, CHAT, chat(max_tokens=1), **{"X-Request-Id": 'a"b'})
    assert body["id"].startswith("chatcmpl-")
    assert '"' not in body["id"]


def long(**fields: Any) -> dict[str, Any]:
    """A chat that goes on for a while."""
    return chat(max_tokens=430, **COLD, **fields)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_frees_its_sequence(
    client: aiohttp.ClientSession, engine: RunningEngine, streamed: bool
) -> None:
    left = engine.metric('requests_total{outcome="left"}')
    before = engine.metric("output_tokens_total")
    task = asyncio.create_task(client.post(CHAT, json=long(stream=streamed, n=2)))
    if streamed:
        (await task).close()
    else:
        await engine.until("requests_running", 2)
        task.cancel()
    await engine.until('requests_total{outcome="left"}', left + 1)
    await engine.until("requests_running", 0)
    assert engine.metric("output_tokens_total") - before < 2 * 430


async def test_a_client_that_leaves_the_line_is_forgotten(client: aiohttp.ClientSession, engine: RunningEngine) -> None:
    running = await client.post(CHAT, json=long(stream=True, n=2))
    waiting = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1)))
    await engine.until("requests_waiting", 1)
    waiting.cancel()
    await engine.until("requests_waiting", 0)
    running.close()


async def test_a_full_engine_says_when_to_come_back(client: aiohttp.ClientSession, engine: RunningEngine) -> None:
    async with client.post(CHAT, json=long(stream=True, n=2)) as running:
        waiting = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1)))
        await engine.until("requests_waiting", 1)
        async with client.post(CHAT, json=chat(max_tokens=1)) as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
            assert "full" in (await refused.json())["error"]["message"]
        running.close()
        assert (await waiting).status == 200


async def test_a_call_that_is_broken_off_by_the_loops_end_is_told(
    client: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    restarts = engine.metric("loop_restarts_total")
    streamed = await client.post(CHAT, json=long(stream=True))
    whole = asyncio.create_task(post(client, CHAT, long()))
    await engine.until("requests_running", 2)
    os.kill(engine.loop_pid, signal.SIGKILL)
    status, body = await whole
    assert status == 503
    assert "signal 9" in body["error"]["message"]
    said = [event async for event in events(streamed)]
    assert "[DONE]" not in said
    assert "signal 9" in said[-1]["error"]["message"]
    await engine.until("loop_restarts_total", restarts + 1)
    await engine.until("ready", 1)
    assert (await post(client, CHAT, chat(max_tokens=2)))[0] == 200


async def test_stop_strings_end_an_answer(client: aiohttp.ClientSession) -> None:
    _, body = await post(client, CHAT, long())
    text = body["choices"][0]["message"]["content"]
    stop = text[20:23]
    _, stopped = await post(client, CHAT, long(stop=[stop]))
    (choice,) = stopped["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert stopped["usage"]["completion_tokens"] < body["usage"]["completion_tokens"]
    assert text_of(await stream(client, CHAT, long(stop=[stop]))) == text[: text.index(stop)]


async def test_every_call_is_counted_by_how_it_ended(client: aiohttp.ClientSession, engine: RunningEngine) -> None:
    before = engine.metric('requests_total{outcome="length"}'), engine.metric("request_seconds_count")
    await post(client, CHAT, chat(max_tokens=3, ignore_eos=True))
    await stream(client, CHAT, chat(max_tokens=3, ignore_eos=True))
    assert engine.metric('requests_total{outcome="length"}') == before[0] + 2
    assert engine.metric("request_seconds_count") == before[1] + 2


async def test_text_in_any_script_comes_whole(client: aiohttp.ClientSession) -> None:
    body = json.dumps(chat(max_tokens=3, stop="🦜", **COLD), ensure_ascii=False).encode()
    async with client.post(CHAT, data=body) as response:
        assert response.status == 200
