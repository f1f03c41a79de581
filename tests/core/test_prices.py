"""A price is found by any of its names, is dated and sourced, and what is not known is said with a way out."""

from __future__ import annotations

import datetime
import re

import pytest

from wastegate.core.prices import Price, PriceError, catalogue, find_price, find_row, parse_prices

ROW = """
[[price]]
accelerator = "abacus-1"
names = ["abacus"]
dollars_per_hour = 0.5
date = 2026-01-02
source = "a shop"
"""


def test_every_row_that_comes_along_is_dated_and_sourced() -> None:
    rows = catalogue()
    assert len(rows) > 5
    for row in rows:
        assert row.source
        assert datetime.date(2025, 1, 1) < row.date
        assert 0.01 < row.dollars_per_hour < 50
        assert re.fullmatch(r"[a-z0-9-]+", row.accelerator)


@pytest.mark.parametrize("name", ["h100", "H100", "NVIDIA H100", " nvidia_h100 ", "h100-80gb"])
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    assert find_price(name) == find_row("h100-80gb", catalogue()).dollars_per_hour


def test_many_accelerators_cost_as_many_times_as_much() -> None:
    rows = parse_prices(ROW, "mine.toml")
    assert find_price("abacus", rows) == 0.5
    assert find_price("4xabacus", rows) == find_price("4 × Abacus-1", rows) == 2.0
    with pytest.raises(PriceError, match="count from 1"):
        find_price("0xabacus", rows)


def test_an_unknown_one_is_met_with_the_nearest_or_with_all() -> None:
    with pytest.raises(PriceError, match=r"did you mean 'h100'\? Or give price_per_hour"):
        find_price("h1000")
    with pytest.raises(PriceError, match=r"known: abacus-1\. Or give price_per_hour"):
        find_price("zzz", parse_prices(ROW, "mine.toml"))


def test_a_row_is_read_whole() -> None:
    assert parse_prices(ROW, "mine.toml") == (Price("abacus-1", ("abacus",), 0.5, datetime.date(2026, 1, 2), "a shop"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[price]", "mine.toml: "),
        (ROW.replace("0.5", "0.0"), "above 0"),
        (ROW.replace("0.5", '"dear"'), "price\\[0\\].dollars_per_hour"),
        (ROW.replace("source", "sauce"), "sauce"),
        (ROW + ROW.replace("abacus-1", "other"), "'abacus' has two prices"),
    ],
)
def test_a_wrong_catalogue_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(PriceError, match=said):
        parse_prices(text, "mine.toml")
