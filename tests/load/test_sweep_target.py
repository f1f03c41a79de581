"""Targets as they are written; and processes that are started, paused and ended, with all that they started."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from wastegate.load import sweep_target
from wastegate.load.sweep_target import (
    EngineError,
    Running,
    Spec,
    TargetSpecError,
    memory_of,
    parse_target,
    running,
)


def test_a_server() -> None:
    assert parse_target("vllm=http://gpu1:8000/v1") == Spec(name="vllm", url="http://gpu1:8000/v1")
    assert parse_target("vllm=http://gpu1:8000").made_of == "http://gpu1:8000"


def test_an_engine_with_flags() -> None:
    spec = parse_target("f16=engine:/m/x.gguf,kv-precision=f16,no-prefix-caching")
    assert (spec.name, spec.url, spec.model) == ("f16", "", "/m/x.gguf")
    assert spec.flags == (("kv-precision", "f16"), ("no-prefix-caching", ""))
    assert spec.made_of == "wastegate engine, x.gguf --kv-precision f16 --no-prefix-caching"
    assert parse_target("a=engine:hf:o/r/f.gguf").model == "hf:o/r/f.gguf"


def test_a_remark_stands_beside_the_name() -> None:
    assert Spec(name="cut", model="m").title == "cut"
    assert Spec(name="cut", model="m", remark="speed only").title == "cut (speed only)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://gpu1:8000", "NAME=URL"),
        ("a b=http://x", "letters, digits"),
        ("a=ftp://x", "begins with http"),
        ("a=engine:", "engine:MODEL"),
        ("a=engine:m,port=80", "port is no flag"),
        ("a=engine:m,", "nothing is no flag"),
        ("a=engine:m,cap", "cap needs =VALUE"),
        ("a=engine:m,no-prefix-caching=1", "takes no value"),
    ],
)
def test_what_is_no_target_is_told(text: str, why: str) -> None:
    with pytest.raises(TargetSpecError, match=why):
        parse_target(text)


STAND_IN = """\
import os, sys, time
child = os.fork()
if child:
    print("loading", flush=True)
    print("ready http://127.0.0.1:9 admin", flush=True)
while True:
    time.sleep(0.01)
"""
"""Says that it is ready, and has a child, as the engine has its step loop."""


class Package:
    """What `python -m wastegate` runs, and where its logs go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.logs = path.parent
        self.says(STAND_IN)

    def says(self, text: str) -> None:
        self._path.write_text(text)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A `python -m wastegate` of our own; its text is the test's."""
    (tmp_path / "wastegate").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wastegate" / "__init__.py").touch()
    return Package(tmp_path / "wastegate" / "__main__.py")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def tree(pid: int) -> list[int]:
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or state(pid) == "Z"


async def until_state(pid: int, wanted: str) -> None:
    async with asyncio.timeout(10):
        while state(pid) not in wanted:  # noqa: ASYNC110 - the kernel tells nobody that it stopped one
            await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_what_is_started_stands_still_until_its_turn_and_is_gone_at_the_end(package: Package) -> None:
    spec = Spec(name="e", model="m", flags=(("cap", "8"),))
    async with running([spec, Spec(name="u", url="http://x")], package.logs, 64) as (engine, server):
        assert (engine.name, engine.url, engine.ours) == ("e", "http://127.0.0.1:9", True)
        assert (server.url, server.ours, server.memory()) == ("http://x", False, None)
        server.pause()
        server.resume()
        assert engine._process is not None
        pids = tree(engine._process.pid)
        assert len(pids) == 2
        for pid in pids:
            await until_state(pid, "T")
        engine.resume()
        for pid in pids:
            await until_state(pid, "SR")
        memory = engine.memory()
        assert memory is not None
        assert 1e6 < memory < 1e9
        command = command_of(pids[0])
        assert command[command.index("--cap") + 1] == "8", "its own flags win"
        assert {"--die-with-parent", "--port"} <= set(command)
    for pid in pids:
        assert ended(pid)


async def test_one_that_does_not_start_says_why(package: Package) -> None:
    package.says("import sys; print('hello'); sys.exit('no such model')")
    with pytest.raises(EngineError, match="e: wastegate engine, m did not start: no such model"):
        async with running([Spec(name="e", model="m")], package.logs, 64):
            pass
    package.says("")
    with pytest.raises(EngineError, match="it said nothing"):
        async with running([Spec(name="e", model="m")], package.logs, 64):
            pass


async def test_one_that_is_slow_to_start_is_ended(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    real = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await real(*command, **options))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    monkeypatch.setattr(sweep_target, "START_SECONDS", 0.3)
    package.says("import time; time.sleep(600)")
    with pytest.raises(EngineError, match="e: wastegate engine, m was not ready within 0 s"):
        async with running([Spec(name="e", model="m")], package.logs, 64):
            pass
    assert started[0].returncode == -15


async def test_one_that_does_not_end_is_killed(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_target, "END_SECONDS", 0.2)
    package.says("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAND_IN)
    async with running([Spec(name="e", model="m")], package.logs, 64) as (engine,):
        process = engine._process
    assert process is not None
    assert process.returncode == -9
    await engine.end()


def test_memory_that_cannot_be_seen(tmp_path: Path) -> None:
    assert memory_of(1, tmp_path) is None
    task = tmp_path / "7" / "task" / "7"
    task.mkdir(parents=True)
    (task / "children").write_text("8 ")
    (tmp_path / "7" / "smaps_rollup").write_text("Rss: 9 kB\nPss: 5 kB\n")
    assert memory_of(7, tmp_path) is None, "a part is no whole"
    (tmp_path / "8" / "task" / "8").mkdir(parents=True)
    (tmp_path / "8" / "task" / "8" / "children").write_text("")
    (tmp_path / "8" / "smaps_rollup").write_text("Pss: 3 kB\n")
    assert memory_of(7, tmp_path) == 8 * 1024
    assert Running(Spec(name="u", url="http://x"), "http://x").memory() is None
