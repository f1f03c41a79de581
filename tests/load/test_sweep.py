"""Two servers on loopback swept through levels; and what is made of blocks whose figures are known."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.load.conftest import ToyServer
from wastegate.core.packing import Device
from wastegate.core.steady import Rule as Settle
from wastegate.load import sweep as room
from wastegate.load.blocks import Block, Design, Done, Run
from wastegate.load.host import Host, Rule
from wastegate.load.openloop import Stop
from wastegate.load.paired import PairedError, Progress
from wastegate.load.sweep import DOLLARS, INSTANCE_TIME, LATENCY, About, Config, Price, Report, sweep
from wastegate.load.sweep_arm import Asked, Shape, Slo
from wastegate.load.sweep_target import Spec

LEVELS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SHAPE = Shape(110, 32)
CALM = Rule(steal=1.0, others=1.0, own=None)
DEVICE = Device(name="a10g", memory=24_000_000_000, dollars_per_hour=1.0)
PRICE = Price(dollars_per_hour=0.36, source="made up")


def config(**changes: object) -> Config:
    settings: dict[str, object] = {
        "targets": (Spec(name="slow", url="http://a"), Spec(name="fast", url="http://b", remark="speed only")),
        "shapes": (SHAPE,),
        "asked": Asked(slo=Slo(e2e=2.0)),
        "design": Design(rates=LEVELS, blocks=5, mirrored=False, unit=" at once", rule=CALM, quiet=0.0),
        "prices": {"slow": PRICE, "fast": PRICE},
        "memory": {"slow": 2_000_000_000, "fast": 1_000_000_000},
        "device": DEVICE,
        "demands": (5.0, 500.0),
    }
    return Config(**{**settings, **changes})  # type: ignore[arg-type]


def seen(level: float, half: float, most: float, wobble: float) -> dict[str, float]:
    """A closed loop with its knee at ``half``: so many requests per second, waits by Little's law."""
    qps = most * level / (level + half) * wobble
    wait = level / qps
    good = qps if wait < 2.0 else 0.0
    return {
        "calls": 100.0, "qps": qps, "output_tokens_per_s": 32 * qps, "goodput": good, "good_share": float(good > 0),
        "failed_share": 0.0, "settled": 1.0, "wait": wait, "ttft_p50": wait / 4, "ttft_p95": wait / 3,
        "e2e_p50": wait, "e2e_p95": 1.1 * wait, "tpot_p50": wait / 64, "tpot_p95": wait / 50,
    }  # fmt: skip


def done(arm: str, figures: dict[str, float]) -> Done:
    host = Host(steal=0.0, busy=0.5, own=0.1, others=0.0)
    return Done(arm=arm, began=0.0, took=1.0, figures=figures, host=host, fault="")


def blocks(count: int = 5) -> list[Block]:
    """The second server is three times as fast, with the same knee at 8."""
    found = []
    for number in range(count):
        for place, level in enumerate(LEVELS):
            wobble = [1.0 + 0.01 * ((number * 7 + place * 3 + arm) % 5 - 2) for arm in (0, 1)]
            turns = (
                done("slow", seen(level, 8.0, 12.0, wobble[0])),
                done("fast", seen(level, 8.0, 36.0, wobble[1])),
            )
            found.append(Block(rate=level, number=number, turns=turns, dropped=""))
    return found


def made(asked: Config, found: list[Block], interrupted: bool = False) -> Report:
    """The report of such a run."""
    run = Run(
        arms=("slow", "fast"), design=asked.design, blocks=tuple(found), notes=("look",), interrupted=interrupted,
        seconds=9.0,
    )  # fmt: skip
    targets = tuple(
        About(
            name=spec.name,
            title=spec.title,
            made_of=spec.made_of,
            price=asked.prices.get(spec.name),
            memory=asked.memory.get(spec.name),
        )
        for spec in asked.targets
    )
    return room._report(asked, targets, [(SHAPE, run)], 12.0)


# ---- what is made of known figures


