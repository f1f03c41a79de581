from __future__ import annotations

import random
from array import array
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.playbook import Playbook
from wastegate.core.call import Call
from wastegate.core.effects import Closed, Event, Reply
from wastegate.core.fleet import Replica, View
from wastegate.core.plan import Plan, Rules, Timers
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.sim.engine import Simulation
from wastegate.sim.flight import Arrival
from wastegate.sim.replica import Faults, Machine, Settings
from wastegate.sim.timing import Linear

START = 1000.0
TIMING = Linear(per_prefill=0.001, per_decoding=0.01)
"""1,000 prompt tokens or 100 new ones a second; what is done together takes as long as one after the other."""


def arrival(number: int, at: float = 0.0, *, leaves: float | None = None, output: int = 11, **members: Any) -> Arrival:
    """By default a streamed call of 100 prompt tokens: alone, 0.1 s to its first token and 0.2 s in all."""
    base = Call(f"c-{number}", START + at, "chat", "/v1/chat/completions", "m", stream=True, prompt_tokens=100)
    return Arrival(replace(base, **members), output, None if leaves is None else START + leaves)


def machines(count: int, cap: int | None = None, faults: Faults | None = None, **members: Any) -> list[Machine]:
    return [
        Machine(Replica(f"r{n}", f"http://r{n}:8000", ("m",), cap=cap, **members), TIMING, faults=faults or Faults())
        for n in range(count)
    ]


def simulate(fleet: list[Machine], arrivals: list[Arrival], **options: Any) -> tuple[Simulation, dict[str, Closed]]:
    """Run to the end, and check what must hold whatever happens: one entry a call, and nothing left behind."""
    budget = RetryBudget(share=1.0, reserve=1e6)
    simulation = Simulation(fleet, World(options.pop("breaker", Breaker()), budget), **options)
    simulation.arrive(arrivals)
    closed = simulation.run()
    assert Counter(one.entry.id for one in closed) == Counter(each.call.id for each in arrivals)
    assert [state.in_flight for state in simulation.world.states] == [0] * len(fleet)
    assert (simulation.busy, len(simulation.lines)) == (0, 0)
    return simulation, {one.entry.id: one for one in closed}


def traffic(count: int, seed: int, rate: float = 20.0) -> list[Arrival]:
    chance = random.Random(seed)
    at, arrivals = 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        leaves = at + chance.expovariate(2.0) if chance.random() < 0.2 else None
        arrivals.append(
            arrival(
                number,
                at,
                leaves=leaves,
                output=chance.randrange(0, 40),
                stream=chance.random() < 0.7,
                prompt_tokens=chance.randrange(1, 400),
            )
        )
    return arrivals


# ---- one call


def test_a_call_alone_takes_the_time_of_its_tokens() -> None:
    _, closed = simulate(machines(1), [arrival(1)])
    entry = closed["c-1"].entry
    (attempt,) = entry.attempts
    assert (entry.outcome, entry.status, entry.finish_reason) == ("finished", 200, "stop")
    assert (attempt.prompt_tokens, attempt.output_tokens, attempt.usage) == (100, 11, "engine")
    assert attempt.first_token == pytest.approx(START + 0.1)
    assert entry.ended == pytest.approx(START + 0.2)
    assert entry.trail == ("baseline: r0, the only one open (0 in flight)",)


def test_an_unstreamed_answer_has_no_first_token_that_anybody_saw() -> None:
    _, closed = simulate(machines(1), [arrival(1, stream=False)])
    (attempt,) = closed["c-1"].entry.attempts
    assert (attempt.first_token, attempt.first_byte) == (None, attempt.ended)


def test_a_model_that_nobody_serves_is_refused() -> None:
    _, closed = simulate(machines(1), [arrival(1, model="other")])
    one = closed["c-1"]
    assert (one.entry.outcome, one.entry.status, one.entry.attempts) == ("refused", 404, ())
    assert one.refusal is not None


