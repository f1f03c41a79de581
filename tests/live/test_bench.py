"""`wastegate bench` with engines of its own: two variants of the model, started, paused, measured and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines.variants import write_variant
from tests.live.model import MODEL, WASTEGATE, fetch_or_skip
from wastegate import site
from wastegate.local.models import Library

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
LAYERS = 4


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    fetch_or_skip()
    folder = tmp_path_factory.mktemp("bench")
    whole = Library(site.cache_dir()).find(MODEL)
    assert whole is not None
    for name, f16 in (("int4", False), ("fp16", True)):
        write_variant(whole, folder / f"{name}.gguf", f16=f16, layers=LAYERS)
    command = [
        *WASTEGATE, "bench", *(f"{name}=engine:{folder}/{name}.gguf,cap=4,kv-gb=0.1" for name in ("int4", "fp16")),
        "--concurrency", "1,2,4", "--repeats", "2", "--spares", "0", "--seconds", "0.2", "--most", "20",
        "--lengths", "24:8", "--keep-disturbed", "--demand", "3", "--json", str(folder / "r.json"),
        "--remark", f"int4=first {LAYERS} layers, for speed only",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"int4 (first {LAYERS} layers, for speed only): 24 tokens in, 8 out" in done.stdout
    found: dict[str, Any] = json.loads((folder / "r.json").read_bytes())
    return found


def test_every_level_of_both_is_measured(report: dict[str, Any]) -> None:
    (sheet,) = report["sheets"]
    assert [curve["target"] for curve in sheet["curves"]] == ["int4", "fp16"]
    for curve in sheet["curves"]:
        for point in curve["points"]:
            figures = {name: value["value"] for name, value in point["figures"].items()}
            assert figures["failed_share"] == 0.0
            assert 0.0 < figures["ttft_p50"] <= figures["e2e_p50"] <= figures["e2e_p95"]
            assert figures["output_tokens_per_s"] == pytest.approx(8 * figures["qps"], rel=0.01), "ends are ignored"
            assert figures["qps"] * figures["wait"] == pytest.approx(point["level"], rel=0.35), "Little's law"
            assert point["dollars_per_1000"]["value"] == pytest.approx(
                report["targets"][0]["price"]["dollars_per_hour"] / 3.6 / figures["qps"], rel=1e-6
            )


def test_memory_is_seen_and_more_with_more_bits(report: dict[str, Any]) -> None:
    int4, fp16 = (target["memory"] for target in report["targets"])
    assert 1e8 < int4 < fp16 < 3e9


def test_every_answer_is_concluded_or_refused(report: dict[str, Any]) -> None:
    (sheet,) = report["sheets"]
    for curve in sheet["curves"]:
        assert (curve["knee"]["level"] is None) == bool(curve["knee"]["why"])
    assert set(sheet["meetings"]) == {"dollars per request", "E2E P95"}
    assert all(meeting["says"] for pairs in sheet["meetings"].values() for meeting in pairs)
    assert sheet["packing"]["choices"][0]["says"]
    assert sheet["packing"]["missing"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_engine_is_left(report: dict[str, Any]) -> None:
    models = {target["made_of"].split()[2] for target in report["targets"]}
    assert models == {"int4.gguf", "fp16.gguf"}
    folder = {Path(spec["model"]).parent for spec in report["config"]["targets"]}.pop()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{process}/cmdline").read_text()
        except OSError:
            continue
        assert str(folder) not in command
