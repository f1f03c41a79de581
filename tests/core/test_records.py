"""Records by number: what is kept, what has given way, and whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledgers import record
from wastegate.core.records import Page, Ring, Settings, attempt_of, draft_table


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("chatcmpl-0123456789-1f.1", ("0123456789-1f", 1)),
        ("chatcmpl-0123456789-1f.2-0a1b2c3d", ("0123456789-1f", 2)),
        ("cmpl-0123456789-1f.1-0-0a1b2c3d", ("0123456789-1f", 1)),
        ("cmpl-0123456789-1f.12-3", ("0123456789-1f", 12)),
        ("1_chatcmpl-0123456789-1f.1-0a1b2c3d", ("0123456789-1f", 1)),
        ("0123456789-1f.1", ("0123456789-1f", 1)),
        ("chatcmpl-b1946ac92492d2347c6235b4d2611184", None),
        ("chatcmpl-a.b.c", None),
        ("", None),
    ],
)
def test_the_attempt_stands_in_the_engines_id(id: str, attempt: tuple[str, int] | None) -> None:
    assert attempt_of(id) == attempt


def page(ring: Ring, after: int, limit: int = 100) -> Page:
    return ring.page(after, limit, now=5.0, kv_capacity=64, lacks="nothing")


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 35), st.integers(0, 12))
def test_a_page_is_the_next_ones_that_are_kept(size: int, made: int, after: int, limit: int) -> None:
    ring = Ring(size, "boot", 1.0)
    for _ in range(made):
        ring.add(record())
    kept = list(range(max(made - size, 0) + 1, made + 1))
    got = page(ring, after, limit)
    assert [one.sequence for one in got.records] == [number for number in kept if number > after][:limit]
    assert (got.first, got.last) == (kept[0] if kept else made + 1, made)
    assert (got.boot, got.started, got.now, got.kv_capacity, got.lacks) == ("boot", 1.0, 5.0, 64, "nothing")


def test_following_pages_gives_every_record_once() -> None:
    ring = Ring(100, "boot", 1.0, "times")
    for number in range(25):
        ring.add(record(f"call-{number}.1"))
    seen, after = [], 0
    while got := page(ring, after, 10).records:
        seen += [attempt_of(one.id) for one in got]
        after = got[-1].sequence
    assert seen == [(f"call-{number}", 1) for number in range(25)]
    assert page(ring, after).measured == "times"


def test_a_ring_must_be_able_to_keep_something() -> None:
    with pytest.raises(ValueError, match="keep none"):
        Ring(0, "boot", 1.0)


def test_settings_that_would_stop_an_engine_are_refused() -> None:
    assert Settings(cap=1, batched_tokens=1, drafts=(0,)).drafts == (0,)
    with pytest.raises(ValueError, match="cap is 0"):
        Settings(cap=0)
    with pytest.raises(ValueError, match="batched_tokens is -1"):
        Settings(batched_tokens=-1)
    for drafts in ((), (1, -1)):
        with pytest.raises(ValueError, match="drafts"):
            Settings(drafts=drafts)


def test_the_table_of_drafts_covers_every_batch() -> None:
    assert draft_table((4, 2, 0), 6, most=3) == [3, 3, 2, 0, 0, 0]
    assert draft_table((9,), 3, most=5) == [5, 5, 5]