def test_each_level_has_its_figures_and_dollars() -> None:
    (sheet,) = made(config(), blocks()).sheets
    point = sheet.curves[0].points[3]
    qps = point.figures["qps"]
    assert qps is not None
    assert (point.level, point.blocks) == (8.0, 5)
    assert qps.value == pytest.approx(6.0, rel=0.01)
    assert qps.holds(6.0)
    assert point.dollars_per_1000 is not None
    assert point.dollars_per_1000.value == pytest.approx(0.36 / 3.6 / qps.value)
    assert point.dollars_per_1000.low == pytest.approx(0.36 / 3.6 / qps.high)
    assert point.dollars_per_million_output is not None
    assert point.dollars_per_million_output.value == pytest.approx(point.dollars_per_1000.value * 1000 / 32)


def test_the_knee_and_the_capacity() -> None:
    (sheet,) = made(config(), blocks()).sheets
    for curve in sheet.curves:
        assert curve.knee.level is not None
        assert curve.knee.level.holds(8.0)
    slow, fast = (curve.capacity for curve in sheet.curves)
    assert slow is not None
    assert fast is not None
    assert (slow.level, fast.level) == (8.0, 32.0), "the highest that keeps 2 s: 8 × 4/3 s, and 64 × 2 s does not"
    strict = made(config(asked=Asked(slo=Slo(e2e=0.001))), [replaced(block) for block in blocks()])
    assert [curve.capacity for curve in strict.sheets[0].curves] == [None, None]


def replaced(block: Block) -> Block:
    """The same block, with no call within the SLO."""
    turns = tuple(replace(turn, figures={**turn.figures, "goodput": 0.0, "good_share": 0.0}) for turn in block.turns)
    return replace(block, turns=turns)


def test_the_pair_is_held_against_each_other() -> None:
    meetings = made(config(), blocks()).sheets[0].meetings
    (meeting,) = meetings[DOLLARS]
    (waits,) = meetings[LATENCY]
    assert waits.sides[0].ratio is not None
    assert waits.sides[0].ratio.value == pytest.approx(1 / 3, rel=0.02)
    assert meeting.says == "fast is lower on every level: they do not cross between 1 and 64"
    assert meeting.sides[0].ratio is not None
    assert meeting.sides[0].ratio.value == pytest.approx(1 / 3, rel=0.02)
    dear = made(config(prices={"slow": PRICE, "fast": Price(dollars_per_hour=3.6, source="x")}), blocks())
    assert dear.sheets[0].meetings[DOLLARS][0].says.startswith("slow is lower on every level")
    bare = made(config(prices={"slow": PRICE}), blocks())
    assert bare.sheets[0].meetings[INSTANCE_TIME][0].says.startswith("fast is lower")
    assert bare.sheets[0].curves[1].points[0].dollars_per_1000 is None


def test_what_is_packed_on_a_device() -> None:
    packing = made(config(), blocks()).sheets[0].packing
    assert packing is not None
    low, high = packing.choices
    assert low.cheapest == "", "one device does for either"
    assert high.scenarios[0].cheapest == "fast"
    assert [option.memory for option in packing.options] == [2_000_000_000, 1_000_000_000]
    assert packing.along["shared"][-1].cheapest == "fast"
    assert packing.missing == ()
    unknown = made(config(memory={"slow": 1}), blocks()).sheets[0].packing
    assert unknown is not None
    assert unknown.missing == ("fast: its memory cannot be seen from here: give --memory fast=GB",)
    slack = made(config(), [replaced(block) for block in blocks()]).sheets[0].packing
    assert slack is not None
    assert slack.missing[0] == "slow: no level keeps the SLO for 95% of its calls"
    assert slack.along == {"shared": (), "multiplied": ()}
    assert made(config(device=None), blocks()).sheets[0].packing is None


def test_a_level_without_answers() -> None:
    found = blocks()
    silent = {"calls": 4.0, "qps": 0.0, "wait": math.inf, "goodput": 0.0, "good_share": 0.0, "failed_share": 1.0}
    for place, block in enumerate(found):
        if block.rate == 64.0:
            found[place] = replace(block, turns=(block.turns[0], done("fast", silent)))
    (sheet,) = made(config(), found).sheets
    assert sheet.meetings[DOLLARS][0].sides[-1].lower == ""
    last = sheet.curves[1].points[-1]
    assert last.figures["e2e_p95"] is None, "no turn of it has one"
    assert last.dollars_per_1000 is not None
    assert last.dollars_per_1000.value == math.inf
    assert sheet.curves[1].knee.level is not None