# ---- many calls


@pytest.mark.parametrize(("count", "fleet", "cap"), [(1, 1, None), (50, 1, 1), (200, 3, 4), (200, 5, None)])
def test_each_call_has_one_entry_and_no_load_stays(count: int, fleet: int, cap: int | None) -> None:
    _, closed = simulate(machines(fleet, cap), traffic(count, seed=count))
    outcomes = Counter(one.entry.outcome for one in closed.values())
    assert outcomes["finished"] > count // 4
    assert outcomes.keys() <= {"finished", "hung_up"}


def test_a_cap_of_one_serves_in_order_of_arrival() -> None:
    arrivals = [arrival(number, number / 1000) for number in range(20)]
    simulation, _ = simulate(machines(1, cap=1), arrivals)
    assert [one.entry.id for one in simulation.closed] == [each.call.id for each in arrivals]
    sent = [one.entry.attempts[0].claimed for one in simulation.closed]
    ended = [one.entry.ended for one in simulation.closed]
    assert sent[1:] == ended[:-1], "the next begins when the last one has ended"


def test_a_lower_priority_number_goes_first() -> None:
    arrivals = [arrival(0), arrival(1, 0.01, priority=1), arrival(2, 0.02), arrival(3, 0.03, priority=-1)]
    simulation, _ = simulate(machines(1, cap=1), arrivals)
    assert [one.entry.id for one in simulation.closed] == ["c-0", "c-3", "c-2", "c-1"]


def test_a_full_line_turns_away_at_once() -> None:
    arrivals = [arrival(number, number / 1000) for number in range(5)]
    _, closed = simulate(machines(1, cap=1), arrivals, line_bound=2)
    statuses = [closed[f"c-{number}"].entry.status for number in range(5)]
    assert statuses == [200, 200, 200, 503, 503]
    assert closed["c-4"].entry.reason == "line_full"
    assert closed["c-4"].entry.ended == START + 0.004


def test_a_wait_ends_at_the_total_timer() -> None:
    arrivals = [arrival(0, output=1001), arrival(1)]  # the first would take 10.1 s
    _, closed = simulate(machines(1, cap=1), arrivals, timers=Timers(total=2.0))
    assert (closed["c-1"].entry.outcome, closed["c-1"].entry.status) == ("refused", 503)
    assert closed["c-1"].entry.ended == pytest.approx(START + 2.0)
    assert closed["c-0"].entry.reason == "timeout: total"
    assert closed["c-0"].entry.ended == pytest.approx(START + 2.0)


def test_load_is_spread_by_two_choices() -> None:
    _, closed = simulate(machines(4), [arrival(number, number / 100) for number in range(400)])
    used = Counter(one.entry.attempts[0].replica for one in closed.values())
    assert len(used) == 4
    assert max(used.values()) < 1.2 * min(used.values())


# ---- chance


