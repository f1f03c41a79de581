"""What the README and docs/ show is true: every command is one that a test or script runs, and every path exists."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from wastegate.cli import _parser

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

PROVEN = {
    "make demo": ("tests/live/test_demo.py", '"make", "demo"'),
    "make test": (".ci/run", "make test"),
    ".venv/bin/python benchmarks/azure_conversation.py --write docs/audit-azure.md": (
        "tests/live/test_azure.py",
        "benchmarks/azure_conversation.py",
    ),
    ".venv/bin/wastegate simulate azure.csv --config examples/whatif.toml --speed 8 "
    "--sweep machines.0.roofline.hardware=l40s,h100 --sweep machines.0.count=3,4,7,8": (
        "tests/steps/test_whatif_command.py",
        '"machines.0.count=3,4,7,8"',
    ),
}
"""A command → the test or script that runs it, and the text in it that does."""

CHEAP = frozenset(
    {
        ".venv/bin/wastegate --help",
        ".venv/bin/wastegate up --config examples/wastegate.toml --check",
    }
)
"""Commands that are run here, as they stand."""


class Shown(Struct, frozen=True):
    """A command in a page's code block."""

    command: str
    where: str
    """File and line."""


def shown_commands(page: str, name: str) -> Iterator[Shown]:
    """The commands of ``console`` blocks (behind ``$``) and of ``sh`` blocks (every line that is no comment)."""
    kind, pending, began = "", "", 0
    for number, line in enumerate(page.splitlines(), start=1):
        if line.startswith("```"):
            kind = "" if kind else line[3:].strip() or "text"
            continue
        if kind not in ("console", "sh", "bash", "shell"):
            continue
        text = line.strip()
        if not pending:
            if kind == "console" and not text.startswith("$ "):
                continue
            if not text or text.startswith("#"):
                continue
            text, began = text.removeprefix("$ "), number
        pending += text
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        yield Shown(" ".join(pending.split()), f"{name}:{began}")
        pending = ""


def problems(shown: list[Shown], proven: dict[str, tuple[str, str]], cheap: frozenset[str], root: Path) -> list[str]:
    """One sentence for each command that nothing runs, and for each promise that is not kept or not needed."""
    found = [
        f"{item.where}: no test or script runs {item.command!r}: name one in PROVEN, or put it into CHEAP"
        for item in shown
        if item.command not in proven and item.command not in cheap
    ]
    for command, (file, text) in proven.items():
        if not (root / file).exists() or text not in (root / file).read_text(encoding="utf-8"):
            found.append(f"{command!r} is said to be run by {file}, which does not hold {text!r}")
    gone = (proven.keys() | cheap) - {item.command for item in shown}
    return found + [f"{command!r} is shown nowhere any more" for command in sorted(gone)]


def all_shown() -> list[Shown]:
    return [
        item for page in PAGES for item in shown_commands(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]


def test_every_shown_command_is_run_somewhere() -> None:
    assert problems(all_shown(), PROVEN, CHEAP, ROOT) == []


@pytest.mark.parametrize("command", sorted(CHEAP))
def test_a_cheap_command_runs(command: str, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (actions,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions.choices)


def test_every_wastegate_command_line_parses(capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for item in all_shown():
        words = [word for word in shlex.split(item.command) if not re.match(r"[A-Z_]+=", word)]
        if not words or Path(words[0]).name != "wastegate":
            continue
        try:
            _parser().parse_args(words[1 : words.index("|")] if "|" in words else words[1:])
        except SystemExit as end:
            if end.code:
                refused.append(f"{item.where}: {item.command}: {capsys.readouterr().err}")
    assert refused == []


def test_every_command_named_in_the_text_exists() -> None:
    named = {
        (word, page.name)
        for page in PAGES
        for word in re.findall(r"`wastegate ([a-z][\w-]*)", page.read_text(encoding="utf-8"))
    }
    assert {pair for pair in named if pair[0] not in subcommands()} == set()


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in subcommands() if f"`wastegate {name}" not in readme] == []


def test_every_make_target_named_in_the_text_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    named = {
        (word, page.name)
        for page in PAGES
        for word in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text(encoding="utf-8"))
    }
    assert ("demo", "README.md") in named
    assert {pair for pair in named if pair[0] not in targets} == set()


def test_every_link_leads_to_a_file() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert dead == []


def test_python_in_the_pages_compiles() -> None:
    blocks = [
        (page, block)
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    ]
    assert blocks, "the README shows how to point a client at the gateway"
    for page, block in blocks:
        compile(block, str(page), "exec")


# ---- the checker itself

PAGE = """
Text with `make nothing`.
```console
$ make demo   # the whole of it
a line that it prints
$ wastegate replay trace.csv \\
    --url http://127.0.0.1:8080
```
```toml
port = 1
```
```sh
# a comment
WASTEGATE_CACHE=/srv/models wastegate models list
```
"""


def test_it_reads_commands_and_nothing_else() -> None:
    assert list(shown_commands(PAGE, "page.md")) == [
        Shown("make demo # the whole of it", "page.md:4"),
        Shown("wastegate replay trace.csv --url http://127.0.0.1:8080", "page.md:6"),
        Shown("WASTEGATE_CACHE=/srv/models wastegate models list", "page.md:14"),
    ]


def test_a_command_that_nothing_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("make test\n")
    shown = [Shown("make test", "a.md:1"), Shown("make tea", "a.md:2"), Shown("ls", "a.md:3")]
    assert problems(shown, {"make test": ("run", "make test")}, frozenset({"ls"}), tmp_path) == [
        "a.md:2: no test or script runs 'make tea': name one in PROVEN, or put it into CHEAP"
    ]


@pytest.mark.parametrize("proof", [("run", "make tea"), ("gone", "make test")])
def test_a_proof_that_does_not_hold_is_named(tmp_path: Path, proof: tuple[str, str]) -> None:
    (tmp_path / "run").write_text("make test\n")
    (said,) = problems([Shown("make test", "a.md:1")], {"make test": proof}, frozenset(), tmp_path)
    assert said == f"'make test' is said to be run by {proof[0]}, which does not hold {proof[1]!r}"


def test_a_command_that_is_shown_no_more_is_named(tmp_path: Path) -> None:
    assert problems([], {}, frozenset({"ls"}), tmp_path) == ["'ls' is shown nowhere any more"]
