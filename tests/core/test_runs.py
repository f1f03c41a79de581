"""What engines tell, as weights: work a step, cut to its attempt, and nothing for attempts of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ledgers import attempt, entry, record, run
from wastegate.core.facts import gather, no_records
from wastegate.core.ledger import EngineRecord, Run
from wastegate.core.runs import CEILING, QUANTUM, Told, quanta

WORK = np.array([[0.001, 0.01, 1e-6, 0.02]])
SECOND = 1_000_000_000


def told(*records: EngineRecord, rows: tuple[int, ...] = (0, 1)) -> Told:
    facts = gather([entry("x", attempt()), entry("y", attempt())], records=records)
    return Told.of(facts.records, np.array(rows, np.int64))


def chains(*runs: Run, begin: float = 0.0, end: float = 10.0, step: float | None = None) -> Any:
    made = told(record("x.1", *runs), rows=(0,))
    if step is not None:
        made = made._replace(step=step)
    return made.chains(np.array([round(begin * SECOND)]), np.array([round(end * SECOND)]), WORK)


def test_work_is_that_of_one_step() -> None:
    made = chains(run(1.0, 3.0, 10, prefill=100, decode=10, draft=50, kv=400.0))
    assert made.time.tolist() == [[SECOND, 3 * SECOND]]
    assert made.prefill[0].tolist() == [round(0.001 * 10 / QUANTUM), 0]
    assert made.decode[0].tolist() == [round((0.01 + 0.001 * 5) / QUANTUM), 0]
    assert made.kv[0].tolist() == [round(1e-6 * 200 / QUANTUM), 0]
    assert made.fixed[0].tolist() == [round(0.02 / QUANTUM), 0]
    assert made.inside.tolist() == [[0, 0]]


def test_who_decodes_nothing_has_no_part_in_what_a_step_costs_all() -> None:
    assert chains(run(1.0, 3.0, 10, prefill=100)).fixed.tolist() == [[0, 0]]


def test_steps_that_nobody_counted_are_reckoned_from_their_time() -> None:
    made = chains(run(0.0, 2.0, 0, prefill=100), step=0.5)
    assert made.prefill[0, 0] == round(0.001 * 100 / 4 / QUANTUM)


@pytest.mark.parametrize(
    ("start", "end", "left"), [(-5.0, 5.0, (0, 5)), (5.0, 50.0, (5, 10)), (20.0, 30.0, (10, 10)), (6.0, 4.0, (6, 6))]
)
def test_a_run_is_cut_to_its_attempt(start: float, end: float, left: tuple[int, int]) -> None:
    made = chains(run(start, end, 1, decode=1))
    assert made.time.tolist() == [[edge * SECOND for edge in left]]


def test_figures_that_make_no_sense_weigh_no_less_than_nothing_and_no_more_than_the_ceiling() -> None:
    made = chains(run(0.0, 1.0, 1, prefill=-5, decode=10**15, kv=-1.0))
    assert (made.prefill[0, 0], made.kv[0, 0]) == (0, 0)
    assert made.decode[0, 0] == quanta(np.array([CEILING]))[0]


def test_the_mean_step_is_that_of_the_steps_that_were_counted() -> None:
    made = told(record("x.1", run(0.0, 1.0, 10), run(5.0, 9.0, 0)), record("y.1", run(0.0, 2.0, 10)))
    assert made.step == pytest.approx(3.0 / 20)
    assert told(record("x.1", run(0.0, 1.0, 0))).step == 1.0
    assert told(record("x.1")).step == 1.0


def test_records_are_joined_by_attempt_in_whatever_order() -> None:
    records = (record("y.1", run(2.0, 3.0, kv=7.0)), record("x.1", run(1.0, 2.0, kv=5.0), measured="times"))
    one, other = told(*records), told(*records, rows=(1, 0))
    assert (one.rows.tolist(), one.whole.tolist(), one.held.tolist()) == ([True, True], [False, True], [5.0, 7.0])
    assert (other.whole.tolist(), other.held.tolist()) == ([True, False], [7.0, 5.0])
    assert (one.owner.tolist(), other.owner.tolist()) == ([0, 1], [0, 1])


def test_a_replica_sees_only_its_own() -> None:
    made = told(record("x.1", run(kv=5.0)), rows=(1,))
    assert (made.rows.tolist(), len(made.runs)) == ([False], 0)
    assert len(told(record("x.1", run()), rows=()).runs) == 0
    assert Told.of(no_records(), np.array([0])).rows.tolist() == [False]
