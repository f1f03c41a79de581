"""Charts are well-formed SVG whose marks are as long as the figures say, and no label can break out of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.steps.charts import LETTERS, Bar, Column, Part, Range, bars, columns, legend, plain, ranges, short


def drawn(svg: str, tag: str) -> list[ElementTree.Element]:
    """Raises ParseError unless it is well-formed."""
    return list(ElementTree.fromstring(svg).iter(tag))


def width(rect: ElementTree.Element) -> float:
    return float(rect.attrib["width"].removesuffix("%"))


def of(kind: str, rects: list[ElementTree.Element]) -> list[ElementTree.Element]:
    return [rect for rect in rects if kind in rect.attrib["class"].split()]


def test_bars_are_as_long_as_their_amounts() -> None:
    rows = [
        Bar("a", "$3", (Part("useful", 2.0, "useful"), Part("idle", 1.0, "idle"))),
        Bar("b", "$6", (Part("useful", 6.0, "useful"),)),
    ]
    rects = drawn(bars("two", rows), "rect")
    assert [width(rect) for rect in of("useful", rects)] == pytest.approx([100 / 3, 100], abs=0.01)
    (idle,) = of("idle", rects)
    assert width(idle) == pytest.approx(100 / 6, abs=0.01)
    assert idle.attrib["x"] == "33.333%"


def test_bars_can_be_measured_against_a_whole() -> None:
    (bar,) = of("plain", drawn(bars("one", [Bar("a", "", (Part("a", 1.0, "plain"),))], full=4.0), "rect"))
    assert width(bar) == 25.0


def test_a_bar_never_leaves_the_chart_and_one_of_nothing_is_not_drawn() -> None:
    rows = [Bar("a", "", (Part("a", 3.0, "plain"), Part("b", 3.0, "pale"), Part("c", 0.0, "idle")))]
    rects = drawn(bars("much", rows, full=4.0), "rect")
    assert [width(rect) for rect in of("plain", rects) + of("pale", rects)] == [75.0, 25.0]
    assert of("idle", rects) == []


def test_bars_of_nothing_at_all_are_a_chart_all_the_same() -> None:
    assert of("plain", drawn(bars("none", [Bar("a", "$0", (Part("a", 0.0, "plain"),))]), "rect")) == []


def test_a_long_label_keeps_its_ends_and_tells_the_whole_in_a_tooltip() -> None:
    label = "customer-" + "x" * 60 + "-europe"
    cut = short(label)
    assert len(cut) == LETTERS
    assert cut.startswith("customer-")
    assert cut.endswith("-europe")
    svg = bars("one", [Bar(label, "", (Part("p", 1.0, "plain"),))])
    assert label in [title.text for title in drawn(svg, "title")]


def test_quantiles_lie_on_a_logarithmic_axis() -> None:
    row = Range("E2E", "", (("P50", 0.01), ("P95", 0.1), ("P99", 1.0)))
    svg = ranges("latency", [row], lambda value: f"{value:g} s")
    places = [float(dot.attrib["cx"].removesuffix("%")) for dot in drawn(svg, "circle")]
    assert places == pytest.approx([2, 50, 98])
    assert [text.text for text in drawn(svg, "text")][:3] == ["0.01 s", "0.1 s", "1 s"]
    assert "E2E: P99 1 s" in [title.text for title in drawn(svg, "title")]


def test_equal_quantiles_still_have_an_axis() -> None:
    row = Range("E2E", "", (("P50", 1.0), ("P95", 1.0), ("P99", 1.0)))
    assert len(drawn(ranges("latency", [row], str), "circle")) == 3


def test_columns_are_as_wide_as_they_last_and_as_high_as_they_are_dear() -> None:
    rows = [
        Column(0.0, 10.0, "first", (Part("a", 1.0, "useful"), Part("b", 1.0, "idle"))),
        Column(10.0, 40.0, "second", (Part("a", 1.0, "useful"), Part("b", 0.0, "idle"))),
    ]
    svg = columns("over time", rows, ("then", "now"), lambda amount: f"${amount:g}")
    useful, idle = of("useful", drawn(svg, "rect")), of("idle", drawn(svg, "rect"))
    assert [width(rect) for rect in useful] == [25.0, 75.0]
    assert [float(rect.attrib["height"]) for rect in useful] == [92.0, 92.0]
    assert len(idle) == 1
    assert float(idle[0].attrib["y"]) == 16.0
    words = [text.text for text in drawn(svg, "text")]
    assert words == ["$1", "$2", "then", "now"]
    assert [title.text for title in drawn(svg, "title")] == ["first", "second"]


def test_columns_of_nothing_are_a_chart_all_the_same() -> None:
    svg = columns("over time", [Column(0.0, 1.0, "", (Part("a", 0.0, "useful"),))], ("", ""), str)
    assert of("useful", drawn(svg, "rect")) == []


def test_a_legend_names_each_colour() -> None:
    listed = legend((("useful", "requests"), ("idle", "idle <time>")))
    assert [item.attrib["class"] for item in drawn(listed, "rect")] == ["useful", "idle"]
    assert "idle &lt;time&gt;" in listed


@settings(deadline=None)
@given(st.text())
def test_no_text_from_outside_breaks_out_of_a_chart(text: str) -> None:
    svg = bars(text, [Bar(text, text, (Part(text, 1.0, "plain"),))])
    assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= {"svg", "rect", "text", "title"}
    assert "<script" not in svg


def test_control_characters_are_replaced() -> None:
    assert plain("a\x00b\x1bc\td") == "a\ufffdb\ufffdc\td"
