"""The step loop as the HTTP process sees it: starts it, passes calls to it and its reports to their calls, and
starts it anew with back-off when it ends. No HTTP, no model code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from wastegate.core.admission import CapConfig, Limits
from wastegate.local.messages import (
    Cancel,
    Capped,
    Failed,
    Frames,
    LoopConfig,
    Piece,
    Ready,
    Refused,
    Request,
    Resize,
    Sampling,
    Start,
    Steer,
    Step,
    decode_report,
    frame,
)
from wastegate.local.metrics import Metrics

State = Literal["loading", "ready", "restarting", "stopped"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between a loop's end and its next start: doubled each time, and back to the first once it served."""

STALLED = 120.0
"""Seconds without a word from a loop that has calls, after which it is taken for hung and killed. A step of the
largest models that a CPU serves takes a few."""

ENDING = 2.0
"""Seconds that a loop gets to end by itself once its socket is closed."""


class LoopError(RuntimeError):
    """The step loop cannot serve; the text says why."""


class Call:
    """One call's mailbox: what the loop said of it, in order. Bounded by the call's own max_tokens × n."""

    def __init__(self, number: int, arrived: float, n: int, prompt: int) -> None:
        self.number = number
        self.prompt = prompt
        """Its prompt's tokens."""
        self.left = n
        """Answers that have not ended."""
        self.arrived = arrived
        self.last: dict[int, float] = {}
        """When each of its answers last got a token, on the clock of ``time.perf_counter``."""
        self.open = True
        """The loop may still hold it."""
        self.queued: float | None = None
        """Seconds that it waited in line, once it runs."""
        self._news: deque[Piece | Refused] = deque()
        self._wake: asyncio.Future[None] | None = None

    def put(self, news: Piece | Refused) -> None:
        self._news.append(news)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def news(self) -> list[Piece | Refused]:
        """Everything that has come since; waits for at least one."""
        while not self._news:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        taken = list(self._news)
        self._news.clear()
        return taken


