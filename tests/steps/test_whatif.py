from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from wastegate.steps.whatif import Report, Where, judge, run
from wastegate.steps.whatif_file import FileError

FLEET = """
[[machines]]
count = 2
price_per_hour = 3.6
[machines.linear]
step_seconds = 0.01
per_prefill = 1e-4
"""


def what(text: str = FLEET, **members: Any) -> Where:
    return Where("what.toml", tomllib.loads(text), text, **members)


@pytest.fixture
def azure(tmp_path: Path) -> str:
    rows = [f"2026-01-01 00:00:{second:02}.0000000,{100 + second},{10 + second}" for second in range(40)]
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return str(path)


def test_a_trace_is_run_and_counted(azure: str) -> None:
    report = run(what(trace=azure))
    assert (report.calls, report.outcomes) == (40, {"finished": 40})
    assert (report.prompt_tokens, report.output_tokens) == (4780, 1180)
    assert report.ttft.mean == pytest.approx(0.01 + 1e-4 * 119.5, rel=0.01)
    assert report.tpot.mean == pytest.approx(0.01, rel=0.01)
    assert report.seconds == pytest.approx(39 + 0.01 + 0.0139 + 48 * 0.01, abs=0.02)
    assert report.dollars == pytest.approx(2 * 3.6 * report.seconds / 3600)
    assert report.per_thousand == pytest.approx((report.dollars or 0) / 40 * 1000)
    assert sum(report.arrivals) == 40
    assert sum(one.busy for one in report.machines) * report.seconds == pytest.approx(
        40 * 0.01 + 0.478 + 11.4, rel=0.01
    )
    assert judge(report).ruling == "pass"


def test_pace_and_number_of_calls_may_be_changed(azure: str) -> None:
    assert run(what(trace=azure, calls=10)).calls == 10
    fast = run(what(trace=azure, speed=10.0))
    assert fast.seconds < 5


def test_traffic_may_be_made_or_made_alike(azure: str) -> None:
    with pytest.raises(FileError, match="name a trace, or describe traffic"):
        run(what())
    made = run(what(FLEET + '\n[traffic]\npattern = "gamma"\ncv = 2.0\nrate = 2.0\n', calls=200))
    assert (made.calls, made.traffic) == (200, "made: gamma, 2/s")
    alike = run(what(trace=azure, like=True, calls=300))
    assert alike.traffic.startswith("made like ")
    assert alike.prompt_tokens / 300 == pytest.approx(119.5, rel=0.1)


def test_shared_prefixes_of_a_trace_are_shared_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp": {1000 * n}, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, {n + 3}]}}\n'
            for n in range(10)
        )
    )
    aware = FLEET + '\n[levers.routing]\npolicy = "prefix_aware"\n'
    report = run(what(aware, trace=str(path)))
    assert report.cached_tokens >= 8 * 1024, "two blocks of all but the first calls"
    assert run(what(FLEET.replace("[machines.linear]", "settings = { prefix_caching = false }\n[machines.linear]"),
                    trace=str(path))).cached_tokens == 0  # fmt: skip


def test_text_hang_ups_and_odd_rows(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_text(
        '{"timestamp": 0, "prompt": "four letters", "max_tokens": 400, "hang_up_after": 1.0}\n'
        '{"timestamp": 1, "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 9, '
        '"hang_up_after": {"tokens": 3}}\n'
        '{"timestamp": 2, "prompt": "", "max_tokens": 3}\n'
    )
    report = run(what(trace=str(path)))
    assert report.outcomes == {"hung_up": 1, "finished": 1}
    assert report.output_tokens == pytest.approx(99 + 3, abs=2)
    assert any("left out" in note for note in report.notes)
    assert any("4 bytes a token" in note for note in report.notes)


def test_every_lever_that_is_on_is_run(azure: str) -> None:
    levers = """
[levers.routing]
policy = "least_inflight"
[levers.batching]
on = true
start = 1
max_wait = 0.2
[levers.batching.caps]
policy = "fixed"
[levers.streaming]
most_tokens = 12
"""
    report = run(what(FLEET + levers, trace=azure))
    assert report.output_tokens < 40 * 12
    tight = levers.replace('policy = "fixed"', "max = 4").replace("max_wait = 0.2", "max_wait = 0.05")
    growing = run(what(FLEET + tight, trace=azure, speed=400.0))
    assert growing.waited > 0
    assert growing.outcomes.get("refused", 0) > 0, "whom it would have taken too long is told so"


@pytest.mark.parametrize(
    ("lever", "said"),
    [
        ("streaming = { one_flight = true }", "one_flight has no effect"),
        ('streaming = { answers = "buffered" }', "always relayed"),
        ('routing = { policy = "simhash" }', "by its fallback, random"),
    ],
)
def test_a_lever_that_changes_nothing_here_is_told(azure: str, lever: str, said: str) -> None:
    (note,) = run(what(f"{FLEET}\n[levers]\n{lever}\n", trace=azure, calls=5)).notes
    assert said in note


def test_the_goal_says_which_calls_are_good(azure: str) -> None:
    assert run(what(FLEET + "\n[goal]\nttft = 0.0222\n", trace=azure)).good == pytest.approx(0.55, abs=0.05)
    assert run(what(trace=azure)).good is None


def test_progress_is_told(azure: str) -> None:
    told: list[int] = []
    run(what(FLEET + "\n[traffic]\nrate = 50.0\n", calls=1600), told.append)
    assert told == [500, 1000, 1500]


def test_figures_beyond_what_is_known_are_held(azure: str) -> None:
    table = """
[[machines]]
[machines.table]
decode = [[1, 0.01], [2, 0.011]]
prefill = [[1, 0.01], [60, 0.02]]
"""
    report = run(what(table, trace=azure))
    assert report.outside > 0.05
    assert report.doubt > 0.1
    verdict = judge(report)
    assert verdict.ruling == "hold"
    assert "step times were not made from" in verdict.reasons[0]
    assert judge(_none(report)).reasons[0].startswith("no call was answered")


def _none(report: Report) -> Report:
    from msgspec.structs import replace

    return replace(report, outcomes={"refused": 3}, outside=0.0)


def test_the_same_file_and_seed_give_the_same_report(azure: str) -> None:
    from msgspec.structs import replace

    one, two = (replace(run(what(trace=azure)), took=0.0) for _ in range(2))
    assert one == two
    assert math.isfinite(one.seconds)
