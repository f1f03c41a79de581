"""The model that live tests run on: from the user's cache, or fetched into it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODEL = "smollm2-135m-instruct"
WASTEGATE = [sys.executable, "-m", "wastegate"]


def fetch_or_skip() -> None:
    """Skip the test, with the reason, where the model cannot be had."""
    pull = subprocess.run(
        [*WASTEGATE, "models", "pull", MODEL], capture_output=True, text=True, timeout=600, check=False
    )
    if pull.returncode:
        pytest.skip(f"the model cannot be fetched here: {pull.stderr.strip()[-300:]}")
