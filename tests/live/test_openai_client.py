"""The official OpenAI client against the gateway with two local replicas: nothing about it may be special."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.live.local_gateway import LocalGateway, until
from tests.live.model import MODEL

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello to the world."}]


@pytest.fixture
def client(two_replicas: LocalGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{two_replicas.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_a_whole_answer(client: openai.OpenAI, two_replicas: LocalGateway) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, extra_headers={"x-wastegate-tenant": "acme"}
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 5
    assert 0 < answer.usage.completion_tokens <= 12
    entry = two_replicas.entry(raw.headers["x-request-id"])
    attempt = entry.attempts[0]
    assert (entry.outcome, entry.tenant, entry.model, entry.stream) == ("finished", "acme", MODEL, False)
    assert (attempt.prompt_tokens, attempt.output_tokens, attempt.usage) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        "engine",
    )


def test_a_stream_with_its_usage(client: openai.OpenAI, two_replicas: LocalGateway) -> None:
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as raw:
        chunks = list(raw.parse())
        id = raw.headers["x-request-id"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    *_, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert 0 < last.usage.completion_tokens <= 12
    entry = two_replicas.entry(id)
    assert (entry.outcome, entry.stream, entry.attempts[0].output_tokens) == (
        "finished",
        True,
        last.usage.completion_tokens,
    )
    assert entry.attempts[0].first_token is not None


def test_a_stream_without_it(client: openai.OpenAI) -> None:
    """The gateway asks the engine for usage, and hides it from who did not."""
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_streamed_or_not_the_answer_is_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, temperature=0)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content


def test_a_plain_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0)
    assert answer.choices[0].text
    pieces = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text


def test_the_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model 'gpt-x' is not served here; served: smollm2"):
        client.chat.completions.create(model="gpt-x", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"stream": "yes"})


def test_a_client_that_leaves_frees_its_sequence(client: openai.OpenAI, two_replicas: LocalGateway) -> None:
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=HELLO, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    ) as raw:
        id = raw.headers["x-request-id"]
        pieces = iter(raw.parse())
        for _ in range(5):
            next(pieces)
    until(lambda: running(two_replicas) == 0, "no sequence runs in any engine", 5)
    entry = two_replicas.entry(id)
    assert entry.outcome == "hung_up"
    assert 0 < (entry.attempts[0].output_tokens or 0) < 500


def running(gateway: LocalGateway) -> float:
    """Sequences that all engines together work on."""
    total = 0.0
    for replica in gateway.replicas().values():
        with urllib.request.urlopen(f"{replica['url']}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("wastegate_engine_running"):
                    total += float(line.rpartition(" ")[2])
    return total


async def test_many_at_once_by_the_asynchronous_client(two_replicas: LocalGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{two_replicas.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(number: int) -> str:
            messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Count from {number}."}]
            stream = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(ask(number) for number in range(12)))
    assert all(texts)
