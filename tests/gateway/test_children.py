"""Local replicas as processes: the command that starts one, the pauses between lives, and what is said of each.

The engine itself runs in tests/live; here the command is replaced where a process must do as the test says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fake_replica import FakeReplica
from wastegate.core.fleet import ReplicaState
from wastegate.core.ledger import ReplicaSpan
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway import children as room
from wastegate.gateway.children import Child, Children, Config
from wastegate.gateway.hub import Clock
from wastegate.gateway.probe import Config as Probing
from wastegate.gateway.probe import Prober
from wastegate.gateway.roster import Roster


class Nursery:
    """A roster and a prober for children, and every state that they went through."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.world = World(Breaker(), RetryBudget())
        self.saved: list[ReplicaSpan] = []
        self._news = asyncio.Event()
        self.states: list[str] = []
        self.roster = Roster(self.world, Clock().now, self.saved.extend, self._changed)
        self.prober = Prober(self.roster, Probing(every=0.02, timeout=0.5))

    def _changed(self) -> None:
        if self.world.states and (not self.states or self.states[-1] != self.state.state):
            self.states.append(self.state.state)
        self._news.set()

    @property
    def state(self) -> ReplicaState:
        return self.world.states[0]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._news.clear()
                await self._news.wait()

    def child(self, config: Config = Config(), core: int | None = None) -> Child:  # noqa: B008
        return Child("local-1", core, config, self.roster, self.prober, self.logs)


@asynccontextmanager
async def nursery(folder: Path) -> AsyncIterator[Nursery]:
    here = Nursery(folder)
    await here.prober.start()
    try:
        yield here
    finally:
        await here.prober.stop()


