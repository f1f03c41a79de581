"""Made-up calls and replicas for tests of the ledger, attribution and audit: small to write, and drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from wastegate.core.ledger import Admission, Attempt, EngineRecord, Entry, RecordGap, ReplicaSpan, Run, Work

HOURLY = 3_600_000_000_000
"""Nano-dollars an hour that make a second cost 1e9 of them: one dollar."""


def attempt(replica: str = "a", begin: float = 0.0, end: float = 1.0, **other: Any) -> Attempt:
    """A finished try that was sent as it was claimed."""
    given = {"number": 1, "outcome": "finished", "sent": begin, "usage": "engine", "status": 200, **other}
    return Attempt(replica=replica, claimed=begin, ended=end, **given)


def entry(id: str = "call", *attempts: Attempt, **other: Any) -> Entry:
    """A call that lasted as long as its attempts and ended as the last of them."""
    given = {
        "arrived": min((one.claimed for one in attempts), default=0.0),
        "ended": max((one.ended for one in attempts), default=0.0),
        "outcome": attempts[-1].outcome if attempts else "refused",
        "status": 200 if attempts else 503,
        "route": "chat",
        "path": "/v1/chat/completions",
        "model": "small",
        "tenant": "default",
        "length_class": "short",
        "stream": True,
        **other,
    }
    return Entry(id=id, attempts=attempts, **given)


def admission(id: str = "call", number: int = 0, at: float = 0.0, **other: Any) -> Admission:
    """What the journal is told when a call, or its attempt ``number``, begins."""
    given = {
        "arrived": at,
        "route": "chat",
        "path": "/v1/chat/completions",
        "model": "small",
        "tenant": "default",
        "stream": True,
        "prompt_tokens": 40,
        **({"replica": "a", "claimed": at} if number else {}),
        **other,
    }
    return Admission(id=id, number=number, **given)


def span(replica: str = "a", start: float = 0.0, end: float | None = 10.0, **other: Any) -> ReplicaSpan:
    """A replica that serves for a dollar a second."""
    given = {"phase": "serving", "price": HOURLY, **other}
    return ReplicaSpan(replica=replica, start=start, end=end, **given)


def run(start: float = 0.0, end: float = 1.0, steps: int = 1, **other: Any) -> Run:
    """Steps that did nothing unless told otherwise."""
    given = {"prefill": 0, "decode": 0, "draft": 0, "kv": 0.0, **other}
    return Run(start=start, end=end, steps=steps, **given)


def record(id: str = "call.1", *runs: Run, **other: Any) -> EngineRecord:
    """What vLLM says of a chat completion."""
    given = {
        "sequence": 1,
        "arrived": min((one.start for one in runs), default=0.0),
        "ended": max((one.end for one in runs), default=0.0),
        "finish": "stop",
        "prompt": sum(one.prefill for one in runs),
        "cached": 0,
        "output": sum(one.decode for one in runs) + 1,
        **other,
    }
    return EngineRecord(id=f"chatcmpl-{id}-0a1b2c3d", runs=runs, **given)


PLAIN = Work(prefill=0.001, decode=0.01, kv=0.0, fixed=0.0, source="a test")
"""Work whose shares can be reckoned in the head."""

# ---- drawn at random

# Quarters meet often: equal times, empty phases and edges that touch are where sweeps go wrong.
times = st.integers(0, 80).map(lambda quarter: quarter / 4) | st.floats(0.0, 20.0)
tokens = st.none() | st.integers(0, 5000)
works = st.builds(
    Work,
    prefill=st.floats(0.0, 0.1),
    decode=st.floats(0.0, 0.1),
    kv=st.floats(0.0, 1e-4),
    fixed=st.floats(0.0, 0.1),
    source=st.just("drawn"),
)


@st.composite
def attempts(draw: st.DrawFn, number: int = 1, earliest: float = 0.0) -> Attempt:
    """Any try that a gateway could record: never sent, without a first token, of no duration, over-long."""
    claimed = earliest + draw(times)
    sent = draw(st.none() | times.map(lambda wait: claimed + wait / 8))
    begin = claimed if sent is None else sent
    ended = begin + draw(times)
    first = draw(st.none() | st.floats(0.0, 1.0))
    return Attempt(
        number=number,
        replica=draw(st.sampled_from("abc")),
        claimed=claimed,
        ended=ended,
        outcome=draw(st.sampled_from(["finished", "failed", "hung_up", "lost"])),
        sent=sent,
        first_token=None if first is None else begin + first * (ended - begin),
        prompt_tokens=draw(tokens),
        cached_tokens=draw(tokens),
        output_tokens=draw(tokens),
        usage=draw(st.sampled_from(["engine", "counted", "estimated", "none"])),
    )


@st.composite
def calls(draw: st.DrawFn) -> list[Entry]:
    """Up to eight calls of up to three attempts."""
    made = []
    for number in range(draw(st.integers(0, 8))):
        tries: list[Attempt] = []
        for count in range(draw(st.integers(0, 3))):
            tries.append(draw(attempts(count + 1, tries[-1].ended if tries else 0.0)))
        made.append(entry(f"call-{number}", *tries))
    return made


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any stretch that a record could tell of, also one that makes no sense."""
    start = draw(times)
    return run(
        start,
        start + draw(times) / 4,
        draw(st.integers(0, 300)),
        prefill=draw(st.integers(0, 5000)),
        decode=draw(st.integers(0, 300)),
        draft=draw(st.integers(0, 1000)),
        kv=draw(st.floats(0.0, 1e6)),
    )


