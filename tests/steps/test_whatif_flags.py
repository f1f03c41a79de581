from __future__ import annotations

import argparse
import subprocess
import sys

from wastegate.steps.whatif_flags import simulate


def test_the_flags_are_read_and_the_command_is_called() -> None:
    parser = argparse.ArgumentParser()
    seen: list[argparse.Namespace] = []

    def run(flags: argparse.Namespace) -> int:
        seen.append(flags)
        return 3

    simulate(parser.add_subparsers(), run)
    flags = parser.parse_args(["simulate", "--config", "w.toml", "--sweep", "a=1", "--sweep", "b=2"])
    assert flags.run(flags) == 3
    assert (seen[0].trace, seen[0].sweep, seen[0].calls) == (None, ["a=1", "b=2"], None)


def test_the_flags_load_nothing_heavy() -> None:
    code = (
        "import sys, wastegate.steps.whatif_flags; print([n for n in ('numpy', 'rich', 'msgspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
