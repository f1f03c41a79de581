from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from wastegate.core.admission import CapConfig, Limits
from wastegate.local.batch import Batch
from wastegate.local.loop import StepLoop
from wastegate.local.messages import (
    Cancel,
    Capped,
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
    Sampling,
    Start,
    Steer,
    Step,
    decode_report,
    frame,
)
from wastegate.local.pipeline import Pipeline

SHORT = Sampling(5, temperature=0.0, ignore_eos=True)
LONG = Sampling(400, temperature=0.0, ignore_eos=True)
PROMPT = np.arange(20, 60, dtype=np.int64).tobytes()
Found = TypeVar("Found", bound=Report)


class Line:
    """The HTTP process's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(30)
        self._frames = Frames()
        self.reports: list[Report] = []

    def say(self, *requests: Request) -> None:
        self.sock.sendall(b"".join(frame(request) for request in requests))

    def until(self, there: Callable[[list[Report]], object]) -> None:
        while not there(self.reports):
            data = self.sock.recv(1 << 16)
            assert data, "the loop hung up"
            self.reports += [decode_report(body) for body in self._frames.feed(data)]

    def of(self, kind: type[Found]) -> list[Found]:
        return [report for report in self.reports if isinstance(report, kind)]

    def pieces(self, call: int, index: int = 0) -> list[Piece]:
        return [piece for step in self.of(Step) for piece in step.pieces if (piece.call, piece.index) == (call, index)]

    def began(self, call: int) -> bool:
        return bool(self.pieces(call))

    def ended(self, call: int, index: int = 0) -> bool:
        return any(piece.finish for piece in self.pieces(call, index))

    def idle(self) -> bool:
        steps = [report for report in self.reports if isinstance(report, (Step, Load))]
        return bool(steps) and (steps[-1].running, steps[-1].waiting) == (0, 0)


@pytest.fixture(scope="module")
def pipeline(tiny: Path) -> Pipeline:
    return Pipeline(LoopConfig(str(tiny), Limits(), 512, 256))


@pytest.fixture
def start(pipeline: Pipeline, tiny: Path) -> Iterator[Callable[[Limits], Line]]:
    """Runs step loops in threads; each ends when its socket is closed."""
    running: list[tuple[Line, threading.Thread]] = []

    def started(limits: Limits) -> Line:
        ours, theirs = socket.socketpair()
        batch = Batch(pipeline, batched_tokens=256, kv_blocks=256, prefix_caching=True)
        loop = StepLoop(pipeline, batch, LoopConfig(str(tiny), limits, 512, 256), theirs)
        thread = threading.Thread(target=loop.run)
        thread.start()
        running.append((Line(ours), thread))
        return running[-1][0]

    yield started
    for line, thread in running:
        line.sock.shutdown(socket.SHUT_WR)
        thread.join(10)
        assert not thread.is_alive()
        line.sock.close()


Start_ = Callable[[Limits], Line]


def test_a_call_runs_and_each_step_is_reported(start: Start_) -> None:
    line = start(Limits())
    line.say(Start(1, PROMPT, SHORT))
    line.until(lambda _: line.ended(1) and line.idle())
    assert [piece.tokens for piece in line.pieces(1)] == [1, 2, 3, 4, 5]
    steps = line.of(Step)
    assert [step.generated for step in steps] == [1] * 5
    assert [step.prefill for step in steps] == [40, 0, 0, 0, 0]
    assert [step.running for step in steps] == [1, 1, 1, 1, 0]
    assert steps[0].admitted[0][0] == 1
    assert steps[0].kv_use > 0


def test_who_finds_the_cap_reached_waits_and_then_runs(start: Start_) -> None:
    line = start(Limits(cap=1, queue=2))
    line.say(Start(1, PROMPT, SHORT), Start(2, PROMPT, SHORT), Start(3, PROMPT, SHORT))
    line.until(lambda _: all(line.ended(call) for call in (1, 2, 3)))
    order = [piece.call for step in line.of(Step) for piece in step.pieces]
    assert order == [1] * 5 + [2] * 5 + [3] * 5
    assert max(step.running for step in line.of(Step)) == 1
    waits = dict(pair for step in line.of(Step) for pair in step.admitted)
    assert waits[1] < waits[2] < waits[3]


def test_a_lower_priority_number_runs_first(start: Start_) -> None:
    line = start(Limits(cap=1))
    line.say(Start(1, PROMPT, SHORT), Start(2, PROMPT, SHORT), Start(3, PROMPT, SHORT, priority=-1))
    line.until(lambda _: all(line.ended(call) for call in (1, 2, 3)))
    order = [piece.call for step in line.of(Step) for piece in step.pieces if piece.finish]
    assert order == [1, 3, 2]


def test_a_full_line_refuses_with_its_figures(start: Start_) -> None:
    line = start(Limits(cap=1, queue=1))
    line.say(Start(1, PROMPT, LONG), Start(2, PROMPT, SHORT), Start(3, PROMPT, SHORT))
    line.until(lambda _: line.of(Refused))
    (refused,) = line.of(Refused)
    assert (refused.call, refused.status, refused.fresh) == (3, 503, True)
    assert "1 of 1 sequences run and 1 of 1 wait" in refused.message
    line.say(Cancel(1))
    line.until(lambda _: line.ended(2))


def test_a_call_with_more_answers_than_there_is_room_for_takes_no_place(start: Start_) -> None:
    line = start(Limits(cap=2, queue=1))
    line.say(Start(1, PROMPT, SHORT, n=4))
    line.until(lambda _: line.of(Refused))
    line.say(Start(2, PROMPT, SHORT, n=3))
    line.until(lambda _: all(line.ended(2, index) for index in range(3)) and line.idle())
    assert line.pieces(1) == []


def test_answers_of_one_call_take_a_place_each(start: Start_) -> None:
    line = start(Limits(cap=2))
    line.say(Start(1, PROMPT, SHORT, n=3))
    line.until(lambda _: all(line.ended(1, index) for index in range(3)) and line.idle())
    assert max(step.running for step in line.of(Step)) == 2
    assert [call for step in line.of(Step) for call, _ in step.admitted] == [1]


def test_a_running_call_that_is_cancelled_frees_its_place_for_the_next(start: Start_) -> None:
    line = start(Limits(cap=1))
    line.say(Start(1, PROMPT, LONG), Start(2, PROMPT, SHORT))
    line.until(lambda _: len(line.pieces(1)) >= 3)
    line.say(Cancel(1))
    line.until(lambda _: line.ended(2) and line.idle())
    assert len(line.pieces(1)) < 400


def test_a_waiting_call_that_is_cancelled_never_runs(start: Start_) -> None:
    line = start(Limits(cap=1, queue=2))
    line.say(Start(1, PROMPT, LONG), Start(2, PROMPT, SHORT), Cancel(2), Start(3, PROMPT, SHORT))
    line.until(lambda _: line.began(1))
    line.say(Cancel(1))
    line.until(lambda _: line.ended(3) and line.idle())
    assert line.pieces(2) == []


def test_a_call_that_is_half_in_line_is_cancelled_whole(start: Start_) -> None:
    line = start(Limits(cap=1, queue=5))
    line.say(Start(1, PROMPT, LONG, n=3))
    line.until(lambda _: line.began(1))
    line.say(Cancel(1), Cancel(1), Cancel(77))
    line.until(lambda _: line.idle())
    line.say(Start(2, PROMPT, SHORT))
    line.until(lambda _: line.ended(2))
    assert line.pieces(1, 1) == []


def test_the_cap_can_be_raised_and_lowered_while_it_runs(start: Start_) -> None:
    line = start(Limits(cap=1))
    line.say(*(Start(call, PROMPT, LONG) for call in (1, 2, 3)))
    line.until(lambda _: line.began(1))
    assert not line.began(2)
    line.say(Resize(Limits(cap=3)))
    line.until(lambda _: line.began(2) and line.began(3))
    line.say(Resize(Limits(cap=1)), Start(4, PROMPT, SHORT), Cancel(1), Cancel(2))
    line.until(lambda _: any(step.running == 1 for step in line.of(Step)[-1:]))
    assert not line.began(4)
    line.say(Cancel(3))
    line.until(lambda _: line.ended(4))


def test_the_line_is_told_also_where_no_step_is_due(start: Start_) -> None:
    line = start(Limits(cap=1))
    line.say(Start(1, PROMPT, LONG))
    line.until(lambda _: line.began(1))
    line.say(Cancel(1))
    line.until(lambda _: line.idle())
    assert isinstance(line.reports[-1], Load)


def test_odd_sampling_is_refused_and_the_others_go_on(start: Start_) -> None:
    line = start(Limits(cap=1))
    line.say(Start(1, PROMPT, Sampling(5, min_p=1.0), n=2), Start(2, PROMPT, SHORT))
    line.until(lambda _: line.ended(2) and line.idle())
    (refused,) = line.of(Refused)
    assert (refused.call, refused.status) == (1, 400)
    assert "min_p" in refused.message


def test_a_call_that_the_cache_cannot_hold_is_failed(tiny: Path) -> None:
    pipeline = Pipeline(LoopConfig(str(tiny), Limits(), 512, 2))
    ours, theirs = socket.socketpair()
    batch = Batch(pipeline, batched_tokens=256, kv_blocks=2, prefix_caching=True)
    loop = StepLoop(pipeline, batch, LoopConfig(str(tiny), Limits(), 512, 2), theirs)
    thread = threading.Thread(target=loop.run)
    thread.start()
    line = Line(ours)
    line.say(Start(1, np.arange(3, 103, dtype=np.int64).tobytes(), SHORT))
    line.until(lambda _: line.of(Refused))
    (refused,) = line.of(Refused)
    assert (refused.status, refused.fresh) == (503, False)
    ours.close()
    thread.join(10)


@pytest.fixture
def process() -> Iterator[Callable[[LoopConfig], tuple[subprocess.Popen[bytes], Line]]]:
    """Runs the loop as it is run: in a process of its own."""
    running: list[tuple[subprocess.Popen[bytes], Line]] = []

    def started(config: LoopConfig) -> tuple[subprocess.Popen[bytes], Line]:
        ours, theirs = socket.socketpair()
        child = subprocess.Popen(
            [sys.executable, "-m", "wastegate.local.loop", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.sendall(frame(config))
        running.append((child, Line(ours)))
        return running[-1]

    yield started
    for child, line in running:
        line.sock.close()
        child.kill()
        child.communicate()


Process = Callable[[LoopConfig], tuple[subprocess.Popen[bytes], Line]]


def test_the_process_loads_serves_and_ends_when_its_socket_closes(process: Process, tiny: Path) -> None:
    child, line = process(LoopConfig(str(tiny), Limits(), 512, 64, cores=(0,)))
    line.until(lambda _: line.of(Ready))
    (ready,) = line.of(Ready)
    assert ready.loading > 0
    assert ready.warmup > 0
    assert ready.settings["cores"] == "[0]"
    line.say(Start(1, PROMPT, SHORT))
    line.until(lambda _: line.ended(1))
    line.say(Start(2, PROMPT, LONG))
    line.until(lambda _: line.began(2))
    line.sock.close()
    assert child.wait(10) == 0


def test_a_model_that_cannot_be_loaded_is_said_before_the_process_ends(process: Process, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\0" * 50)
    child, line = process(LoopConfig(str(bad), Limits(), 512, 64))
    line.until(lambda _: line.of(Failed))
    assert "bad.gguf" in line.of(Failed)[0].message
    assert child.wait(10) == 1


def test_a_process_that_is_hung_up_on_before_it_was_configured_ends(tiny: Path) -> None:
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-m", "wastegate.local.loop", str(theirs.fileno())], pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    ours.close()
    assert child.wait(20) == 0


def test_a_process_ignores_what_is_meant_for_its_parent(process: Process, tiny: Path) -> None:
    child, line = process(LoopConfig(str(tiny), Limits(), 512, 64))
    line.until(lambda _: line.of(Ready))
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    line.say(Start(1, PROMPT, SHORT))
    line.until(lambda _: line.ended(1))
    assert child.poll() is None


def test_the_cap_follows_the_load_when_told_to(start: Start_) -> None:
    line = start(Limits(cap=2, queue=64))
    line.say(Steer(CapConfig(dwell=0.05)), *(Start(call, PROMPT, LONG) for call in range(1, 31)))
    line.until(lambda _: len(line.of(Capped)) >= 3)
    assert [report.cap for report in line.of(Capped)][:3] == [3, 5, 8]
    assert "wait and there is room" in line.of(Capped)[0].why
    line.until(lambda _: any(step.running == 8 for step in line.of(Step)))
    line.say(Steer(CapConfig("fixed")), Resize(Limits(cap=1, queue=64)))
    told = len(line.of(Capped))
    line.say(*(Cancel(call) for call in range(1, 31)))
    line.until(lambda _: line.idle())
    assert len(line.of(Capped)) <= told + 1, "one may have been on its way"
