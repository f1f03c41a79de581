"""Prompts read from the ledger: in order, whole, and only those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ledgers import attempt, entry
from wastegate.core.call import Divergence
from wastegate.store import prompts
from wastegate.store.entries import Ledger


def test_what_was_measured_is_read_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "ROWS", 2)
    one = entry("1", attempt())
    calls = [
        replace(one, id="1", prompt_bytes=600, blocks=b"12345678"),
        replace(one, id="2"),
        replace(one, id="3", prompt_bytes=70, divergence=Divergence(5, "time", 9)),
        replace(one, id="4", prompt_bytes=80, divergence=Divergence(6, "text")),
    ]
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.add(calls)
        first, second = ledger.prompts(1, 4)
        assert list(ledger.prompts(2, 2)) == []
    assert first.key.tolist() == [1, 3]
    assert first.blocks == (b"12345678", b"")
    assert (first.size.tolist(), first.at.tolist(), first.again.tolist(), first.by) == (
        [600, 70], [-1, 5], [0, 9], ("", "time"),
    )  # fmt: skip
    assert (second.key.tolist(), second.at.tolist(), second.by) == ([4], [6], ("text",))
