"""Running counts for Prometheus: right, mergeable, and with labels that a client cannot blow up."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.ledger import ANSWERED, Attempt, Entry, Flew, Outcome
from wastegate.gateway.tally import Histogram, Paced, Report, Tally, exposition


def entry(outcome: Outcome = "finished", seconds: float = 2.0, *attempts: Attempt, route: str = "chat") -> Entry:
    return Entry(
        "c", 100.0, 100.0 + seconds, route, "/v1/chat/completions", "model", "tenant", "short", True, outcome, 200,
        attempts=attempts, client_id="client", tags=(("team", "red"),),
    )  # fmt: skip


def attempt(outcome: Outcome = "finished", replica: str = "r1", **members: Any) -> Attempt:
    return Attempt(1, replica, 100.0, 102.0, outcome, **members)


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def test_stored_answers_and_the_index_are_counted() -> None:
    tally = Tally()
    stored = replace(entry("finished", 0.0), trail=(f"{ANSWERED} as c-0",), flew=Flew("c-0", 30, 12))
    tally.count(stored)
    tally.count(replace(stored, flew=Flew("c-0", None, None)))
    report = Report(tally=tally, prefix_blocks=7, prefix_bytes=64, collisions=2)
    report.merge(Report(tally=tally, prefix_blocks=1, prefix_bytes=64, collisions=1))
    got = samples(exposition(report, ()))
    assert got["wastegate_answer_cache_hits_total"] == 4
    assert got["wastegate_answer_cache_tokens_total"] == 84
    assert got["wastegate_simhash_collisions_total"] == 3
    assert (got["wastegate_prefix_index_blocks"], got["wastegate_prefix_index_bytes"]) == (8, 128)
    assert "wastegate_prefix_index_blocks" not in samples(exposition(Report(), ()))


def test_what_has_ended_is_counted() -> None:
    tally = Tally()
    tally.count(entry("finished", 2.0, attempt(prompt_tokens=7, output_tokens=5, cached_tokens=4, first_token=100.3)))
    tally.count(entry("finished", 0.02, attempt("failed", "r2", prompt_tokens=7), attempt()))
    tally.count(entry("refused", 0.0, route="other"))
    tally.reject("body")
    tally.reject("body")
    got = samples(exposition(Report(3, 2, 1, "", tally), ()))
    assert got['wastegate_calls_total{outcome="finished",route="chat"}'] == 2
    assert got['wastegate_calls_total{outcome="refused",route="other"}'] == 1
    assert got['wastegate_attempts_total{outcome="finished",replica="r1"}'] == 2
    assert got['wastegate_attempts_total{outcome="failed",replica="r2"}'] == 1
    assert got['wastegate_rejected_total{reason="body"}'] == 2
    assert got["wastegate_prompt_tokens_total"] == 14
    assert got["wastegate_output_tokens_total"] == 5
    assert got["wastegate_cached_tokens_total"] == 4
    assert got["wastegate_unrecorded_calls_total"] == 1
    assert got["wastegate_waiting_calls"] == 2
    assert got['wastegate_time_to_first_token_seconds_bucket{le="0.25"}'] == 0
    assert got['wastegate_time_to_first_token_seconds_bucket{le="0.5"}'] == 1
    assert got["wastegate_call_duration_seconds_count"] == 3
    assert got["wastegate_call_duration_seconds_sum"] == 2.02


def test_buckets_only_ever_grow_and_end_in_the_count() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.01, 0.011, 1.0, 300.0, 301.0, 1e9):
        histogram.add(seconds)
    lines = histogram.lines("x_seconds", "Help.")
    buckets = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert buckets == sorted(buckets)
    assert buckets[0] == 2  # a bound is part of its bucket
    assert lines[-3:-2] == ['x_seconds_bucket{le="+Inf"} 7']
    assert lines[-1] == "x_seconds_count 7"


def test_the_fleet_as_it_stands() -> None:
    states = (
        ReplicaState(Replica("r1", "http://a"), "ready", in_flight=3),
        ReplicaState(Replica('odd "name"\\\n', "http://b"), "down"),
    )
    got = samples(exposition(Report(), states))
    assert got['wastegate_in_flight_calls{replica="r1"}'] == 3
    assert got['wastegate_replica_ready{replica="r1",state="ready"}'] == 1
    assert got['wastegate_replica_ready{replica="odd \\"name\\"\\\\\\n",state="down"}'] == 0


def test_every_family_has_its_help_and_type_once_and_no_label_of_a_clients() -> None:
    tally = Tally()
    tally.count(entry("finished", 1.0, attempt()))
    text = exposition(Report(tally=tally), ())
    types = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.M)
    helps = re.findall(r"^# HELP (\S+) ", text, re.M)
    names = [name for name, _ in types]
    assert names == helps
    assert len(set(names)) == len(names)
    for name, kind in types:
        assert (kind == "counter") == name.endswith("_total")
    assert not re.search(r"tenant|model|client|\"red\"", re.sub(r"^#.*$", "", text, flags=re.M))
    assert text.endswith("\n")


def test_two_processes_are_one_report() -> None:
    one, other = Tally(), Tally()
    for tally, seconds in ((one, 1.0), (other, 2.0)):
        tally.count(entry("finished", seconds, attempt(prompt_tokens=3, output_tokens=2, cached_tokens=1)))
        tally.reject("path")
    other.count(entry("lost", 1.0))
    report = Report(1, 2, 3, "", one)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(Report(10, 20, 30, "disk full", other)), type=Report)
    report.merge(sent)
    assert (report.flights, report.waiting, report.unrecorded, report.failing) == (11, 22, 33, "disk full")
    assert report.tally.outcomes == {"finished chat": 2, "lost chat": 1}
    assert report.tally.attempts == {"finished r1": 2}
    assert report.tally.rejected == {"path": 2}
    assert (report.tally.prompt_tokens, report.tally.output_tokens, report.tally.cached_tokens) == (6, 4, 2)
    assert report.tally.duration.total == 4.0
    assert sum(report.tally.duration.counts) == 3


def test_how_long_tokens_take_is_summed_for_streams_that_were_answered_whole() -> None:
    tally = Tally()
    tally.time(entry("finished", 2.0, attempt(output_tokens=11, first_token=101.0)))
    tally.time(entry("failed", 2.0, attempt("failed", output_tokens=11, first_token=101.0)))
    tally.time(entry("finished", 2.0, attempt(output_tokens=11), attempt(output_tokens=1, first_token=101.0)))
    assert tally.pace("r1") == Paced(1, 10, 1.0)
    assert tally.pace("r2") == Paced()
    other = Tally()
    other.time(entry("finished", 2.0, attempt(output_tokens=11, first_token=101.0), attempt("finished", "r2")))
    tally.merge(other)
    assert tally.pace("r1") == Paced(2, 20, 2.0)


def test_what_an_hour_costs_is_shown_where_somebody_has_said_it() -> None:
    states = (ReplicaState(Replica("a", "", price=2_500_000_000)), ReplicaState(Replica("b", "")))
    got = samples(exposition(Report(), states))
    assert {name: value for name, value in got.items() if "price" in name} == {
        'wastegate_replica_price_dollars_per_hour{replica="a"}': 2.5
    }


def test_what_no_collector_got_is_counted() -> None:
    report = Report(untold=2)
    report.merge(Report(untold=3))
    assert samples(exposition(report, ()))["wastegate_telemetry_dropped_calls_total"] == 5


def test_caps_are_shown_where_there_are_any() -> None:
    states = (ReplicaState(Replica("a", "", cap=12)), ReplicaState(Replica("b", "")))
    got = samples(exposition(Report(), states))
    assert {name: value for name, value in got.items() if "cap" in name} == {'wastegate_replica_cap{replica="a"}': 12}
