from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wastegate.sim.batch import BatchedReplica
from wastegate.sim.phase import Sequence
from wastegate.sim.replica import Milestone, Settings, Work
from wastegate.sim.timing import Linear, Table

TIMING = Linear(0.01, 1e-3, 1e-7, 1e-3, 1e-6)


class Stepwise(BatchedReplica):
    """The same replica without skipping ahead: one step a plan."""

    def _steps(self, parts: list[tuple[Sequence, int]], left: int, running: int, gain: float) -> int:
        return min(1, super()._steps(parts, left, running, gain))


def play(replica: BatchedReplica, moves: list[tuple[float, str, Work | None]]) -> list[Milestone]:
    """Calls that come, and with None leave, until nothing is left to do."""
    passed: list[Milestone] = []
    for at, key, work in moves:
        passed += replica.advance(at)
        if work is not None:
            replica.add(key, work, at)
        elif key in replica:
            replica.drop(key, at)
    while (due := replica.next_change()) is not None:
        passed += replica.advance(due)
    return passed


def alone(work: Work, timing: Any = TIMING, **members: Any) -> tuple[BatchedReplica, dict[str, float]]:
    replica = BatchedReplica(Settings(**members), timing)
    return replica, {one.what: one.at for one in play(replica, [(0.0, "a", work)])}


# ---- one call


def test_a_call_alone_takes_a_step_for_each_token() -> None:
    replica, at = alone(Work(100, 5))
    first = 0.01 + 100 * 1e-3 + 5000 * 1e-7
    assert at["first_token"] == pytest.approx(first)
    assert at["finished"] == pytest.approx(first + sum(0.011 + kv * 1e-6 for kv in range(100, 104)))
    assert (replica.spent.steps, replica.spent.prefill, replica.spent.decoded) == (5, 100, 4)
    assert (len(replica), replica.held, replica.next_change()) == (0, 0, None)


def test_a_long_prompt_comes_in_parts() -> None:
    replica, at = alone(Work(1000, 1), step_tokens=256)
    assert replica.spent.steps == 4
    assert at["first_token"] == at["finished"] == pytest.approx(4 * 0.01 + 1.0 + 500_000 * 1e-7)


def test_an_engine_that_does_not_cut_prompts_computes_them_whole() -> None:
    replica, _ = alone(Work(1000, 1), step_tokens=256, chunked=False)
    assert replica.spent.steps == 1


def test_a_call_without_output_ends_with_its_prompt() -> None:
    _, at = alone(Work(100, 0))
    assert at.keys() == {"finished"}


def test_speculation_makes_several_tokens_a_step_for_a_longer_step() -> None:
    flat = Linear(step_seconds=0.01)
    replica, at = alone(Work(10, 31), flat, accepted=(0.75, 0.5, 0.25), draft_seconds=0.001)
    assert replica.spent.steps == 1 + 12  # 30 tokens at 2.5 a step
    assert at["finished"] == pytest.approx(0.01 + 12 * 0.013)
    replica, at = alone(Work(10, 31), flat, accepted=(0.75, 0.5, 0.25), speculate_below=1)
    assert at["finished"] == pytest.approx(31 * 0.01)


# ---- several calls


def test_who_decodes_goes_first_and_prompts_take_what_is_left_of_a_step() -> None:
    replica = BatchedReplica(Settings(step_tokens=33), Linear(step_seconds=1.0))
    passed = play(replica, [(0.0, "a", Work(10, 100)), (1.5, "b", Work(64, 1))])
    assert [one.at for one in passed if one.key == "b"] == [4.0, 4.0], "32 tokens a step from the one at 2.0 on"


def test_prompts_may_hold_up_running_sequences_instead() -> None:
    timing = Linear(step_seconds=1.0, per_prefill=1.0)
    replica = BatchedReplica(Settings(mixed=False), timing)
    passed = play(replica, [(0.0, "a", Work(1, 4)), (2.5, "b", Work(9, 1))])
    assert {one.key: one.at for one in passed if one.what == "finished"} == {"b": 13.0, "a": 15.0}


