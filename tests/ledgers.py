"""Made-up calls and replicas for tests of the ledger, attribution and audit: small to write, and drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from wastegate.core.ledger import Admission, Attempt, Entry, ReplicaSpan, Work

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