def test_the_same_seed_gives_the_same_entries() -> None:
    faults = Faults(refuse=0.1, hang=0.05, cut=0.1)
    runs = [
        simulate(machines(3, 4, faults), traffic(100, seed=1), seed=seed, timers=Timers(first_byte=3.0))[1]
        for seed in (7, 7, 8)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_fault_hits_the_same_call_whatever_else_arrives() -> None:
    fleet = machines(1, faults=Faults(refuse=0.3, cut=0.3))
    few = [arrival(number, number) for number in range(0, 60, 2)]
    many = [arrival(number, number) for number in range(60)]
    breaker = Breaker(failures=10_000)
    _, alone = simulate(fleet, few, breaker=breaker)
    _, together = simulate(fleet, many, breaker=breaker)
    for each in few:
        assert alone[each.call.id].entry.outcome == together[each.call.id].entry.outcome


# ---- clients that leave


def test_a_client_that_leaves_mid_stream_is_charged_what_was_made() -> None:
    _, closed = simulate(machines(1), [arrival(1, leaves=0.155)])
    entry = closed["c-1"].entry
    assert (entry.outcome, entry.status) == ("hung_up", 200)
    assert (entry.attempts[0].output_tokens, entry.attempts[0].usage) == (6, "counted")
    assert entry.ended == pytest.approx(START + 0.155)


def test_a_client_that_leaves_before_the_first_token() -> None:
    _, closed = simulate(machines(1), [arrival(1, leaves=0.05)])
    entry = closed["c-1"].entry
    assert (entry.outcome, entry.status, entry.attempts[0].output_tokens) == ("hung_up", 499, None)


def test_a_client_that_leaves_the_line_lets_the_next_one_through() -> None:
    arrivals = [arrival(0), arrival(1, 0.01, leaves=0.05), arrival(2, 0.02)]
    _, closed = simulate(machines(1, cap=1), arrivals)
    assert (closed["c-1"].entry.outcome, closed["c-1"].entry.attempts) == ("hung_up", ())
    assert closed["c-2"].entry.attempts[0].claimed == pytest.approx(START + 0.2)


def test_leaving_after_the_end_changes_nothing() -> None:
    _, closed = simulate(machines(1), [arrival(1, leaves=5.0)])
    assert closed["c-1"].entry.outcome == "finished"


def test_who_leaves_gives_the_others_their_speed_back() -> None:
    """From the end of the step in progress: both prompts are in it, and it takes 0.2 s."""
    _, closed = simulate(machines(1), [arrival(1), arrival(2, leaves=0.1)])
    assert closed["c-1"].entry.ended == pytest.approx(START + 0.3)
    _, closed = simulate(machines(1), [arrival(1), arrival(2, leaves=0.25)])
    assert closed["c-1"].entry.ended == pytest.approx(START + 0.2 + 0.06 + 0.07, abs=0.0101)


# ---- replicas that fail


def test_a_refused_call_is_tried_on_another_replica() -> None:
    fleet = [replace(machines(2)[0], faults=Faults(refuse=1.0)), machines(2)[1]]
    _, closed = simulate(fleet, [arrival(number, number) for number in range(20)])
    assert {one.entry.outcome for one in closed.values()} == {"finished"}
    retried = [one.entry for one in closed.values() if len(one.entry.attempts) == 2]
    assert retried
    for entry in retried:
        assert [(a.replica, a.number) for a in entry.attempts] == [("r0", 1), ("r1", 2)]
        assert entry.trail[1] == "r0 failed (status 503): tries another"


def test_an_answer_that_never_begins_ends_at_the_first_byte_timer() -> None:
    fleet = machines(1, faults=Faults(hang=1.0))
    _, closed = simulate(fleet, [arrival(1)], timers=Timers(first_byte=3.0))
    one = closed["c-1"]
    assert (one.entry.outcome, one.entry.status, one.entry.reason) == ("failed", 504, "timeout: first byte")
    assert one.entry.ended == pytest.approx(START + 3.0)
    assert one.refusal is not None
    assert one.refusal.code == "timeout_first_byte"


def test_a_stream_that_is_cut_is_not_tried_again() -> None:
    _, closed = simulate(machines(2, faults=Faults(cut=1.0)), [arrival(1, output=20)])
    entry = closed["c-1"].entry
    assert (entry.outcome, entry.reason, len(entry.attempts)) == ("failed", "cut", 1)
    assert entry.attempts[0].output_tokens == 10


def test_an_unstreamed_answer_that_is_cut_is_tried_again() -> None:
    fleet = [replace(machines(2)[0], faults=Faults(cut=1.0)), machines(2)[1]]
    _, closed = simulate(fleet, [arrival(number, number, stream=False) for number in range(10)])
    assert {one.entry.outcome for one in closed.values()} == {"finished"}
    assert {len(one.entry.attempts) for one in closed.values()} == {1, 2}


def test_a_machine_that_dies_fails_its_calls_and_comes_back() -> None:
    budget = RetryBudget()
    simulation = Simulation(machines(1), World(Breaker(), budget), rules=Rules(hold=10.0))
    simulation.arrive([arrival(1), arrival(2, 0.5), arrival(3, 2.0), arrival(4, 30.0)])
    simulation.dies("r0", START + 0.15, back=START + 5.0, noticed=1.0)
    closed = {one.entry.id: one.entry for one in simulation.run()}
    assert (closed["c-1"].outcome, closed["c-1"].reason) == ("failed", "cut")
    assert (closed["c-2"].outcome, closed["c-2"].status, closed["c-2"].reason) == ("failed", 502, "connect")
    assert closed["c-3"].trail[0] == "waits: no replica is ready; held while one comes up"
    assert closed["c-3"].attempts[0].claimed == START + 5.0
    assert closed["c-4"].outcome == "finished"
    assert [state.in_flight for state in simulation.world.states] == [0]


def test_a_machine_that_stays_away_costs_a_held_call_its_patience() -> None:
    simulation = Simulation(machines(1), World(Breaker(), RetryBudget()), rules=Rules(hold=3.0))
    simulation.arrive([arrival(1, 2.0)])
    simulation.dies("r0", START, noticed=0.0)
    (closed,) = simulation.run()
    assert (closed.entry.outcome, closed.entry.status) == ("refused", 503)
    assert closed.entry.ended == pytest.approx(START + 5.0)


def test_a_death_that_is_over_before_the_probe_is_never_seen() -> None:
    simulation = Simulation(machines(1), World(Breaker(), RetryBudget()))
    simulation.arrive([arrival(1, 0.6)])
    simulation.dies("r0", START, back=START + 0.5, noticed=1.0)
    (closed,) = simulation.run()
    assert closed.entry.outcome == "finished"


def test_the_line_moves_when_a_breaker_has_rested() -> None:
    """Nothing happens at that moment, so only the sweep can notice."""
    simulation = Simulation(
        machines(1), World(Breaker(failures=1, rest=4.0), RetryBudget()), rules=Rules(max_attempts=1, hold=20.0)
    )
    simulation.arrive([arrival(1), arrival(2, 1.0)])
    simulation.dies("r0", START + 0.15, back=START + 0.2)
    closed = {one.entry.id: one.entry for one in simulation.run()}
    assert closed["c-1"].reason == "cut"
    assert closed["c-2"].outcome == "finished"
    assert START + 4.15 <= closed["c-2"].attempts[0].claimed <= START + 4.15 + 0.1 + 1e-6


def test_a_machine_that_comes_back_has_forgotten_its_prompts() -> None:
    shared = array("Q", range(1, 7)).tobytes()
    fleet = [replace(one, settings=Settings(hashed_tokens=16)) for one in machines(1)]
    simulation = Simulation(fleet, World(Breaker(), RetryBudget()))
    simulation.arrive(arrival(number, 10.0 * number, blocks=shared) for number in range(3))
    simulation.dies("r0", START + 15.0, back=START + 16.0, noticed=2.0)
    cached = [one.entry.attempts[0].cached_tokens for one in simulation.run()]
    assert cached == [0, 96, 0]
    assert simulation.spent["r0"].cached == 96


def test_a_request_takes_its_time_to_reach_the_engine() -> None:
    fleet = [replace(one, front=0.05) for one in machines(1)]
    _, closed = simulate(fleet, [arrival(1), arrival(2, 5.0, leaves=5.03)])
    (attempt,) = closed["c-1"].entry.attempts
    assert attempt.first_token == pytest.approx(START + 0.15)
    assert closed["c-2"].entry.attempts[0].output_tokens is None


@pytest.mark.parametrize("front", [0.0, 0.01])
def test_an_engine_with_a_bounded_line_refuses_and_another_answers(front: float) -> None:
    one, other = machines(2)
    small = replace(one, settings=Settings(running=1, queue=0), front=front)
    _, closed = simulate([small, other], [arrival(number, 0.001 * number) for number in range(8)])
    retried = [each.entry for each in closed.values() if len(each.entry.attempts) == 2]
    assert {entry.attempts[0].reason for entry in retried} == {"status 503"}
    assert {each.entry.outcome for each in closed.values()} == {"finished"}


@pytest.mark.parametrize("front", [0.0, 0.01])
def test_a_call_too_long_for_the_engine_is_the_clients_fault(front: float) -> None:
    fleet = [replace(one, settings=Settings(kv_tokens=64), front=front) for one in machines(2)]
    _, closed = simulate(fleet, [arrival(1)])
    assert (closed["c-1"].entry.status, len(closed["c-1"].entry.attempts)) == (400, 1)


def test_a_sink_takes_the_place_of_the_list() -> None:
    seen: list[str] = []
    simulation = Simulation(machines(2), World(Breaker(), RetryBudget()), sink=lambda one: seen.append(one.entry.id))
    simulation.arrive(arrival(number, 0.1 * number) for number in range(5))
    assert simulation.run() == []
    assert sorted(seen) == [f"c-{number}" for number in range(5)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0, 2, 50]),
    st.sampled_from([Faults(), Faults(0.2, 0.1, 0.2), Faults(hang=1.0), Faults(refuse=1.0)]),
)
def test_whatever_happens_each_call_has_its_entry(
    seed: int, fleet: int, cap: int | None, line_bound: int, faults: Faults
) -> None:
    simulate(
        machines(fleet, cap, faults),
        traffic(40, seed),
        seed=seed,
        line_bound=line_bound,
        timers=Timers(first_byte=1.0, total=4.0),
        rules=Rules(hold=1.0),
    )


