"""Real engines, started by the command that `wastegate launch` makes, behind one gateway: their own counters and the
ledger tell the same, and what they were asked for is what runs."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.gateway.running import chat, running
from tests.live.model import MODEL, WASTEGATE, fetch_or_skip
from wastegate.cli import main
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Entry
from wastegate.engines.readback import Seen
from wastegate.gateway import probe, signals
from wastegate.site import cache_dir
from wastegate.steps.replicas import State

pytestmark = pytest.mark.live

START_SECONDS = 60.0
LLAMACPP = cache_dir() / "benchmarks" / "llamacpp-2026.10.11549" / "bin" / "python"
"""The environment that the benchmarks make."""
LLAMA_SERVER = """
import os, signal, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], 0
params.n_parallel, params.n_ctx, params.endpoint_metrics, params.endpoint_slots = 2, 2048, True, True
server = xllamacpp.Server(params)
print(f"ready {server.listening_address}", flush=True)
signal.pause()
"""


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """A process that says where it listens; it is ended with all that it started."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], START_SECONDS)[0], f"{command[0]} did not start"
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready", f"{command[0]} ended before it served"
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def local() -> Iterator[str]:
    fetch_or_skip()
    launch = [
        *WASTEGATE,
        "launch",
        "local",
        MODEL,
        "--sequences",
        "3",
        "--queued",
        "7",
        "--context",
        "1024",
        "--name",
        "fake",
    ]
    # Port 0 is for tests only; the last one given counts.
    with started([*launch, "--exec", "--", "--port", "0"]) as url:
        yield url


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[str]:
    if not LLAMACPP.exists():
        pytest.skip("llama.cpp's server is not here: benchmarks/local_engine.py makes its environment")
    fetch_or_skip()
    model = next((cache_dir() / "models" / MODEL).glob("*.gguf"))
    with started([str(LLAMACPP), "-c", LLAMA_SERVER, str(model)]) as url:
        yield url


def test_a_launched_engine_runs_as_it_was_asked_to(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "local", MODEL, "--queued", "7", "--context", "1024", "--check", local]
    assert main([*words, "--sequences", "3"]) == 0
    assert main([*words, "--sequences", "4"]) == 1
    assert "asked for 4 sequences at once, but it runs with 3 sequences at once" in capsys.readouterr().out


def test_llama_cpp_divides_its_context_and_is_found_out(llamacpp: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "llamacpp", "m.gguf", "--sequences", "2", "--check", llamacpp]
    assert main([*words, "--context", "1024"]) == 0
    assert main([*words, "--context", "2048", "--speculation", "ngram-simple"]) == 1
    out = capsys.readouterr().out
    assert "but it runs with context of 1024 tokens" in out
    assert "but it runs with speculation off" in out


async def test_engines_and_ledger_count_the_same(local: str, llamacpp: str, tmp_path: Path) -> None:
    fleet = (Replica("local", local, ("fake",)), Replica("llama", llamacpp, ("fake",)))
    quick: dict[str, Any] = {"signals": signals.Config(every=0.1), "probe": probe.Config(every=0.5, timeout=5.0)}
    async with running(tmp_path, *fleet, **quick) as gateway:

        async def seen(name: str, tokens: int = 0) -> Seen:
            async with asyncio.timeout(30):
                while True:
                    state = msgspec.json.decode((await gateway.admin("/admin/state"))[1], type=State)
                    found = next(replica.seen for replica in state.replicas if replica.name == name)
                    if found.signals is not None and (found.signals.output_tokens or 0) >= tokens:
                        return found
                    await asyncio.sleep(0.05)

        engines = {name: (await seen(name)).engine for name in ("local", "llama")}
        assert engines == {"local": "wastegate", "llama": "llamacpp"}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client:

            async def call(number: int) -> int:
                body = chat(f"Tell me of the number {number}.", max_tokens=24, stream=bool(number % 2))
                async with client.post(f"{gateway.url}/v1/chat/completions", data=body) as answer:
                    await answer.read()
                    return answer.status

            assert await asyncio.gather(*map(call, range(12))) == [200] * 12
        entries = await gateway.closed(12)
        for name in engines:
            prompt, output = _tokens(entries, name)
            assert output > 0, "both took calls"
            s = (await seen(name, output)).signals
            assert s is not None
            assert (s.prompt_tokens, s.output_tokens) == (prompt, output)
            assert s.running == 0


def _tokens(entries: list[Entry], replica: str) -> tuple[int, int]:
    attempts = [attempt for entry in entries for attempt in entry.attempts if attempt.replica == replica]
    return sum(a.prompt_tokens or 0 for a in attempts), sum(a.output_tokens or 0 for a in attempts)
