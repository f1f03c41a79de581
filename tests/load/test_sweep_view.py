"""What a person sees of a sweep: figures, conclusions, and what must not be believed."""

from __future__ import annotations

import io
import math
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.load.test_sweep import blocks, config, done, made
from wastegate.core.curve import unbounded
from wastegate.core.intervals import Estimate
from wastegate.core.packing import Stretch
from wastegate.load.sweep import Report
from wastegate.load.sweep_arm import Asked, Slo
from wastegate.load.sweep_view import along, digits, ends, give_or_take, millis, plain, spread, table

SURE = Estimate(value=10.0, low=9.0, high=11.0, level=0.95, blocks=6, method="made up")
ALONE = unbounded(10.0, 0.95, 1)
NEVER = unbounded(math.inf, 0.95, 2)


def printed(report: Report, width: int = 170) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table(report))
    return file.getvalue()


def test_figures_as_people_read_them() -> None:
    assert (plain(SURE), plain(None), plain(NEVER)) == ("10", "–", "–")
    assert (millis(SURE), millis(None), millis(NEVER)) == ("10,000", "–", "never")
    assert (digits(0.0123456), digits(999.4), digits(1234.5)) == ("0.0123", "999", "1,234")
    assert (spread(SURE, "$"), spread(ALONE), spread(None)) == ("$10 ($9–$11)", "10", "–")
    assert (give_or_take(SURE), give_or_take(ALONE), give_or_take(None)) == ("10 ±10%", "10", "–")
    assert give_or_take(replace(SURE, low=0.1, high=1000.0)) == "10 ±>900%"
    assert (ends(1.0, None), ends(None, math.inf, "$")) == ("1–?", "?–?")


def test_a_whole_report() -> None:
    text = printed(made(config(), blocks()))
    assert "slow: 110 tokens in, 32 out" in text
    assert "fast (speed only): 110 tokens in, 32 out" in text
    assert "http://b; $0.36 an hour (made up), 1.00 GB" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == ["8"])
    assert row.split() == ["8", "6", "±2%", "192", "333", "444", "20.8", "1,467", "6", "0.0167", "0.521"]
    assert max(len(line) for line in printed(made(config(), blocks()), width=80).splitlines()) <= 80
    assert "…" not in printed(made(config(), blocks()), width=80)
    words = " ".join(text.split())
    assert "slow: the knee is at 8 (" in words
    assert "at once, 6 (" in words
    assert "good requests/s at most, at 8 at once; SLO (E2E ≤ 2 s)" in words
    assert "slow against fast, dollars per request: fast is lower on every level" in words
    assert "packed on a10g: 24.0 GB (90% usable), $1 an hour" in words
    assert "at 5 requests/s: slow and fast need as many devices" in words
    assert "· look" in text
    assert "nan" not in text.lower()
    assert "INVALID" not in text


def test_what_must_not_be_believed_is_marked() -> None:
    found = blocks()
    for place, block in enumerate(found):
        turns = block.turns
        if block.rate == 64.0:
            figures = {**turns[0].figures, "settled": 0.0, "failed_share": 0.125}
            found[place] = replace(block, turns=(done("slow", figures), turns[1]))
        if block.rate == 1.0:
            found[place] = replace(block, dropped="noise")
    text = printed(made(config(), found))
    assert "at 64: 100% of turns had not settled; 12.5% failed" in text
    assert "at 1: no block kept" in text
    assert "slow: no knee is concluded: no block was kept at 1" in text
    assert "dropped: 5 blocks, since noise" in text
    assert "INVALID: 5 of 5 blocks at 1 at once were disturbed" in text


def test_without_prices_memory_or_a_level_that_is_good_enough() -> None:
    bare = made(config(prices={}, memory={}, device=None, asked=Asked(mode="open", slo=Slo(e2e=0.1))), blocks())
    found = [
        replace(one, turns=tuple(replace(turn, figures={**turn.figures, "good_share": 0.5}) for turn in one.turns))
        for one in blocks()
    ]
    text = printed(bare)
    assert "no price given" in text
    assert "instance time per request" in text
    assert "offered/s" in text
    assert "packed on" not in text
    assert "slow: no level keeps the SLO (E2E ≤ 2 s) for 95% of its calls" in printed(made(config(), found))
    lacking = printed(made(config(memory={"slow": 1_000_000_000}), blocks()))
    assert "fast: its memory cannot be seen from here" in lacking
    huge = printed(made(config(memory={"slow": 99_000_000_000, "fast": 1_000_000_000}), blocks()))
    assert "cannot" in huge


def test_goodput_is_shown_where_there_is_something_to_keep() -> None:
    assert re.search(r"E2E +good +\$ per", printed(made(config(), blocks())))
    assert re.search(r"E2E +\$ per", printed(made(config(asked=Asked()), blocks())))


def test_no_demand_no_table() -> None:
    text = printed(made(config(demands=()), blocks()))
    assert "packed on a10g" in text
    assert "devices: $" not in text
    assert "as demand rises" in text


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["", "b"], "0 to 1/s none surely; 2 to 3/s b"),
        (["", "b"] * 4, "it changes 7 times, with whole devices; surely cheapest in places: b from 2/s on"),
    ],
)
def test_as_demand_rises(names: list[str], says: str) -> None:
    stretches = [Stretch(first=2.0 * place, last=2.0 * place + 1, cheapest=name) for place, name in enumerate(names)]
    assert along(stretches) == says
