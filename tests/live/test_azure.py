"""Real traffic end to end: the Azure conversation trace through the gateway onto two local replicas, audited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.model import fetch_or_skip

ROOT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("WASTEGATE_TRACES", ROOT.parent / "shared" / "traces"))

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (TRACES / "azure2023" / "AzureLLMInferenceTrace_conv.csv").is_file(),
        reason="the Azure trace is not at hand (WASTEGATE_TRACES names its folder)",
    ),
]


def test_every_row_is_accounted_for_and_the_bill_adds_up(tmp_path: Path) -> None:
    fetch_or_skip()
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    command = [sys.executable, "benchmarks/azure_conversation.py", "--quick", "--rate", "1.5"]
    done = subprocess.run(
        [*command, "--json", str(figures), "--write", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = json.loads(figures.read_text())
    # How fast this machine is just now is no matter of this test: what ran must be accounted for.
    assert [wrong for wrong in found["wrong"] if "not valid" not in wrong] == [], done.stdout
    assert found["replay"]["sent"] == 40
    bill = found["audit"]["bill"]
    assert bill["total"] > 0
    assert bill["requests"] + bill["idle"] + bill["overhead"] == pytest.approx(bill["total"], rel=1e-3)
    assert "Audit of" in page.read_text()
