"""An engine is told by its name, or by its metrics."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.engines.pages import text
from wastegate.engines import kinds
from wastegate.engines.exposition import parse
from wastegate.engines.signals import Signals


@pytest.mark.parametrize(
    ("name", "engine"),
    [("vllm", "vllm"), (" vLLM", "vllm"), ("sglang", "sglang"), ("llama.cpp", "llamacpp"), ("llamacpp", "llamacpp"),
     ("local", "wastegate"), ("wastegate", "wastegate"), ("", ""), ("organization_owner", "")],
)  # fmt: skip
def test_by_its_name(name: str, engine: str) -> None:
    assert kinds.named(name) == engine


@pytest.mark.parametrize(
    ("file", "engine"),
    [("vllm-0.32.0-fresh", "vllm"), ("sglang-0.5.23", "sglang"), ("llamacpp-11549-fresh", "llamacpp"),
     ("local-0.1.0-fresh", "wastegate")],
)  # fmt: skip
def test_by_its_metrics(file: str, engine: str) -> None:
    assert kinds.by_metrics(parse(text(f"{file}.prom"), ()).names) == engine


def test_a_page_of_nobody_we_know() -> None:
    assert kinds.by_metrics({"process_start_time_seconds", "http_requests_total"}) == ""


@pytest.mark.parametrize(
    ("pages", "engine"),
    [({"/version": {"version": "0.32.0"}}, "vllm"), ({"/server_info": {"tp_size": 1, "version": "0.5.23"}}, "sglang"),
     ({"/props": {"default_generation_settings": {}}, "/version": "b1"}, "llamacpp"), ({"/version": []}, ""), ({}, "")],
)  # fmt: skip
def test_by_a_page_that_it_alone_has(pages: dict[str, object], engine: str) -> None:
    assert kinds.by_pages(pages) == engine


def test_where_a_page_holds_two_the_most_names_decide() -> None:
    assert kinds.by_metrics({"vllm:a", "sglang:a", "sglang:b"}) == "sglang"


def table() -> str:
    """The signals of all engines, as docs/engines.md shows them."""
    rows = ["| signal | vLLM 0.32.0 | SGLang 0.5.23 | llama.cpp 11549 | wastegate |", "|---|---|---|---|---|"]
    rules = {engine: {rule.signal: rule for rule in room.RULES} for engine, room in kinds.ENGINES.items()}
    for field in msgspec.structs.fields(Signals):
        ways = [own[field.name].ways[0] if field.name in own else () for own in rules.values()]
        if any(ways):
            cells = [" + ".join(f"`{_short(str(metric))}`" for metric in way) or "–" for way in ways]
            rows.append(f"| `{field.name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _short(metric: str) -> str:
    for room in kinds.ENGINES.values():
        metric = metric.removeprefix(room.PREFIX)
    return metric


def test_the_table_in_the_docs_is_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    assert table() in page
