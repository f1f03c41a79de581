"""How hard an attempt works at each instant, and what the one pass over time makes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.ledgers import PLAIN, attempt, entry, span
from wastegate.core.facts import Flags, Floats, Ints, gather
from wastegate.core.ledger import Attempt, ReplicaSpan, Work
from wastegate.core.runs import CEILING, QUANTUM
from wastegate.core.sharing import FLOOR, Costs, Shared, loads, share
from wastegate.core.timeline import timeline

INFINITE = float("inf")


def costs(*spans: ReplicaSpan, default: Work = PLAIN) -> Costs:
    return Costs.of(spans, default)


class Phases(NamedTuple):
    """The attempts' own chains, taken apart: one figure an attempt."""

    begin: Ints
    first: Ints
    end: Ints
    prefill: Ints
    """Before the first token."""
    early: Ints
    """Decode before the first token: where there is none."""
    decode: Ints
    kv: Ints
    fixed: Ints
    """These three after the first token, or spread over the whole where there is none."""
    memory: Floats
    memory_known: Flags


def loaded(*tries: Attempt, by: Costs | None = None) -> Phases:
    facts = gather([entry(f"call-{number}", one) for number, one in enumerate(tries)])
    load = loads(facts.attempts, np.arange(len(tries)), by or costs())
    points = load.points
    assert points.owner.tolist() == [number for number in range(len(tries)) for _ in range(3)]
    assert points.inside.tolist() == [1, 1, 0] * len(tries)
    for weights in (points.prefill, points.decode, points.kv, points.fixed):
        assert not weights[2::3].any(), "a chain ends in a point that weighs nothing"
    return Phases(
        begin=points.time[0::3],
        first=points.time[1::3],
        end=points.time[2::3],
        prefill=points.prefill[0::3],
        early=points.decode[0::3],
        decode=points.decode[1::3],
        kv=points.kv[1::3],
        fixed=points.fixed[1::3],
        memory=load.memory,
        memory_known=load.memory_known,
    )


def shared(*tries: Attempt, spans: tuple[ReplicaSpan, ...] = (span(),), work: Work = PLAIN) -> Shared:
    facts = gather([entry(f"call-{number}", one) for number, one in enumerate(tries)])
    load = loads(facts.attempts, np.arange(len(tries)), Costs.of(spans, work))
    return share(timeline(spans, -INFINITE, INFINITE), load)


def quanta(density: float) -> int:
    return round(density / QUANTUM)


def whole(**other: Any) -> Attempt:
    """Ten seconds, two of them prefill, 1,000 tokens in and 400 out."""
    given = {"first_token": 2.0, "prompt_tokens": 1000, "output_tokens": 400, **other}
    return attempt(begin=0.0, end=10.0, **given)


# ---- the cost of work


def test_without_a_measurement_the_default_stands_for_all_time() -> None:
    made = costs(span(), default=PLAIN)
    assert made.table.tolist() == [[0.001, 0.01, 0.0, 0.0]]
    assert made.last == PLAIN
    assert np.isnan(made.capacity)


def test_a_measurement_holds_from_its_span_on_and_the_first_for_before() -> None:
    early, late = Work(1.0, 1.0, 1.0, source="early"), Work(2.0, 2.0, 2.0, 2.0, source="late")
    made = costs(span(end=1.0), span(start=1.0, work=early, kv_capacity=50), span(start=5.0, work=late))
    assert made.starts.tolist() == [-INFINITE, 5.0]
    assert made.table[:, 0].tolist() == [1.0, 2.0]
    assert (made.last, made.capacity) == (late, 50)
    load = loaded(attempt(begin=0.0, end=1.0, prompt_tokens=1), attempt(begin=5.0, end=6.0, prompt_tokens=1), by=made)
    assert load.prefill.tolist() == [quanta(1.0), quanta(2.0)]


# ---- densities


def test_prefill_before_the_first_token_decode_after_it() -> None:
    load = loaded(whole(), by=costs(default=Work(0.001, 0.01, 1e-6, 0.02)))
    assert load.prefill[0] == quanta(1000 * 0.001 / 2)
    assert load.decode[0] == quanta(400 * 0.01 / 8)
    assert load.kv[0] == quanta(400 * 1e-6 * (1000 + 200) / 8)
    assert load.fixed[0] == quanta(400 * 0.02 / 8)
    assert load.early[0] == 0


def test_without_a_first_token_all_work_is_spread_over_the_whole() -> None:
    load = loaded(whole(first_token=None))
    assert (load.prefill[0], load.decode[0]) == (quanta(1000 * 0.001 / 10), quanta(400 * 0.01 / 10))
    assert load.first[0] == load.end[0]
    assert load.early[0] == load.decode[0]


def test_cached_tokens_are_held_but_not_computed() -> None:
    by = costs(default=Work(0.001, 0.0, 1e-6))
    cold, warm = loaded(whole(cached_tokens=0), whole(cached_tokens=900), by=by).prefill.tolist()
    assert (cold, warm) == (quanta(0.5), quanta(0.05))
    assert len(set(loaded(whole(cached_tokens=0), whole(cached_tokens=900), by=by).kv.tolist())) == 1
    more_cached_than_prompt = loaded(whole(cached_tokens=5000)).prefill[0]
    assert more_cached_than_prompt == quanta(FLOOR)


def test_what_was_never_sent_made_no_prefill() -> None:
    load = loaded(attempt(sent=None, outcome="failed", prompt_tokens=1000))
    assert (load.begin[0], load.prefill[0]) == (0, quanta(FLOOR))


