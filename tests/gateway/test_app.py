"""The gateway as a process: signals reload it or end it, with workers as without."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fake_replica import FakeReplica
from tests.gateway.running import chat

SECONDS = 20.0


class Process:
    """`wastegate up` while it runs."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, admin: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.admin = admin
        self.log = log

    async def config(self) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.admin}/admin/state") as answer:
            state: dict[str, Any] = await answer.json()
            told: dict[str, Any] = state["config"]
            return told

    async def until_config(self, **members: Any) -> None:
        """Wait until the configuration's state has these members."""
        await until(lambda: self._has(members))

    async def _has(self, members: dict[str, Any]) -> bool:
        return members.items() <= (await self.config()).items()

    async def statuses(self, count: int) -> set[int]:
        """Of so many calls, each on a connection of its own."""
        seen = set()
        for _ in range(count):
            path = f"{self.url}/v1/chat/completions"
            async with aiohttp.ClientSession() as session, session.post(path, data=chat()) as answer:
                seen.add(answer.status)
        return seen

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> int:
        """Its exit status, once it has ended."""
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another process does not announce."""
    async with asyncio.timeout(SECONDS):
        while not await true():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.02)


@asynccontextmanager
async def up(
    folder: Path, text: str, *flags: str, prefix: str = "", suffix: str = "", **environ: str
) -> AsyncIterator[Process]:
    """Start `wastegate up` by a configuration of this text; ``prefix`` and ``suffix`` go around it in a shell."""
    path = folder / "wastegate.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "wastegate", "up", "--config", str(path), "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *flags]
    log = folder / "log"
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        f"{prefix} exec {shlex.join(command)} {suffix}",
        stdout=asyncio.subprocess.PIPE,
        stderr=log.open("wb"),
        env={**os.environ, **environ},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = (await process.stdout.readline()).decode()
        ready = re.fullmatch(r"ready (\S+) admin (\S+)\n", line)
        assert ready is not None, log.read_text()
        here = Process(process, ready[1], ready[2], log)
        await here.until_config(last_error="")
        yield here
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def replica_text(replica: FakeReplica) -> str:
    return f'[[replicas]]\nname = "one"\nurl = "{replica.url}"\nmodels = ["fake"]\n'


async def test_sighup_reloads_and_a_mistake_costs_nothing(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        text = replica_text(replica)
        async with up(tmp_path, text, KEYS="a-key") as gateway:
            before = await gateway.config()
            assert before["source"] == str(tmp_path / "wastegate.toml")
            assert await gateway.statuses(1) == {200}

            save(tmp_path, "[timer]\n")
            gateway.signal(signal.SIGHUP)
            await gateway.until_config(
                last_error=f"{tmp_path}/wastegate.toml:1: unknown key 'timer'; did you mean 'timers'?",
                sha256=before["sha256"],
            )
            assert await gateway.statuses(1) == {200}

            save(tmp_path, text + '[gateway]\napi_keys_env = "KEYS"\n')
            gateway.signal(signal.SIGHUP)
            await gateway.until_config(last_error="")
            assert (await gateway.config())["sha256"] != before["sha256"]
            assert await gateway.statuses(1) == {401}
            gateway.signal(signal.SIGTERM)
            assert await gateway.end() == 0
    log = (tmp_path / "log").read_text()
    assert "configuration: [gateway] api_keys: set" in log
    assert "a-key" not in log


async def test_a_half_written_file_does_no_harm(tmp_path: Path) -> None:
    """An editor that empties the file, then writes it in pieces, while a reload is asked for again and again."""
    async with FakeReplica() as replica:
        text = replica_text(replica) + "[timers]\ntotal = 77.0\n"
        async with up(tmp_path, replica_text(replica)) as gateway:
            with (tmp_path / "wastegate.toml").open("w") as file:
                for piece in text.splitlines(keepends=True):
                    file.write(piece)
                    file.flush()
                    gateway.signal(signal.SIGHUP)
                    await asyncio.sleep(0.05)
                    assert await gateway.statuses(1) == {200}
            await gateway.until_config(last_error="")
            async with aiohttp.ClientSession() as session, session.post(f"{gateway.admin}/admin/reload") as answer:
                assert await answer.json() == {"changed": [], "needs_restart": []}
            async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin}/admin/config") as answer:
                assert (await answer.json())["timers"]["total"] == 77.0
            gateway.signal(signal.SIGTERM)
            assert await gateway.end() == 0
    assert "replica one: removed" not in (tmp_path / "log").read_text()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the workers in /proc, which is Linux's")
async def test_workers_reload_together_and_one_that_is_started_anew_follows(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        text = replica_text(replica)
        async with up(tmp_path, text, "--workers", "2", KEYS="a-key") as gateway:
            assert await gateway.statuses(10) == {200}
            save(tmp_path, text + '[gateway]\napi_keys_env = "KEYS"\n')
            os.killpg(gateway.process.pid, signal.SIGHUP)  # as a terminal or a supervisor may: to all of them
            await gateway.until_config(last_error="", needs_restart=[])

            async def all_ask_for_a_key() -> bool:
                return await gateway.statuses(10) == {401}

            await until(all_ask_for_a_key)
            for worker in workers_of(gateway.process.pid):
                os.kill(worker, signal.SIGKILL)

            async def somebody_answers() -> bool:
                try:
                    return bool(await gateway.statuses(1))
                except aiohttp.ClientConnectionError:
                    return False

            await until(somebody_answers)
            assert await gateway.statuses(20) == {401}, "those that were started anew know it as well"
            gateway.signal(signal.SIGTERM)
            assert await gateway.end() == 0


@pytest.mark.parametrize("ignored", [False, True], ids=["in the foreground", "under nohup"])
async def test_a_terminal_that_closes_ends_what_was_started_in_it(tmp_path: Path, ignored: bool) -> None:
    master, slave = pty.openpty()
    terminal = os.ttyname(slave)
    async with FakeReplica() as replica:
        prefix = "trap '' HUP;" if ignored else ""
        async with up(tmp_path, replica_text(replica), prefix=prefix, suffix=f"< {terminal}") as gateway:
            before = await gateway.config()
            os.close(slave)
            gateway.signal(signal.SIGHUP)  # the terminal is still there

            async def reloaded() -> bool:
                return bool((await gateway.config())["loaded_at"] > before["loaded_at"])

            await until(reloaded)
            os.close(master)
            if ignored:
                assert await gateway.statuses(1) == {200}
                gateway.signal(signal.SIGTERM)
            assert await gateway.end() == 0
    assert "shutting down" in (tmp_path / "log").read_text()


def save(folder: Path, text: str) -> None:
    (folder / "wastegate.toml").write_text(text)


def workers_of(chief: int) -> list[int]:
    """The worker processes of a chief: its children that run our code, but for the tracker of multiprocessing."""
    found = []
    for child in Path(f"/proc/{chief}/task/{chief}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"spawn_main" in command:
            found.append(int(child))
    return found
