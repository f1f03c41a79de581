"""An entry as spans: one for the call and one an attempt, in the client's trace, nothing said that is not known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from wastegate.core.ledger import Attempt, Entry, Flew
from wastegate.core.spans import Context, Event, Usage, context_of, first_token, labels, sampled, spans, usage

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
LOST = Attempt(1, "a", 10.1, 10.4, "failed", sent=10.2, status=503, reason="status 503")
WON = Attempt(
    2, "b", 10.5, 12.0, "finished", sent=10.5, first_byte=10.7, first_token=10.75, status=200,
    prompt_tokens=30, cached_tokens=16, output_tokens=7, usage="engine",
)  # fmt: skip
ENTRY = Entry(
    "c-1", 10.0, 12.0, "chat", "/v1/chat/completions", "small", "acme", "short", True, "finished", 200,
    finish_reason="stop", attempts=(LOST, WON), trail=("b: prefix cached",), tags=(("team", "search"),),
    traceparent=SAMPLED,
)  # fmt: skip


def test_a_call_is_one_span_with_one_in_it_for_each_attempt() -> None:
    call, first, second = spans(ENTRY)
    assert (call.name, call.kind, call.start, call.end, call.error) == ("chat small", "server", 10.0, 12.0, "")
    assert (call.trace, call.parent) == (int(TRACE, 16), int(PARENT, 16))
    assert {first.parent, second.parent} == {call.id}
    assert {first.trace, second.trace} == {call.trace}
    assert len({call.id, first.id, second.id}) == 3
    assert [(span.name, span.kind, span.start, span.end) for span in (first, second)] == [
        ("attempt a", "client", 10.1, 10.4),
        ("attempt b", "client", 10.5, 12.0),
    ]
    assert second.events == (Event("sent", 10.5), Event("first byte", 10.7), Event("first token", 10.75))
    assert (first.events, first.error, second.error) == ((Event("sent", 10.2),), "status 503", "")


def test_the_call_says_what_the_conventions_ask_and_what_is_ours() -> None:
    call, first, second = spans(ENTRY)
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "wastegate",
        "gen_ai.request.model": "small",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.75),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 7,
        "http.response.status_code": 200,
        "wastegate.call.id": "c-1",
        "wastegate.route": "chat",
        "wastegate.outcome": "finished",
        "wastegate.trail": ("b: prefix cached",),
    }
    assert first.attributes == {
        "wastegate.attempt": 1,
        "wastegate.replica": "a",
        "wastegate.outcome": "failed",
        "wastegate.reason": "status 503",
        "wastegate.usage": "none",
        "http.response.status_code": 503,
        "error.type": "failed",
    }
    assert second.attributes["wastegate.output_tokens"] == 7
    assert not any(name.startswith("gen_ai.") for span in (first, second) for name in span.attributes), "counted twice"


def test_who_is_billed_is_said_only_where_that_is_wanted() -> None:
    told = repr(spans(ENTRY))
    assert "acme" not in told
    assert "search" not in told
    call = spans(ENTRY, tenant=True)[0]
    assert (call.attributes["wastegate.tenant"], call.attributes["wastegate.tag.team"]) == ("acme", "search")


@pytest.mark.parametrize("outcome", ["failed", "refused", "lost"])
def test_what_went_wrong_is_an_error(outcome: Any) -> None:
    entry = replace(ENTRY, outcome=outcome, reason="", status=0, attempts=(replace(LOST, outcome=outcome, reason=""),))
    for span in spans(entry):
        assert (span.error, span.attributes["error.type"]) == (outcome, outcome)
        assert span.attributes.get("http.response.status_code") != 0
    assert spans(replace(entry, reason="timeout: total"))[0].error == "timeout: total"


def test_a_client_that_left_is_no_error_of_ours() -> None:
    for span in spans(replace(ENTRY, outcome="hung_up", attempts=(replace(WON, outcome="hung_up"),))):
        assert span.error == ""
        assert "error.type" not in span.attributes


def test_what_nobody_knows_is_not_said() -> None:
    call = spans(Entry("c-2", 1.0, 1.0, "other", "/v1/rerank", "", "t", "", False, "refused", 429))[0]
    assert call.name == "rerank"
    assert not any("usage" in name or "first" in name or "finish" in name for name in call.attributes)
    assert "gen_ai.request.model" not in call.attributes


def test_a_call_that_flew_with_another_names_it_and_used_nothing() -> None:
    entry = replace(ENTRY, attempts=(), flew=Flew("c-0", 30, 7))
    assert spans(entry)[0].attributes["wastegate.flew_with"] == "c-0"
    assert usage(entry) == Usage(None, None, None)


def test_tokens_of_all_attempts_count_and_the_first_first_token() -> None:
    both = replace(ENTRY, attempts=(replace(WON, number=1, first_token=10.3), WON))
    assert usage(both) == Usage(60, 32, 14)
    assert first_token(both) == pytest.approx(0.3)
    assert first_token(replace(ENTRY, attempts=(LOST,))) is None
    plain = spans(replace(ENTRY, stream=False))[0]
    assert "gen_ai.response.time_to_first_chunk" not in plain.attributes, "it was no stream"


def test_ids_follow_from_the_entry() -> None:
    assert spans(ENTRY) == spans(replace(ENTRY))
    alone, other = (spans(replace(ENTRY, id=id, traceparent=""))[0] for id in ("c-1", "c-2"))
    assert alone.parent == 0
    assert 0 < alone.trace < 1 << 128
    assert 0 < alone.id < 1 << 64
    assert (alone.trace, alone.id) != (other.trace, other.id)


def test_a_metric_has_no_label_that_a_client_can_blow_up() -> None:
    assert labels(ENTRY) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "wastegate",
        "gen_ai.request.model": "small",
        "wastegate.route": "chat",
        "wastegate.outcome": "finished",
    }
    refused = labels(replace(ENTRY, outcome="refused", model="made up"))
    assert "gen_ai.request.model" not in refused
    assert refused["error.type"] == "refused"


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (SAMPLED, Context(int(TRACE, 16), int(PARENT, 16), True)),
        (f"00-{TRACE}-{PARENT}-00", Context(int(TRACE, 16), int(PARENT, 16), False)),
        (f"cc-{TRACE}-{PARENT}-01-more", Context(int(TRACE, 16), int(PARENT, 16), True)),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        ("00-ab-cd-01", None),
        ("", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_has_it(text: str, context: Context | None) -> None:
    assert context_of(text) == context


def test_the_clients_word_on_sampling_counts_and_then_the_share() -> None:
    assert sampled(ENTRY, 0.0)
    assert not sampled(replace(ENTRY, traceparent=f"00-{TRACE}-{PARENT}-00"), 1.0)
    calls = [replace(ENTRY, id=f"c-{number}", traceparent="") for number in range(2000)]
    assert all(sampled(call, 1.0) for call in calls)
    assert not any(sampled(call, 0.0) for call in calls)
    assert 400 < sum(sampled(call, 0.25) for call in calls) < 600