def test_the_cap_holds_and_the_line_keeps_priority() -> None:
    replica = BatchedReplica(Settings(running=1, queue=2), Linear(step_seconds=1.0))
    told = [replica.add(key, Work(1, 3, priority=rank), 0.0) for key, rank in [("a", 0), ("b", 5), ("c", 1), ("d", 0)]]
    assert told == ["run", "wait", "wait", "full"]
    ended = [one.key for one in play(replica, []) if one.what == "finished"]
    assert ended == ["a", "c", "b"]


def test_who_is_too_long_for_the_kv_is_told_at_once() -> None:
    replica = BatchedReplica(Settings(kv_tokens=100), TIMING)
    assert replica.add("a", Work(90, 11), 0.0) == "too long"
    assert replica.next_change() is None


def test_the_newest_gives_way_when_the_kv_is_full_and_computes_anew() -> None:
    replica = BatchedReplica(Settings(kv_tokens=100, block=1), Linear(step_seconds=1.0))
    passed = play(replica, [(0.0, "a", Work(40, 30)), (0.5, "b", Work(40, 30))])
    assert replica.spent.preempted == 1
    assert replica.spent.prefill > 80
    firsts = [one.key for one in passed if one.what == "first_token"]
    assert firsts == ["a", "b"], "a first token comes once, whatever is computed anew"
    assert [one.key for one in passed if one.what == "finished"] == ["a", "b"]
    assert replica.held == 0


# ---- leaving


def test_a_dropped_call_says_what_it_had_made_and_frees_the_rest() -> None:
    replica = BatchedReplica(Settings(), Linear(step_seconds=0.01))
    replica.add("a", Work(100, 101), 0.0)
    replica.advance(0.505)
    assert replica.drop("a", 0.505) == 50
    assert "a" not in replica
    with pytest.raises(KeyError):
        replica.drop("a", 0.505)
    assert play(replica, []) == []
    assert replica.held == 0


def test_a_call_dropped_before_its_first_token_has_made_nothing() -> None:
    replica = BatchedReplica(Settings(running=2), Linear(step_seconds=1.0))
    for key in "abc":
        replica.add(key, Work(10, 10), 0.0)
    replica.advance(0.5)
    assert [replica.drop(key, 0.5) for key in "abc"] == [0, 0, 0]
    assert play(replica, []) == []


def test_a_key_may_come_back_while_its_last_step_still_runs() -> None:
    replica = BatchedReplica(Settings(), Linear(step_seconds=1.0))
    replica.add("a", Work(10, 10), 0.0)
    replica.advance(2.5)
    assert replica.drop("a", 2.5) == 2
    assert replica.add("a", Work(10, 2), 2.5) == "run"
    assert [(one.what, one.at) for one in play(replica, [])] == [("first_token", 4.0), ("finished", 5.0)]


def test_mistakes_are_named() -> None:
    replica = BatchedReplica(Settings(), TIMING)
    replica.add("a", Work(100, 1), 5.0)
    with pytest.raises(ValueError, match="'a' is in flight already"):
        replica.add("a", Work(100, 1), 5.0)
    with pytest.raises(ValueError, match=r"time went back from 5\.0 to 4\.0"):
        replica.advance(4.0)


# ---- the cache


def blocks(*hashes: int) -> bytes:
    return array("Q", hashes).tobytes()


def test_a_shared_beginning_is_computed_once() -> None:
    replica = BatchedReplica(Settings(hashed_tokens=16), TIMING)
    passed = play(replica, [(0.0, "a", Work(100, 5, blocks(1, 2, 3))), (9.0, "b", Work(100, 5, blocks(1, 2, 9)))])
    assert {one.key: one.cached for one in passed} == {"a": 0, "b": 32}
    assert (replica.spent.cached, replica.spent.prefill) == (32, 168)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    replica = BatchedReplica(Settings(hashed_tokens=16), TIMING)
    passed = play(replica, [(at, str(at), Work(32, 2, blocks(1, 2, 7, 8))) for at in (0.0, 9.0)])
    assert [one.cached for one in passed if one.what == "finished"] == [0, 16]


def test_what_two_share_takes_room_once() -> None:
    replica = BatchedReplica(Settings(hashed_tokens=16, kv_tokens=120, block=1), Linear(step_seconds=1.0))
    play(replica, [(0.0, "a", Work(64, 20, blocks(1, 2, 3, 4))), (1.5, "b", Work(64, 20, blocks(1, 2, 3, 4)))])
    assert replica.spent.preempted == 0
    assert replica.spent.kv_peak <= 64 + 16 + 2 * 20


