"""A replica's pace: what first tokens say of it, and what lies before it."""

from __future__ import annotations

import random

from wastegate.core.pace import Pace


def test_the_three_terms_are_found_in_the_answers() -> None:
    pace, draw = Pace(0), random.Random(1)
    for _ in range(400):
        tokens, running = draw.uniform(100, 4000), draw.randrange(20)
        pace.measured(tokens, running, 0.05 + 0.0002 * tokens + 0.004 * running + draw.gauss(0, 0.01))
    assert abs(pace.rate / 0.0002 - 1) < 0.05
    assert abs(pace.slowdown / 0.004 - 1) < 0.2


def test_it_follows_a_replica_that_slows_down() -> None:
    pace, draw = Pace(0), random.Random(2)
    for rate in (0.0001, 0.0005):
        for _ in range(300):
            tokens = draw.uniform(100, 4000)
            pace.measured(tokens, 0, rate * tokens)
        assert abs(pace.rate / rate - 1) < 0.05


def test_no_term_is_below_nothing() -> None:
    pace = Pace(0)
    for running in [0, 5, 10, 20] * 30:
        pace.measured(1000.0, running, max(0.001, 1.0 - 0.04 * running))  # busier is faster: not to be believed
    assert pace.slowdown == 0.0
    assert pace.rate > 0.0
    for _ in range(300):
        pace.measured(random.Random(3).uniform(1, 9), 0, 0.0)
    assert pace.rate >= 1e-9


def test_answers_that_are_all_alike_leave_it_solvable() -> None:
    pace = Pace(0)
    for _ in range(100):
        pace.measured(1000.0, 0, 0.5)
    assert 0.0 < pace.rate <= 0.0006


def test_work_is_counted_from_sending_to_the_first_token() -> None:
    pace = Pace(0)
    pace.sent(1000.0)
    pace.sent(0.3)
    assert (pace.waiting, pace.pending) == (2, 1000.3)
    assert pace.wait == pace.rate * 1000.3
    pace.began(1000.0)
    assert (pace.waiting, pace.running) == (1, 1)
    assert pace.wait == pace.rate * pace.pending + pace.slowdown
    pace.ended(0.3, began=False)
    pace.ended(1000.0, began=True)
    assert (pace.waiting, pace.running, pace.pending, pace.wait) == (0, 0, 0.0, 0.0)


def test_how_sure_one_can_be_of_its_cache() -> None:
    pace = Pace(0)
    assert pace.confidence == "GUESS"
    pace.told(expected=False, cached=False)
    assert (pace.confidence, pace.missed) == ("DEGRADED", 0)
    pace.told(expected=True, cached=False)
    pace.told(expected=True, cached=False)
    assert pace.missed == 2
    pace.told(expected=True, cached=True)
    assert pace.missed == 0
