"""An engine is told by its name, or by its metrics."""

from __future__ import annotations

import pytest

from tests.engines.pages import text
from wastegate.engines import kinds
from wastegate.engines.exposition import parse


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


def test_where_a_page_holds_two_the_most_names_decide() -> None:
    assert kinds.by_metrics({"vllm:a", "sglang:a", "sglang:b"}) == "sglang"