def test_what_was_given_up_comes_back_from_the_tier() -> None:
    members: dict[str, Any] = {"hashed_tokens": 16, "kv_tokens": 110, "block": 1}
    moves: list[tuple[float, str, Work | None]] = [
        (0.0, "a", Work(80, 2, blocks(1, 2, 3, 4, 5))),
        (50.0, "b", Work(80, 2, blocks(11, 12, 13, 14, 15))),
        (100.0, "c", Work(80, 2, blocks(1, 2, 3, 4, 5))),
    ]
    without = BatchedReplica(Settings(**members), TIMING)
    cold = play(without, moves)[-1]
    tiered = BatchedReplica(Settings(**members, tier_tokens=1000, tier_rate=10_000.0), TIMING)
    warm = play(tiered, moves)[-1]
    assert (without.spent.loaded, tiered.spent.loaded) == (0, 64 - without.spent.cached)
    assert warm.at < cold.at


# ---- skipping ahead changes nothing

MOVE = st.tuples(st.floats(0, 3), st.integers(1, 120), st.integers(0, 40), st.integers(0, 3), st.booleans())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(MOVE, min_size=1, max_size=14),
    st.sampled_from([Settings(), Settings(mixed=False), Settings(step_tokens=32, least_prefill=16, part_block=16)]),
    st.sampled_from([1 << 50, 200]),
    st.sampled_from([4, 64]),
    st.sampled_from([(), (0.5, 0.25)]),
)
def test_many_steps_at_once_are_the_same_as_one_by_one(
    raw: list[tuple[float, int, int, int, bool]],
    base: Settings,
    kv: int,
    running: int,
    accepted: tuple[float, ...],
) -> None:
    members = {name: getattr(base, name) for name in base.__struct_fields__}
    made = Settings(**{**members, "kv_tokens": kv, "running": running, "accepted": accepted, "hashed_tokens": 16})
    moves: list[tuple[float, str, Work | None]] = []
    for number, (at, prompt, output, family, leaves) in enumerate(raw):
        shared = blocks(*(10 * family + index for index in range(prompt // 16)))
        moves.append((at, str(number), Work(prompt, output, shared, priority=family % 2)))
        if leaves:
            moves.append((at + 0.37, str(number), None))
    moves.sort(key=lambda move: move[0])
    skipping, stepping = BatchedReplica(made, TIMING), Stepwise(made, TIMING)
    fast, slow = play(skipping, moves), play(stepping, moves)
    assert [(one.key, one.what, one.cached) for one in fast] == [(one.key, one.what, one.cached) for one in slow]
    assert [one.at for one in fast] == pytest.approx([one.at for one in slow], abs=1e-6)
    assert skipping.spent.steps == stepping.spent.steps
    assert skipping.spent.busy == pytest.approx(stepping.spent.busy, abs=1e-6)
    for replica in (skipping, stepping):
        assert len(replica) == 0
        assert replica.held == pytest.approx(0, abs=1e-6)


def test_a_call_costs_as_many_plans_as_it_has_events() -> None:
    """Whatever its length: that is what makes a day of traffic take seconds."""
    plans = 0

    class Counting(BatchedReplica):
        def _plan(self, at: float) -> None:
            nonlocal plans
            plans += 1
            super()._plan(at)

    replica = Counting(Settings(), TIMING)
    chance = random.Random(1)
    moves: list[tuple[float, str, Work | None]] = [
        (chance.uniform(0, 4000), str(number), Work(500, 4000)) for number in range(200)
    ]
    play(replica, sorted(moves, key=lambda move: move[0]))
    assert replica.spent.decoded == 200 * 3999
    assert plans <= 200 * 4


def test_steps_that_the_timing_was_not_made_from_are_counted() -> None:
    table = Table(decode=((1, 0.01), (2, 0.02)), prefill=((1, 0.01), (10, 0.02)), relative_doubt=0.1)
    replica = BatchedReplica(Settings(), table)
    play(replica, [(0.0, str(number), Work(10, 20)) for number in range(4)])
    assert 0 < replica.spent.outside <= replica.spent.busy
    assert replica.spent.doubted / replica.spent.busy > 0.1
