"""The step loop: a process of its own, since a step keeps the interpreter's lock for its whole length. It holds
the line, the running sequences and the pipeline; it speaks only to the HTTP process, over one socket."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from wastegate.core.admission import Admission
from wastegate.local.lifeline import die_with_parent
from wastegate.local.messages import (
    Cancel,
    Failed,
    Frames,
    Load,
    LoopConfig,
    Piece,
    Ready,
    Refused,
    Report,
    Request,
    Resize,
    Start,
    Step,
    decode_config,
    decode_request,
    frame,
)
from wastegate.local.pipeline import OutOfMemoryError, Pipeline
from wastegate.local.text import Writer

Ticket = tuple[int, int]
"""A call and which of its answers: each answer is a sequence, and takes a place of its own."""


class Waiting(Struct):
    """A call whose answers have not all begun."""

    start: Start
    since: float
    left: int


class Running(Struct):
    """A sequence in the pipeline."""

    handle: Any
    writer: Writer
    prompt: int
    tokens: int = 0


class StepLoop:
    """Admission before the pipeline, one step after another, and a report of each."""

    def __init__(self, pipeline: Pipeline, config: LoopConfig, sock: socket.socket) -> None:
        self._pipeline = pipeline
        self._sock = sock
        self._frames = Frames()
        self._line: Admission[Ticket] = Admission(config.limits)
        self._waiting: dict[int, Waiting] = {}
        self._running: dict[Ticket, Running] = {}
        self._admitted: list[tuple[int, float, int]] = []

    def run(self) -> None:
        """Serve until the other end hangs up."""
        while True:
            if not self._listen(block=not self._running):
                return
            if self._running:
                self._step()
            elif self._pipeline.busy:  # everything was cancelled: let the pipeline drop it
                self._pipeline.step()

    def _listen(self, *, block: bool) -> bool:
        """Take every message that is there; False when the other end is gone."""
        before = (self._line.running, self._line.waiting)
        while True:
            if not block and not select.select([self._sock], [], [], 0)[0]:
                break
            data = self._sock.recv(1 << 20)
            if not data:
                return False
            for body in self._frames.feed(data):
                self._take(decode_request(body))
            block = False
        if not self._running and before != (self._line.running, self._line.waiting):
            self._send(Load(self._line.running, self._line.waiting))
        return True

    def _take(self, request: Request) -> None:
        if isinstance(request, Start):
            self._arrive(request)
        elif isinstance(request, Cancel):
            self._cancel(request.call)
        elif isinstance(request, Resize):
            self._begin(self._line.resize(request.limits))
            self._send(Load(self._line.running, self._line.waiting))

    def _arrive(self, start: Start) -> None:
        tickets = [(start.call, index) for index in range(start.n)]
        run: list[Ticket] = []
        self._waiting[start.call] = Waiting(start, time.perf_counter(), start.n)
        for ticket in tickets:
            verdict = self._line.arrive(ticket, start.priority)
            if verdict == "run":
                run.append(ticket)
            elif verdict == "full":
                self._withdraw(tickets, run)
                limits = self._line.limits
                self._send(
                    Refused(
                        start.call,
                        503,
                        f"the engine is full: {self._line.running} of {limits.cap} sequences run and "
                        f"{self._line.waiting} of {limits.queue} wait; try again shortly",
                    )
                )
                return
        self._begin(run)

    def _withdraw(self, tickets: Sequence[Ticket], run: Sequence[Ticket]) -> None:
        """A call with several answers found room for some only: give those places back."""
        del self._waiting[tickets[0][0]]
        for ticket in tickets:
            if ticket in run:
                self._begin(self._line.finish())
            else:
                self._line.leave(ticket)

    def _begin(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            call, index = ticket
            waiting = self._waiting[call]
            if waiting.left == waiting.start.n:
                self._admitted.append((call, time.perf_counter() - waiting.since, -1))
            waiting.left -= 1
            if not waiting.left:
                del self._waiting[call]
            start = waiting.start
            prompt = np.frombuffer(start.prompt, dtype="<i8")
            sampling = start.sampling
            handle = self._pipeline.add(prompt, sampling, seed=sampling.seed + index)
            self._running[ticket] = Running(handle, Writer(self._pipeline.table, sampling.stop), len(prompt))

    def _cancel(self, call: int) -> None:
        waiting = self._waiting.pop(call, None)
        if waiting is not None:
            for index in range(waiting.start.n):
                self._line.leave((call, index))
        for ticket in [ticket for ticket in self._running if ticket[0] == call]:
            self._running.pop(ticket).handle.cancel()
            self._begin(self._line.finish())

    def _step(self) -> None:
        began = time.perf_counter()
        self._pipeline.step()
        seconds = time.perf_counter() - began
        width = len(self._running)
        generated = 0
        pieces: list[Piece] = []
        for ticket, sequence in list(self._running.items()):
            try:
                tokens, finish = self._pipeline.read(sequence.handle)
            except OutOfMemoryError:
                self._running.pop(ticket)
                self._send(
                    Refused(ticket[0], 503, "the KV cache is too small for this call beside the others", fresh=False)
                )
                self._begin(self._line.finish())
                continue
            generated += len(tokens)
            if tokens or finish:
                pieces.append(self._write(ticket, sequence, tokens, finish))
        kv_use, kv_bytes = self._pipeline.kv()
        self._send(
            Step(
                seconds=seconds, prefill=0, decoding=len(pieces), generated=generated, sequences=width, kv_tokens=0,
                clean=True,
                kv_use=kv_use, kv_bytes=kv_bytes, running=self._line.running, waiting=self._line.waiting,
                admitted=tuple(self._admitted), pieces=tuple(pieces),
            )
        )  # fmt: skip
        self._admitted.clear()

    def _write(self, ticket: Ticket, sequence: Running, tokens: list[int], finish: str) -> Piece:
        text = ""
        for token in tokens:
            text += sequence.writer.feed(token)
            sequence.tokens += 1
            if sequence.writer.stopped:
                if not finish:
                    sequence.handle.cancel()
                finish = "stop"
                break
        if finish:
            if not sequence.writer.stopped:
                text += sequence.writer.close()
            del self._running[ticket]
            self._begin(self._line.finish())
        return Piece(ticket[0], ticket[1], text, sequence.tokens, finish)

    def _send(self, report: Report) -> None:
        self._sock.sendall(frame(report))


def main(argv: Sequence[str]) -> int:
    """The process: ``python -m wastegate.local.loop FD``, with the configuration as the first message on FD."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the HTTP process decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(argv[0]))
    try:
        config = decode_config(_first(sock))
        began = time.perf_counter()
        if config.cores:
            os.sched_setaffinity(0, config.cores)  # before loading: the runtime counts its cores then
        pipeline = Pipeline(config)
        loaded = time.perf_counter()
        pipeline.warm_up((1, 2, 4, 8, 16, 32), config.batched_tokens)
        sock.sendall(frame(Ready(loaded - began, time.perf_counter() - loaded, pipeline.settings())))
        StepLoop(pipeline, config, sock).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        with contextlib.suppress(OSError):
            sock.sendall(frame(Failed(f"{type(error).__name__}: {error}")))
        raise
    return 0


def _first(sock: socket.socket) -> bytes:
    frames = Frames()
    while True:
        data = sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        for body in frames.feed(data):
            return body


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
