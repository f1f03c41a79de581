"""Columns say what the entries said, and keep "not known" apart from nothing."""

from __future__ import annotations

import numpy as np

from tests.ledgers import attempt, entry, record, run, span
from wastegate.core.facts import OUTCOMES, UNKNOWN, USAGES, cached_tokens, gather


def test_columns_say_what_the_entries_said() -> None:
    first = attempt("b", 1.0, 2.0, outcome="failed", usage="none")
    second = attempt("a", 2.0, 5.0, number=2, first_token=3.0, prompt_tokens=7, cached_tokens=0, output_tokens=9)
    facts = gather([entry("call", first, second, tags=(("team", "x"),))], [span()], 0.5, 9.0)
    tries, calls = facts.attempts, facts.calls
    assert (facts.start, facts.end, facts.replicas, facts.spans) == (0.5, 9.0, ("a", "b"), (span(),))
    assert tries.number.tolist() == [1, 2]
    assert tries.replica.tolist() == [1, 0]
    assert (tries.claimed.tolist(), tries.sent.tolist(), tries.ended.tolist()) == ([1, 2], [1, 2], [2, 5])
    assert [OUTCOMES[place] for place in tries.outcome] == ["failed", "finished"]
    assert [USAGES[place] for place in tries.usage] == ["none", "engine"]
    assert (calls.arrived.tolist(), calls.ended.tolist(), calls.stream.tolist()) == ([1], [5], [True])
    assert OUTCOMES[calls.outcome[0]] == "finished"
    named = [facts.names[int(code[0])] for code in (calls.route, calls.model, calls.tenant, calls.length_class)]
    assert named == ["chat", "small", "default", "short"]
    assert [
        (facts.names[int(k)], facts.names[int(v)]) for k, v in zip(facts.tags.key, facts.tags.value, strict=True)
    ] == [("team", "x")]


def test_what_did_not_happen_is_not_zero() -> None:
    tries = gather([entry("call", attempt(sent=None, first_token=None, cached_tokens=0))]).attempts
    assert np.isnan(tries.sent).all()
    assert np.isnan(tries.first_token).all()
    assert (tries.prompt[0], tries.output[0], tries.cached[0]) == (UNKNOWN, UNKNOWN, 0)


def test_the_order_in_which_entries_come_does_not_matter() -> None:
    some = [entry(name, attempt(begin=begin, end=9.0)) for begin, name in enumerate("xyz")]
    one, other = gather(some), gather(reversed(some))
    assert one.attempts.claimed.tolist() == other.attempts.claimed.tolist() == [0, 1, 2]


def test_nothing_gives_empty_columns() -> None:
    facts = gather([])
    assert (len(facts.attempts.call), len(facts.calls.key), len(facts.tags.call), facts.replicas) == (0, 0, 0, ())


def test_records_of_some_attempts_are_counted_anew() -> None:
    told = [record(f"{name}.1", *(run(float(n), n + 1.0) for n in range(runs))) for runs, name in enumerate("xyz", 1)]
    facts = gather([entry(name, attempt()) for name in "xyz"], records=told)
    some = facts.records.among(np.array([False, True, True]))
    assert some.attempt.tolist() == [0, 1]
    assert some.record.tolist() == [0, 0, 1, 1, 1]
    assert some.runs[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0, 2.0]
    assert facts.records.among(np.zeros(3, np.bool_)).attempt.size == 0


def test_what_was_cached_is_the_engines_word_where_it_gave_one() -> None:
    tries = [attempt(cached_tokens=5), attempt(cached_tokens=5), attempt(), attempt()]
    told = [record("y.1", cached=64), record("y.1", cached=32), record("z.1", cached=0)]
    facts = gather([entry(name, one) for name, one in zip("xyzu", tries, strict=True)], records=told)
    by_call = dict(zip("uxyz", cached_tokens(facts).tolist(), strict=True))
    assert by_call == {"x": 5, "y": 64, "z": 0, "u": UNKNOWN}
