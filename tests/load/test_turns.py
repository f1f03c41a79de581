"""One turn against a real server on loopback, and the figures by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from time import sleep

import pytest

from tests.load.conftest import ToyServer
from wastegate.load.client import Answer, Outcome
from wastegate.load.openloop import Loop, Result
from wastegate.load.replay import Config
from wastegate.load.rows import Row, Trace
from wastegate.load.schedule import Pace, Planned
from wastegate.load.turns import OWN_TEXT, Replayed, Turn, figures, lengths
from wastegate.openai.sse import Usage

START = 100.0


def result(at: float, e2e: float, fate: Outcome = "ok", tokens: int = 11) -> Result:
    """A call of ``tokens`` tokens, the first after half of its time."""
    answer = Answer(sent=START + at, first=START + at + e2e / 2, ended=START + at + e2e, outcome=fate)
    answer.usage = Usage(prompt_tokens=5, output_tokens=tokens) if fate == "ok" else None
    return Result(planned=Planned(number=1, row=Row(line=1), at=at), fate=fate, answer=answer, start=START)


def turn(toy: str = "toy", **changes: float | None) -> Turn:
    asked = {"rate": 60.0, "seconds": 0.25, "warmup": 0.05, "seed": 1, "fresh": 1, "block": 0, "place": 0, **changes}
    return Turn(arm=toy, **asked)  # type: ignore[arg-type]


def made(url: str, **options: object) -> Config:
    return Config(trace=Path("made"), url=url, **options)  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    found = figures([result(0.5, 9.0), result(1.0, 0.2), result(1.5, 0.4), result(2.0, 0.3)], 1.0)
    assert found == pytest.approx(
        {
            "sent": 3.0,
            "answered": 3.0,
            "failed_share": 0.0,
            "seconds": 1.3,
            "answered_per_s": 3 / 1.3,
            "output_tokens": 33.0,
            "output_tokens_per_s": 33 / 1.3,
            "ttft_p50": 0.15,
            "ttft_p95": 0.195,
            "e2e_p50": 0.3,
            "e2e_p95": 0.39,
            "tpot_p50": 0.015,
            "tpot_p95": 0.0195,
        }
    )


def test_a_server_cannot_look_fast_by_refusing() -> None:
    found = figures([result(float(number), 0.1) for number in range(9)] + [result(9.0, 0.001, "failed")], 0.0)
    assert (found["failed_share"], found["answered"]) == (0.1, 9.0)
    assert [found["e2e_p50"], found["e2e_p95"]] == pytest.approx([0.1, math.inf])
    nothing = figures([result(0.0, 0.001, "failed")], 0.0)
    assert nothing["ttft_p50"] == math.inf
    assert "tpot_p50" not in nothing


def test_who_hung_up_waited_for_no_end() -> None:
    found = figures([result(0.0, 0.1), result(0.0, 50.0, "hung_up")], 0.0)
    assert [found["sent"], found["answered"], found["e2e_p95"]] == pytest.approx([2.0, 1.0, 0.1])


def test_nothing_sent_has_no_figures() -> None:
    assert figures([], 0.0) == {}
    assert figures([result(1.0, 0.1)], 2.0) == {}
    unsent = Result(planned=Planned(number=1, row=Row(line=1), at=0.0), fate="not_reached")
    assert figures([unsent], 0.0) == {}
    never = Result(planned=Planned(number=1, row=Row(line=1), at=0.0), fate="failed")
    assert "answered_per_s" not in figures([never], 0.0)


async def test_turns_share_their_arrivals_and_no_prompt(toy: ToyServer) -> None:
    arm = Replayed(made(toy.url, params={"top_p": 0.5}), lengths(40, 3, 100))
    first, second = await arm(turn(fresh=1)), await arm(turn(fresh=2))
    assert first.figures["sent"] == second.figures["sent"] > 3
    assert (first.fault, first.figures["failed_share"]) == ("", 0.0)
    sent = [ids for ids in toy.prompts if len(ids) == 40]
    assert len({tuple(ids) for ids in sent}) == len(sent), "no prompt twice"
    assert all(call["top_p"] == 0.5 for call in toy.calls)
    assert OWN_TEXT not in first.notes


async def test_a_server_is_asked_for_its_tokenizer_once(toy: ToyServer) -> None:
    toy.tokenizes = False  # so that each calibration is made of calls that the server keeps
    arm = Replayed(made(toy.url), lengths(40, 3, 100))
    sent = [(await arm(turn(fresh=fresh))).figures["sent"] for fresh in (1, 2)]
    probes = [headers for headers in toy.headers if headers.get("x-wastegate-tag-purpose") == "calibration"]
    assert 0 < len(probes) <= 4
    assert len(toy.calls) - len(probes) >= sum(sent)


async def test_the_traces_own_times_and_text(toy: ToyServer) -> None:
    rows = tuple(
        Row(line=n, at=0.04 * n, messages=({"role": "user", "content": "hi"},), output_tokens=2) for n in range(9)
    )
    arm = Replayed(made(toy.url, pace=Pace(speed=2.0)), Trace("made", "messages", rows))
    sample = await arm(turn(rate=None, seconds=0.13, warmup=0.05))
    assert len(toy.calls) == 7
    assert sample.figures["sent"] == 4.0
    assert OWN_TEXT in sample.notes


async def test_a_file_is_read_once(toy: ToyServer, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1200, "output_length": 40, "hash_ids": [1, 2, 3]}\n')
    arm = Replayed(Config(trace=path, url=toy.url, pace=Pace(token_scale=Fraction(1, 16))))
    path.unlink()
    sample = await arm(turn(rate=None, warmup=0.0))
    assert sample.figures["output_tokens"] == 2.0


async def test_a_slow_server_is_no_fault_of_the_turn(toy: ToyServer) -> None:
    toy.delay = lambda: 0.1
    arm = Replayed(made(toy.url, loop=Loop(max_inflight=1)), lengths(40, 1, 100))
    held = await arm(turn(rate=40.0, seconds=0.3, warmup=0.0))
    assert held.fault == ""
    assert held.figures["e2e_p95"] > 0.4, "counted from the intended arrival"


async def test_a_late_sender_is_one(toy: ToyServer) -> None:
    def hold() -> float:
        sleep(0.05)  # the server holds the event loop that sends as well
        return 0.0

    toy.delay = hold
    arm = Replayed(made(toy.url), lengths(40, 1, 100))
    late = await arm(turn(rate=60.0, seconds=0.3, warmup=0.0))
    assert late.fault == "less than 95% of the offered rate was sent"
