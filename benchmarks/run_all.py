"""Runs every benchmark, one after another, and writes what they print into docs/benchmarks.md. It measures nothing."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each claim has a script under `benchmarks/` that prints the rival beside us, in the same run. The blocks between
markers are written by `make bench`, which runs the scripts one after another on an otherwise idle machine; text
outside the markers is kept.
"""


class Outcome(Struct, frozen=True):
    """What one benchmark said. ``bar`` is its last line; ``passed`` needs that line and the exit code to agree."""

    name: str
    command: str
    output: str
    bar: str
    passed: bool
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every bar passed, 1 when one failed, 2 when a name is unknown."""
    parser = argparse.ArgumentParser(description="Run every benchmark and write docs/benchmarks.md.")
    parser.add_argument("names", nargs="*", help="which ones, without .py; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; the page is left alone")
    parser.add_argument("--timeout", type=float, default=5400.0, help="seconds that one benchmark may take")
    parser.add_argument("--json-dir", type=Path, help="keep each benchmark's own figures there as JSON")
    arguments = parser.parse_args(argv)
    scripts = find(HERE)
    unknown = sorted(set(arguments.names) - scripts.keys())
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(scripts)}", file=sys.stderr)
        return 2
    outcomes = []
    for name in arguments.names or scripts:
        print(f"== {name}", flush=True)
        outcome = run(scripts[name], arguments.quick, arguments.timeout, arguments.json_dir)
        outcomes.append(outcome)
        if not arguments.quick:  # after each one, so that an interrupted run keeps what it has
            write(PAGE, outcome)
    for outcome in outcomes:
        print(f"{'pass' if outcome.passed else 'FAIL'}  {outcome.name}  {outcome.bar}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def find(folder: Path) -> dict[str, Path]:
    """The benchmarks of a folder by name; this script and files that begin with an underscore are none."""
    paths = sorted(folder.glob("*.py"))
    return {path.stem: path for path in paths if path.name != "run_all.py" and not path.name.startswith("_")}


def run(script: Path, quick: bool, timeout: float, json_dir: Path | None) -> Outcome:
    """One benchmark to its end, its output shown as it comes. One that overruns ``timeout`` seconds has failed."""
    arguments = ["--quick"] if quick else []
    command = [sys.executable, "-u", str(script), *arguments]
    if json_dir is not None:
        json_dir.mkdir(parents=True, exist_ok=True)
        command += ["--json", str(json_dir / f"{script.stem}.json")]
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    output, code = _follow(child, timeout)
    bar = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    if code is None:
        bar = f"bar: fail: stopped after {timeout:g} s"
    elif not re.match(r"bar: (pass|fail)\b", bar):
        bar = f"bar: fail: it ended with exit code {code} and without a bar"
    elif (code == 0) != bar.startswith("bar: pass"):
        bar = f"bar: fail: exit code {code} contradicts {bar!r}"
    passed = bar.startswith("bar: pass")
    shown = " ".join([".venv/bin/python", f"benchmarks/{script.name}", *arguments])
    return Outcome(script.stem, shown, output, bar, passed, time.monotonic() - started)


def _follow(child: subprocess.Popen[str], timeout: float) -> tuple[str, int | None]:
    """All that the child prints, and its exit code: None if it had to be stopped."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(child.pid, signal.SIGTERM)  # with the servers that it started
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(timeout, stop)
    timer.start()
    lines = []
    assert child.stdout is not None
    for line in child.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    code = child.wait()
    timer.cancel()
    return "".join(lines), None if late.is_set() else code


def write(page: Path, outcome: Outcome) -> None:
    """Replace the benchmark's block, or add it at the end."""
    text = page.read_text(encoding="utf-8") if page.exists() else HEAD
    begin, end = f"<!-- begin {outcome.name} -->", f"<!-- end {outcome.name} -->"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    how = f"`{outcome.command}`, {day}, {outcome.seconds:.0f} s:"
    block = f"{begin}\n{how}\n\n```text\n{outcome.output.rstrip()}\n```\n{end}"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        text = before + block + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n## {outcome.name}\n\n{block}\n"
    beside = page.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, page)


if __name__ == "__main__":
    raise SystemExit(main())
