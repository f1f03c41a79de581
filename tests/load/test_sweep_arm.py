"""A level of load against a real server on loopback, in both loops, and its figures by hand."""

from __future__ import annotations

import math

import pytest

from tests.load.conftest import ToyServer
from tests.load.test_turns import result, turn
from wastegate.core.steady import Rule
from wastegate.load import sweep_arm
from wastegate.load.sweep_arm import Asked, Shape, Slo, Swept, figures
from wastegate.load.sweep_target import Running, Spec
from wastegate.load.target import TargetError

SHAPE = Shape(60, 5)


def swept(toy: ToyServer, shape: Shape = SHAPE, key: str = "", **asked: object) -> Swept:
    settings = {"settle": Rule(seconds=0.1, most=0.5, tolerance=0.5), "drain": 5.0, **asked}
    return Swept(Running(Spec(name="toy", url=toy.url), toy.url), shape, Asked(**settings), key)  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    counted = [result(0.0, 1.0), result(0.0, 3.0), result(0.0, 2.0), result(0.0, 0.01, "failed")]
    found = figures(counted, 2.0, Slo(e2e=2.5), True)
    assert found == pytest.approx(
        {
            "calls": 4.0,
            "qps": 1.5,
            "output_tokens_per_s": 16.5,
            "goodput": 1.0,
            "good_share": 0.5,
            "failed_share": 0.25,
            "settled": 1.0,
            "wait": 2.0,
            "ttft_p50": 1.5,
            "ttft_p95": math.inf,
            "e2e_p50": 3.0,
            "e2e_p95": math.inf,
            "tpot_p50": 0.1,
            "tpot_p95": 0.145,
        }
    )


def test_nothing_that_counts_has_no_figures_and_failures_have() -> None:
    assert figures([], 1.0, Slo(), True) == {}
    assert figures([result(0.0, 1.0)], 0.0, Slo(), True) == {}
    found = figures([result(0.0, 1.0, "failed")], 1.0, Slo(), True)
    assert (found["qps"], found["wait"], found["goodput"]) == (0.0, math.inf, 0.0)


def test_a_good_call_keeps_every_limit() -> None:
    """Of 11 tokens, the first after half of the time."""
    call = result(0.0, 1.0)
    assert Slo().kept(call)
    assert Slo(ttft=0.6, tpot=0.06, e2e=1.1).kept(call)
    assert not Slo(ttft=0.4).kept(call)
    assert not Slo(tpot=0.04).kept(call)
    assert not Slo(e2e=0.9).kept(call)
    assert not Slo().kept(result(0.0, 1.0, "failed"))
    assert Slo(tpot=0.0001).kept(result(0.0, 1.0, tokens=1)), "a single token has no time per token"


def test_limits_and_lengths_in_words() -> None:
    assert str(Slo()) == "none"
    assert str(Slo(ttft=0.5, e2e=2.0)) == "TTFT ≤ 0.5 s, E2E ≤ 2 s"
    assert str(SHAPE) == "60 tokens in, 5 out"


async def test_so_many_at_once(toy: ToyServer) -> None:
    toy.gap = 0.01
    arm = swept(toy, key="secret", settle=Rule(seconds=0.2, most=20.0, tolerance=0.5))
    sample = await arm(turn(rate=4.0))
    assert sample.figures["settled"] == 1.0
    assert sample.figures["qps"] == pytest.approx(4 / sample.figures["wait"], rel=0.3), "Little's law"
    assert sample.figures["output_tokens_per_s"] == pytest.approx(5 * sample.figures["qps"])
    assert 0.009 < sample.figures["tpot_p50"] < sample.figures["e2e_p50"] / 4
    assert {body["max_tokens"] for body in toy.calls} == {5}
    assert {(body["temperature"], body["ignore_eos"], body["stream"]) for body in toy.calls} == {(0.0, True, True)}
    assert {len(prompt) for prompt in toy.prompts} == {60}
    assert len({tuple(prompt) for prompt in toy.prompts}) == len(toy.prompts), "no prompt twice"
    assert {headers["authorization"] for headers in toy.headers} == {"Bearer secret"}
    assert toy.left == 0, "a server that is not ours is let finish"
    before = len(toy.prompts)
    await arm(turn(rate=1.0, fresh=2))
    assert not {tuple(prompt) for prompt in toy.prompts[:before]} & {tuple(prompt) for prompt in toy.prompts[before:]}


async def test_so_many_offered(toy: ToyServer) -> None:
    sample = await swept(toy, mode="open")(turn(rate=20.0, seconds=0.5, warmup=0.1))
    assert sample.figures["settled"] == 1.0, "too few calls to say otherwise"
    assert len(toy.prompts) == 10
    assert 4 <= sample.figures["calls"] <= 9, "the first do not count"
    assert 0.0 < sample.figures["qps"] < 40.0


async def test_a_rate_that_could_not_be_sent_is_at_fault(toy: ToyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same rule as a paired run's turn."""
    monkeypatch.setattr(sweep_arm, "sending_fault", lambda report, held: f"{report.sent} sent, {held} held")
    found = await swept(toy, mode="open")(turn(rate=40.0, seconds=0.5, warmup=0.0))
    assert found.fault == f"{found.figures['calls']:.0f} sent, 0 held"


async def test_a_server_that_falls_behind_has_not_settled(toy: ToyServer) -> None:
    waits = iter(0.02 * number for number in range(10_000))
    toy.delay = lambda: next(waits)
    sample = await swept(toy, mode="open")(turn(rate=60.0, seconds=0.6, warmup=0.0))
    assert sample.figures["settled"] == 0.0


async def test_calls_that_do_not_fit_are_refused_not_clipped(toy: ToyServer) -> None:
    toy.context = 50
    with pytest.raises(TargetError, match="60 tokens in, 5 out do not fit its context of 50 tokens"):
        await swept(toy)(turn(rate=1.0))


async def test_a_target_that_answers_nothing_is_told_before_anything_is_measured(toy: ToyServer) -> None:
    toy.tokenizer.bos = True
    toy.context = None
    arm = swept(toy, model="toy", settle=Rule(seconds=0.1, most=0.2))
    await arm(turn(rate=1.0))

    def broken() -> float:
        raise RuntimeError

    toy.delay = broken
    with pytest.raises(TargetError, match="toy answered no call: status 500"):
        await arm(turn(rate=1.0, block=-1))
    sample = await arm(turn(rate=1.0, block=0))
    assert sample.figures["qps"] == 0.0, "later it is a figure"
    assert any("toy: calls failed: status 500" in note for note in sample.notes)


async def test_answers_that_end_early_are_noted(toy: ToyServer) -> None:
    toy.says_usage = False
    sample = await swept(toy, Shape(60, 5))(turn(rate=1.0))
    assert not any("ended before" in note for note in sample.notes)
    answer = toy._answer

    async def short(request: object, body: dict[str, object], prompt: int) -> object:
        return await answer(request, {**body, "max_tokens": 2}, prompt)  # type: ignore[arg-type]

    toy._answer = short  # type: ignore[method-assign, assignment]
    sample = await swept(toy)(turn(rate=1.0))
    assert any("toy: answers ended before the length asked for" in note for note in sample.notes)
