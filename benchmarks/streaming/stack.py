"""Gateways before engines, of which one pair at a time computes: started once, stopped (SIGSTOP) while another is
measured. What is asked of them, and what is made of the figures, stands elsewhere."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from benchmarks.engines.rivals import Contestant

PRICE = 0.085
"""US dollars an hour: a two-core cloud machine. It cancels out of every ratio."""
_READY_SECONDS = 60.0
_IDLE_SECONDS = 300.0
_LOOK_SECONDS = 0.02


class Stack:
    """One gateway before one engine."""

    def __init__(self, name: str, engine: Contestant, streaming: str, folder: Path) -> None:
        """``streaming``: lines of [levers.streaming]. Raises RuntimeError where the gateway does not come up."""
        self.name = name
        self.engine = engine
        self.data = folder / name
        self.data.mkdir(parents=True)
        config = self.data / "wastegate.toml"
        config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:0"\ndata = "{self.data}"\n[admin]\nlisten = "127.0.0.1:0"\n'
            f'[probe]\nevery = 0.2\n[[replicas]]\nname = "engine"\nurl = "{engine.url}"\nprice_per_hour = {PRICE}\n'
            f"[levers.streaming]\n{streaming}\n"
        )
        command = [sys.executable, "-m", "wastegate", "up", "--config", str(config)]
        self.gateway = Contestant(name, "wastegate up", command, log=self.data / "gateway.log")
        self.gateway.await_line()
        self.url, _, self._admin = self.gateway.url.partition(" admin ")
        self.gateway.pause()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[aiohttp.ClientSession]:
        """It alone computes. Raises RuntimeError where its engine does not answer."""
        self.engine.resume()
        self.gateway.resume()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                await self._until(lambda: self._ready(session), _READY_SECONDS, "ready")
                yield session
        finally:
            self.gateway.pause()
            self.engine.pause()

    async def idle(self, session: aiohttp.ClientSession) -> float:
        """Wait until the engine has nothing to do for anybody; when that was, by ``time.perf_counter``."""
        await self._until(lambda: self._idle(session), _IDLE_SECONDS, "idle")
        return time.perf_counter()

    async def _until(self, true: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await true():  # noqa: ASYNC110  # another process's state: nothing tells when it changes
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise RuntimeError(f"{self.name} was not {what} within {seconds:g} s") from None

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        async with session.get(self.url + "/ready") as answer:
            return answer.status == 200

    async def _idle(self, session: aiohttp.ClientSession) -> bool:
        async with session.get(self._admin + "/metrics") as answer:
            page = await answer.text()
        found = re.findall(r"^wastegate_(?:in_flight|waiting)_calls(?:{.*})? (\d+)$", page, re.MULTILINE)
        return bool(found) and not any(map(int, found))

    def settle(self) -> None:
        """End it as its operator would, so that its ledger has every call."""
        self.gateway.resume()
        self.gateway.process.terminate()
        self.gateway.process.wait(60)

    def end(self) -> None:
        self.gateway.end()
