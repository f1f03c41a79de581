"""Counters of the machine become shares; a rule that was fixed beforehand says which are too large."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from wastegate.load.host import Host, Moment, Rule, between, look


def moment(seconds: float, own: float, *ticks: int) -> Moment:
    return Moment(seconds=seconds, own=own, ticks=ticks or None)


def test_shares_by_hand() -> None:
    """user nice system idle iowait irq softirq steal: 200 ticks went by, 100 idle or waiting, 20 stolen."""
    before, after = moment(0, 1.0, 10, 0, 5, 100, 0, 1, 1, 4), moment(2.0, 1.5, 70, 0, 20, 190, 10, 1, 6, 24)
    host = between(before, after)
    assert (host.steal, host.busy, host.own) == pytest.approx((0.1, 0.4, 0.25))
    assert (host.others, between(before, after, 0.5).others) == (None, 0.5)


def test_where_nothing_is_counted() -> None:
    assert between(moment(0, 0.0), moment(1, 0.5)) == Host(steal=None, busy=None, own=0.5)
    still = moment(1, 0.5, *range(8))
    assert between(still, still).steal is None


def test_this_process_is_seen() -> None:
    before = look()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    host = between(before, look())
    assert 0.1 < host.own < 1.2


@pytest.mark.parametrize("text", [None, "", "intr 1 2 3 4 5 6 7 8 9\n", "cpu 1 2 3\n"])
def test_a_machine_that_says_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert look(tmp_path / "stat").ticks is None


def test_what_linux_writes(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 1 5 100 2 3 4 6 99 98\ncpu0 5 1 2 50 1 2 2 3 49 49\n")
    assert look(tmp_path / "stat").ticks == (10, 1, 5, 100, 2, 3, 4, 6)


def test_the_rule() -> None:
    quiet, stolen, crowded, tired = (
        Host(steal=0.01, busy=0.9, own=0.2, others=0.1),
        Host(steal=0.05, busy=0.9, own=0.2),
        Host(steal=0.01, busy=0.9, own=0.2, others=0.2),
        Host(steal=None, busy=None, own=0.95),
    )
    assert [Rule().broken_by(host) for host in (quiet, stolen, crowded, tired)] == [
        "",
        "the machine's host gave CPU time to others",
        "others on this machine were at work",
        "the load generator had no CPU time to spare",
    ]
    assert Rule(own=None).broken_by(tired) == ""
