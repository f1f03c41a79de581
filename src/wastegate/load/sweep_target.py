"""What a sweep is run against: a server that is up already, or a local engine that is started for it, paused while it
is another's turn, and ended with it. Nothing is measured here but memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec import Struct

START_SECONDS = 900.0
"""Longest wait for an engine to come up: it may have to fetch its model first."""
END_SECONDS = 10.0

_SWITCHES = frozenset({"no-prefix-caching"})
_FLAGS = _SWITCHES | {
    "cap", "queue", "context", "kv-gb", "step-tokens", "cores", "threads", "hint", "kv-precision",
}  # fmt: skip
"""Of `wastegate engine`: what changes how it computes. Where it listens is the sweep's business."""


class TargetSpecError(ValueError):
    """A target that cannot be understood; the sentence says how one is written."""


class EngineError(RuntimeError):
    """An engine did not come up; the text ends with what it said last."""


class Spec(Struct, frozen=True, kw_only=True):
    """One target as asked for: ``url``, or the ``model`` of an engine to start, with its flags."""

    name: str
    url: str = ""
    model: str = ""
    flags: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    """What must be known of it, such as "a stand-in for speed only"; shown wherever it is named."""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.remark})" if self.remark else self.name

    @property
    def made_of(self) -> str:
        if self.url:
            return self.url
        said = " ".join(f"--{flag} {value}".rstrip() for flag, value in self.flags)
        return f"wastegate engine, {Path(self.model).name}{' ' + said if said else ''}"


def parse_target(text: str) -> Spec:
    """NAME=URL, or NAME=engine:MODEL[,FLAG=VALUE…] with flags of `wastegate engine`. Raises TargetSpecError."""
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.+-]+", name):
        raise TargetSpecError(f"{text!r}: write NAME=URL or NAME=engine:MODEL, with a name of letters, digits and .+-_")
    if rest.startswith(("http://", "https://")):
        return Spec(name=name, url=rest)
    kind, colon, engine = rest.partition(":")
    if kind != "engine" or not colon or not engine:
        raise TargetSpecError(f"{text!r}: behind {name}= stands a URL that begins with http, or engine:MODEL")
    model, *options = engine.split(",")
    return Spec(name=name, model=model, flags=tuple(_flag(option, text) for option in options))


def _flag(option: str, text: str) -> tuple[str, str]:
    flag, equals, value = option.partition("=")
    if flag not in _FLAGS:
        raise TargetSpecError(
            f"{text!r}: {flag or 'nothing'} is no flag that can be set here: {', '.join(sorted(_FLAGS))}"
        )
    if bool(equals and value) == (flag in _SWITCHES):
        raise TargetSpecError(f"{text!r}: {flag} {'takes no value' if flag in _SWITCHES else 'needs =VALUE'}")
    return flag, value


class Running:
    """A target that is up. One that was not started here cannot be paused, nor its memory seen."""

    def __init__(self, spec: Spec, url: str, process: asyncio.subprocess.Process | None = None) -> None:
        self.spec = spec
        self.url = url
        self._process = process

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def ours(self) -> bool:
        return self._process is not None

    def pause(self) -> None:
        """Take its cores from it, and let it keep its memory."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def memory(self) -> int | None:
        """Bytes that it and what it started take; pages shared with others in part. None where it cannot be seen."""
        if self._process is None:
            return None
        return memory_of(self._process.pid)

    async def end(self) -> None:
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """To it and all that it started, which are a group of their own."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def memory_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Bytes of a process and its descendants, each page divided by those who share it. None where that is not told."""
    pids, total = [pid], 0
    try:
        for one in pids:  # grows as it goes
            for task in (proc / str(one) / "task").iterdir():
                pids += map(int, (task / "children").read_text().split())
            rollup = (proc / str(one) / "smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return None
    return total * 1024


@contextlib.asynccontextmanager
async def running(specs: Sequence[Spec], logs: Path, cap: int) -> AsyncIterator[list[Running]]:
    """All targets, up, those started here paused. ``cap``: sequences that an engine runs at once where its flags do not
    say. Raises EngineError."""
    up: list[Running] = []
    try:
        for spec in specs:
            one = Running(spec, spec.url) if spec.url else await _start(spec, logs / f"{spec.name}.log", cap)
            up.append(one)
            one.pause()
        yield up
    finally:
        for one in up:
            await one.end()


async def _start(spec: Spec, log: Path, cap: int) -> Running:
    flags = {"cap": str(cap), **dict(spec.flags)}
    given = [part for flag, value in flags.items() for part in (f"--{flag}", value) if part]
    command = [
        sys.executable, "-m", "wastegate", "engine", "--model", spec.model, "--name", spec.name, "--port", "0",
        "--die-with-parent", *given,
    ]  # fmt: skip
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True
        )
    engine = Running(spec, "", process)
    try:
        async with asyncio.timeout(START_SECONDS):
            engine.url = await _address(process)
    except TimeoutError:
        await engine.end()
        raise EngineError(f"{spec.name}: {spec.made_of} was not ready within {START_SECONDS:.0f} s") from None
    except asyncio.CancelledError:
        await engine.end()
        raise
    if not engine.url:
        await engine.end()
        raise EngineError(f"{spec.name}: {spec.made_of} did not start: {_last_words(log)}")
    return engine


def _last_words(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-5:]) or "it said nothing"


async def _address(process: asyncio.subprocess.Process) -> str:
    """What stands behind "ready"; empty if it ended without."""
    assert process.stdout is not None
    async for line in process.stdout:
        word, _, rest = line.decode().partition(" ")
        if word == "ready":
            return rest.split()[0]
    return ""