@st.composite
def told_calls(draw: st.DrawFn) -> tuple[list[Entry], list[EngineRecord]]:
    """Calls, and what engines tell of some of their attempts: of one perhaps twice, of others nothing."""
    made = draw(calls())
    ids = [f"{one.id}.{attempt.number}" for one in made for attempt in one.attempts]
    told = [
        record(id, *draw(st.lists(runs(), max_size=4)), measured=draw(st.sampled_from(["steps", "times"])))
        for id in ids
        for _ in range(draw(st.integers(0, 2)))
    ]
    return made, told


@st.composite
def gaps(draw: st.DrawFn) -> list[RecordGap]:
    """Times without records, on any replica."""
    starts = draw(st.lists(times, max_size=2))
    return [RecordGap(draw(st.sampled_from("abc")), start, start + draw(times), draw(st.none() | st.just(3)))
            for start in starts]  # fmt: skip


@st.composite
def spans(draw: st.DrawFn) -> list[ReplicaSpan]:
    """Replicas a and b in any phases, overlapping or with gaps, some without a price; never c."""
    made = {}
    for _ in range(draw(st.integers(0, 6))):
        start = draw(times)
        one = ReplicaSpan(
            replica=draw(st.sampled_from("ab")),
            phase=draw(st.sampled_from(["loading", "warmup", "serving", "draining"])),
            start=start,
            end=draw(st.none() | times.map(lambda length, start=start: start + length)),  # type: ignore[misc]
            seen=start + draw(times),
            price=draw(st.sampled_from([0, 1, 4_200_000_000, 777_777_777, HOURLY])),
            probe_seconds=draw(st.floats(0.0, 3.0)),
            work=draw(st.none() | works),
            kv_capacity=draw(st.none() | st.integers(1, 20_000)),
            joules=draw(st.none() | st.floats(0.0, 1e4)),
        )
        made[one.replica, one.phase, one.start] = one
    return list(made.values())


def text(most: int = 12) -> SearchStrategy[str]:
    """Any text that UTF-8 can hold."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=most)


@st.composite
def whole_entries(draw: st.DrawFn, id: str) -> Entry:
    """An entry with something in every field."""
    moment = st.floats(0, 4e9)
    tries = tuple(
        Attempt(
            number=number + 1,
            replica=draw(text()),
            claimed=draw(moment),
            ended=draw(moment),
            outcome=draw(st.sampled_from(["finished", "failed", "hung_up", "lost", "refused"])),
            sent=draw(st.none() | moment),
            first_byte=draw(st.none() | moment),
            first_token=draw(st.none() | moment),
            status=draw(st.none() | st.integers(100, 599)),
            reason=draw(text()),
            prompt_tokens=draw(tokens),
            cached_tokens=draw(tokens),
            output_tokens=draw(tokens),
            usage=draw(st.sampled_from(["engine", "counted", "estimated", "none"])),
        )
        for number in range(draw(st.integers(0, 3)))
    )
    return Entry(
        id=id,
        arrived=draw(moment),
        ended=draw(moment),
        route=draw(text()),
        path=draw(text()),
        model=draw(text()),
        tenant=draw(text()),
        length_class=draw(text()),
        stream=draw(st.booleans()),
        outcome=draw(st.sampled_from(["finished", "failed", "hung_up", "lost", "refused"])),
        status=draw(st.integers(0, 599)),
        reason=draw(text()),
        finish_reason=draw(text()),
        attempts=tries,
        trail=tuple(draw(st.lists(text(), max_size=3))),
        tags=tuple(draw(st.lists(st.tuples(text(), text()), max_size=3))),
        client_id=draw(text()),
        traceparent=draw(text()),
        blocks=draw(st.binary(max_size=24)),
    )
