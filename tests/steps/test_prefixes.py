"""What prompts share, from a ledger with charges: in the audit, and within its window only."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ledgers import PLAIN, attempt, entry, span
from tests.steps.test_audit import T, audited
from wastegate.core.call import Divergence
from wastegate.core.ledger import Entry

A, B = b"a" * 8, b"b" * 8


def call(
    name: str,
    at: float,
    blocks: bytes,
    cached: int | None = 0,
    route: str = "chat",
    divergence: Divergence | None = None,
) -> Entry:
    """A call of two blocks and 100 prompt tokens, alone on a replica that costs a dollar a second."""
    one = entry(name, attempt("a", at, at + 1, first_token=at + 0.5, prompt_tokens=100, cached_tokens=cached,
                              output_tokens=1))  # fmt: skip
    return replace(one, blocks=blocks, prompt_bytes=1024, route=route, divergence=divergence)


LIFE = [span("a", T, T + 100, work=PLAIN)]


def test_each_route_has_its_shares_and_what_was_lost(tmp_path: Path) -> None:
    calls = [
        call("1", T + 1, A + B),
        call("2", T + 3, A + B, cached=25),
        call("3", T + 5, A + A, divergence=Divergence(40, "time", 512)),
        call("4", T + 7, B + A, route="mail", cached=None),
    ]
    report = audited(tmp_path, calls, LIFE)
    chat, mail = report.prefixes
    assert (chat.route, chat.calls, chat.prompt_tokens) == ("chat", 3, 300)
    assert chat.could == pytest.approx(200 / 300)
    assert chat.was == pytest.approx(25 / 300)
    assert chat.lost_dollars is not None
    prefill = 1.5  # dollars: three calls of which half the time goes to the prompt
    assert chat.lost_dollars == pytest.approx((200 - 25) * prefill / 275, rel=0.05)
    (place,) = chat.places
    assert (place.by, place.at, place.calls, place.lost_tokens) == ("time", 40, 1, 50.0)
    assert (mail.route, mail.was, mail.lost_dollars) == ("mail", None, None)


def test_only_calls_that_ended_in_the_window_count(tmp_path: Path) -> None:
    calls = [call("1", T + 1, A + B), call("2", T + 3, A + B), call("3", T + 5, A + B)]
    (row,) = audited(tmp_path, calls, LIFE, T + 3.5, T + 5.5).prefixes
    assert (row.calls, row.could) == (1, 0.0), "what ended before it is not looked at"


def test_calls_without_prompts_have_no_section(tmp_path: Path) -> None:
    assert audited(tmp_path, [entry("1", attempt("a", T, T + 1)), entry("2")], LIFE).prefixes == ()