@pytest.mark.parametrize("first_token", [None, 2.0])
def test_a_place_taken_without_known_work_weighs_the_floor(first_token: float | None) -> None:
    load = loaded(whole(first_token=first_token, prompt_tokens=None, output_tokens=None))
    assert load.prefill[0] == quanta(FLOOR)
    assert load.decode[0] == (quanta(FLOOR) if first_token else 0)


def test_no_density_outgrows_the_ceiling() -> None:
    load = loaded(attempt(begin=0.0, end=1e-9, prompt_tokens=100_000))
    assert load.prefill[0] == quanta(CEILING)


def test_times_out_of_order_are_put_right() -> None:
    load = loaded(attempt(begin=5.0, end=3.0, first_token=1.0))
    assert load.begin[0] == load.first[0] == load.end[0] == 5_000_000_000


def test_the_memory_share_is_kv_held_by_capacity_and_one_where_unknown() -> None:
    by = costs(span(kv_capacity=2400))
    load = loaded(whole(), whole(prompt_tokens=None), whole(prompt_tokens=10_000), by=by)
    assert load.memory.tolist() == [0.5, 1.0, 1.0]
    assert load.memory_known.tolist() == [True, False, True]
    assert loaded(whole()).memory.tolist() == [1.0]
    assert loaded(whole(), by=costs(span(kv_capacity=0))).memory_known.tolist() == [False]


# ---- the pass over time, at a dollar a second


def test_alone_an_attempt_owns_the_time_and_the_rest_is_idle() -> None:
    made = shared(attempt(begin=2.0, end=5.0, prompt_tokens=1))
    assert made.prefill[0] == pytest.approx(3e9)
    assert (made.idle, made.overhead) == pytest.approx((7e9, 0.0))
    assert (made.busy, made.covered[0], made.present[0]) == (3e9, 3e9, 3e9)


def test_together_they_share_by_density() -> None:
    made = shared(attempt(begin=0.0, end=10.0, prompt_tokens=3000), attempt(begin=0.0, end=10.0, prompt_tokens=1000))
    assert made.prefill.tolist() == pytest.approx([7.5e9, 2.5e9])
    assert made.naive.tolist() == pytest.approx([10e9, 10e9]), "each is billed the whole replica"


def test_the_fixed_part_of_a_step_is_shared_equally_by_those_who_decode() -> None:
    only_fixed = Work(0.0, 0.0, 0.0, 1.0)
    fast = attempt(begin=0.0, end=10.0, first_token=0.0, prompt_tokens=1, output_tokens=10)
    made = shared(fast, fast, fast, work=only_fixed)
    assert made.decode.tolist() == pytest.approx([10e9 / 3] * 3)
    # Half of the step is fixed at one token a second: alone it would be all of it.
    mixed = Work(0.0, 1.0, 0.0, 1.0)
    slow = attempt(begin=0.0, end=10.0, prompt_tokens=0, output_tokens=5)
    first, second = shared(fast, slow, work=mixed).decode.tolist()
    assert first / second == pytest.approx((1.0 + 1.0 / 2) / (0.5 + 0.5 / 2), rel=1e-3)


def test_each_part_is_charged_in_its_own_phase() -> None:
    work = Work(0.001, 0.01, 1e-5, 0.0)
    made = shared(whole(), work=work)
    assert made.prefill[0] == pytest.approx(2e9)
    decode, kv = 400 * 0.01, 400 * 1e-5 * 1200
    assert made.decode[0] == pytest.approx(8e9 * decode / (decode + kv), rel=1e-6)
    assert made.kv[0] == pytest.approx(8e9 * kv / (decode + kv), rel=1e-6)


def test_without_a_first_token_the_parts_share_the_whole() -> None:
    work = Work(0.001, 0.01, 1e-5, 0.0)
    made = shared(whole(first_token=None), work=work)
    prefill, decode, kv = 1.0, 4.0, 4.8
    all_of_it = prefill + decode + kv
    parts = [made.prefill[0], made.decode[0], made.kv[0]]
    assert parts == pytest.approx([10e9 * part / all_of_it for part in (prefill, decode, kv)], rel=1e-6)


def test_what_sticks_out_of_the_up_time_is_charged_nothing() -> None:
    made = shared(attempt(begin=8.0, end=14.0, prompt_tokens=1))
    assert made.prefill[0] == pytest.approx(2e9)
    assert (made.covered[0], made.present[0]) == (2e9, 6e9)


def test_nobody_in_flight_is_idle_while_serving_and_overhead_otherwise() -> None:
    life = (
        span(end=3.0, phase="loading"),
        span(start=3.0, end=4.0, phase="warmup"),
        span(start=4.0, end=9.0),
        span(start=9.0, end=10.0, phase="draining"),
    )
    made = shared(spans=life)
    assert (made.idle, made.overhead) == pytest.approx((5e9, 5e9))


def test_probes_move_their_share_of_idle_time_to_overhead() -> None:
    made = shared(attempt(begin=0.0, end=5.0, prompt_tokens=1), spans=(span(probe_seconds=2.0),))
    assert (made.idle, made.overhead) == pytest.approx((4e9, 1e9))


def test_nothing_at_all() -> None:
    made = shared(spans=())
    assert (len(made.prefill), made.idle, made.overhead, made.busy) == (0, 0.0, 0.0, 0)
