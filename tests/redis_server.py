"""A real redis-server on a loopback port of its own, for tests. It keeps nothing on disk, and may be stopped, held and
started again on the same port."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

import pytest

SERVER = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(
    SERVER is None, reason="redis-server is not installed (Debian: apt-get install redis-server)"
)


class RedisServer:
    """Use it as an async context. ``url`` stays the same over :meth:`stop` and :meth:`start`."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self._folder = folder
        self._password = password
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        user = f":{self._password}@" if self._password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Run; returns once it takes connections."""
        assert SERVER is not None
        command = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._folder)] + (["--requirepass", self._password] if self._password else [])
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)  # noqa: ASYNC220  # it returns at once
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                return

    def stop(self) -> None:
        """Gone, with all that it knew."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hold(self) -> None:
        """It takes connections still, but answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
