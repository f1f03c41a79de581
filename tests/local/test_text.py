from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.local.text import Writer, token_bytes

BYTES = [bytes([value]) for value in range(256)]
"""A vocabulary of single bytes: token = byte."""


def write(data: bytes, stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """Feed bytes as tokens; the pieces that were shown, the last one from close(), and whether it was stopped."""
    writer = Writer(BYTES, stops)
    pieces = []
    for byte in data:
        pieces.append(writer.feed(byte))
        if writer.stopped:
            return pieces, True
    pieces.append(writer.close())
    return pieces, writer.stopped


def test_a_character_is_shown_once_its_last_byte_is_there() -> None:
    assert write("é🦜!".encode())[0] == ["", "é", "", "", "", "🦜", "!", ""]


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert "".join(write(b"a\xffb")[0]) == "a\ufffdb"
    assert "".join(write("🦜".encode()[:2])[0]) == "\ufffd"


def test_a_stop_string_is_never_shown_and_ends_the_answer() -> None:
    pieces, stopped = write(b"one STOP two", ("STOP",))
    assert ("".join(pieces), stopped) == ("one ", True)


def test_what_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    pieces, stopped = write(b"a STxy", ("STOP",))
    assert pieces == ["a", " ", "", "", "STx", "y", ""]
    assert not stopped


def test_what_is_held_at_the_end_is_shown() -> None:
    pieces, stopped = write(b"so far ST", ("STOP",))
    assert ("".join(pieces), stopped) == ("so far ST", False)


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    pieces, stopped = write(b"aabaabaac", ("aabaac",))
    assert ("".join(pieces), stopped) == ("aab", True)


def test_the_first_of_several_stop_strings_wins() -> None:
    pieces, _ = write(b"x end y stop", ("stop", "end"))
    assert "".join(pieces) == "x "


def test_a_stop_string_may_end_in_the_middle_of_a_token() -> None:
    writer = Writer([b"ab\ncd"], ("\n",))
    assert (writer.feed(0), writer.stopped) == ("ab", True)


def test_a_stop_string_may_be_completed_by_the_last_half_character() -> None:
    writer = Writer(BYTES, ("\ufffd",))
    assert writer.feed(0xF0) == ""
    assert (writer.close(), writer.stopped) == ("", True)


@given(
    text=st.text(alphabet="ab🦜é", max_size=30),
    stops=st.lists(st.text(alphabet="ab🦜é", min_size=1, max_size=4), max_size=3),
)
def test_what_is_shown_is_the_text_before_its_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, stopped = write(text.encode(), tuple(stops))
    shown = "".join(pieces)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stopped == bool(ends)
    if not ends:
        assert shown == text
        return
    seen = text[: min(ends)]  # the answer ends with the character that completes the first stop string
    assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


def test_control_tokens_add_no_text() -> None:
    assert token_bytes([b"<|end|>", b"a"], frozenset({0}), "gpt2") == [b"", b"a"]


def test_a_sentencepiece_vocabulary_writes_spaces_and_bytes_its_own_way() -> None:
    table = token_bytes(["▁the".encode(), b"<0x0A>", b"<s>", b"<0xF0>"], frozenset({2}), "llama")
    assert table == [b" the", b"\n", b"", b"\xf0"]


def test_another_kind_of_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'bert'"):
        token_bytes([b"a"], frozenset(), "bert")
