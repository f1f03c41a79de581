"""A `wastegate engine` of one's own for a test: started as a user starts it, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

START = 60.0
"""Seconds that an engine may take until it serves."""


class RunningEngine:
    """Where it listens, and its processes."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @property
    def loop_pid(self) -> int:
        """The step loop's process. Raises IndexError while there is none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if answer.headers.get_content_type() == "application/json" else body.decode()

    def metric(self, name: str) -> float:
        """A sample of /metrics, by its name (and labels) behind ``wastegate_engine_``."""
        for line in self.get("/metrics").splitlines():
            found, _, value = line.rpartition(" ")
            if found == f"wastegate_engine_{name}":
                return float(value)
        raise KeyError(name)

    async def until(self, name: str, value: float) -> None:
        """Wait until a sample has this value."""

        async def there() -> bool:
            return await asyncio.to_thread(self.metric, name) == value

        await until(there)


@contextlib.contextmanager
def running_engine(model: str | Path, *flags: str) -> Iterator[RunningEngine]:
    """Start an engine on a free port, and end it with SIGKILL unless it has ended by itself."""
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(model), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    loop = -1
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], START)[0], f"the engine did not serve within {START:.0f} s"
        word, _, url = process.stdout.readline().strip().partition(" ")
        assert word == "ready", f"the engine ended with {process.wait(5)} before it served"
        engine = RunningEngine(process, url)
        loop = os.pidfd_open(engine.loop_pid)
        yield engine
    finally:
        process.kill()
        process.communicate()
        if loop >= 0:
            ended = select.select([loop], [], [], 10)[0]
            if not ended:
                signal.pidfd_send_signal(loop, signal.SIGKILL)
            os.close(loop)
            assert ended, "the step loop outlived its engine"


async def until(there: Callable[[], Awaitable[bool]], within: float = 20.0) -> None:
    """Ask again and again, where nothing tells of the change by itself."""
    async with asyncio.timeout(within):
        while True:
            if await there():
                return
            await asyncio.sleep(0.005)


def chat(**fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"messages": [{"role": "user", "content": "Tell me of the sea."}], **fields}


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The JSON of each event of a stream; its last line, [DONE], as that text."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