class Child:
    """Owns the loop's process. Its reports feed the metrics."""

    def __init__(self, config: LoopConfig, metrics: Metrics) -> None:
        self.state: State = "loading"
        self.ready: Ready | None = None
        self.restarts = 0
        self.limits = config.limits
        self.caps = config.caps
        self.capped = Capped(config.limits.cap, "as configured")
        """How the cap came to be what it is."""
        self.changed = asyncio.Event()
        """Set at each change of ``state``; whoever waits clears it."""
        self._config = config
        self._metrics = metrics
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._error = ""
        self._stopping = False
        self._heard = 0.0
        """When the loop last said something, or was given its only call."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def submit(self, prompt: bytes, sampling: Sampling, n: int, priority: int, arrived: float) -> Call:
        """Hand a call to the loop. Its first news may be a refusal."""
        call = Call(next(self._numbers), arrived, n, len(prompt) // 8)
        if self.state != "ready":
            call.open = False
            call.put(Refused(call.number, 503, f"the engine is {self.state}; try again shortly"))
        elif len(self._calls) >= max(self.limits.cap, self._metrics.running) + self.limits.queue:
            # So many are unfinished that the loop's line cannot have room: no need to wait for its word.
            call.open = False
            call.put(
                Refused(
                    call.number, 503,
                    f"the engine is full: {len(self._calls)} calls are in it, of {self.limits.cap} that run and "
                    f"{self.limits.queue} that may wait; try again shortly",
                )
            )  # fmt: skip
        else:
            if not self._calls:
                self._heard = time.perf_counter()
            self._calls[call.number] = call
            self._say(Start(call.number, prompt, sampling, n, priority))
        return call

    def drop(self, call: Call) -> None:
        """The call is over here; if the loop still holds it, it stops at its next step."""
        if call.open and self._calls.pop(call.number, None) is not None:
            self._say(Cancel(call.number))
        call.open = False

    def resize(self, limits: Limits) -> None:
        self.limits = limits
        self.capped = msgspec.structs.replace(self.capped, cap=limits.cap, why="set by hand")
        self._say(Resize(limits))

    def steer(self, caps: CapConfig) -> None:
        """Let the cap follow the load in another way, or with "fixed" no more."""
        self.caps = caps
        self._say(Steer(caps))

    async def run(self) -> None:
        """Keep a loop alive until :meth:`stop`. Raises :class:`LoopError` where the first one never came to serve:
        another try would end the same way."""
        pause = FIRST_PAUSE
        first = True
        while not self._stopping:
            served, why = await self._life()
            if self._stopping:
                return
            if first and not served:
                raise LoopError(why)
            first = False
            pause = FIRST_PAUSE if served else min(pause * 2, LONGEST_PAUSE)
            self.restarts += 1
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """End the loop and its process; calls that are left fail."""
        self._enter("stopped")
        self._stopping = True
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await _end(self._process)

    async def _life(self) -> tuple[bool, str]:
        """One process, from start to end. Whether it came to serve, and why it ended."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "wastegate.local.loop", str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL, stdout=2,  # what the runtime prints must not mix with our own lines
            )  # fmt: skip
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Wire(self._hear, gone), sock=ours
        )
        self._transport.write(frame(self._config))
        watch = asyncio.create_task(self._watch(process))
        try:
            await gone
        finally:
            watch.cancel()
            self._transport.close()
            self._transport = None
        self._enter("restarting")
        code = await _end(process)
        served, self.ready = self.ready is not None, None
        why = self._error or (f"signal {-code}" if code < 0 else f"exit code {code}")
        self._error = ""
        self._fail_all(why)
        return served, why

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill a loop that has calls and says nothing."""
        while True:
            await asyncio.sleep(1.0)
            silent = time.perf_counter() - self._heard
            if self._calls and silent > STALLED:
                self._error = f"no step ended within {STALLED:.0f} s"
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                return

    def _ended(self, call: Call) -> None:
        call.left -= 1
        if not call.left:
            call.open = False
            del self._calls[call.number]

    def _time(self, call: Call, piece: Piece, now: float) -> None:
        last = call.last.get(piece.index)
        if last is not None:
            self._metrics.between.add(now - last)
        elif not call.last:
            self._metrics.first.add(now - call.arrived)
            self._metrics.prompt_tokens += call.prompt
            self._metrics.cached_tokens += piece.cached
        call.last[piece.index] = now

    def _fail_all(self, why: str) -> None:
        for call in self._calls.values():
            call.open = False
            call.put(
                Refused(call.number, 503, f"the engine's step loop ended ({why}) while this call was in it; "
                        "it is being restarted", fresh=False)
            )  # fmt: skip
        self._calls.clear()
        self._metrics.lost()

    def _say(self, request: Request) -> None:
        if self._transport is not None:
            self._transport.write(frame(request))

    def _enter(self, state: State) -> None:
        if not self._stopping:
            self.state = state
        self.changed.set()

    def _hear(self, body: bytes) -> None:
        report = decode_report(body)
        self._heard = time.perf_counter()
        if isinstance(report, Step):
            for number, waited in report.admitted:
                if (call := self._calls.get(number)) is not None:
                    call.queued = waited
            for piece in report.pieces:
                if (call := self._calls.get(piece.call)) is not None:
                    self._time(call, piece, self._heard)
                    if piece.finish:
                        self._ended(call)
                    call.put(piece)
        elif isinstance(report, Refused):
            refused = self._calls.pop(report.call, None)
            if refused is not None:
                refused.open = False
                refused.put(report)
        elif isinstance(report, Capped):
            self.limits = msgspec.structs.replace(self.limits, cap=report.cap)
            self.capped = report
        elif isinstance(report, Ready):
            self.ready = report
            self._enter("ready")
            self._say(Resize(self.limits))
            self._say(Steer(self.caps))
        elif isinstance(report, Failed):
            self._error = report.message
        self._metrics.report(report)


async def _end(process: asyncio.subprocess.Process) -> int:
    """Wait for a process whose socket is closed, not for long; its exit code."""
    try:
        return await asyncio.wait_for(process.wait(), ENDING)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


class _Wire(asyncio.Protocol):
    """The socket to the loop: frames in, end noticed."""

    def __init__(self, hear: Callable[[bytes], None], gone: asyncio.Future[None]) -> None:
        self._hear = hear
        self._gone = gone
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._hear(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
