"""The streaming lever: what it changes about a plan, and what calls tell of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.ledgers import attempt, entry
from tests.playbook import Playbook, call, state, view
from wastegate.core.call import Divergence
from wastegate.core.effects import Claim, Join, Joined, Look
from wastegate.core.ledger import Entry, Flew
from wastegate.core.plan import Plan, Rules, Timers, baseline
from wastegate.levers import Config as Levers
from wastegate.levers import active
from wastegate.levers.streaming import Config, decide, measure

TWIN = b"0123456789abcdef"
FREE = view(state("a"))
LED = replace(FREE, twin="c-0")
ONE = Config(one_flight=True)


def plan(seen: Any = FREE, **members: Any) -> Plan:
    return baseline(call(**members), seen, (), Timers(), Rules())


@pytest.mark.parametrize("name", ["default_tokens", "most_tokens"])
def test_a_bound_below_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1: a bound in tokens, or 0 for none"):
        Config(**{name: -1})  # type: ignore[arg-type]


def test_what_is_compared_cannot_be_had_at_once() -> None:
    with pytest.raises(ValueError, match="one_flight does not go with buffered answers"):
        Config(one_flight=True, answers="buffered")


@pytest.mark.parametrize("config", [Config(), Config(watch_prefixes=True), Config(answers="buffered")])
def test_what_decides_nothing_is_not_asked(config: Config) -> None:
    assert not config.decides
    assert active(Levers(streaming=config)) == ()


# ---- one flight


def test_it_goes_along_with_one_that_asks_the_same() -> None:
    joining = decide(plan(LED, twin=TWIN), LED, ONE)
    assert (joining.joins, joining.replica, joining.wait, joining.refusal) == ("c-0", None, None, None)
    assert joining.trail[-1] == "streaming: flies along with c-0, which asks the same"


def test_it_goes_along_also_where_no_replica_could_take_it() -> None:
    full = view(state("a", cap=1, in_flight=1), twin="c-0")
    assert decide(plan(full, twin=TWIN), full, ONE).joins == "c-0"


@pytest.mark.parametrize(
    ("seen", "members", "config"),
    [
        (FREE, {"twin": TWIN}, ONE),
        (LED, {}, ONE),
        (LED, {"twin": TWIN}, Config(most_tokens=10)),
    ],
    ids=["nobody leads", "not to be shared", "off"],
)
def test_it_goes_by_itself(seen: Any, members: dict[str, Any], config: Config) -> None:
    assert decide(plan(seen, max_tokens=5, **members), seen, config).joins == ""


def test_a_retry_goes_by_itself() -> None:
    """Part of its own answer may be with its client."""
    again = replace(plan(LED, twin=TWIN), number=2)
    assert decide(again, LED, ONE) == again


def flying(**members: Any) -> Playbook:
    """A call that flies along."""
    book = Playbook(call(twin=TWIN, prompt_bytes=99, **members), active(Levers(streaming=ONE)))
    book.prepare()
    book.look(LED)
    assert book.expect(Join).plan.joins == "c-0"
    return book


def test_whoever_flies_along_has_an_entry_and_no_attempt() -> None:
    book = flying()
    book.tell(Joined(101.0, "finished", 200, "", "stop", 30, 700))
    entry = book.closed.entry
    assert (entry.outcome, entry.status, entry.finish_reason, entry.attempts) == ("finished", 200, "stop", ())
    assert (entry.flew, entry.length_class, entry.prompt_bytes) == (Flew("c-0", 30, 700), "medium", 99)
    assert book.closed.refusal is None


def test_tokens_that_nobody_knows_are_not_known() -> None:
    book = flying()
    book.tell(Joined(101.0, "hung_up", 499, "the client left"))
    entry = book.closed.entry
    assert (entry.outcome, entry.status, entry.reason, entry.flew) == ("hung_up", 499, "the client left", Flew("c-0"))
    assert book.closed.refusal is None


def test_an_end_of_its_own_is_told_in_words() -> None:
    book = flying()
    book.tell(Joined(101.0, "failed", 504, "timeout: total"))
    refusal = book.closed.refusal
    assert refusal is not None
    assert (refusal.status, refusal.code) == (504, "shared_flight_failed")
    assert refusal.message == "call c-0, whose answer this one shared, did not bring it: timeout: total"


def test_without_an_answer_to_share_it_goes_alone_and_joins_nobody_again() -> None:
    book = flying()
    book.tell(Joined(101.0, None))
    assert book.expect(Look).call.twin == b""
    book.look(LED)
    assert book.expect(Claim).plan.number == 1
    book.grant()
    book.send("finished", status=200, started=True)
    assert "c-0 gave no answer that could be shared: goes alone" in book.closed.entry.trail
    assert book.closed.entry.flew is None


# ---- bounds


@pytest.mark.parametrize(
    ("asked", "default", "most", "bound"),
    [
        (None, 0, 0, None),
        (None, 50, 0, 50),
        (None, 0, 80, 80),
        (None, 50, 80, 50),
        (None, 90, 80, 80),
        (60, 50, 0, None),
        (60, 50, 80, None),
        (80, 0, 80, None),
        (81, 0, 80, 80),
    ],
)
def test_how_long_an_answer_may_be(asked: int | None, default: int, most: int, bound: int | None) -> None:
    before = plan(max_tokens=asked)
    after = decide(before, FREE, Config(default_tokens=default, most_tokens=most))
    assert after.most_tokens == bound
    assert (after == before) == (bound is None)


def test_only_completions_have_a_length() -> None:
    before = plan(path="/v1/embeddings")
    assert decide(before, FREE, Config(most_tokens=5)) == before


def test_what_is_not_sent_is_not_bounded() -> None:
    full = view(state("a", cap=1, in_flight=1))
    before = plan(full)
    assert before.wait is not None
    assert decide(before, full, Config(most_tokens=5)) == before


# ---- the account


def done(name: str, at: float, prompt: int = 100, cached: int | None = 0, output: int = 100, **other: Any) -> Entry:
    return entry(
        name, attempt("a", at, at + 1, prompt_tokens=prompt, cached_tokens=cached, output_tokens=output), **other
    )


def test_nothing_measured_says_nothing() -> None:
    effect = measure([], Config())
    assert (effect.saved, effect.harmed, effect.n, effect.interval, effect.parts, effect.notes) == (
        None, None, 0, None, {}, (),
    )  # fmt: skip


def test_what_was_cached_and_what_flew_along_was_saved() -> None:
    calls = [
        done("1", 0.0),
        done("2", 10.0, cached=60),
        entry("3", arrived=20.0, outcome="finished", status=200, flew=Flew("2", 100, 100)),
        done("4", 30.0, cached=None, finish_reason="length", trail=("streaming: at most 100 tokens: …",)),
        done("5", 40.0, finish_reason="length"),
        entry("6", arrived=50.0),
    ]
    effect = measure(calls, Config())
    assert effect.n == 6
    assert effect.parts == {"prefix cache": 60 / 1000, "one flight": 200 / 1000}
    assert effect.saved == pytest.approx(0.26)
    assert effect.harmed == pytest.approx(1 / 6), "one was cut at a bound of ours; the other at its client's"
    assert effect.interval is not None
    assert effect.interval.low < 0.26 < effect.interval.high
    assert effect.notes == ("chat: 15% of prompt tokens could have come from a cache, 20% did",)


def test_calls_of_one_moment_have_no_interval() -> None:
    assert measure([done("1", 0.0), done("2", 0.0)], Config()).interval is None


def test_it_says_where_prompts_part() -> None:
    def call(name: str, at: float, again: int) -> Entry:
        return replace(done(name, at), prompt_bytes=1000, divergence=Divergence(40, "time", again))

    (note,) = measure([call("1", 0.0, 500), call("2", 1.0, 500)], Config()).notes
    assert note.endswith("0% did; prompts part most dearly at byte 40 (time)")
    (note,) = measure([call("1", 0.0, 0)], Config()).notes
    assert note == "chat: 0% of prompt tokens could have come from a cache, 0% did"
    (note,) = measure([done("1", 0.0, cached=None)], Config()).notes
    assert note == "chat: 0% of prompt tokens could have come from a cache, no engine says how much did"


def test_a_bound_that_is_lower_already_stays() -> None:
    for bound, most in ((50, 50), (900, 100), (None, 100)):
        before = replace(plan(), most_tokens=bound)
        assert decide(before, FREE, Config(most_tokens=100)).most_tokens == most
