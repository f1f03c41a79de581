"""`make bench`: believes only a bar that agrees with the exit code, and keeps the page's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.run_all import PAGE, Outcome, find, main, run, write

ROOT = Path(__file__).parent.parent


def script(folder: Path, text: str, name: str = "made_up.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_it_finds_the_benchmarks_and_not_what_they_share() -> None:
    names = find(ROOT / "benchmarks")
    assert "run_all" not in names
    assert all(path.is_file() and not name.startswith("_") for name, path in names.items())


def test_helpers_are_no_benchmarks(tmp_path: Path) -> None:
    for name in ("audit.py", "_ground.py", "run_all.py"):
        script(tmp_path, "", name)
    assert list(find(tmp_path)) == ["audit"]


@pytest.mark.parametrize(
    ("text", "bar", "passed"),
    [
        ("print('12 s')\nprint('bar: pass: 12 of 15 s')", "bar: pass: 12 of 15 s", True),
        ("print('bar: fail: 16 of 15 s')\nraise SystemExit(1)", "bar: fail: 16 of 15 s", False),
        (
            "print('bar: pass')\nraise SystemExit(3)",
            "bar: fail: exit code 3 contradicts 'bar: pass'",
            False,
        ),
        ("print('bar: fail')", "bar: fail: exit code 0 contradicts 'bar: fail'", False),
        ("print('figures')", "bar: fail: it ended with exit code 0 and without a bar", False),
        ("raise SystemExit(2)", "bar: fail: it ended with exit code 2 and without a bar", False),
    ],
)
def test_a_bar_counts_when_the_exit_code_says_the_same(tmp_path: Path, text: str, bar: str, passed: bool) -> None:
    outcome = run(script(tmp_path, text), quick=False, timeout=30, json_dir=None)
    assert (outcome.bar, outcome.passed) == (bar, passed)


def test_flags_reach_the_benchmark(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nprint(sys.argv[1:])\nprint('bar: pass')")
    outcome = run(path, quick=True, timeout=30, json_dir=tmp_path / "figures")
    assert outcome.output.splitlines()[0] == str(["--quick", "--json", str(tmp_path / "figures/made_up.json")])
    assert outcome.command == ".venv/bin/python benchmarks/made_up.py --quick"


def test_one_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    text = "import subprocess\nprint('started')\nsubprocess.run(['sleep', '300'])"
    outcome = run(script(tmp_path, text), quick=False, timeout=0.5, json_dir=None)
    assert outcome.bar == "bar: fail: stopped after 0.5 s"
    assert outcome.output == "started\n"
    assert outcome.seconds < 20


def test_the_page_keeps_words_outside_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write(page, Outcome("audit", "run audit", "old figures\n", "bar: pass", True, 3.0))
    write(page, Outcome("relay", "run relay", "relay figures\n", "bar: pass", True, 3.0))
    page.write_text(page.read_text().replace("## relay", "Words of our own.\n\n## relay"))
    write(page, Outcome("audit", "run audit", "new figures\n", "bar: pass", True, 3.0))
    text = page.read_text()
    assert "old figures" not in text
    assert text.index("new figures") < text.index("Words of our own.") < text.index("relay figures")
    assert text.count("<!-- begin audit -->") == text.count("<!-- end audit -->") == 1
    assert list(tmp_path.iterdir()) == [page], "nothing may be left beside the page"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    before = PAGE.read_bytes() if PAGE.exists() else None
    assert main(["no_such_claim"]) == 2
    assert "no such benchmark: no_such_claim" in capsys.readouterr().err
    assert (PAGE.read_bytes() if PAGE.exists() else None) == before
