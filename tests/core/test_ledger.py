"""The facts survive being written down and read back."""

from __future__ import annotations

import msgspec

from tests.playbook import reply
from wastegate.core.ledger import Entry, ReplicaSpan, Work


def test_an_entry_round_trips_as_json() -> None:
    attempt = reply("a", "finished", sent=100.2, first_token=100.5, prompt_tokens=3, output_tokens=0).attempt
    entry = Entry(
        id="x-1", arrived=100.0, ended=101.0, route="chat", path="/v1/chat/completions", model="m", tenant="t",
        length_class="short", stream=True, outcome="finished", status=200, attempts=(attempt,), trail=("because",),
        tags=(("team", "search"),), client_id="theirs",
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(entry), type=Entry) == entry


def test_a_count_that_nobody_reported_is_none_and_stays_so() -> None:
    attempt = reply("a", "failed").attempt
    again = msgspec.json.decode(msgspec.json.encode(attempt), type=type(attempt))
    assert again.output_tokens is None
    assert again.usage == "none"


def test_a_span_round_trips_with_its_work() -> None:
    span = ReplicaSpan("a", "serving", 1.0, None, 42_500_000, work=Work(1e-4, 2e-3, 1e-7, source="engine steps"))
    assert msgspec.json.decode(msgspec.json.encode(span), type=ReplicaSpan) == span
