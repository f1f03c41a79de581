"""argv → a step, a service or a tool. No logic: each command reads its flags, hands values down and prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from wastegate import __version__

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 a check or bar failed, 2 bad usage or input, 130 interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Command | None = getattr(arguments, "run", None)
    if command is None:
        parser.print_help()
        return 2
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `wastegate audit | head` is not an error
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wastegate", description="What every LLM request costs, and what cuts it.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"wastegate {__version__}")
    parser.add_subparsers(title="commands", metavar="COMMAND")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
