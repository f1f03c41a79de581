"""Charts are whole XML that draws what was measured, and the page needs nothing from outside."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from tests.load.test_sweep import PRICE, blocks, config, made
from wastegate.core.packing import BOTH
from wastegate.load.curve_chart import HEIGHT, WIDTH, Axes, Dot, Line, draw, page, svg
from wastegate.load.sweep_target import Spec

AXES = Axes("a <title>", "x & y", "up")
SVG = "{http://www.w3.org/2000/svg}"


def circles(text: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(text).findall(f"{SVG}circle")
    return [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in found]


def test_higher_is_higher_and_later_is_further_right() -> None:
    text = draw(AXES, [Line("a", (Dot(1.0, 1.0), Dot(10.0, 100.0), Dot(100.0, 10.0)))])
    (x1, y1), (x2, y2), (x3, y3) = circles(text)
    assert x1 < x2 < x3
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2), "equal factors, equal steps"
    assert y1 > y3 > y2
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in circles(text))
    assert "a &lt;title&gt;" in text
    assert "x &amp; y" in text


def test_intervals_are_drawn_unless_unbounded() -> None:
    dots = (Dot(1.0, 2.0, 1.5, 2.5, "8"), Dot(2.0, 3.0, -math.inf, math.inf), Dot(3.0, 2.0, 1e-9, 1e9))
    text = draw(AXES, [Line("a", dots)])
    bars = [one for one in ElementTree.fromstring(text).findall(f"{SVG}line") if "stroke-opacity" in one.attrib]
    assert len(bars) == 2
    places = [float(one.attrib[end]) for one in bars for end in ("y1", "y2")]
    assert all(0 < place < HEIGHT for place in places), "one that is very wide is cut off at the edge"
    assert ">8</text>" in text


def test_what_is_no_number_above_0_is_left_out() -> None:
    dots = (Dot(1.0, math.inf), Dot(1.0, 0.0), Dot(math.nan, 1.0), Dot(2.0, 2.0))
    assert len(circles(draw(AXES, [Line("a", dots, Dot(1.0, math.inf))]))) == 1
    assert circles(draw(AXES, [Line("a", ())])) == []


def test_a_knee_has_a_ring_and_a_bare_line_no_dots() -> None:
    dots = (Dot(1.0, 1.0), Dot(2.0, 2.0))
    ring = Dot(1.5, 1.5)
    assert len(circles(draw(AXES, [Line("a", dots, ring)]))) == 3
    assert len(circles(draw(AXES, [Line("a", dots, ring, bare=True)]))) == 1


def test_many_powers_of_ten_have_few_marks() -> None:
    text = draw(AXES, [Line("a", (Dot(1.0, 1e-6), Dot(2.0, 1e6)))])
    assert ">1e-06<" in text
    assert ">2e-06<" not in text


def test_the_cost_curve_alone() -> None:
    text = svg(made(config(), blocks()))
    assert "Cost of 1,000 requests, 110 tokens in, 32 out" in text
    assert "fast (speed only)" in text
    assert len(circles(text)) == 14
    bare = svg(made(config(prices={}), blocks()))
    assert "Throughput" in bare
    assert len(circles(bare)) == 16, "with the rings of two knees"
    with pytest.raises(ValueError, match="nothing to draw"):
        svg(replace(made(config(), blocks()), sheets=()))


class Outside(HTMLParser):
    """Everything that a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "action")]
        self.found += [tag] if tag in ("script", "link", "iframe") else []


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = page(made(config(), blocks()))
    seen = Outside()
    seen.feed(text)
    assert seen.found == []
    assert "url(" not in text
    assert "@import" not in text
    charts = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(charts) == 3 + len(BOTH)
    for chart in charts:
        ElementTree.fromstring(chart)
    assert seen.tags.count("table") == 3
    assert "fast is lower on every level" in text
    assert "packed on a10g" in text
    assert "nan" not in text.lower()


def test_names_cannot_break_the_page() -> None:
    specs = (Spec(name="slow", url="http://a", remark="<script>alert(1)</script>"), Spec(name="fast", url="http://b"))
    text = page(made(config(targets=specs), blocks()))
    assert "<script>" not in text
    for chart in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(chart)


def test_what_is_not_valid_says_so_first() -> None:
    text = page(made(config(prices={"slow": PRICE}, device=None), [], interrupted=True))
    assert text.index("INVALID: it was interrupted") < text.index("<h2>")
    assert "packed on" not in text
