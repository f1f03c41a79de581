"""The last prompts of each route: whom the next one is compared with, and how many are kept."""

from __future__ import annotations

from wastegate.gateway import watch
from wastegate.gateway.watch import Watch

RULES = b"Be brief and kind. " * 40


def prompt(now: int, template: bytes = b"Template A. ") -> bytes:
    return template * 10 + b"Turn %d. " % now + RULES


def test_the_first_of_a_route_parts_from_nothing() -> None:
    seen = Watch()
    assert seen.look("chat", "m", prompt(1)) is None
    assert seen.look("other", "m", prompt(2)) is None
    assert seen.look("chat", "other", prompt(2)) is None
    found = seen.look("chat", "m", prompt(2))
    assert found is not None
    assert (found.by, found.at, found.again >= len(RULES)) == ("counter", 125, True)


def test_each_is_compared_with_the_one_most_like_it() -> None:
    seen = Watch()
    for template in (b"Template A. ", b"Something else altogether. "):
        seen.look("chat", "m", prompt(1, template))
    for now in range(2, 6):
        for template in (b"Template A. ", b"Something else altogether. "):
            found = seen.look("chat", "m", prompt(now, template))
            assert found is not None
            assert found.by == "counter"


def test_what_is_kept_is_bounded() -> None:
    seen = Watch()
    for number in range(3 * watch.MOST_KEYS):
        for template in range(10):
            seen.look(f"route {number}", "m", b"%d" % template + b"x" * 2 * watch.MOST_BYTES)
    kept = [head for heads in seen._last.values() for head in heads]
    assert len(seen._last) == watch.MOST_KEYS
    assert sum(map(len, kept)) <= 16 << 20
    assert seen.look("route 0", "m", b"9" + b"x" * 2 * watch.MOST_BYTES) is None, "forgotten"
