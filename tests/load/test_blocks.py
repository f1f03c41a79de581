"""From turns to comparisons: what is kept, what is missing, what may be believed."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from wastegate.core.judge import judge
from wastegate.core.trial import Arm, Goal, Trial
from wastegate.load.blocks import Block, Design, Done, Run, report
from wastegate.load.host import Host

QUIET = Host(steal=0.0, busy=0.9, own=0.1, others=0.02)
WOBBLE = (1.02, 0.97, 1.01, 1.03, 0.98, 0.99, 1.0, 1.02)


def done(arm: str, figures: dict[str, float], host: Host = QUIET) -> Done:
    return Done(arm=arm, began=0.0, took=1.0, figures=figures, host=host, fault="")


def block(
    number: int, base: dict[str, float], fast: dict[str, float], rate: float | None = None, dropped: str = ""
) -> Block:
    arms = (("base", base), ("fast", fast), ("fast", fast), ("base", base))
    return Block(rate=rate, number=number, turns=tuple(done(*one) for one in arms), dropped=dropped)


def run(*blocks: Block, notes: tuple[str, ...] = (), interrupted: bool = False, **design: object) -> Run:
    return Run(
        arms=("base", "fast"),
        design=msgspec.convert({"seconds": 1.0, "warmup": 0.0, **design}, Design),
        blocks=blocks,
        notes=notes,
        interrupted=interrupted,
        seconds=9.0,
    )


def pairs(level: float = 0.5, count: int = 8, **more: float) -> list[Block]:
    return [block(n, {"p95": 1.0, **more}, {"p95": level * WOBBLE[n], **more}) for n in range(count)]


def test_a_block_has_the_mean_of_its_turns() -> None:
    one = Block(
        rate=None,
        number=0,
        turns=(done("a", {"x": 1.0}), done("b", {"x": 9.0}), done("a", {"x": 3.0}), done("b", {})),
        dropped="",
    )
    assert one.figure("a", "x") == 2.0
    assert math.isnan(one.figure("b", "x"))


def test_arms_are_compared_by_block() -> None:
    (line,) = report(run(*pairs(), blocks=8)).lines
    assert (line.metric, line.arm, line.scale, line.baseline) == ("p95", "fast", "ratio", 1.0)
    assert line.estimate is not None
    assert line.estimate.low < 0.5 < line.estimate.high < 0.52


def test_shares_that_are_0_are_compared_by_their_difference() -> None:
    lines = {line.metric: line for line in report(run(*pairs(failed_share=0.0), blocks=8)).lines}
    share = lines["failed_share"]
    assert share.scale == "difference"
    assert share.estimate is not None
    assert (share.estimate.low, share.estimate.high) == (0.0, 0.0)


def test_what_is_missing_has_no_estimate_and_says_why() -> None:
    some = [*pairs(count=7), block(7, {"p95": 1.0, "ttft": math.inf}, {})]
    lines = {line.metric: line for line in report(run(*some, blocks=8)).lines}
    assert (lines["p95"].estimate, lines["p95"].why) == (None, "1 of 8 blocks have no finite figure")
    assert lines["ttft"].why == "8 of 8 blocks have no finite figure"
    (few,) = report(run(*pairs(count=5), blocks=5)).lines
    assert (few.estimate, few.why) == (None, "5 blocks are too few for an interval: 6 are needed")


def test_dropped_blocks_do_not_count_and_are_counted() -> None:
    disturbed = [block(n, {"p95": 1.0}, {"p95": 50.0}, dropped="steal") for n in range(2)]
    found = report(run(*pairs(count=6), *disturbed, blocks=6))
    assert (found.dropped, found.invalid) == ({"steal": 2}, ())
    assert found.lines[0].value < 0.6
    assert len(found.kept(None)) == 6


def test_too_many_dropped_or_an_early_end_is_not_to_be_believed() -> None:
    disturbed = [block(n, {"p95": 1.0}, {"p95": 50.0}, dropped="steal") for n in range(4)]
    found = report(run(*pairs(count=6), *disturbed, blocks=8, notes=("seen",)))
    assert found.invalid == ("4 of 10 blocks were disturbed: wait for a quieter machine",)
    assert found.notes == ("seen", "6 of 8 blocks were kept")
    assert "interrupted" in report(run(*pairs(), interrupted=True, blocks=8)).invalid[0]
    nothing = report(run(blocks=8))
    assert (nothing.lines, nothing.invalid) == ((), ())


def test_a_machine_that_does_not_tell_is_noted() -> None:
    blind = Block(rate=None, number=0, turns=(done("base", {}, Host(steal=None, busy=None, own=0.1)),), dropped="")
    assert "does not say what its host takes" in " ".join(report(run(blind, blocks=1)).notes)


def ladder(capacity: float) -> dict[float, float]:
    return {rate: 0.1 * (1 + (rate / capacity) ** 3) for rate in (1.0, 2.0, 4.0)}


def test_the_rate_at_equal_latency() -> None:
    slow, quick = ladder(1.5), ladder(2.0)
    climbed = [
        block(n, {"e2e_p95": slow[rate] * WOBBLE[n]}, {"e2e_p95": quick[rate] * WOBBLE[-n]}, rate)
        for n in range(8)
        for rate in slow
    ]
    found = report(run(*climbed, rates=[1.0, 2.0, 4.0], blocks=8, limit=0.5))
    base, fast = found.crossings
    assert base.rate is not None
    assert fast.ratio is not None
    assert 1.2 < fast.ratio.low < fast.ratio.high < 1.4
    assert [line.rate for line in found.lines] == [1.0, 2.0, 4.0]


def test_a_turn_without_answers_is_over_every_limit() -> None:
    climbed = [
        block(n, {"e2e_p95": 0.1 * WOBBLE[n]} if rate == 1.0 else {}, {}, rate) for n in range(6) for rate in (1.0, 2.0)
    ]
    base, fast = report(run(*climbed, rates=[1.0, 2.0], limit=0.5)).crossings
    assert "answers cease between 1 and 2/s" in base.why
    assert "no answer at 1/s" in fast.why


def test_a_figure_that_nobody_has_is_noted() -> None:
    found = report(run(*(block(0, {"a": 1.0}, {"a": 1.0}, rate) for rate in (1.0, 2.0)), rates=[1.0, 2.0], limit=0.5))
    assert "no turn has a figure called e2e_p95" in " ".join(found.notes)


def test_a_judge_takes_what_a_run_measured() -> None:
    found = report(run(*pairs(seconds=4.0), blocks=8))
    trial = Trial(
        baseline=Arm(name="base", settings={"cache": False}),
        candidate=Arm(name="fast", settings={"cache": True}),
        goals=(Goal(metric="p95", bound=0.8), Goal(metric="p95 per second", bound=0.8)),
        blocks=8,
    )
    measured = {
        "p95": found.measured("fast", "p95"),
        "p95 per second": found.measured("fast", "p95", under="seconds"),
    }
    assert judge(trial, measured).ruling == "accept"
    assert np.isnan(found.series("fast", "nothing")).all()


def test_a_report_is_json() -> None:
    some = report(run(*pairs(count=7), block(7, {"p95": math.inf}, {"p95": 1.0}), blocks=8))
    told = msgspec.json.decode(msgspec.json.encode(some))
    assert told["blocks"][0]["turns"][0]["figures"] == {"p95": 1.0}
    assert told["blocks"][7]["turns"][0]["figures"] == {"p95": None}
    assert told["lines"][0]["estimate"] is None


@pytest.mark.parametrize(
    ("design", "said"),
    [
        ({"blocks": 0}, "at least 1 block"),
        ({"spares": -1}, "at least 1 block"),
        ({"seconds": 3.0, "warmup": 3.0}, "nothing would count"),
        ({"quiet": -1.0}, "of quiet before a turn"),
        ({"warmup": -1.0}, "nothing would count"),
        ({"rates": (2.0, 1.0)}, "must rise"),
        ({"rates": (0.0, 1.0)}, "must rise"),
        ({"rates": (1.0,), "limit": 0.5}, "a ladder of two rates or more"),
    ],
)
def test_designs_that_cannot_be(design: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Design(**design)  # type: ignore[arg-type]
