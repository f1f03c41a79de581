"""The cost curve's benchmark says what its figures say, and fails where they are not there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.cost_curve import CUT, LARGE, SMALL, claim, plan, tell
from tests.load.test_sweep import LEVELS, SHAPE, done, seen
from wastegate.load import sweep as room
from wastegate.load.blocks import Block, Run
from wastegate.load.sweep import About, Report
from wastegate.load.sweep_target import Spec

SPECS = (Spec(name=LARGE, model="large.gguf"), Spec(name=SMALL, model="small.gguf", remark=CUT))


def report(small: tuple[float, float], large: tuple[float, float], blocks: int = 5) -> Report:
    """Of curves with a knee at the first number and the most requests per second that the second says."""
    config = plan(SPECS, LEVELS, 5, quick=False)
    found = []
    for number in range(blocks):
        for place, level in enumerate(LEVELS):
            wobble = [1.0 + 0.01 * ((number * 7 + place * 3 + arm) % 5 - 2) for arm in (0, 1)]
            turns = (
                done(LARGE, seen(level, *large, wobble[0])),
                done(SMALL, seen(level, *small, wobble[1])),
            )
            found.append(Block(rate=level, number=number, turns=turns, dropped=""))
    run = Run(arms=(LARGE, SMALL), design=config.design, blocks=tuple(found), notes=(), interrupted=False, seconds=1.0)
    abouts = tuple(
        About(
            name=spec.name,
            title=spec.title,
            made_of=spec.made_of,
            price=config.prices[spec.name],
            memory=1_000_000_000,
        )
        for spec in SPECS
    )
    return room._report(config, abouts, [(SHAPE, run)], 600.0)


@pytest.mark.parametrize(
    ("small", "large", "says"),
    [
        ((8.0, 30.0), (8.0, 10.0), "no reversal is seen here"),
        ((2.0, 10.0), (20.0, 30.0), "cheap at few calls and dear at many: the claim's shape is seen here"),
        ((20.0, 30.0), (2.0, 10.0), "dear at few calls and cheap at many: the claim's opposite is seen here"),
    ],
)
def test_the_claim_is_held_against_the_curves(
    small: tuple[float, float], large: tuple[float, float], says: str
) -> None:
    found = report(small, large)
    lines = claim(found, found.sheets[0])
    assert [line for line in lines if says in line]
    assert sum("whole machines" in line for line in lines) == 2


def test_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    whole = report((8.0, 30.0), (8.0, 10.0))
    assert tell(whole, quick=False) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("bar: pass: knees: int4-30 at 8")
    assert tell(report((8.0, 30.0), (8.0, 10.0), blocks=2), quick=False) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("bar: fail: int4-30 was measured on 0 levels only")
    assert tell(replace(whole, invalid=("the machine was disturbed",)), quick=False) == 1
    assert "bar: fail: the machine was disturbed" in capsys.readouterr().out
    assert tell(replace(whole, sheets=(), interrupted=True), quick=False) == 1
    assert capsys.readouterr().out.startswith("bar: fail: interrupted")