def does(child: Child, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let the child's process run this Python instead of an engine."""
    monkeypatch.setattr(child, "_command", lambda: [sys.executable, "-c", script])


# ---- the command


async def test_the_command_of_an_engine(tmp_path: Path) -> None:
    async with nursery(tmp_path) as here:
        config = Config(model="tiny.gguf", cap=4, queue=9, arguments=("--kv-gb", "0.5"))
        command = here.child(config, core=1)._command()
    assert command[:4] == [sys.executable, "-m", "wastegate", "engine"]
    flags = dict(zip(command[4::2], command[5::2], strict=False))
    assert (flags["--model"], flags["--port"], flags["--cap"], flags["--queue"]) == ("tiny.gguf", "0", "4", "9")
    assert "--die-with-parent" in command
    assert command[command.index("--cores") + 1] == "1"
    assert command[-2:] == ["--kv-gb", "0.5"]


async def test_replicas_side_by_side_have_cores_of_their_own(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    async with nursery(tmp_path) as here:
        bound = Children(Config(replicas=len(cores) + 1), here.roster, here.prober, tmp_path / "logs")
        loose = Children(Config(bind_cores=False), here.roster, here.prober, tmp_path / "logs")
    taken = [child._command()[child._command().index("--cores") + 1] for child in bound._children]
    assert taken == [str(core) for core in (*cores, cores[0])]
    assert [child.name for child in loose._children] == ["local-1", "local-2"]
    assert [loose.process(name) for name in ("local-1", "nobody")] == [None, None]
    assert all("--cores" not in child._command() for child in loose._children)
    assert (tmp_path / "logs").is_dir()


# ---- a life


async def test_a_child_is_loading_then_ready_then_drained_and_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeReplica(models=("tiny",)) as engine, nursery(tmp_path) as here:
        child = here.child(Config(price_per_hour=0.25))
        does(
            child,
            monkeypatch,
            f"import time; print('warming up'); print('ready {engine.url}', flush=True); time.sleep(60)",
        )
        child.start()
        assert here.state.state == "loading"
        assert child.pid is None
        await here.until(lambda: here.state.state == "ready")
        assert here.state.replica.url == engine.url
        assert here.state.replica.models == ("tiny",)
        assert here.state.replica.price == 250_000_000
        assert child.pid is not None
        await child.stop(5)
        assert child.pid is None
        assert here.states == ["loading", "ready", "draining", "down"]
    assert [span.phase for span in here.saved if span.end is None] == ["loading", "serving", "draining"]


async def test_a_child_that_ends_is_started_again_after_a_pause_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            enough.set()
            await sleep(3600)

    async with nursery(tmp_path) as here:
        child = here.child()
        does(child, monkeypatch, "import sys; print('no memory', file=sys.stderr); sys.exit(3)")
        with monkeypatch.context() as during:
            during.setattr(asyncio, "sleep", paused)
            child.start()
            async with asyncio.timeout(20):
                await enough.wait()
        await child.stop(5)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert "local-1 did not become ready (exit status 3); it starts again in 0.5 s" in caplog.text
    assert str(tmp_path / "local-1.log") in caplog.text
    assert "no memory" in (tmp_path / "local-1.log").read_text()
    assert here.states[:3] == ["loading", "down", "loading"]


async def test_a_child_that_lived_long_starts_its_pauses_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_WELL_AFTER", -1.0)
    monkeypatch.setattr(room, "_FIRST_PAUSE", 0.01)
    async with nursery(tmp_path) as here:
        child = here.child()
        lives = tmp_path / "lives"
        does(child, monkeypatch, f"open({str(lives)!r}, 'a').write('x')")
        child.start()
        await here.until(lambda: lives.exists() and len(lives.read_text()) >= 4)
        await child.stop(5)


async def test_the_log_of_the_life_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why the process ended: the next one must not wipe it."""
    monkeypatch.setattr(room, "_FIRST_PAUSE", 0.01)
    async with nursery(tmp_path) as here:
        child = here.child()
        does(child, monkeypatch, "import os, sys; print('I was', os.getpid(), file=sys.stderr); sys.exit(1)")
        child.start()
        await here.until(lambda: here.states.count("down") == 2)
        await child.stop(5)
    assert "I was" in (tmp_path / "local-1.log.1").read_text()


async def test_a_child_that_is_killed_is_down_at_once_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "_FIRST_PAUSE", 0.01)
    async with FakeReplica() as engine, nursery(tmp_path) as here:
        child = here.child()
        does(child, monkeypatch, f"import time; print('ready {engine.url}', flush=True); time.sleep(60)")
        child.start()
        await here.until(lambda: here.state.state == "ready")
        assert child._process is not None
        child._process.kill()
        await here.until(lambda: here.states[-1:] == ["ready"] and here.states.count("ready") == 2)
        assert here.states == ["loading", "ready", "down", "loading", "ready"]
        await child.stop(5)
    assert "ended with exit status -9" in caplog.text


async def test_a_child_that_never_becomes_ready_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nursery(tmp_path) as here:
        child = here.child(Config(load_seconds=0.2))
        does(child, monkeypatch, "import time; time.sleep(60)")
        child.start()
        await here.until(lambda: here.state.state == "down")
        await child.stop(5)
    assert "did not become ready (exit status -9)" in caplog.text


async def test_a_child_that_cannot_be_started_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with nursery(tmp_path) as here:
        child = here.child()
        monkeypatch.setattr(child, "_command", lambda: [str(tmp_path / "nothing")])
        child.start()
        await here.until(lambda: here.state.state == "down")
        await child.stop(5)
    assert "could not be started" in caplog.text


async def test_a_child_that_will_not_end_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all that it has started with it."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    async with FakeReplica() as engine, nursery(tmp_path) as here:
        child = here.child()
        does(child, monkeypatch, f"{deaf} print('ready {engine.url}', flush=True); time.sleep(60)")
        child.start()
        await here.until(lambda: here.state.state == "ready")
        process = child._process
        assert process is not None
        await child.stop(0.2)
        async with asyncio.timeout(5):
            assert await process.wait() == -9


async def test_a_pipe_that_is_written_to_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that prints a lot must never stand still because nobody listens."""
    async with FakeReplica() as engine, nursery(tmp_path) as here:
        child = here.child()
        done = tmp_path / "done"
        does(
            child,
            monkeypatch,
            f"import time; print('x' * 300000); print('ready {engine.url}', flush=True); "
            f"print('y' * 2000000, flush=True); open({str(done)!r}, 'w'); time.sleep(60)",
        )
        child.start()
        async with asyncio.timeout(10):
            while not done.exists():  # noqa: ASYNC110  # another process tells nobody
                await asyncio.sleep(0.01)
        await child.stop(5)


@pytest.mark.parametrize(
    ("members", "says"),
    [({"replicas": 0}, "replicas is 0: at least 1"), ({"price_per_hour": -1.0}, "it cannot be below 0")],
)
def test_a_configuration_that_makes_no_sense(members: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**members)  # type: ignore[arg-type]
