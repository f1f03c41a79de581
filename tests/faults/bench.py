"""What the fault tests share beyond a running gateway: streams read as events, and a look at the fleet's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.fake_replica import FakeReplica
from tests.gateway import running as base
from tests.gateway.running import CHAT, LIMIT, Answer, Running, Wire, chat, request
from wastegate.core.fleet import ReplicaState
from wastegate.core.ledger import Entry
from wastegate.gateway import control, probe

__all__ = ["ASKS_USAGE", "CHAT", "Answer", "Bench", "Client", "chat", "gateway", "request"]

ASKS_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


class Client(Wire):
    """A raw connection that can also be read up to a mark."""

    seen = b""
    """All that :meth:`until` and :meth:`closed_within` have read."""

    def ask(self, body: bytes, path: str = CHAT, headers: Mapping[str, str] | None = None) -> None:
        self.post(body, path, headers)

    async def until(self, mark: bytes) -> bytes:
        """Read until ``mark`` has come."""
        async with asyncio.timeout(LIMIT):
            while mark not in self.seen:
                data = await self.reader.read(65536)
                assert data, f"the connection ended before {mark!r}; it brought {self.seen!r}"
                self.seen += data
        return self.seen

    async def closed_within(self, seconds: float) -> bool:
        """Whether the gateway closes within that time; what comes before is kept in ``seen``."""
        try:
            async with asyncio.timeout(seconds):
                while data := await self.reader.read(65536):
                    self.seen += data
        except TimeoutError:
            return False
        except ConnectionResetError:
            pass
        return True

    def hold(self) -> None:
        """Read nothing more, so that the sender feels it."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads, too

    def read_on(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it reads, too

    def close(self) -> None:
        self.writer.close()


class Bench:
    """A gateway under test."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = await Client.connect(self.running.url)
        self.clients.append(client)
        return client

    async def ask(
        self, body: bytes | None = None, path: str = CHAT, headers: Mapping[str, str] | None = None, **members: Any
    ) -> Answer:
        """One call on a connection of its own; ``members`` are a chat request's, where there is no body."""
        return await self.running.post(chat(**members) if body is None else body, path, headers)

    async def entry(self, answer: Answer) -> Entry:
        """The call of this answer as it was written down."""
        found: list[Entry] = []

        def look() -> bool:
            found[:] = [entry for entry in self.running.entries if entry.id == answer.header("x-request-id")]
            return bool(found)

        await self.running.until(look, f"{answer.header('x-request-id')!r} is written down")
        return found[0]

    async def entries(self, count: int) -> list[Entry]:
        """So many calls, as soon as they are written down; there must never be more."""
        found = await self.running.closed(count)
        assert len(found) == count, f"{len(found)} entries were written for {count} calls"
        return found

    def replica(self, number: int = 1) -> ReplicaState:
        """What the gateway knows of replica ``r<number>`` now."""
        return self.running.hub.world.seen(self.running.hub.now())[number - 1]

    async def until(self, what: str, want: object) -> None:
        """Until the first replica's ``state`` or ``breaker``, or the number of calls ``waiting``, is as wanted."""

        def look() -> bool:
            seen = self.running.hub.waiting if what == "waiting" else getattr(self.replica(), what)
            return bool(seen == want)

        await self.running.until(look, f"{what} is {want}")

    async def settled(self) -> None:
        await self.running.quiet()

    def stop(self) -> None:
        """Begin to shut down."""
        self.running.gateway.stop()


@asynccontextmanager
async def gateway(
    data: Path, *replicas: FakeReplica, probe_seconds: float = 0.1, **settings: Any
) -> AsyncIterator[Bench]:
    """A gateway in front of replicas r1, r2, …; ``settings`` are Config's members. At the end all clients leave,
    and no load and no call may be left."""
    defaults = {
        "control": control.Config(listen="127.0.0.1:0"),
        "probe": probe.Config(every=probe_seconds, timeout=1.0),
    }
    async with base.running(data, *replicas, **{**defaults, **settings}) as running:
        bench = Bench(running)
        try:
            yield bench
        finally:
            for client in bench.clients:
                client.close()


# ---- a stream, read as a client reads it


def payloads(answer: Answer) -> list[Any]:
    """The data of each event, decoded; "[DONE]" as it is."""
    lines = answer.body.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data = (line[5:].strip() for line in lines if line.startswith("data:"))
    return [each if each == "[DONE]" else msgspec.json.decode(each) for each in data]


def _chunks(answer: Answer) -> list[Any]:
    return [each for each in payloads(answer) if each != "[DONE]"]


def errors(answer: Answer) -> list[Any]:
    """The error events."""
    return [each["error"] for each in _chunks(answer) if each.get("error")]


def usages(answer: Answer) -> list[Any]:
    return [each["usage"] for each in _chunks(answer) if each.get("usage")]


def text(answer: Answer) -> str:
    """What the content deltas add up to."""
    choices = (choice for each in _chunks(answer) for choice in each.get("choices", ()))
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)