# ---- parity: the same events give the same entry under the scripted driver


def even(plan: Plan, view: View) -> Plan:
    """A made-up lever, so that a trail holds more than the baseline's words."""
    return plan.because(f"even: {len(view.replicas)} replicas seen at {view.now:.3f}")


@pytest.mark.parametrize("seed", range(5))
def test_the_scripted_driver_gives_the_same_entry_for_the_same_events(seed: int) -> None:
    log: dict[str, list[Event]] = defaultdict(list)
    arrivals = traffic(150, seed, rate=16.0)
    timers, rules = Timers(first_byte=1.0, total=4.0), Rules(hold=1.0)
    _, closed = simulate(
        machines(3, 5, Faults(0.15, 0.05, 0.15)),
        arrivals,
        seed=seed,
        timers=timers,
        rules=rules,
        levers=[even],
        note=lambda call, event: log[call].append(event),
    )
    kinds = Counter(type(event).__name__ for events in log.values() for event in events)
    assert kinds.keys() >= {"Call", "View", "Claimed", "Reply", "Woken"}, "the log must hold every kind of event"
    assert any(len(one.entry.attempts) > 1 for one in closed.values())
    for each in arrivals:
        book = Playbook(each.call, [even], timers, rules)
        for event in log[each.call.id]:
            book.tell(event)
        assert book.closed == closed[each.call.id]


def test_the_simulator_answers_each_command_as_a_script_would() -> None:
    """The other way round: a life written by hand, beside what the simulator made of it."""
    log: list[Event] = []
    _, closed = simulate(machines(1), [arrival(1)], note=lambda _, event: log.append(event))
    seen, replied = log[1], log[3]
    assert isinstance(seen, View)
    assert isinstance(replied, Reply)
    book = Playbook(arrival(1).call)
    book.prepare()
    book.look(seen)
    book.grant(at=START)
    facts = {name: getattr(replied.attempt, name) for name in TIMED}
    book.send("finished", finish_reason="stop", started=True, **facts)
    assert book.closed == closed["c-1"]


TIMED = (
    "claimed",
    "ended",
    "sent",
    "first_byte",
    "first_token",
    "status",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "usage",
)
