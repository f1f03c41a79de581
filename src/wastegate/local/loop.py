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

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.admission import Admission
from wastegate.local.batch import Batch, Outcome, Ticket
from wastegate.local.lifeline import die_with_parent
from wastegate.local.messages import (
    BLOCK,
    Cancel,
    Capped,
    Failed,
    Frames,
    Load,
    LoopConfig,
    Ready,
    Refused,
    Report,
    Request,
    Resize,
    Start,
    Steer,
    Step,
    decode_config,
    decode_request,
    frame,
    last_line,
)
from wastegate.local.pipeline import Pipeline
from wastegate.local.steering import Steering


class Waiting(Struct):
    """A call whose answers have not all begun."""

    start: Start
    since: float
    left: int


class StepLoop:
    """Admission before the batch, one step after another, and a report of each."""

    def __init__(self, pipeline: Pipeline, batch: Batch, config: LoopConfig, sock: socket.socket) -> None:
        self._pipeline = pipeline
        self._batch = batch
        self._sock = sock
        self._frames = Frames()
        self._line: Admission[Ticket] = Admission(config.limits)
        self._steering = Steering(config.caps, config.limits.cap, config.kv_blocks * BLOCK)
        self._waiting: dict[int, Waiting] = {}
        self._admitted: list[tuple[int, float]] = []
        self._told = (0, 0)

    def run(self) -> None:
        """Serve until the other end hangs up."""
        while self._listen():
            if len(self._batch):
                self._step()
            elif self._pipeline.busy:  # everything was cancelled: let the pipeline drop it
                self._pipeline.step()
            if self._told != (self._line.running, self._line.waiting):
                self._send(Load(self._line.running, self._line.waiting))

    def _listen(self) -> bool:
        """Take every message that is there, waiting for one where there is nothing to compute. False when the other
        end is gone."""
        block = not len(self._batch) and not self._pipeline.busy
        while block or select.select([self._sock], [], [], 0)[0]:
            block = False
            data = self._sock.recv(1 << 20)
            if not data:
                return False
            for body in self._frames.feed(data):
                self._take(decode_request(body))
        return True

    def _take(self, request: Request) -> None:
        if isinstance(request, Start):
            self._arrive(request)
        elif isinstance(request, Cancel):
            self._cancel(request.call)
        elif isinstance(request, Resize):
            self._steering.begin(request.limits.cap)
            self._begin(self._line.resize(request.limits))
        elif isinstance(request, Steer):
            self._steering.config = request.caps

    def _arrive(self, start: Start) -> None:
        tickets = [(start.call, index) for index in range(start.n)]
        self._waiting[start.call] = Waiting(start, time.perf_counter(), start.n)
        run: list[Ticket] = []
        for ticket in tickets:
            verdict = self._line.arrive(ticket, start.priority)
            if verdict == "full":
                self._withdraw(tickets, run)
                return
            if verdict == "run":
                run.append(ticket)
        self._begin(run)

    def _withdraw(self, tickets: list[Ticket], run: list[Ticket]) -> None:
        """There is no room for all of a call's answers: give back the places that some of them got, and refuse it."""
        call = tickets[0][0]
        for ticket in tickets:
            self._line.leave(ticket)
        del self._waiting[call]
        for _ in run:
            self._begin(self._line.finish())
        limits = self._line.limits
        self._refuse(
            call, 503, f"the engine is full: {self._line.running} of {limits.cap} sequences run and "
            f"{self._line.waiting} of {limits.queue} wait; try again shortly",
        )  # fmt: skip

    def _begin(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            call, index = ticket
            waiting = self._waiting[call]
            start = waiting.start
            if waiting.left == start.n:
                waited = time.perf_counter() - waiting.since
                self._admitted.append((call, waited))
                if self._steering.steers:
                    self._steering.admitted(waited)
            waiting.left -= 1
            if not waiting.left:
                del self._waiting[call]
            prompt = np.frombuffer(start.prompt, dtype=np.int64)
            self._batch.add(ticket, prompt, start.sampling, start.sampling.seed + index)

    def _cancel(self, call: int) -> None:
        waiting = self._waiting.pop(call, None)
        if waiting is not None:
            for index in range(waiting.start.n):
                self._line.leave((call, index))
        for _ in self._batch.cancel(call):
            self._begin(self._line.finish())

    def _step(self) -> None:
        outcome = self._batch.step()
        if self._steering.steers:
            self._steer(outcome)
        for _ in outcome.ended:
            self._begin(self._line.finish())
        for call, _ in outcome.starved:
            self._cancel(call)
            self._refuse(call, 503, "the KV cache had no room left for this call beside the others", fresh=False)
        for (call, _), why in outcome.refused:
            self._cancel(call)
            self._refuse(call, 400, f"the runtime does not take this sampling: {why}")
        kv_use, kv_bytes = self._pipeline.kv()
        self._told = (self._line.running, self._line.waiting)
        self._send(
            Step(
                outcome.seconds, outcome.prefill, outcome.decoding, outcome.generated, outcome.sequences,
                outcome.kv_tokens, outcome.clean, kv_use, kv_bytes, *self._told, tuple(self._admitted), outcome.pieces,
            )
        )  # fmt: skip
        self._admitted.clear()

    def _steer(self, outcome: Outcome) -> None:
        """Let the cap follow what the step tells."""
        steering = self._steering
        steering.stepped(outcome)
        if steering.decide(time.perf_counter(), self._line.running, self._line.waiting):
            state = steering.state
            self._begin(self._line.resize(replace(self._line.limits, cap=state.cap)))
            self._send(Capped(state.cap, state.why, state.points))

    def _refuse(self, call: int, status: int, message: str, *, fresh: bool = True) -> None:
        self._send(Refused(call, status, message, fresh))

    def _send(self, report: Report) -> None:
        if isinstance(report, Load):
            self._told = (report.running, report.waiting)
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
        widest = config.limits.cap if config.caps.policy == "fixed" else config.caps.max
        pipeline.warm_up(widest, config.batched_tokens)
        sock.sendall(frame(Ready(loaded - began, time.perf_counter() - loaded, pipeline.settings())))
        batch = Batch(
            pipeline, batched_tokens=config.batched_tokens, kv_blocks=config.kv_blocks,
            prefix_caching=config.prefix_caching,
        )  # fmt: skip
        StepLoop(pipeline, batch, config, sock).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        with contextlib.suppress(OSError):
            sock.sendall(frame(Failed(last_line(error))))
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
