from __future__ import annotations

from wastegate.core.lines import Lines


def test_nobody_waits_at_first() -> None:
    lines: Lines[str] = Lines(2)
    assert len(lines) == 0
    assert not lines
    assert lines.heads() == []
    assert lines.ahead("small", "a") == 0
    assert not lines.leave("small", "a")


def test_each_model_has_its_own_line_and_bound() -> None:
    lines: Lines[str] = Lines(1)
    assert lines.join("small", "a")
    assert not lines.join("small", "b")
    assert lines.join("large", "c")
    assert len(lines) == 2
    assert lines
    assert lines.heads() == ["a", "c"]


def test_joining_again_keeps_the_place() -> None:
    lines: Lines[str] = Lines(2)
    lines.join("small", "a")
    lines.join("small", "b")
    assert lines.join("small", "a"), "a full line still holds those who stand in it"
    assert lines.heads() == ["a"]
    assert len(lines) == 2


def test_only_the_head_has_nobody_ahead() -> None:
    lines: Lines[str] = Lines(5)
    for ticket in "abc":
        lines.join("small", ticket)
    assert [lines.ahead("small", ticket) for ticket in ("a", "b", "c", "newcomer")] == [0, 2, 2, 3]
    assert lines.ahead("large", "newcomer") == 0


def test_the_next_moves_up_when_the_head_leaves() -> None:
    lines: Lines[str] = Lines(5)
    lines.join("small", "a")
    lines.join("small", "b")
    assert lines.leave("small", "a")
    assert not lines.leave("small", "a")
    assert lines.heads() == ["b"]


def test_a_line_ends_with_its_last_ticket() -> None:
    lines: Lines[str] = Lines(1)
    lines.join("small", "a")
    lines.leave("small", "a")
    assert (len(lines), lines.heads()) == (0, [])


def test_a_line_without_any_place_turns_everybody_away() -> None:
    lines: Lines[str] = Lines(0)
    assert not lines.join("small", "a")
    assert lines.heads() == []


def test_priority_decides_who_is_next() -> None:
    lines: Lines[str] = Lines(5)
    lines.join("small", "a", priority=1)
    lines.join("small", "b", priority=0)
    assert lines.heads() == ["b"]


def test_a_new_bound_sends_nobody_away() -> None:
    lines: Lines[str] = Lines(2)
    lines.join("small", "a")
    lines.join("small", "b")
    lines.resize(1)
    assert len(lines) == 2
    lines.leave("small", "a")
    assert not lines.join("small", "c")
    assert lines.join("large", "d")
    assert not lines.join("large", "e"), "a line that begins later has the new bound, too"
    lines.resize(3)
    assert lines.join("small", "c")


def test_how_many_wait_and_how_long_a_newcomer_would() -> None:
    lines: Lines[str] = Lines(20)
    assert lines.waiting("small") == (0, None)
    for number in range(10):
        lines.join("small", str(number), tenant="a", group="g", deadline=9.0, cost=100.0)
    assert lines.waiting("small") == (10, None)
    assert [lines.has("small", "3"), lines.has("small", "x"), lines.has("large", "3")] == [True, False, False]
    for number in range(5):
        (head,) = lines.heads()
        assert lines.leave("small", head, served=True, now=number * 2.0)
    assert lines.waiting("small") == (5, 12.0)
    assert lines.heads(closed={"g"}) == []
    assert lines.ahead("small", "5", closed={"g"}) == 4
