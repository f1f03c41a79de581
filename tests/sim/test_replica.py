from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.sim.replica import Faults, Milestone, Rates, SharedReplica

RATES = Rates(prefill=1000.0, decode=100.0)


def test_a_call_alone_runs_at_full_speed() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", prompt_tokens=500, output_tokens=11, now=10.0)
    assert replica.next_change() == pytest.approx(10.5)
    passed = replica.advance(20.0)
    assert [(m.key, m.what) for m in passed] == [("a", "first_token"), ("a", "finished")]
    assert [m.at for m in passed] == pytest.approx([10.5, 10.6])
    assert (len(replica), replica.next_change()) == (0, None)


def test_two_calls_share() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 500, 1, 0.0)
    replica.add("b", 500, 1, 0.25)  # a has 0.25 s of work left, which now takes 0.5 s
    passed = replica.advance(5.0)
    assert [(m.key, m.what) for m in passed] == [
        ("a", "first_token"),
        ("a", "finished"),
        ("b", "first_token"),
        ("b", "finished"),
    ]
    assert [m.at for m in passed] == pytest.approx([0.75, 0.75, 1.0, 1.0])


def test_a_call_without_output_ends_with_its_prefill() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 100, 0, 0.0)
    (ended,) = replica.advance(1.0)
    assert (ended.key, ended.what) == ("a", "finished")
    assert ended.at == pytest.approx(0.1)


def test_a_dropped_call_says_what_it_had_made_and_frees_the_rest() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 100, 101, 0.0)  # first token at 0.1, then one each 0.01 s
    replica.advance(0.5)
    assert replica.drop("a", 0.5) == 41
    assert "a" not in replica
    with pytest.raises(KeyError):
        replica.drop("a", 0.5)


def test_a_call_dropped_before_its_first_token_has_made_nothing() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 100, 101, 0.0)
    assert replica.drop("a", 0.05) == 0


def test_the_first_token_counts_as_soon_as_it_is_there() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 100, 101, 0.0)
    replica.advance(0.1)
    assert replica.drop("a", 0.1) == 1


def test_mistakes_are_named() -> None:
    replica = SharedReplica(RATES)
    replica.add("a", 100, 1, 5.0)
    with pytest.raises(ValueError, match="'a' is in flight already"):
        replica.add("a", 100, 1, 5.0)
    with pytest.raises(ValueError, match=r"time went back from 5\.0 to 4\.0"):
        replica.advance(4.0)
    with pytest.raises(ValueError, match="decode is 0"):
        Rates(1.0, 0.0)
    with pytest.raises(ValueError, match="nor all together above 1"):
        Faults(refuse=0.6, cut=0.5)
    with pytest.raises(ValueError, match="none may be below 0"):
        Faults(hang=-0.1)


def test_each_fault_has_its_share_of_the_draws() -> None:
    faults = Faults(refuse=0.1, hang=0.2, cut=0.3)
    assert [faults.at(luck) for luck in (0.0, 0.09, 0.1, 0.29, 0.31, 0.59, 0.61)] == [
        "refuse",
        "refuse",
        "hang",
        "hang",
        "cut",
        "cut",
        "none",
    ]
    assert Faults().at(0.0) == "none"


JOBS = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 2000), st.integers(0, 50)), min_size=1, max_size=12)


@given(JOBS, st.sampled_from([0.0, 1.7e9]))
def test_no_work_is_lost_or_made(jobs: list[tuple[float, int, int]], epoch: float) -> None:
    """Each call ends once, and while there is work the replica does a second of it each second."""
    replica = SharedReplica(RATES)
    passed: list[Milestone] = []
    idle, free_at, work = 0.0, epoch, 0.0
    for number, (after, prompt, output) in enumerate(sorted(jobs)):
        now = epoch + after
        while (due := replica.next_change()) is not None and due <= now:
            passed += replica.advance(due)
        replica.advance(now)
        replica.add(str(number), prompt, output, now)
        seconds = prompt / RATES.prefill + max(0, output - 1) / RATES.decode
        idle += max(0.0, now - free_at)
        free_at = max(free_at, now) + seconds
        work += seconds
    while (due := replica.next_change()) is not None:
        passed += replica.advance(due)
    ended = [m.key for m in passed if m.what == "finished"]
    assert sorted(ended) == sorted(str(number) for number in range(len(jobs)))
    firsts = {m.key: m.at for m in passed if m.what == "first_token"}
    assert len(firsts) == sum(1 for _, _, output in jobs if output)
    assert all(firsts[m.key] <= m.at for m in passed if m.what == "finished" and m.key in firsts)
    last = max(m.at for m in passed)
    assert last - epoch == pytest.approx(idle + work, abs=1e-4)
