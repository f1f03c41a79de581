"""The audit of a load test says which figures contradict each other, and prices what stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.load.test_stages import KUBECON, lay, lifecycle, prometheus
from wastegate.load.imports import price_of
from wastegate.steps.loadtest import Report, judge, run


def found(report: Report) -> dict[str, tuple[int, ...]]:
    return {finding.kind: finding.stages for finding in report.findings}


def audited(
    folder: Path, clients: Sequence[object], servers: Sequence[object] = (), price: float | None = None
) -> Report:
    lay(folder, dict(enumerate(clients)), dict(enumerate(servers)))
    return run([folder], price_of(price))


def test_sides_that_agree_raise_nothing(tmp_path: Path) -> None:
    report = audited(tmp_path, [lifecycle()], [prometheus(61, 1.01)])
    assert report.findings == ()
    assert judge(report).ruling == "pass"


def test_cost_is_the_price_over_what_was_answered(tmp_path: Path) -> None:
    (tested,) = audited(tmp_path, [lifecycle(600, 10.0, 10.0)], price=3.6).runs
    (row,) = tested.rows
    assert row.per_thousand == pytest.approx(0.001 / 10 * 1000)
    assert row.million_out == pytest.approx(0.001 / 640 * 1e6)
    assert tested.most == 10.0
    (bare,) = audited(tmp_path, [lifecycle()]).runs
    assert (bare.rows[0].per_thousand, bare.rows[0].million_out) == (None, None)


@pytest.mark.parametrize("server", [prometheus(120, 2.0), prometheus(60, 0.75), prometheus(90, 1.0)])
def test_another_window_is_found_by_counts_and_by_seconds(tmp_path: Path, server: object) -> None:
    report = audited(tmp_path, [lifecycle(), lifecycle()], [prometheus(), server])
    assert found(report) == {"window": (1,)}
    assert judge(report).ruling == "hold"


def test_a_gauge_that_is_never_above_nothing_is_dead(tmp_path: Path) -> None:
    report = audited(tmp_path, [lifecycle(), lifecycle()], [prometheus(kv=0.0), prometheus(kv=0.0)])
    assert found(report) == {"dead metric": (0, 1)}
    assert "up to 2 requests were in flight" in report.findings[0].text


@pytest.mark.parametrize("kinds", [(0.0, 0.1), (None, None)])
def test_a_gauge_that_moved_or_was_not_asked_for_is_not_dead(tmp_path: Path, kinds: tuple[float | None, ...]) -> None:
    report = audited(tmp_path, [lifecycle(), lifecycle()], [prometheus(kv=kind) for kind in kinds])
    assert found(report) == {}


def test_lengths_that_nobody_sent_are_found(tmp_path: Path) -> None:
    report = audited(tmp_path, [lifecycle()], [prometheus(prompt=18_190)])
    assert found(report) == {"length": (0,)}
    assert "18,190 tokens, and the client sent 200" in report.findings[0].text


def test_a_stage_that_was_not_answered_at_its_rate_shows_no_latency(tmp_path: Path) -> None:
    report = audited(tmp_path, [lifecycle(), lifecycle(500, 8.0, 10.0), lifecycle(60, 1.0, None)])
    assert found(report) == {"overloaded": (1,)}
    assert "asked for up to 10.0 requests a second, it answered at most 8.0" in report.findings[0].text


def test_the_clients_own_limit_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("num_workers: 2\nworker_max_concurrency: 5\n", encoding="utf-8")
    report = audited(tmp_path, [lifecycle(), lifecycle(300, 4.5, 4.5)])
    assert found(report) == {"client bound": (1,)}
    assert "9 to 9 requests were in flight, of 10" in report.findings[0].text
    assert found(audited(tmp_path, [lifecycle(), lifecycle()])) == {}


def test_failures_and_unread_files_hold_the_verdict(tmp_path: Path) -> None:
    report = audited(tmp_path, [lifecycle(failed=3), "{"])
    assert found(report) == {"failed": (0,)}
    assert len(judge(report).reasons) == 2


@pytest.mark.skipif(not KUBECON.is_dir(), reason="the KubeCon 2025 reports are not here")
def test_the_kubecon_reports_are_not_believed() -> None:
    """Their windows differ in every stage; with vLLM's newer engine the KV gauge had another name, with the older it
    read something."""
    report = run([KUBECON], price_of(3.0))
    kinds = {
        name: {f.kind: f.stages for f in report.findings if f.run == name} for name in (t.name for t in report.runs)
    }
    assert len(kinds) == 6
    for name, of in kinds.items():
        assert of["window"] == tuple(range(7)), name
        assert ("dead metric" in of) == (name != "vllm+v0_engine")
        assert {"overloaded", "client bound", "length"} <= of.keys()
        assert "failed" not in of
    most = {tested.name: round(tested.most, 1) for tested in report.runs}
    assert most["vllm"] == 103.1
    assert most["vllm+chunking_and_prefix_caching"] == 173.0
    assert most["vllm+eagle"] == 68.1
