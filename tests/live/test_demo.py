"""`make demo`, as a newcomer runs it: from the model to the cost report, and nothing left running afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.model import fetch_or_skip

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo prints. The model comes from the user's cache, or is fetched; all else goes to a folder of ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    mark = str(tmp_path_factory.mktemp("demo"))
    environment["TMPDIR"] = mark
    fetch_or_skip()
    child = subprocess.Popen(
        ["make", "demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        left = _stop_what_is_left(mark)
    assert child.returncode == 0, output
    assert not left, f"the demo left processes running: {left}\n{output}"
    return output


def _stop_what_is_left(mark: str) -> list[str]:
    """The command lines of the demo's processes that are still there, found by their environment; each is stopped."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={mark}\0".encode() not in (process / "environ").read_bytes():
                continue
            left.append((process / "cmdline").read_text().replace("\0", " "))
            os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it ended while we looked, or is nobody of ours
    return left


def test_it_ends_with_a_cost_report(demo: str) -> None:
    said = re.sub(r"\x1b\[[0-9;]*m", "", demo)
    steps = re.findall(r"^(\d)\. ", said, flags=re.M)
    assert steps == ["1", "2", "3", "4", "5"]
    report = said[said.index("5. What it cost") :]
    assert "$" in report, "a cost report names dollars"
    assert "Traceback" not in said


def test_its_ledger_can_be_asked_again(demo: str) -> None:
    found = re.search(r"The ledger stays at (\S+)\.", demo)
    assert found
    asked = [sys.executable, "-m", "wastegate", "audit", "--ledger", found[1], "--json"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.lstrip().startswith("{")
