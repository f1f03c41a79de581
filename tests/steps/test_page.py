"""What the terminal shows becomes HTML without loss, and what came from outside stays text."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wastegate.steps import page

EVIL = """</td></table><script>alert('x')</script><img src="http://evil.example/x.png" onerror='alert(1)'>"""


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def table() -> Table:
    made = Table(title="The bill")
    made.add_column("what")
    made.add_column("dollars", justify="right")
    made.add_row("requests", "$1", style="dim")
    made.add_section()
    made.add_row(Text("[bold]all[/bold]"), "$2", style="bold")
    return made


def test_a_table_keeps_its_words_sides_and_styles() -> None:
    html = page.shown(table())
    words = [word for word in Tags(html).words if word.strip()]
    assert words == ["The bill", "what", "dollars", "requests", "$1", "[bold]all[/bold]", "$2"]
    assert '<th class="right">dollars</th>' in html
    assert '<tr class="dim last">' in html
    assert '<tr class="strong">' in html


def test_groups_and_texts_keep_their_order_and_lines() -> None:
    html = page.shown(Group(Text("one\ntwo"), Group(table(), Text("  ")), "three"))
    assert html.index("one\ntwo") < html.index("The bill") < html.index("three")
    assert html.count("<pre>") == 2


def test_what_else_the_terminal_can_show_is_its_text() -> None:
    made = Table()
    made.add_column("x")
    made.add_row(Panel("within <b>"))
    assert "within &lt;b&gt;" in page.shown(made)
    assert "alone" in page.shown(Panel("alone"))


def test_no_text_from_outside_becomes_a_tag() -> None:
    bad = Table(title=EVIL)
    bad.add_column(EVIL)
    bad.add_row(Text(EVIL))
    body = [
        page.shown(bad),
        page.tiles([(EVIL, EVIL)]),
        page.figure(EVIL, "<svg></svg>", EVIL),
        page.verdict("hold", EVIL, [EVIL]),
    ]
    found = Tags(page.page(EVIL, body))
    assert "img" not in found.tags
    assert "script" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href")]
    assert EVIL in found.words


def test_a_page_may_fetch_nothing_and_run_nothing() -> None:
    html = page.page("x", ["<p>y</p>"])
    contents = [value or "" for name, value in Tags(html).attributes if name == "content"]
    assert [value for value in contents if value.startswith("default-src 'none'; style-src 'unsafe-inline'")]
    assert "url(" not in html
    assert "@import" not in html


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.html"
    page.write(path, "<p>ü</p>")
    assert path.read_text(encoding="utf-8") == "<p>ü</p>"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        page.write(path, "half")
    assert path.read_text(encoding="utf-8") == "<p>ü</p>"
