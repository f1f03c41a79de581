"""One call, from arrival to ledger entry: a generator that yields commands and is sent events. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from msgspec.structs import replace

from wastegate.core.call import Call, Stored, length_class
from wastegate.core.effects import (
    Claim,
    Claimed,
    Closed,
    Command,
    Event,
    Join,
    Joined,
    Look,
    Prepare,
    Queue,
    Reply,
    Send,
    Woken,
)
from wastegate.core.fleet import View
from wastegate.core.ledger import ANSWERED, SHUTDOWN, Attempt, Entry, Flew, Outcome
from wastegate.core.plan import Plan, Refusal, Rules, Timers, baseline

Lever = Callable[[Plan, View], Plan]
Life = Generator[Command, Event, Closed]


def lifecycle(call: Call, levers: Sequence[Lever], timers: Timers, rules: Rules) -> Life:
    """Every path through here ends in exactly one Closed, whatever the driver answers."""
    call = _call((yield Prepare(call)))
    if call.stored is not None:
        return _stored(call, call.stored)
    tried: tuple[Attempt, ...] = ()
    trail: tuple[str, ...] = ()
    continues = False
    while True:
        view = _view((yield Look(call, tried)))
        plan = baseline(call, view, tried, timers, rules)
        for lever in levers:
            plan = lever(plan, view)
        if plan.wait is not None:
            trail = _note(trail, f"waits: {plan.wait.why}")
            woken = _woken((yield Queue(plan.call, plan.wait)))
            if woken.why == "turn":
                continue
            return _left_line(call, plan, woken, tried, trail)
        trail += plan.trail
        if plan.joins:
            joined = _joined((yield Join(plan)))
            if joined.outcome is not None:
                return _flown(call, plan, joined, tried, trail)
            trail = _note(trail, f"{plan.joins} gave no answer that could be shared: goes alone")
            call = replace(call, twin=b"")
            continue
        if plan.refusal is not None or plan.replica is None:
            return _refused(call, plan.refusal, view.now, tried, trail)
        claimed = _claimed((yield Claim(plan)))
        if not claimed.granted:
            trail = _note(trail, f"{plan.replica.name}: the slot was taken meanwhile")
            continue
        reply = _reply((yield Send(plan, claimed.at, continues)))
        tried += (reply.attempt,)
        if reply.attempt.outcome == "failed" and may_retry(reply, tried, view, rules):
            continues = reply.started
            goes_on = "goes on from its text on another" if continues else "tries another"
            trail += (f"{reply.attempt.replica} failed ({reply.attempt.reason}): {goes_on}",)
            continue
        return _answered(call, reply, tried, trail)


def may_retry(reply: Reply, tried: tuple[Attempt, ...], view: View, rules: Rules) -> bool:
    """Only what is safe: the fault is the replica's, another one is fit, and attempts and retry budget are left.

    Where part of the answer has gone out, the call must allow another replica to continue it. A fired timer is final,
    but for "connect", and for "idle" in the middle of a stream: the client has waited enough.
    """
    attempt = reply.attempt
    if attempt.reason == SHUTDOWN:
        return False
    if (reply.started and not reply.can_continue) or len(tried) >= rules.max_attempts or not view.retry_allowed:
        return False
    failed = {earlier.replica for earlier in tried}
    if not any(state.fit(view.now) for state in view.replicas if state.replica.name not in failed):
        return False  # one that is only full will do: the call then waits for it
    if attempt.status is not None and attempt.status >= 400:
        return attempt.status in rules.retry_statuses
    if attempt.reason.startswith("timeout"):
        return attempt.reason == "timeout: connect" or (reply.started and attempt.reason == "timeout: idle")
    return not reply.started or attempt.reason.startswith(("cut", "connect"))


def _answered(call: Call, reply: Reply, tried: tuple[Attempt, ...], trail: tuple[str, ...]) -> Closed:
    last = reply.attempt
    refusal = None
    status = last.status if last.status is not None else 502
    if last.outcome == "hung_up":
        status = status if reply.started else 499
    elif last.outcome == "failed" and (last.status is None or last.status < 400):
        refusal = _failure(last)  # no answer, or none that is whole
        status = status if reply.started else refusal.status
    entry = _entry(call, last.ended, last.outcome, status, last.reason, tried, trail, reply.finish_reason)
    return Closed(entry, refusal)


def _failure(last: Attempt) -> Refusal:
    """The gateway's own words for a replica that gave no answer, or only the beginning of one."""
    if last.reason == SHUTDOWN:
        return Refusal(503, f"the gateway was shut down before replica {last.replica} had answered", SHUTDOWN, 1.0)
    if last.reason.startswith("timeout"):
        timer = last.reason.removeprefix("timeout: ")
        message = f"replica {last.replica} did not answer in time: the {timer!r} timer fired"
        return Refusal(504, message, f"timeout_{timer.replace(' ', '_')}")
    return Refusal(502, f"replica {last.replica} failed: {last.reason}", "upstream_failed", 1.0)


