"""What routing knows: caches, speeds and work, from what is sent, begun and ended."""

from __future__ import annotations

from array import array
from typing import Any

from msgspec.structs import replace

from tests.playbook import call as a_call
from tests.playbook import state
from wastegate.core.call import Call
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.ledger import Attempt
from wastegate.core.prefixes import Config
from wastegate.core.reuse import Reuse

FLEET = (state("a"), state("b"), state("c"))


def prompt(number: int, *blocks: int, **members: Any) -> Call:
    """A call of 100 tokens a block."""
    return a_call(id=f"c-{number}", blocks=array("Q", blocks).tobytes(), prompt_tokens=100 * len(blocks), **members)


def reuse(*fleet: ReplicaState, others: bool = False) -> Reuse:
    made = Reuse(Config(max_bytes=1 << 16), 300.0, 0.0, others)
    made.fleet(fleet or FLEET)
    return made


def answer(replica: str = "a", **members: Any) -> Attempt:
    base = Attempt(1, replica, 100.0, 101.0, "finished", 100.0, 100.2, 100.2, 200, prompt_tokens=400, usage="engine")
    return replace(base, **members)


def serve(known: Reuse, call: Call, replica: str, **members: Any) -> None:
    known.look(call, FLEET, 0.0)
    known.sent(call, replica, 0.0)
    known.began(call.id)
    known.ended(call.id, answer(replica, **members), 1.0)


def test_a_prompt_without_blocks_is_only_a_matter_of_waiting() -> None:
    known = reuse()
    outlook = known.look(prompt(1), FLEET, 0.0)
    assert outlook.cached == outlook.waits == (0.0, 0.0, 0.0)
    assert (outlook.home, outlook.chance, outlook.sequence) == (-1, 0.0, 1)
    assert outlook.confidence == ("GUESS",) * 3
    known.sent(prompt(1, prompt_bytes=4), "b", 0.0)
    assert known.look(prompt(2), FLEET, 0.0).sequence == 2


def test_an_unknown_prompt_has_a_home_and_a_known_one_has_holders() -> None:
    known = reuse()
    cold = known.look(prompt(1, 1, 2, 3, 4), FLEET, 0.0)
    assert cold.home in (0, 1, 2)
    assert cold.chance == 0.5
    serve(known, prompt(1, 1, 2, 3, 4), "b")
    warm = known.look(prompt(2, 1, 2, 9, 9), FLEET, 0.0)
    assert warm.cached == (0.0, 200.0, 0.0)
    assert (warm.home, warm.shared) == (-1, 0.0)


def test_what_most_hold_distinguishes_nobody() -> None:
    known = reuse()
    serve(known, prompt(1, 1, 2, 3), "a")
    serve(known, prompt(2, 1, 2, 4), "b")
    outlook = known.look(prompt(3, 1, 2, 5), FLEET, 0.0)
    assert outlook.cached == (200.0, 200.0, 0.0)
    assert outlook.shared == 200.0
    assert outlook.home >= 0
    serve(known, prompt(4, 1, 2, 6), "c")
    assert known.look(prompt(5, 1, 2, 5), FLEET, 0.0).cached == (200.0, 200.0, 200.0)
    # All of it is shared: its home goes by its last block.
    assert known.look(prompt(6, 1, 2), FLEET, 0.0).home >= 0


def test_load_is_work_until_the_first_token_and_a_slowdown_after_it() -> None:
    known = reuse()
    call = prompt(1, 1, 2, 3, 4)
    known.look(call, FLEET, 0.0)
    known.sent(call, "a", 0.0)
    waits = known.look(prompt(2, 7), FLEET, 0.0).waits
    assert waits[0] == 400 * 1e-4
    assert waits[1:] == (0.0, 0.0)
    known.began("c-1")
    known.began("c-1")
    known.began("unknown")
    assert known.look(prompt(3, 7), FLEET, 0.0).waits[0] == 1e-2
    known.ended("c-1", answer(), 1.0)
    known.ended("c-1", answer(), 1.0)
    assert known.look(prompt(4, 7), FLEET, 0.0).waits[0] == 0.0


def test_a_cached_prompt_is_less_work() -> None:
    known = reuse()
    serve(known, prompt(1, 1, 2, 3, 4), "a")
    known.sent(prompt(2, 1, 2, 8, 9), "a", 0.0)  # not looked at just before
    assert known.look(prompt(3, 7), FLEET, 0.0).waits[0] == 200 * known._paces["a"].rate