def test_what_is_not_there_is_not_made_up() -> None:
    """Interrupted before anything, or one turn without figures."""
    nothing = made(config(), [], interrupted=True)
    assert nothing.interrupted
    assert "it was interrupted" in nothing.invalid[0]
    assert nothing.sheets[0].curves[0].knee.why == "no block was kept at 1"
    assert nothing.sheets[0].curves[0].points[0].figures == {}
    found = blocks()
    found[0] = replace(found[0], turns=(done("slow", {}), found[0].turns[1]))
    assert made(config(), found).sheets[0].curves[0].knee.why == "a turn has no figures"


def test_disturbed_blocks_are_told() -> None:
    found = [replace(block, dropped="noise") if block.number < 3 else block for block in blocks()]
    report = made(config(), found)
    assert report.invalid[0] == "3 of 5 blocks at 1 at once were disturbed: wait for a quieter machine"
    assert "look" in report.notes
    assert report.sheets[0].curves[0].points[0].blocks == 2


def test_the_report_is_json_without_secrets() -> None:
    text = msgspec.json.encode(made(config(), blocks()))
    back = msgspec.json.decode(text)
    assert back["sheets"][0]["curves"][0]["points"][3]["level"] == 8.0
    assert b"api_key" not in text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"targets": ()}, "a target"),
        ({"targets": (Spec(name="a", url="http://a"),) * 2}, "one name"),
        ({"memory": {"quick": 1}}, "no target is called quick"),
        ({"design": Design(rates=(1.5,))}, "whole numbers"),
        ({"design": Design()}, "a level"),
    ],
)
def test_a_sweep_that_cannot_be(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config(**wrong)


# ---- real servers


def real(one: ToyServer, two: ToyServer, **changes: object) -> Config:
    settings: dict[str, object] = {
        "targets": (Spec(name="slow", url=one.url), Spec(name="fast", url=two.url)),
        "shapes": (Shape(40, 3),),
        "asked": Asked(settle=Settle(seconds=0.1, most=1.0, tolerance=0.5)),
        "design": Design(rates=(1.0, 4.0), blocks=2, mirrored=False, unit=" at once", rule=CALM, quiet=0.0),
        "demands": (),
    }
    return config(**{**settings, **changes})


async def test_servers_are_told_apart(toy: ToyServer, tmp_path: Path) -> None:
    async for quick in ToyServer().serve():
        toy.gap, quick.gap = 0.012, 0.001
        progress = Progress()
        report = await sweep(real(toy, quick, shapes=(Shape(40, 3), Shape(80, 3))), tmp_path, progress)
        assert [sheet.shape for sheet in report.sheets] == [Shape(40, 3), Shape(80, 3)]
        for sheet in report.sheets:
            slow, fast = (curve.points[1].figures["qps"] for curve in sheet.curves)
            assert slow is not None
            assert fast is not None
            assert slow.value < fast.value
            assert len(sheet.run.blocks) == 4
        assert {len(prompt) for prompt in toy.prompts} == {40, 80}
        assert progress.unit == " at once"
        assert "slow, fast: not started here, so not paused while others are measured" in report.notes
        assert (report.invalid, report.interrupted) == ((), False)
        assert [about.memory for about in report.targets] == [2_000_000_000, 1_000_000_000]


async def test_a_stop_leaves_what_ran(toy: ToyServer, tmp_path: Path) -> None:
    stop, progress = Stop(), Progress()
    asked = real(toy, toy, shapes=(Shape(40, 3), Shape(80, 3)))
    stop.ask()
    report = await sweep(asked, tmp_path, progress, stop)
    assert (report.sheets, report.interrupted) == ((), True)
    assert not toy.prompts

    again = Stop()

    def enough() -> float:
        if len(toy.calls) == 30:
            again.ask()
        return 0.0

    toy.delay = enough
    report = await sweep(asked, tmp_path, progress, again)
    assert report.interrupted
    assert len(report.sheets) == 1
    assert "it was interrupted" in report.invalid[0]


async def test_a_server_that_is_not_there_is_named(toy: ToyServer, tmp_path: Path) -> None:
    asked = real(toy, toy, targets=(Spec(name="slow", url=toy.url), Spec(name="fast", url="http://127.0.0.1:9")))
    with pytest.raises(PairedError, match=r"fast at 1 at once, warm-up turn: TargetError: http://127.0.0.1:9"):
        await sweep(asked, tmp_path)
