"""Steps become runs: what was done for whom, for how long, and what each held."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vllm_plugin.vllm_like import Block
from wastegate.core.ledger import Run
from wastegate.vllm_plugin import meter
from wastegate.vllm_plugin.meter import DECODE, MOST_RUNS, RUN_STEPS, Account, Holdings, Meter, Part


def test_a_step_lasts_until_the_next_and_for_who_ends_until_its_end() -> None:
    made = Meter()
    made.step(1.0, [("x", Part(prefill=8), 10.0), ("y", DECODE, 20.0)])
    made.step(3.0, [("x", DECODE, 10.0), ("y", DECODE, 20.0)])
    assert made.end(3.5, "y") == (Run(1.0, 3.5, 2, 0, 2, 0, 50.0),)
    made.step(4.0, [("x", DECODE, 10.0)])
    made.pause(6.0)
    assert made.end(9.0, "x") == (Run(1.0, 3.0, 1, 8, 0, 0, 20.0), Run(3.0, 6.0, 2, 0, 2, 0, 30.0))
    assert made.end(9.0, "x") == (), "it is forgotten"


def test_who_never_ran_had_nothing() -> None:
    assert Meter().end(1.0, "x") == ()


def test_a_run_ends_where_the_kind_of_step_does_or_time_passes_without() -> None:
    made = Account()
    for at, part in enumerate(
        [Part(prefill=8), Part(prefill=8), Part(prefill=3), Part(), DECODE, Part(decode=1, draft=4)]
    ):
        made.add(part, at, at + 1.0, 1.0)
    made.add(DECODE, 10.0, 11.0, 1.0)
    assert [(run.steps, run.prefill, run.decode, run.draft) for run in made.runs] == [
        (2, 16, 0, 0), (1, 3, 0, 0), (1, 0, 0, 0), (2, 0, 2, 4), (1, 0, 1, 0),
    ]  # fmt: skip


def test_long_runs_are_cut_and_too_many_become_part_of_the_last() -> None:
    made = Account()
    steps = RUN_STEPS * (MOST_RUNS + 3)
    for at in range(steps):
        made.add(DECODE, float(at), at + 1.0, 2.0)
    assert len(made.runs) == MOST_RUNS
    assert made.runs[0].steps == RUN_STEPS
    assert sum(run.decode for run in made.runs) == sum(run.steps for run in made.runs) == steps
    assert sum(run.kv for run in made.runs) == 2.0 * steps


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 2.0), st.booleans()), max_size=60))
def test_nothing_is_lost_and_nothing_counted_twice(steps: list[tuple[int, float, bool]]) -> None:
    made, now, kv = Meter(), 0.0, 0.0
    parts = [Part(prefill=5), DECODE, Part(decode=1, draft=2), Part()]
    for kind, lasted, _ in steps:
        made.step(now, [("x", parts[kind], 3.0)])
        now += lasted
        kv += 3.0 * lasted
    runs = made.end(now, "x")
    assert sum(run.steps for run in runs) == len(steps)
    assert sum(run.prefill for run in runs) == 5 * sum(kind == 0 for kind, _, _ in steps)
    assert sum(run.decode for run in runs) == sum(kind in (1, 2) for kind, _, _ in steps)
    assert sum(run.kv for run in runs) == pytest.approx(kv)
    assert all(one.end == other.start for one, other in itertools.pairwise(runs))


def test_ends_that_are_never_heard_of_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MOST_OPEN", 2)
    made = Meter()
    made.step(0.0, [(name, DECODE, 1.0) for name in "xyz"])
    with pytest.raises(OverflowError, match="ends are not heard of"):
        made.pause(1.0)


# ---- what they hold


def test_a_shared_block_counts_for_each_as_its_part() -> None:
    shared = [Block(ref_cnt=2), Block(ref_cnt=2)]
    held = Holdings(block_tokens=10).of({"x": ([*shared, Block()],), "y": ([*shared],)})
    assert held == {"x": 20.0, "y": 10.0}


def test_new_blocks_are_its_own_until_it_is_looked_at_again() -> None:
    made = Holdings(block_tokens=10, budget=2)
    x, y = [Block(), Block()], [Block()]
    assert made.of({"x": (x,), "y": (y,)}) == {"x": 20.0, "y": 10.0}
    x[0].ref_cnt = x[1].ref_cnt = y[0].ref_cnt = 2
    y.append(Block())
    seen = [made.of({"x": (x,), "y": (y,)}) for _ in range(3)]
    assert seen[-1] == {"x": 10.0, "y": 15.0}
    assert seen[0] in ({"x": 20.0, "y": 15.0}, {"x": 10.0, "y": 20.0}), "the budget reaches for one of them"


def test_groups_hold_parts_of_each_token_and_null_blocks_hold_nothing() -> None:
    held = Holdings(block_tokens=10).of({"x": ([Block(), Block()], [Block(is_null=True), Block()])})
    assert held == {"x": 15.0}


def test_who_is_gone_is_forgotten_and_none_is_fine() -> None:
    made = Holdings(block_tokens=10)
    made.of({"x": ([Block()],)})
    assert made.of({}) == {}
    assert made._looked == {}
    assert made.of({"x": ()}) == {"x": 0.0}