def test_what_other_processes_sent_counts_by_number() -> None:
    known = reuse(others=True)
    busy = (state("a", in_flight=3), state("b"), state("c"))
    known.sent(prompt(1), "a", 0.0)
    assert known.look(prompt(2), busy, 0.0).waits == (2 * 1e-2, 0.0, 0.0)


def test_a_prompt_that_was_not_taken_is_not_held() -> None:
    known = reuse()
    serve(known, prompt(1, 1, 2), "a")
    known.sent(prompt(2, 1, 2, 3, 4), "a", 0.0)
    known.ended("c-2", answer(status=503, outcome="failed"), 1.0)
    assert known.look(prompt(3, 1, 2, 3, 4), FLEET, 0.0).cached[0] == 200.0
    known.sent(prompt(4, 5), "b", 0.0)
    known.ended("c-4", answer("b", first_byte=None, first_token=None, outcome="failed"), 1.0)
    assert known.look(prompt(5, 5), FLEET, 0.0).cached[1] == 0.0


def test_speed_is_learned_from_what_had_to_be_computed() -> None:
    known = reuse()
    for number in range(40):
        call = prompt(number, number * 10, number * 10 + 1, number * 10 + 2, number * 10 + 3)
        known.look(call, FLEET, 0.0)
        known.sent(call, "a", 0.0)
        known.began(call.id)
        known.ended(call.id, answer(cached_tokens=200, first_token=100.0 + (0.2 if number % 2 else 0.21)), 1.0)
    assert known.look(prompt(99), FLEET, 0.0).confidence == ("DEGRADED", "GUESS", "GUESS")
    assert 0.0 < known._paces["a"].rate < 2e-3


def test_an_answer_without_a_first_token_teaches_no_speed() -> None:
    known = reuse()
    before = known._pace("a").rate
    serve(known, prompt(1, 1), "a", first_token=None, cached_tokens=0)
    serve(known, prompt(2, 1), "a", sent=None, prompt_tokens=None)
    assert known._pace("a").rate == before


def test_a_cache_that_keeps_missing_is_another_one() -> None:
    known = reuse()
    serve(known, prompt(1, 1, 2), "a", cached_tokens=0)
    serve(known, prompt(2, 5, 6), "a", cached_tokens=0)
    assert known.look(prompt(3, 5, 6), FLEET, 0.0).cached[0] == 200.0
    for number in range(4, 7):
        serve(known, prompt(number, 1, 2), "a", cached_tokens=0)
    assert known.look(prompt(8, 5, 6), FLEET, 0.0).cached == (0.0, 0.0, 0.0)


def test_luck_is_how_often_a_cold_prompt_was_cached_all_the_same() -> None:
    known = reuse()
    for number in range(100):
        serve(known, prompt(number, 1000 + number), "abc"[number % 3], cached_tokens=300)
    assert known.look(prompt(200, 5), FLEET, 0.0).chance > 0.9
    for number in range(100):
        serve(known, prompt(number, 2000 + number), "abc"[number % 3], cached_tokens=0)
    assert known.look(prompt(201, 6), FLEET, 0.0).chance < 0.2


def test_a_restarted_a_moved_and_a_gone_replica_hold_nothing() -> None:
    def held(known: Reuse, fleet: tuple[ReplicaState, ...] = FLEET) -> tuple[float, ...]:
        return known.look(prompt(9, 1), fleet, 0.0).cached

    known = reuse()
    serve(known, prompt(1, 1), "a")
    known.fleet((state("a", state="loading"), *FLEET[1:]))
    known.fleet(FLEET)
    assert held(known) == (0.0, 0.0, 0.0)

    serve(known, prompt(2, 1), "a")
    moved = ReplicaState(Replica("a", "http://elsewhere", ("m",)), "ready")
    known.fleet((moved, *FLEET[1:]))
    assert held(known) == (0.0, 0.0, 0.0)

    serve(known, prompt(3, 1), "b")
    known.fleet(FLEET[:1])
    known.fleet(FLEET)
    assert held(known) == (0.0, 0.0, 0.0)

    serve(known, prompt(4, 1), "b")
    known.fleet((FLEET[0], state("b", state="draining"), FLEET[2]))
    known.regroup()
    assert held(known) == (0.0, 100.0, 0.0)