def _refused(
    call: Call, refusal: Refusal | None, at: float, tried: tuple[Attempt, ...], trail: tuple[str, ...]
) -> Closed:
    assert refusal is not None, "a plan holds a replica, a wait or a refusal"
    outcome: Outcome = "failed" if tried else "refused"
    return Closed(_entry(call, at, outcome, refusal.status, refusal.code, tried, trail), refusal)


def _flown(call: Call, plan: Plan, joined: Joined, tried: tuple[Attempt, ...], trail: tuple[str, ...]) -> Closed:
    """Its answer was another call's, or the beginning of it."""
    assert joined.outcome is not None
    refusal = None
    if joined.outcome == "failed":
        message = f"call {plan.joins}, whose answer this one shared, did not bring it: {joined.reason}"
        refusal = Refusal(joined.status, message, "shared_flight_failed", 1.0)
    flew = Flew(plan.joins, joined.prompt_tokens, joined.output_tokens)
    entry = _entry(
        call, joined.at, joined.outcome, joined.status, joined.reason, tried, trail, joined.finish_reason, flew
    )
    return Closed(entry, refusal)


def _stored(call: Call, stored: Stored) -> Closed:
    """Its answer is at hand: nothing is computed, so it has no attempt and no cost."""
    count = sum(tokens or 0 for tokens in (stored.prompt_tokens, stored.output_tokens))
    why = f"{ANSWERED} as {stored.call} was {stored.age:.1f} s ago: saves its {count} tokens"
    flew = Flew(stored.call, stored.prompt_tokens, stored.output_tokens)
    return Closed(_entry(call, stored.at, "finished", 200, "", (), (why,), stored.finish_reason, flew))


def _left_line(call: Call, plan: Plan, woken: Woken, tried: tuple[Attempt, ...], trail: tuple[str, ...]) -> Closed:
    """The wait ended without a turn."""
    if woken.why == "hung_up":
        return Closed(_entry(call, woken.at, "hung_up", 499, "left while waiting", tried, trail))
    if woken.why == "full":
        refusal = Refusal(503, "the gateway's line is full; try again shortly", "line_full", 1.0)
    else:
        why = plan.wait.why if plan.wait is not None else ""
        refusal = Refusal(503, f"waited {woken.at - call.arrived:.1f} s in line ({why}); try again", "wait_over", 2.0)
    return _refused(call, refusal, woken.at, tried, trail)


def _entry(
    call: Call,
    ended: float,
    outcome: Outcome,
    status: int,
    reason: str,
    tried: tuple[Attempt, ...],
    trail: tuple[str, ...],
    finish_reason: str = "",
    flew: Flew | None = None,
) -> Entry:
    prompt, output = call.prompt_tokens, 0
    if flew is not None:
        prompt, output = flew.prompt_tokens or prompt, flew.output_tokens or output
    for attempt in tried:  # the last count known of each: a retry repeats the prompt
        prompt = attempt.prompt_tokens if attempt.prompt_tokens is not None else prompt
        output = attempt.output_tokens if attempt.output_tokens is not None else output
    return Entry(
        id=call.id,
        arrived=call.arrived,
        ended=ended,
        route=call.route,
        path=call.path,
        model=call.model,
        tenant=call.tenant,
        length_class=length_class(prompt, output),
        stream=call.stream,
        outcome=outcome,
        status=status,
        reason=reason,
        finish_reason=finish_reason,
        attempts=tried,
        trail=trail,
        tags=call.tags,
        client_id=call.client_id,
        traceparent=call.traceparent,
        blocks=call.blocks,
        prompt_bytes=call.prompt_bytes,
        divergence=call.divergence,
        flew=flew,
    )


def _note(trail: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """Add a reason once: a call that is woken often must not grow its trail."""
    return trail if reason in trail else (*trail, reason)


# The driver answers each command with one kind of event. These say so to the type checker and to a driver
# that gets it wrong.


def _call(event: Event) -> Call:
    assert isinstance(event, Call), f"Prepare was answered by {event!r}"
    return event


def _view(event: Event) -> View:
    assert isinstance(event, View), f"Look was answered by {event!r}"
    return event


def _woken(event: Event) -> Woken:
    assert isinstance(event, Woken), f"Queue was answered by {event!r}"
    return event


def _claimed(event: Event) -> Claimed:
    assert isinstance(event, Claimed), f"Claim was answered by {event!r}"
    return event


def _joined(event: Event) -> Joined:
    assert isinstance(event, Joined), f"Join was answered by {event!r}"
    return event


def _reply(event: Event) -> Reply:
    assert isinstance(event, Reply), f"Send was answered by {event!r}"
    return event
