"""Who leads, who joins, and what is kept for latecomers: by itself, without a gateway."""

from __future__ import annotations

import pytest

from wastegate.core.plan import Refusal
from wastegate.gateway import twins
from wastegate.gateway.heads import Headers
from wastegate.gateway.twins import Fan, Member, Twins

TWIN = b"same"


class Told:
    """A member that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        self.heard.append(("begin", status, headers, length))

    def write(self, data: bytes) -> None:
        self.heard.append(("write", data))

    def finish(self, last: bytes) -> None:
        self.heard.append(("finish", last))

    def cut(self, last: bytes) -> None:
        self.heard.append(("cut", last))

    def refuse(self, refusal: Refusal) -> None:
        self.heard.append(("refuse", refusal))

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.heard.append(("answer", status, headers, body))


class Flying:
    def __init__(self, home: Twins) -> None:
        self.slow: list[Member] = []
        self.fan = Fan(home, self.slow.append)
        self.id = str(id(self))


def test_the_first_leads_until_it_has_ended() -> None:
    home = Twins()
    one, other, third = Flying(home), Flying(home), Flying(home)
    assert home.find(TWIN, one) is None
    assert home.find(TWIN, one) is None, "it does not follow itself"
    assert home.find(TWIN, other) is one
    home.leave(TWIN, other)
    assert home.find(TWIN, other) is one, "only the leader's end ends it"
    home.leave(TWIN, one)
    assert not one.fan.open
    assert home.find(TWIN, third) is None
    assert home.find(TWIN, other) is third
    home.leave(TWIN, third)
    assert len(home) == 0


def test_everybody_hears_everything_from_the_beginning() -> None:
    fan = Flying(Twins()).fan
    early, late = Told(), Told()
    fan.add(early)
    fan.begin(200, [], None)
    fan.write(b"one")
    fan.add(late)
    fan.write(b"two")
    fan.finish(b"end")
    assert early.heard == late.heard == [("begin", 200, [], None), ("write", b"one"), ("write", b"two"),
                                         ("finish", b"end")]  # fmt: skip
    fan.drop(late)
    fan.drop(late)
    fan.cut(b"x")
    fan.refuse(Refusal(503, "no", "no"))
    fan.answer(400, [], b"no")
    assert [what for what, *_ in early.heard[4:]] == ["cut", "refuse", "answer"]
    assert len(late.heard) == 4


def test_what_is_kept_has_a_bound_for_one_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_KEPT", 10)
    monkeypatch.setattr(twins, "MOST_KEPT_TOGETHER", 15)
    home = Twins()
    one, other, third = (Flying(home).fan for _ in range(3))
    one.write(b"x" * 10)
    assert (one.open, home.kept) == (True, 10)
    other.write(b"x" * 6)
    assert (other.open, home.kept) == (False, 10), "together they would keep too much"
    one.write(b"x")
    assert (one.open, home.kept) == (False, 0)
    one.write(b"x")
    third.write(b"x" * 9)
    assert home.kept == 9
    third.close()
    third.close()
    assert home.kept == 0


def test_it_is_held_only_while_nobody_reads() -> None:
    fan = Flying(Twins()).fan
    assert not fan.held
    one, other = Told(), Told()
    fan.add(one)
    fan.add(other)
    fan.pause(one)
    assert not fan.held
    fan.pause(other)
    assert fan.held
    fan.resume(one)
    assert not fan.held
    for stranger in (fan.pause, fan.resume):
        stranger(Told())
    assert len(fan) == 2


def test_who_is_too_far_behind_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_BEHIND", 10)
    flying = Flying(Twins())
    slow, quick = Told(), Told()
    flying.fan.add(slow)
    flying.fan.add(quick)
    flying.fan.pause(slow)
    flying.fan.write(b"x" * 10)
    assert flying.slow == []
    flying.fan.write(b"x")
    assert flying.slow == [slow]
    flying.fan.write(b"y")
    assert (len(slow.heard), len(quick.heard)) == (2, 3)
