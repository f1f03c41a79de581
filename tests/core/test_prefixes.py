"""The prefix index: nothing is found that was not sent, nothing outlives a restart, and memory is what was said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wastegate.core.prefixes import Config, Prefixes

SMALL = Config(max_bytes=1 << 16, idle_seconds=300.0)  # 1024 places a table, 640 of them used


def chain(*parts: int) -> list[int]:
    """Chained hashes as the gateway makes them: equal as far as the parts are."""
    hashes, last = [], 0
    for part in parts:
        last = hash((last, part)) & 0xFFFFFFFFFFFFFFFF
        hashes.append(last)
    return hashes


def held(index: Prefixes, replica: str, prompt: Sequence[int], now: float = 0.0, scope: int = 0) -> int:
    slot = index.slot(replica)
    assert slot is not None
    return max((blocks for blocks, mask in index.holders(prompt, scope, now) if mask >> slot & 1), default=0)


def test_the_longest_prefix_of_each_replica_is_found() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1, 2, 3, 4, 5), 0, 0.0)
    index.add("b", chain(1, 2, 9), 0, 0.0)
    index.add("c", chain(7), 0, 0.0)
    prompt = chain(1, 2, 3, 8, 8)
    assert [held(index, name, prompt) for name in "abc"] == [3, 2, 0]
    assert index.holders(prompt, 0, 0.0) == [(2, 0b11), (3, 0b1)]
    assert index.holders([], 0, 0.0) == []
    assert index.holders(chain(7), 0, 0.0) == [(1, 0b100)]


def test_a_scope_of_its_own_shares_nothing() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1, 2), 5, 0.0)
    assert held(index, "a", chain(1, 2), scope=5) == 2
    assert held(index, "a", chain(1, 2)) == 0


def test_what_lies_idle_is_forgotten_and_what_is_used_is_not() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1, 2), 0, 0.0)
    index.add("a", chain(3, 4), 0, 0.0)
    for now in range(0, 1000, 50):
        index.add("a", chain(3, 4), 0, float(now))
    assert held(index, "a", chain(3, 4), 1249.0) == 2  # last used at 950
    assert held(index, "a", chain(1, 2), 1249.0) == 0
    assert held(index, "a", chain(3, 4), 2000.0) == 0


@given(st.floats(0.0, 299.0), st.floats(0.0, 5.0))
def test_nothing_is_forgotten_before_its_time_or_kept_a_third_longer(sent: float, step: float) -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1), 0, sent)
    assert held(index, "a", chain(1), sent + 299.9) == 1
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1), 0, sent)
    assert held(index, "a", chain(1), sent + 400.1 + step) == 0


def test_after_a_restart_nothing_is_found_until_it_is_sent_again() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1, 2), 0, 0.0)
    index.add("b", chain(1, 2), 0, 0.0)
    index.forget("a")
    index.forget("never seen")
    assert held(index, "a", chain(1, 2)) == 0
    assert held(index, "b", chain(1, 2)) == 2
    index.add("a", chain(1), 0, 0.0)
    assert held(index, "a", chain(1, 2)) == 1


def test_places_run_out_and_are_wiped_and_used_again() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("stays", chain(1), 0, 0.0)
    for number in range(200):
        index.add(f"r{number}", chain(1), 0, 0.0)
        index.forget(f"r{number}")
    assert held(index, "again", chain(1)) == 0
    assert held(index, "stays", chain(1)) == 1


def test_retired_places_come_back_with_time() -> None:
    index = Prefixes(SMALL, 0.0)
    for turn in range(100):
        index.add("a", chain(1), 0, turn * 500.0)
        assert held(index, "a", chain(1), turn * 500.0) == 1
        index.forget("a")
    assert index.slot("a") in (0, 1)


def test_more_than_64_replicas_are_left_out() -> None:
    index = Prefixes(SMALL, 0.0)
    for number in range(70):
        index.add(f"r{number}", chain(1), 0, 0.0)
    ((blocks, mask),) = index.holders(chain(1), 0, 0.0)
    assert blocks == 1
    assert mask.bit_count() == 64
    assert index.slot("r65") is None
    index.remove("r65", chain(1), 0)
    index.keep(["r1", "r2"])
    ((_, mask),) = index.holders(chain(1), 0, 0.0)
    assert mask.bit_count() == 2


def test_the_end_of_a_prompt_can_be_taken_back() -> None:
    index = Prefixes(SMALL, 0.0)
    index.add("a", chain(1, 2, 3), 0, 0.0)
    index.remove("a", chain(1, 2, 3)[1:], 0)
    index.remove("a", chain(8), 0)
    assert held(index, "a", chain(1, 2, 3)) == 1


def test_keys_that_meet_at_a_tables_end_go_on_at_its_front() -> None:
    index = Prefixes(SMALL, 0.0)
    last = [0xFFFF_FFFF_0000_0001, 0xFFFF_FFFF_0000_0002, 0xFFFF_FFFF_0000_0003]
    index.add("a", last, 0, 0.0)
    index.add("a", last, 0, 0.0)
    assert held(index, "a", last) == 3


def test_many_lengths_are_told_apart_and_the_longest_is_among_them() -> None:
    index = Prefixes(SMALL, 0.0)
    for number in range(20):
        index.add(f"r{number}", chain(*range(number + 1)), 0, 0.0)
    steps = index.holders(chain(*range(30)), 0, 0.0)
    assert len(steps) == 6
    assert steps[0] == (1, (1 << 20) - 1)
    assert steps[-1] == (20, 1 << 19)


def test_a_prompt_longer_than_a_table_is_kept_as_far_as_there_is_room() -> None:
    index = Prefixes(SMALL, 0.0)
    prompt = chain(*range(2000))
    index.add("a", prompt, 0, 0.0)
    assert held(index, "a", prompt) == 640


def test_memory_stays_within_its_bound_however_much_is_sent() -> None:
    """Ten million blocks are sent by ``benchmarks/routing.py``."""
    config = Config(max_bytes=1 << 20)
    index = Prefixes(config, 0.0)
    newest: list[int] = []
    for start in range(0, 500_000, 2_000):
        newest = (np.arange(start, start + 2_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).tolist()
        index.add("a", newest, 0, 0.0)
    assert index.bytes <= config.max_bytes
    assert index.blocks > 0.7 * index.bytes / 25.6
    assert held(index, "a", newest) == len(newest)


@pytest.mark.parametrize("settings_", [{"max_bytes": 100}, {"idle_seconds": 0.0}])
def test_bounds_that_make_no_sense_are_refused(settings_: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings_))):
        Config(**settings_)  # type: ignore[arg-type]


class Restarts(RuleBasedStateMachine):
    """Against a model that never forgets but at restarts: the index may know less, never more."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Prefixes(Config(max_bytes=1 << 16, idle_seconds=100.0), 0.0)
        self.now = 0.0
        self.truth: dict[str, dict[int, float]] = {name: {} for name in "abc"}

    @rule(name=st.sampled_from("abc"), parts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
    def send(self, name: str, parts: list[int]) -> None:
        self.index.add(name, chain(*parts), 0, self.now)
        self.truth[name] |= dict.fromkeys(chain(*parts), self.now)

    @rule(name=st.sampled_from("abc"))
    def restart(self, name: str) -> None:
        self.index.forget(name)
        self.truth[name] = {}

    @rule(name=st.sampled_from("abc"), number=st.integers(1, 700))
    def flood(self, name: str, number: int) -> None:
        blocks = chain(*range(100, 100 + number))
        self.index.add(name, blocks, 0, self.now)
        self.truth[name] |= dict.fromkeys(blocks, self.now)

    @rule(seconds=st.floats(0.0, 150.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(parts=st.lists(st.integers(0, 3), min_size=1, max_size=12))
    def look(self, parts: list[int]) -> None:
        prompt = chain(*parts)
        for name, known in self.truth.items():
            found = held(self.index, name, prompt, self.now)
            assert all(block in known and self.now - known[block] < 134.0 for block in prompt[:found])

    @invariant()
    def within_memory(self) -> None:
        assert self.index.blocks <= 4 * 640


Restarts.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRestarts = Restarts.TestCase
