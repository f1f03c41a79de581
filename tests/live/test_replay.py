"""`wastegate replay` against the engine that comes with wastegate: a real model, its real tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.live.model import MODEL, WASTEGATE, fetch_or_skip
from wastegate.load.calibrate import Tokens, by_tokenizer
from wastegate.load.prompts import CHAT, Prompts
from wastegate.load.rows import Row
from wastegate.load.schedule import Planned

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base address of a running engine."""
    fetch_or_skip()
    log = tmp_path_factory.mktemp("engine") / "log"
    with log.open("w") as errors:
        child = subprocess.Popen(
            [*WASTEGATE, "engine", "--port", "0"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert child.stdout is not None
    try:
        ready = next((line for line in child.stdout if line.startswith("ready ")), None)
        assert ready, f"the engine did not start: {log.read_text()[-2000:]}"
        yield ready.split()[1]
    finally:
        child.terminate()
        child.wait(60)


def ask(engine: str, body: dict[str, Any]) -> Tokens:
    request = urllib.request.Request(
        engine + "/tokenize", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        said = json.load(answer)
    return Tokens(said["count"], tuple(said["tokens"]), said["max_model_len"])


def body_of(path: str, text: str) -> dict[str, Any]:
    if path == CHAT:
        messages = [{"role": "user", "content": text}]
        return {"model": MODEL, "messages": messages, "add_generation_prompt": True}
    return {"model": MODEL, "prompt": text}


def replay(trace: Path, engine: str, *more: str) -> tuple[int, dict[str, Any], str]:
    words = [*WASTEGATE, "replay", str(trace), "--url", engine, "--json", "--no-progress", *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=dict(os.environ))
    return done.returncode, json.loads(done.stdout), done.stderr


async def test_made_prompts_have_their_length_by_the_models_own_tokenizer(engine: str) -> None:
    async def tokenize(path: str, text: str) -> Tokens | None:
        return ask(engine, body_of(path, text))

    recipe = await by_tokenizer(tokenize)
    assert recipe is not None
    assert recipe.exact
    assert len(recipe.words) > 500
    prompts = Prompts(recipe, seed=4)
    for tokens in (1, 2, 5, 20, 31, 32, 33, 47, 100, 333, 1155, 4000):
        made = prompts.make(Planned(number=tokens, row=Row(line=1), at=0.0, input_tokens=tokens))
        assert ask(engine, body_of(made.path, made.text)).count == tokens


async def test_shared_blocks_are_shared_tokens(engine: str) -> None:
    async def tokenize(path: str, text: str) -> Tokens | None:
        return ask(engine, body_of(path, text))

    recipe = await by_tokenizer(tokenize)
    assert recipe is not None
    prompts = Prompts(recipe, seed=4)
    ids = []
    for last in (7, 8):
        row = Row(line=1, input_tokens=1300, blocks=(3, 4, last))
        made = prompts.make(Planned(number=last, row=row, at=0.0, input_tokens=1300, edges=(512, 1024, 1536)))
        ids.append(ask(engine, body_of(made.path, made.text)).ids)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=True))))
    assert 1024 <= shared <= 1026


def test_a_trace_of_lengths_is_answered_to_the_token(tmp_path: Path, engine: str) -> None:
    rows = [(0, 700, 160, [1, 2]), (400, 900, 240, [1, 3]), (900, 40, 64, [4]), (1000, 1500, 320, [1, 3, 5])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    code, said, err = replay(trace, engine, "--token-scale", "1/8", "--speed", "0.5")
    assert (code, err) == (0, "")
    assert (said["read"], said["ok"], said["failed"], said["usage"]) == (4, 4, {}, "engine")
    assert (said["lengths"]["within"], said["lengths"]["worst"], said["lengths"]["outputs_short"]) == (4, 0, 0)
    assert said["output_tokens"] == 20 + 30 + 8 + 40
    assert said["input_tokens"] == sum(round(row[1] / 8) for row in rows)
    assert 0 < said["ttft"]["p50"] < said["e2e"]["p50"]


def test_customers_hang_up_and_the_engine_is_free_again(tmp_path: Path, engine: str) -> None:
    say = {"messages": [{"role": "user", "content": "Count as far as you can."}], "ignore_eos": True, "max_tokens": 900}
    rows = [{"timestamp": 0, **say, "hang_up_after": {"tokens": 4}}, {"timestamp": 0, **say, "hang_up_after": 0.7}]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, said, _ = replay(trace, engine)
    assert (code, said["sent"], said["hung_up"], said["failed"]) == (0, 2, 2, {})
    assert said["seconds"] < 20
    with urllib.request.urlopen(engine + "/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert "wastegate_engine_requests_running 0" in metrics
