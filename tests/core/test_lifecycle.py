"""Scripted lives: every way a call can end, and what its one entry says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.playbook import Playbook, call, reply, state, view
from wastegate.core.call import Stored
from wastegate.core.effects import Claim, Claimed, Look, Prepare, Queue, Send, Woken
from wastegate.core.fleet import View
from wastegate.core.ledger import Flew
from wastegate.core.lifecycle import may_retry
from wastegate.core.plan import Plan, Rules, Timers

TWO = view(state("a"), state("b"))


def started(seen: View = TWO, **members: Any) -> Playbook:
    """A call that is being sent to its first replica."""
    book = Playbook(call(**members))
    book.prepare()
    book.look(seen)
    book.grant()
    return book


def test_a_finished_call_has_one_entry_with_what_the_engine_said() -> None:
    book = started()
    book.send(
        "finished", status=200, started=True, finish_reason="stop", prompt_tokens=30, output_tokens=600, usage="engine"
    )
    closed = book.closed
    assert closed.refusal is None
    entry = closed.entry
    assert (entry.outcome, entry.status, entry.finish_reason) == ("finished", 200, "stop")
    assert entry.length_class == "medium"
    assert [attempt.replica for attempt in entry.attempts] == ["a"]
    assert entry.trail == ("baseline: a (0 in flight) before b (0)",)
    assert (entry.arrived, entry.ended) == (100.0, 101.0)


def test_a_call_whose_answer_is_at_hand_ends_at_once_and_costs_nothing() -> None:
    book = Playbook(call())
    book.expect(Prepare)
    book.tell(replace(book.call, stored=Stored("c-0", 100.2, 12.0, "stop", 30, None)))
    entry = book.closed.entry
    assert (entry.outcome, entry.status, entry.attempts, entry.ended) == ("finished", 200, (), 100.2)
    assert entry.trail == ("answer cache: as c-0 was 12.0 s ago: saves its 30 tokens",)
    assert entry.flew == Flew("c-0", 30, None)
    assert entry.was_stored
    assert not replace(entry, trail=()).was_stored


def test_a_failed_attempt_is_tried_elsewhere_and_both_are_kept() -> None:
    book = started()
    book.send("failed", reason="connect: refused")
    seen = book.expect(Look)
    assert [attempt.replica for attempt in seen.tried] == ["a"]
    book.look(TWO)
    assert book.expect(Claim).plan.number == 2
    book.grant()
    book.send("finished", status=200, started=True)
    entry = book.closed.entry
    assert [(a.number, a.replica, a.outcome) for a in entry.attempts] == [(1, "a", "failed"), (2, "b", "finished")]
    assert entry.trail[1] == "a failed (connect: refused): tries another"
    assert entry.outcome == "finished"


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("connect: refused", 502, "upstream_failed"),
        ("timeout: first byte", 504, "timeout_first_byte"),
        ("timeout: connect", 504, "timeout_connect"),
        ("shutdown", 503, "shutdown"),
    ],
)
def test_the_last_failure_is_told_to_the_client(reason: str, status: int, code: str) -> None:
    book = started(view(state("a")))
    book.send("failed", reason=reason)
    closed = book.closed
    assert closed.refusal is not None
    assert (closed.refusal.status, closed.refusal.code) == (status, code)
    assert "a" in closed.refusal.message
    assert (closed.entry.outcome, closed.entry.status) == ("failed", status)


def test_what_the_gateways_own_end_cut_short_is_not_tried_again() -> None:
    book = started()
    book.send("failed", reason="shutdown")
    assert len(book.closed.entry.attempts) == 1


def test_a_replicas_own_error_is_passed_on() -> None:
    book = started()
    book.send("failed", status=400, reason="status 400")
    assert book.closed.refusal is None
    assert (book.closed.entry.outcome, book.closed.entry.status) == ("failed", 400)


def test_an_answer_that_was_cut_after_it_began_is_final() -> None:
    book = started()
    book.send("failed", status=200, started=True, reason="cut: it closed the connection")
    assert book.closed.refusal is not None, "the text of the terminal event"
    assert (book.closed.entry.outcome, book.closed.entry.status) == ("failed", 200)


def test_a_cut_before_the_first_byte_went_out_is_tried_elsewhere() -> None:
    book = started()
    book.send("failed", status=200, reason="cut: it closed the connection")
    book.look(TWO)
    assert book.expect(Claim).plan.number == 2
    book.grant()
    assert not book.expect(Send).continues


def test_a_stream_that_may_continue_goes_on_elsewhere() -> None:
    book = started(may_continue=True)
    book.send("failed", status=200, started=True, can_continue=True, reason="cut: it closed the connection")
    book.look(TWO)
    book.grant()
    assert book.expect(Send).continues
    book.send("finished", status=200, started=True, can_continue=True)
    entry = book.closed.entry
    assert (entry.outcome, len(entry.attempts)) == ("finished", 2)
    assert entry.trail[1] == "a failed (cut: it closed the connection): goes on from its text on another"


def test_a_client_that_left_before_any_byte_is_499_and_after_it_the_status_that_it_saw() -> None:
    before, after = started(), started()
    before.send("hung_up", started=False)
    after.send("hung_up", started=True, status=200)
    assert (before.closed.entry.status, before.closed.entry.outcome) == (499, "hung_up")
    assert (after.closed.entry.status, after.closed.entry.outcome) == (200, "hung_up")


def test_an_unknown_model_is_refused_with_the_names_that_are_served() -> None:
    book = Playbook(call(model="nope"))
    book.prepare()
    book.look(View(now=100.0, replicas=(), draw=0.0, known_models=("m", "n")))
    refusal = book.closed.refusal
    assert refusal is not None
    assert (refusal.status, refusal.message) == (404, "model 'nope' is not served here; served: m, n")
    assert (book.closed.entry.outcome, book.closed.entry.attempts) == ("refused", ())


def test_a_refused_claim_looks_again() -> None:
    book = Playbook(call())
    book.prepare()
    book.look(view(state("a")))
    book.expect(Claim)
    book.tell(Claimed(False, 100.1))
    book.look(view(state("a")))
    book.expect(Claim)
    book.tell(Claimed(False, 100.1))
    book.look(view(state("a")))
    book.grant()
    book.send("finished", status=200)
    assert book.closed.entry.trail.count("a: the slot was taken meanwhile") == 1


def test_a_call_waits_its_turn_and_says_so_once() -> None:
    full = view(state("a", cap=1, in_flight=1))
    book = Playbook(call())
    book.prepare()
    for _ in range(3):
        book.look(full)
        assert book.expect(Queue).wait.until == 100.0 + Timers().total
        book.tell(Woken("turn", 100.5))
    book.look(view(state("a", cap=1)))
    book.grant()
    book.send("finished", status=200)
    assert book.closed.entry.trail[0] == "waits: every replica is at its cap"
    assert len(book.closed.entry.trail) == 2


@pytest.mark.parametrize(
    ("why", "outcome", "status", "code"),
    [("full", "refused", 503, "line_full"), ("deadline", "refused", 503, "wait_over"), ("hung_up", "hung_up", 499, "")],
)
def test_a_wait_can_end_without_a_turn(why: str, outcome: str, status: int, code: str) -> None:
    book = Playbook(call())
    book.prepare()
    book.look(view(state("a", cap=1, in_flight=1)))
    book.expect(Queue)
    book.tell(Woken(why, 104.0))  # type: ignore[arg-type]
    closed = book.closed
    assert (closed.entry.outcome, closed.entry.status, closed.entry.ended) == (outcome, status, 104.0)
    assert (closed.refusal.code if closed.refusal else "") == code
    if closed.refusal:
        assert closed.refusal.retry_after is not None


def test_levers_see_the_plan_in_order_and_their_reasons_stay() -> None:
    def first(plan: Plan, seen: View) -> Plan:
        return plan.because("first")

    def second(plan: Plan, seen: View) -> Plan:
        return plan.because("second")

    book = Playbook(call(), (first, second))
    book.prepare()
    book.look(TWO)
    book.grant()
    book.send("finished", status=200)
    assert book.closed.entry.trail[1:] == ("first", "second")


def test_a_driver_that_answers_wrongly_is_told() -> None:
    book = Playbook(call())
    book.expect(Prepare)
    with pytest.raises(AssertionError, match="Prepare was answered by"):
        book.tell(Claimed(True, 1.0))
    for steps, kind in ((1, "Look"), (2, "Claim"), (3, "Send")):
        book = Playbook(call())
        book.prepare()
        if steps > 1:
            book.look(TWO)
        if steps > 2:
            book.grant()
        with pytest.raises(AssertionError, match=f"{kind} was answered by"):
            book.tell(book.call)
    book = Playbook(call())
    book.prepare()
    book.look(view(state("a", cap=1, in_flight=1)))
    with pytest.raises(AssertionError, match="Queue was answered by"):
        book.tell(book.call)


def test_a_plan_that_holds_nothing_is_a_bug_in_a_lever() -> None:
    def broken(plan: Plan, seen: View) -> Plan:
        return Plan(plan.call, plan.number, plan.timers)

    book = Playbook(call(), (broken,))
    book.prepare()
    with pytest.raises(AssertionError, match="a replica, a wait or a refusal"):
        book.look(TWO)


@pytest.mark.parametrize(
    ("facts", "retried"),
    [
        ({"reason": "connect: refused"}, True),
        ({"reason": "cut: it closed the connection"}, True),
        ({"reason": "timeout: connect"}, True),
        ({"reason": "timeout: first byte"}, False),
        ({"reason": "timeout: total"}, False),
        ({"status": 503, "reason": "status 503"}, True),
        ({"status": 500, "reason": "status 500"}, True),
        ({"status": 429, "reason": "status 429"}, False),
        ({"status": 400, "reason": "status 400"}, False),
        ({"status": 200, "reason": "cut: gone"}, True),
        ({"status": 200, "reason": "cut: gone", "started": True}, False),
        ({"status": 200, "reason": "cut: gone", "started": True, "can_continue": True}, True),
        ({"status": 200, "reason": "timeout: idle", "started": True, "can_continue": True}, True),
        ({"status": 200, "reason": "timeout: total", "started": True, "can_continue": True}, False),
        ({"reason": "connect: refused", "started": True, "can_continue": True}, True),
        ({"reason": "timeout: connect", "started": True, "can_continue": True}, True),
        ({"status": 503, "reason": "status 503", "started": True, "can_continue": True}, True),
        ({"status": 400, "reason": "status 400", "started": True, "can_continue": True}, False),
        ({"status": 200, "reason": "error event: boom", "started": True, "can_continue": True}, False),
    ],
)
def test_only_what_is_safe_is_retried(facts: dict[str, Any], retried: bool) -> None:
    failed = reply("a", "failed", **facts)
    assert may_retry(failed, (failed.attempt,), TWO, Rules()) is retried


def test_a_retry_needs_another_replica_an_attempt_left_and_budget() -> None:
    failed = reply("a", "failed", reason="connect: refused")
    tried = (failed.attempt,)
    assert not may_retry(failed, tried, view(state("a")), Rules())
    assert not may_retry(failed, tried, view(state("a"), state("b", state="down")), Rules())
    assert not may_retry(failed, tried, TWO, Rules(max_attempts=1))
    assert not may_retry(failed, tried, view(state("a"), state("b"), retry_allowed=False), Rules())
    assert may_retry(failed, tried, TWO, Rules(max_attempts=2))


def test_a_retry_that_finds_no_one_is_a_failure_not_a_refusal() -> None:
    book = started()
    book.send("failed", reason="connect: refused")
    book.look(view(state("a"), state("b", state="down"), now=120.0))
    closed = book.closed
    assert (closed.entry.outcome, closed.entry.status, len(closed.entry.attempts)) == ("failed", 503, 1)
    assert closed.refusal is not None
    assert "a failed this call" in closed.refusal.message
    assert "b is down" in closed.refusal.message
