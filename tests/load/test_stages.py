"""Reports of stages are read by folder; what cannot be read is told and the rest counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wastegate.load.stages import read

KUBECON = Path(__file__).parents[3] / "shared/traces/inference_perf_kubecon2025"


def lifecycle(count: int = 60, rate: float = 1.0, asked: float | None = 1.0, failed: int = 0, **other: Any) -> object:
    spread = {"mean": 2.0, "p95": 3.0}
    return {
        "load_summary": {"count": count, "requested_rate": asked},
        "successes": {
            "count": count,
            "latency": {"request_latency": spread, "time_to_first_token": {"p95": 0.5}},
            "throughput": {"requests_per_sec": rate, "output_tokens_per_sec": 64.0 * rate},
            "prompt_len": {"mean": 200.0},
            "output_len": {"mean": 64.0},
        },
        "failures": {"count": failed},
        **other,
    }


def prometheus(count: int = 60, rate: float = 1.0, kv: float | None = 0.1, prompt: float = 200.0) -> object:
    usage = {} if kv is None else {"kv_cache_usage_percentage": {"mean": kv, "p99": kv}}
    return {"successes": {"count": count, "rate": rate, "prompt_len": {"mean": prompt}, **usage}}


def lay(folder: Path, clients: dict[int, object], servers: dict[int, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, some in (("lifecycle", clients), ("prometheus", servers or {})):
        for number, body in some.items():
            text = body if isinstance(body, str) else json.dumps(body)
            (folder / f"stage_{number}_{kind}_metrics.json").write_text(text, encoding="utf-8")
    (folder / "summary_lifecycle_metrics.json").write_text("{}", encoding="utf-8")
    return folder


def test_stages_are_read_with_both_sides(tmp_path: Path) -> None:
    (run,) = read([lay(tmp_path / "run", {10: lifecycle(), 2: lifecycle(120, 2.0)}, {2: prometheus(kv=0.2)})])
    assert (run.name, run.read, run.unread, run.most_in_flight) == ("run", 3, (), None)
    second, tenth = run.stages
    assert (second.number, tenth.number, tenth.server) == (2, 10, None)
    assert (second.client.count, second.client.rate, second.client.seconds, second.client.in_flight) == (
        120,
        2.0,
        60,
        4.0,
    )
    assert (second.client.asked, second.client.p95, second.client.ttft_p95, second.client.prompt) == (
        1.0,
        3.0,
        0.5,
        200,
    )
    assert second.server is not None
    assert (second.server.kv, second.server.seconds) == ((0.2, 0.2), 60.0)


def test_runs_are_named_by_their_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        lay(tmp_path / name / "results", {0: lifecycle()})
    (tmp_path / "config.yaml").write_text("load:\n  num_workers: 4\n  worker_max_concurrency: 10  # each\n")
    (tmp_path / "b" / "config.yaml").write_text("load:\n  num_workers: 2\n")
    runs = read([tmp_path])
    assert [(run.name, run.most_in_flight) for run in runs] == [("a", 40), ("b", 40)]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "bad number"),
        (lifecycle(count=-1), "bad number"),
        (lifecycle(rate=0.0), "bad number"),
        (lifecycle(rate=float("nan")), "bad number"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, body: object, reason: str) -> None:
    (run,) = read([lay(tmp_path, {0: body, 1: lifecycle()}, {0: prometheus(), 1: prometheus()})])
    assert [stage.number for stage in run.stages] == [1]
    assert [fault.reason for fault in run.unread] == [reason, "no client"]
    assert run.unread[0].where.endswith("stage_0_lifecycle_metrics.json")


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="per_stage"):
        read([tmp_path])


@pytest.mark.skipif(not KUBECON.is_dir(), reason="the KubeCon 2025 reports are not here")
def test_every_real_report_is_read() -> None:
    runs = read([KUBECON])
    files = len(list(KUBECON.rglob("stage_*_metrics.json")))
    assert sum(run.read for run in runs) == files
    assert [run.unread for run in runs] == [()] * len(runs)
    assert sum(len(run.stages) for run in runs) * 2 == files
    assert {run.most_in_flight for run in runs} == {440}
