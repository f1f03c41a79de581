from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.local.tiny_gguf import CONTEXT, write_tiny_gguf
from tests.running_engine import RunningEngine, chat, events, running_engine, until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny) as running:
        yield running


def test_it_says_what_it_serves(engine: RunningEngine) -> None:
    (model,) = engine.get("/v1/models")["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", CONTEXT)


def test_it_is_alive_and_ready(engine: RunningEngine) -> None:
    assert engine.get("/health") == {"status": "alive"}
    assert engine.get("/ready") == {"status": "ready"}


def test_its_metrics_are_prometheus_text(engine: RunningEngine) -> None:
    assert "# TYPE wastegate_engine_step_seconds histogram\n" in engine.get("/metrics")
    assert engine.metric("kv_cache_capacity_tokens") > CONTEXT


async def test_it_counts_tokens(engine: RunningEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as client:

        async def tokenize(**body: object) -> dict[str, object]:
            async with client.post("/tokenize", json=body) as answer:
                found: dict[str, object] = await answer.json()
                return found

        assert await tokenize(prompt="the a") == {"count": 2, "max_model_len": CONTEXT, "tokens": [260, 261]}
        assert (await tokenize(prompt="the a", add_special_tokens=False))["count"] == 2
        asked = chat()
        counted = (await tokenize(**asked))["count"]
        async with client.post(CHAT, json={**asked, "max_tokens": 1}) as answer:
            assert (await answer.json())["usage"]["prompt_tokens"] == counted
        shorter = (await tokenize(**asked, add_generation_prompt=False))["count"]
        assert isinstance(shorter, int)
        assert isinstance(counted, int)
        assert shorter < counted
        assert "error" in await tokenize(prompt=5)
        assert "error" in await tokenize(prompt="a", add_special_tokens="yes")
        assert "error" in await tokenize(messages=[])


async def test_errors_leave_in_openais_shape(engine: RunningEngine) -> None:
    async with aiohttp.ClientSession(engine.url) as client:
        async with client.get("/nowhere") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "not_found_error"
        async with client.get(CHAT) as answer:
            assert answer.status == 405
            assert "GET /v1/chat/completions" in (await answer.json())["error"]["message"]
        async with client.post(CHAT, data=b"x" * (9 << 20)) as answer:
            assert answer.status == 413
            assert "8388608" in (await answer.json())["error"]["message"]


async def test_on_sigterm_it_lets_running_calls_end_and_takes_no_more(tiny: Path) -> None:
    with running_engine(tiny) as engine:
        async with (
            aiohttp.ClientSession(engine.url) as client,
            client.post(CHAT, json=chat(max_tokens=430, ignore_eos=True, stream=True)) as stream,
        ):
            engine.process.send_signal(signal.SIGTERM)

            async def draining() -> bool:
                async with client.get("/ready") as answer:
                    return answer.status == 503

            await until(draining)
            async with client.post(CHAT, json=chat()) as refused:
                assert refused.status == 503
                assert "shutting down" in (await refused.json())["error"]["message"]
            said = [event async for event in events(stream)]
            assert said[-1] == "[DONE]"
            assert said[-2]["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(engine.process.wait, 10) == 0


async def test_the_drain_has_an_end(tiny: Path) -> None:
    with running_engine(tiny, "--drain", "0.2", "--cap", "1") as engine:
        async with (
            aiohttp.ClientSession(engine.url) as client,
            client.post(CHAT, json=chat(max_tokens=430, n=100, ignore_eos=True, stream=True)) as stream,
        ):
            engine.process.send_signal(signal.SIGTERM)
            said = [event async for event in events(stream)]
            assert "[DONE]" not in said
        assert await asyncio.to_thread(engine.process.wait, 10) == 0


async def test_ctrl_c_ends_it_too(tiny: Path) -> None:
    with running_engine(tiny) as engine:
        engine.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(engine.process.wait, 10) == 0


def test_a_killed_engine_leaves_no_step_loop(tiny: Path) -> None:
    with running_engine(tiny) as engine:
        engine.process.kill()  # running_engine looks whether the loop ends


def test_it_ends_with_its_parent_if_told_to(tiny: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline().split()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(tiny), "--port", "0", "--die-with-parent"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        host, _, port = parent.stdout.readline().strip().removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            parent.kill()
            assert select.select([connection], [], [], 10)[0], "the engine outlived its parent"
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "nowhere.gguf"), "no such file"),
        (("--model", "gpt-9"), "no model is called"),
        (("--cap", "0"), "--cap 0"),
        (("--cores", "999"), "core 999"),
    ],
)
def test_what_cannot_be_served_is_said_and_ends_with_2(tiny: Path, flags: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(tiny), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_said(tiny: Path, engine: RunningEngine) -> None:
    port = engine.url.rpartition(":")[2]
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(tiny), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert port in done.stderr


def test_a_model_that_the_runtime_cannot_load_is_said(tmp_path: Path) -> None:
    wide = write_tiny_gguf(tmp_path / "wide.gguf", wide=True)
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(wide), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "wide.gguf: the runtime cannot load it: Unsupported" in done.stderr


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_before_it_serves_it_is_alive_and_not_ready(tiny: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(tiny), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        engine = RunningEngine(process, f"http://127.0.0.1:{port}")
        while not listens(port):
            assert process.poll() is None
        assert engine.get("/health") == {"status": "alive"}
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            engine.get("/ready")
        assert b"loading" in refused.value.read()
        refused.value.close()
        process.terminate()
        assert process.wait(10) == 0
