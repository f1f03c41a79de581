"""Records by number: what is kept, what has given way, and whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledgers import record, run
from wastegate.core.ledger import RecordGap
from wastegate.core.records import DRIFT, Cursor, Lead, Page, Ring, Settings, attempt_of, draft_table, hear, lead


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
    return ring.page("boot", after, limit, now=5.0, kv_capacity=64, lacks="nothing")


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


def test_a_reader_that_knew_another_life_gets_all_that_is_kept() -> None:
    ring = Ring(100, "boot", 1.0)
    for _ in range(5):
        ring.add(record())
    assert len(ring.page("another", 3, 10, now=5.0).records) == 5
    assert len(ring.page("boot", 3, 10, now=5.0).records) == 2


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


# ---- a page, as its gateway takes it


def told(made: int, size: int = 100, boot: str = "boot", ended: float = 3.0) -> Ring:
    ring = Ring(size, boot, started=2.0)
    for number in range(made):
        ring.add(record(f"call-{number}.1", run(1.0, ended)))
    return ring


def test_times_are_moved_to_the_gateways_clock() -> None:
    heard = hear("a", told(1).page("boot", 0, 10, now=105.0), None, 5.0, 100.0)
    (one,) = heard.records
    assert (one.arrived, one.ended, one.runs[0].start, one.runs[0].end) == (-99.0, -97.0, -99.0, -97.0)
    assert (heard.replica, heard.cursor, heard.gap) == ("a", Cursor("boot", 1, 5.0), None)


def test_what_an_engine_forgot_before_it_was_first_asked_is_not_missed() -> None:
    heard = hear("a", told(9, size=2).page("boot", 0, 10, now=5.0), None, 5.0, 0.0)
    assert (heard.cursor.sequence, heard.gap) == (9, None)


def test_records_that_gave_way_before_they_were_read_are_a_gap() -> None:
    before = Cursor("boot", 3, heard=1.0)
    heard = hear("a", told(9, size=2, ended=4.0).page("boot", 3, 10, now=5.0), before, 5.0, 0.0)
    assert heard.gap == RecordGap("a", 1.0, 4.0, lost=4)
    assert hear("a", told(9).page("boot", 3, 10, now=5.0), before, 5.0, 0.0).gap is None


def test_a_page_in_which_all_has_given_way() -> None:
    page = Page("boot", 2.0, 5.0, first=10, last=9, records=())
    assert hear("a", page, Cursor("boot", 3, 1.0), 5.0, 0.0).gap == RecordGap("a", 1.0, 5.0, lost=6)


def test_an_engine_that_was_started_anew_may_have_taken_records_with_it() -> None:
    heard = hear("a", told(2, boot="other").page("boot", 0, 10, now=15.0), Cursor("boot", 3, 1.5), 5.0, 10.0)
    assert heard.gap == RecordGap("a", 1.5, 1.5, lost=None), "it started before the old one was last heard of"
    heard = hear("a", told(2, boot="other").page("boot", 0, 10, now=5.0), Cursor("boot", 3, 1.5), 5.0, 0.0)
    assert heard.gap == RecordGap("a", 1.5, 2.0, lost=None)
    assert (len(heard.records), heard.cursor) == (2, Cursor("other", 2, 5.0))


def test_the_cursor_never_turns_back_and_stops_at_a_full_page() -> None:
    assert hear("a", told(9).page("boot", 0, 4, now=5.0), None, 5.0, 0.0).cursor.sequence == 4
    assert hear("a", told(2).page("boot", 5, 4, now=5.0), Cursor("boot", 5, 1.0), 5.0, 0.0).cursor.sequence == 5


def test_the_largest_lead_is_the_nearest_as_answers_only_come_late() -> None:
    ring = Ring(9, "boot", 1.0)
    first = lead(ring.page("", 0, 1, now=110.0), 10.5, None)
    assert first == Lead("boot", 99.5, 10.5)
    quick = lead(ring.page("", 0, 1, now=120.0), 20.1, first)
    assert quick.seconds == pytest.approx(99.9)
    slow = lead(ring.page("", 0, 1, now=130.0), 35.0, quick)
    assert slow.seconds == pytest.approx(99.9 - DRIFT * 14.9)
    assert lead(Ring(9, "other", 1.0).page("", 0, 1, now=30.0), 35.0, slow) == Lead("other", -5.0, 35.0)
