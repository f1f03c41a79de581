"""`wastegate launch`: what it prints, refuses, runs and reads back."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec
import pytest

from tests.engines.pages import json, text
from tests.fake_replica import FakeReplica, Json, Reply
from wastegate.cli import main
from wastegate.engines import llamacpp
from wastegate.engines.readback import Effective
from wastegate.steps import launch


def test_the_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "llamacpp", "m.gguf", "--sequences", "2", "--", "--no-warmup"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-server --model m.gguf --host 127.0.0.1 ")
    assert out.endswith(" --slots --no-warmup\n")


def test_as_json_with_notes_beside(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "vllm", "m", "--json"]) == 0
    shown = capsys.readouterr()
    assert msgspec.json.decode(shown.out)["argv"][:3] == ["vllm", "serve", "m"]
    assert shown.err.startswith("note: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vllm", "m", "--enable-streaming"], '"stream": true'),
        (["vllm", "m", "--speculative-model", "d", "--num-speculative-tokens", "5"], "--draft MODEL"),
        (["sglang", "m", "--", "--cache-ttl", "300"], "--cache-ttl: no engine has it"),
        (["llamacpp", "m", "--draft-max", "4"], "--spec-draft-n-max"),
        (["local", "m", "--fallback-strategy", "random"], "[retry]"),
        (["vllm", "m", "--unheard-of"], "--unheard-of"),
        (["vllm"], "model"),
        (["vllm", "m", "--context", "0"], "--context"),
    ],
)
def test_what_is_wrong_is_2_and_says_what_instead(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_engines_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "local", "--help"])
    assert end.value.code == 0
    assert "PUT /admin/limits" in capsys.readouterr().out


def test_it_runs_in_place_of_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    class Gone(BaseException):
        """What is never returned from."""

    def execve(*given: Any) -> None:
        ran.append(given)
        raise Gone

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(Gone):
        main(["launch", "local", "m", "--exec"])
    ((program, argv, env),) = ran
    assert program == sys.executable
    assert argv[1:5] == ["-m", "wastegate", "engine", "--model"]
    assert env["PATH"] == os.environ["PATH"]


def test_what_is_not_installed_is_said_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit) as end:
        main(["launch", "llamacpp", "m", "--exec"])
    assert end.value.code == 2
    assert "llama-server is not installed here" in capsys.readouterr().err


def page(body: str) -> Reply:
    return Reply(body=Json(body=body.encode()))


async def test_a_running_engine_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeReplica() as fake:
        fake.pages["/metrics"] = page(text("llamacpp-11549-after.prom"))
        fake.pages["/props"] = page(msgspec.json.encode(json("llamacpp-11549-props.json")).decode())
        fake.pages["/slots"] = page(text("llamacpp-11549-slots.json"))
        words = ["launch", "llamacpp", "m", "--sequences", "2", "--check", f"{fake.url}/v1"]
        assert await asyncio.to_thread(main, [*words, "--context", "2048"]) == 0
        assert await asyncio.to_thread(main, [*words, "--speculation", "ngram-simple"]) == 1
        out = capsys.readouterr().out
        assert "asked for speculation ngram-simple, but it runs with speculation off" in out
        assert "asked for context of 4096 tokens, but it runs with context of 2048 tokens" in out
        assert await asyncio.to_thread(main, [*words, "--json"]) == 1
        assert msgspec.json.decode(capsys.readouterr().out)["found"]["sequences"] == 2


async def test_what_it_does_not_show_is_unverified() -> None:
    async with FakeReplica() as fake:
        fake.pages["/metrics"] = page(text("llamacpp-11549-after.prom"))
        fake.pages["/props"] = page("no json")
        checked = await asyncio.to_thread(launch.check, llamacpp, fake.url, Effective(sequences=2))
    assert checked.comparison.warnings == ()
    assert "does not show" in checked.comparison.unverified[0]


async def test_a_key_goes_along(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeReplica() as fake:
        fake.pages["/metrics"] = page(text("llamacpp-11549-after.prom"))
        words = ["launch", "llamacpp", "m", "--check", fake.url, "--key-env", "ENGINE_KEY"]
        assert await asyncio.to_thread(main, words) == 2
        assert "$ENGINE_KEY is not set" in capsys.readouterr().err
        monkeypatch.setenv("ENGINE_KEY", "the-key")
        assert await asyncio.to_thread(main, words) == 0
    assert {probe.headers.get("authorization") for probe in fake.probes} == {"Bearer the-key"}


def test_nobody_to_ask_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "vllm", "m", "--check", "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9/metrics cannot be read" in capsys.readouterr().err
