"""The sums add up, and a run that may not be believed says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.load.client import Answer
from wastegate.load.openloop import Progress, Result
from wastegate.load.prompts import Source
from wastegate.load.report import Facts, Report, spread, summarise
from wastegate.load.rows import Row
from wastegate.load.schedule import Planned
from wastegate.openai.sse import Usage

FATES = ("ok", "failed", "hung_up", "skipped", "not_reached")


def result(
    number: int = 1,
    at: float = 0.0,
    fate: str = "ok",
    *,
    late: float = 0.0,
    takes: float = 1.0,
    wanted: tuple[int | None, int] = (None, 4),
    usage: Usage | None = None,
    clipped: bool = False,
    **answer: Any,
) -> Result:
    sent = fate in FATES[:3]
    return Result(
        planned=Planned(
            number=number,
            row=Row(line=number),
            at=at,
            skip="too long" if fate == "skipped" else "",
            input_tokens=wanted[0],
            output_tokens=wanted[1],
            clipped=clipped,
        ),
        fate=fate,  # type: ignore[arg-type]
        start=1000.0,
        answer=Answer(
            sent=1000.0 + at + late if sent else None,
            first=1000.0 + at + late + takes / 2 if sent else None,
            ended=1000.0 + at + late + takes if sent else None,
            usage=usage,
            **answer,
        ),
    )


def report(
    *results: Result, held: int = 0, interrupted: bool = False, until: float | None = None, source: Source | None = None
) -> Report:
    progress = Progress(len(results))
    progress.held, progress.sending_ended = held, until
    facts = Facts(
        trace="t", format="azure", url="u", model="m", seed=0, source=source, max_inflight=8, interrupted=interrupted
    )
    return summarise(results, progress, facts)


@given(st.lists(st.sampled_from(FATES)))
def test_every_row_is_in_one_place(fates: list[str]) -> None:
    seen = report(*(result(number, float(number), fate, reason="cut") for number, fate in enumerate(fates)))
    assert seen.read == len(fates) == seen.sent + sum(seen.skipped.values()) + seen.not_reached
    assert seen.sent == seen.ok + sum(seen.failed.values()) + seen.hung_up
    assert seen.ok == fates.count("ok")
    assert seen.drift is None or seen.drift.count == seen.sent


def test_latency_and_tokens() -> None:
    usage = Usage(prompt_tokens=10, output_tokens=5, cached_tokens=4)
    seen = report(*(result(number, float(number), takes=2.0, usage=usage) for number in range(9)))
    assert seen.ttft is not None
    assert seen.tpot is not None
    assert seen.e2e is not None
    assert (seen.ttft.p50, seen.tpot.p95, seen.e2e.p99) == pytest.approx((1.0, 0.25, 2.0))
    assert (seen.seconds, seen.input_tokens, seen.output_tokens, seen.cached_tokens) == (10.0, 90, 45, 36)
    assert (seen.input_per_second, seen.output_per_second) == (9.0, 4.5)
    assert seen.usage == "engine"


@pytest.mark.parametrize(
    ("usages", "pieces", "said"),
    [((Usage(output_tokens=1),), 0, "engine"), ((None,), 3, "counted"), ((None,), 0, "none"),
     ((Usage(output_tokens=1), None), 3, "mixed")],
)  # fmt: skip
def test_who_counted_is_said(usages: tuple[Usage | None, ...], pieces: int, said: str) -> None:
    assert report(*(result(usage=usage, pieces=pieces) for usage in usages)).usage == said


def test_cached_tokens_are_unknown_where_nobody_says_them() -> None:
    assert report(result(usage=Usage(prompt_tokens=3))).cached_tokens is None


def test_rates_count_gaps() -> None:
    seen = report(*(result(number, number * 0.5) for number in range(21)))
    assert seen.rates.offered == pytest.approx(2.0)
    assert seen.rates.achieved == pytest.approx(2.0)
    assert seen.rates.completed == pytest.approx(21 / 11)
    assert seen.valid
    assert seen.invalid == ()


def test_a_single_row_and_a_single_instant_have_no_rate() -> None:
    for results in ([result()], [result(1), result(2)]):
        seen = report(*results)
        assert (seen.rates.offered, seen.rates.achieved) == (None, None)
        assert seen.valid


@pytest.mark.parametrize(("late", "valid"), [(0.02, True), (0.5, True), (0.6, False)])
def test_a_run_below_95_percent_of_the_offered_rate_is_invalid(late: float, valid: bool) -> None:
    """Ten seconds of sending: 0.5 s more leaves 95.7 %, 0.6 s more (with 0.05 s of grace) 94.8 %."""
    seen = report(*(result(number, float(number), late=late * number / 10) for number in range(11)))
    assert seen.valid is valid
    if not valid:
        assert "95%" in seen.invalid[0]
        assert "this machine could not send in time" in seen.invalid[0]


def test_the_bound_is_blamed_where_it_held_rows_back() -> None:
    seen = report(*(result(number, float(number), late=0.5 * number) for number in range(11)), held=7)
    assert "the bound of 8 in flight held rows back 7 times" in seen.invalid[0]


def test_a_server_that_falls_behind_makes_the_run_invalid() -> None:
    """It ends two calls a second where ten come."""
    seen = report(*(result(number, number / 10, takes=number / 2 - number / 10 + 0.5) for number in range(100)))
    assert seen.rates.share == 1.0
    assert seen.rates.kept == pytest.approx(0.2, abs=0.1)
    assert "the server fell behind" in seen.invalid[0]


@pytest.mark.parametrize("takes", [0.1, 3.0, 30.0, 300.0])
def test_long_answers_are_not_falling_behind(takes: float) -> None:
    assert report(*(result(number, number / 10, takes=takes) for number in range(1000))).rates.kept == 1.0


def test_filling_up_is_not_falling_behind() -> None:
    rows = (result(number, number / 10, takes=min(3.0, 0.5 + number / 10)) for number in range(100))
    assert report(*rows).rates.kept == 1.0


def test_chance_is_rarely_called_a_trend() -> None:
    """Two hundred steady runs of sixty calls whose latencies vary as much as their mean."""
    chance = np.random.default_rng(5)
    kept = [
        report(*(result(n, n / 2, takes=float(chance.exponential(2.0))) for n in range(60))).rates.kept
        for _ in range(200)
    ]
    assert sum(share != 1.0 for share in kept) <= 12


def test_ten_percent_too_much_is_seen() -> None:
    rows = (result(n, n / 2, takes=1.5 + n * 0.05 + (n * 7 % 11 - 5) / 5) for n in range(120))
    seen = report(*rows)
    assert seen.rates.kept == pytest.approx(1 / 1.1, abs=0.04)
    assert not seen.valid


def test_a_few_answers_are_not_judged() -> None:
    assert report(*(result(number, number / 2, takes=1.0 + number) for number in range(12))).rates.kept is None


def test_an_interrupted_run_is_judged_by_what_was_due() -> None:
    rows = [result(number, float(number), "ok" if number < 10 else "not_reached") for number in range(100)]
    seen = report(*rows, interrupted=True, until=9.5)
    assert seen.rates.offered == pytest.approx(1.0)
    assert seen.valid
    assert seen.interrupted
    assert (seen.sent, seen.not_reached) == (10, 90)


def test_a_run_without_an_answer_is_invalid() -> None:
    assert report(result(fate="failed", reason="connect")).invalid == ("no request was answered in full",)
    assert report(result(fate="skipped")).invalid == ("no request was sent",)
    assert report().invalid == ("no request was sent",)
    assert report(result(fate="hung_up")).valid


def test_failures_are_counted_by_kind_with_the_first_words_of_each() -> None:
    seen = report(
        result(1, 0.0, "failed", reason="status 503", detail="full"),
        result(2, 1.0, "failed", reason="status 503", detail="still full"),
        result(3, 2.0, "failed", reason="cut"),
        result(4, 3.0, clipped=True),
    )
    assert seen.failed == {"status 503": 2, "cut": 1}
    assert seen.notes == ("first 'status 503', row 1: full",)
    assert seen.clipped == 1


def test_lengths_are_compared_with_what_was_wanted() -> None:
    seen = report(
        result(1, wanted=(100, 5), usage=Usage(prompt_tokens=102, output_tokens=5)),
        result(2, wanted=(1000, 5), usage=Usage(prompt_tokens=979, output_tokens=4)),
        result(3, wanted=(None, 5), usage=Usage(prompt_tokens=7, output_tokens=2)),
        source="tokenizer",
    )
    assert seen.lengths is not None
    assert (seen.lengths.compared, seen.lengths.within, seen.lengths.worst) == (2, 1, -21)
    assert seen.lengths.mean_off == pytest.approx((0.02 - 0.021) / 2)
    assert (seen.lengths.outputs_compared, seen.lengths.outputs_short) == (2, 1)
    assert report(result(), source="tokenizer").lengths is None


def test_nothing_measured_is_none() -> None:
    assert spread([]) is None
    assert spread([None, None]) is None
    one = spread([None, 3.0])
    assert one is not None
    assert (one.count, one.mean, one.p50, one.p95, one.p99, one.max) == (1, 3.0, 3.0, 3.0, 3.0, 3.0)
