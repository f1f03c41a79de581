from __future__ import annotations

import pytest

from wastegate.local.progress import bar


def test_it_shows_on_stderr_what_came_and_leaves_stdout_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("fetching a model") as progress:
        progress(1_000_000, 0)  # the server has not said how much it will be
        progress(2_500_000, 5_000_000)
        progress(5_000_000, 5_000_000)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "fetching a model" in shown.err
    assert "5.0/5.0 MB" in shown.err
