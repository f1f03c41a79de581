from __future__ import annotations

import re

from wastegate.local.messages import Failed, Load, Ready, Step
from wastegate.local.metrics import OUTCOMES, Histogram, Metrics

LINE = re.compile(r'(wastegate_engine_[a-z_]+)(?:\{(le|outcome)="([^"]+)"\})? (\S+)')


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by name and label; each line must be well formed, and stand after its own TYPE line."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    for line in metrics.text(ready=True, restarts=2, cap=32, queue=256, kv_capacity=1000).splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name, _, label, value = match.groups()
        assert name in typed or re.sub("_(bucket|sum|count)$", "", name) in typed, line
        found[f"{name}:{label}" if label else name] = float(value)
    return found


def step(seconds: float = 0.04, running: int = 3) -> Step:
    return Step(seconds, 100, 3, 3, 4, 500, True, 0.25, 1 << 20, running, 2, ((1, 0.3),), ())


def test_a_step_is_counted() -> None:
    metrics = Metrics()
    metrics.report(step())
    metrics.report(step(0.2))
    found = values(metrics)
    assert found["wastegate_engine_requests_running"] == 3
    assert found["wastegate_engine_requests_waiting"] == 2
    assert found["wastegate_engine_output_tokens_total"] == 6
    assert found["wastegate_engine_kv_cache_usage_ratio"] == 0.25
    assert found["wastegate_engine_kv_cache_bytes"] == 1 << 20
    assert found["wastegate_engine_step_seconds_bucket:0.05"] == 1
    assert found["wastegate_engine_step_seconds_count"] == 2
    assert found["wastegate_engine_step_sequences_bucket:4"] == 2
    assert found["wastegate_engine_queue_seconds_sum"] == 0.6


def test_what_is_configured_is_shown_beside_what_is_used() -> None:
    found = values(Metrics())
    assert found["wastegate_engine_requests_running_max"] == 32
    assert found["wastegate_engine_requests_waiting_max"] == 256
    assert found["wastegate_engine_loop_restarts_total"] == 2
    assert found["wastegate_engine_kv_cache_capacity_tokens"] == 1000
    assert found["wastegate_engine_ready"] == 1


def test_an_idle_engine_holds_no_kv() -> None:
    metrics = Metrics()
    metrics.report(step(running=0))
    assert metrics.kv_use == 0
    metrics.report(step())
    metrics.report(Load(0, 1))
    assert (metrics.running, metrics.waiting, metrics.kv_use) == (0, 1, 0)


def test_a_load_that_still_runs_keeps_its_kv() -> None:
    metrics = Metrics()
    metrics.report(step())
    metrics.report(Load(1, 0))
    assert (metrics.running, metrics.kv_use) == (1, 0.25)


def test_a_loop_that_is_gone_runs_nothing() -> None:
    metrics = Metrics()
    metrics.report(Ready(3.0, 1.0, {}))
    metrics.report(step())
    metrics.report(Failed("x"))
    metrics.lost()
    found = values(metrics)
    assert found["wastegate_engine_requests_running"] == found["wastegate_engine_requests_waiting"] == 0
    assert found["wastegate_engine_load_seconds"] == 3.0
    assert found["wastegate_engine_warmup_seconds"] == 1.0


def test_every_outcome_is_there_from_the_start() -> None:
    metrics = Metrics()
    metrics.outcomes["left"] += 1
    found = values(metrics)
    assert {name.split(":")[1] for name in found if "requests_total:" in name} == set(OUTCOMES)
    assert found["wastegate_engine_requests_total:left"] == 1


def test_buckets_are_cumulative_and_their_bounds_inclusive() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.add(value)
    assert histogram.lines("x") == [
        'x_bucket{le="1"} 2', 'x_bucket{le="2"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 102", "x_count 4",
    ]  # fmt: skip