def test_a_call_that_outlives_its_replica_is_let_go() -> None:
    known = reuse()
    call = prompt(1, 1)
    known.look(call, FLEET, 0.0)
    known.sent(call, "a", 0.0)
    known.fleet(FLEET[1:])
    known.ended("c-1", answer(cached_tokens=0), 1.0)
    assert known.look(prompt(2, 1), FLEET[1:], 0.0).cached == (0.0, 0.0)


def test_model_names_that_clients_make_up_are_bounded() -> None:
    known = reuse()
    for number in range(1000):
        known.look(prompt(number, model=f"m{number}"), FLEET, 0.0)
    assert len(known._groups) <= 256
    assert len(known.look(prompt(1, model="m1"), FLEET[:2], 0.0).waits) == 2


def test_a_prompt_like_one_before_it_is_known_by_its_likeness() -> None:
    known = reuse()
    known.sent(prompt(1, 1, likeness=0x1111_2222_3333_4440), "b", 0.0)
    known.sent(prompt(2, likeness=0x5555_6666_7777_8880), "c", 0.0)
    assert known.look(prompt(3, 2, likeness=0x1111_2222_3333_4441), FLEET, 1.0).stuck == "b"
    assert known.look(prompt(4, 2), FLEET, 1.0).stuck == ""


def test_replicas_beyond_the_index_are_never_thought_to_hold_anything() -> None:
    fleet = tuple(state(f"r{number}") for number in range(66))
    known = reuse(*fleet)
    call = prompt(1, 1)
    known.look(call, fleet, 0.0)
    known.sent(call, "r65", 0.0)
    known.ended("c-1", answer("r65"), 1.0)
    assert known.look(prompt(2, 1), fleet, 0.0).cached[65] == 0.0


def test_each_model_has_its_own_fleet() -> None:
    known = reuse()
    known.look(prompt(1, 1), FLEET, 0.0)
    known.look(prompt(2, 1, model="other"), FLEET[1:], 0.0)
    serve(known, prompt(3, 1), "a")
    assert known.look(prompt(4, 1), FLEET, 0.0).cached == (100.0, 0.0, 0.0)
    assert known.look(prompt(5, 1, model="other"), FLEET[1:], 0.0).cached == (0.0, 0.0)


def test_two_of_many_hold_more_than_the_rest() -> None:
    fleet = tuple(state(name) for name in "abcde")
    known = reuse(*fleet)
    for name in "abcde":
        known.sent(prompt(1, 1), name, 0.0)
    for name in "bd":
        known.sent(prompt(2, 1, 2), name, 0.0)
    assert known.look(prompt(3, 1, 2), fleet, 0.0).cached == (100.0, 200.0, 100.0, 200.0, 100.0)


def test_a_replica_that_has_left_the_group_is_not_counted_among_the_holders() -> None:
    known = reuse()
    serve(known, prompt(1, 1, 2), "a")
    serve(known, prompt(2, 1), "b")
    outlook = known.look(prompt(3, 1, 2, model="of b and c"), FLEET[1:], 0.0)
    assert outlook.cached == (100.0, 0.0)


def test_calls_that_begin_alike_are_counted_while_they_are_in_flight() -> None:
    known = reuse()
    for number in range(3):
        known.look(prompt(number, 1, 2, 10 + number), FLEET, 0.0)
        known.sent(prompt(number, 1, 2, 10 + number), "a", 0.0)
    assert known.look(prompt(9, 1, 2, 99), FLEET, 0.0).alike == 3
    assert known.look(prompt(9, 5), FLEET, 0.0).alike == 0
    for number in range(3):
        known.ended(f"c-{number}", answer(), 1.0)
    assert known.look(prompt(9, 1, 2, 99), FLEET, 0.0).alike == 0
    assert known._alike == {}


def test_a_call_that_does_not_stream_is_thought_to_begin_when_its_prefill_should_be_done() -> None:
    known = reuse()
    call = prompt(1, 1, 2, 3, 4, stream=False)
    known.look(call, FLEET, 0.0)
    known.sent(call, "a", 0.0)
    assert known.look(prompt(2, 7), FLEET, 0.039).waits[0] == 400 * 1e-4
    assert known.look(prompt(3, 7), FLEET, 0.041).waits[0] == 1e-2
    known.ended("c-1", answer(first_token=None), 1.0)
    assert known.look(prompt(4, 7), FLEET, 1.0).waits[0] == 0.0
