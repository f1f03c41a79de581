"""`wastegate launch`: the command that starts an engine, shown or run, and what a running one makes of the same wishes.
What an engine calls its flags is in ``engines``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wastegate.engines import kinds
from wastegate.engines.exposition import parse
from wastegate.engines.launch import Command, add_flags, check_more, configure, reject_outdated
from wastegate.engines.meter import Meter
from wastegate.engines.readback import Comparison, Effective, Pages, compare

TIMEOUT = 5.0
_LARGEST = 8 << 20
_OWN = ("exec", "check", "key_env", "json")


class Wish(Struct, frozen=True):
    """What the command line asks for."""

    command: Command
    asked: Effective
    run: bool
    check: str
    key_env: str
    json: bool


class Checked(Struct, frozen=True):
    """What a running engine makes of it."""

    found: Effective
    comparison: Comparison


class CheckError(ValueError):
    """The engine cannot be asked; the text says why."""


def main(engine: str, arguments: Sequence[str]) -> int:
    """Exit codes: 0 shown, 1 it runs otherwise than asked, 2 bad usage. With ``--exec`` it does not come back."""
    room = kinds.ENGINES[kinds.named(engine)]
    wish = read(engine, arguments)
    if wish.check:
        return _check(room, wish)
    for note in wish.command.notes:
        print(f"note: {note}", file=sys.stderr)
    if wish.run:
        _run(wish.command)
    print(msgspec.json.encode(wish.command).decode() if wish.json else wish.command.line())
    return 0


def read(engine: str, arguments: Sequence[str]) -> Wish:
    """The engine's flags, and behind ``--`` such as are handed on as they are. Exits with 2 where they are wrong."""
    room = kinds.ENGINES[kinds.named(engine)]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    words, more = arguments[:at], tuple(arguments[at + 1 :])
    parser = _parser(engine, room)
    given = vars(parser.parse_args(words))
    try:
        check_more(more, room.OUTDATED)
        config = configure(room.Config, {key: value for key, value in given.items() if key not in (*_OWN, "_")})
        command = room.command(config, more)
    except ValueError as error:
        parser.error(str(error))
    return Wish(command, room.asked(config), given["exec"], given["check"] or "", given["key_env"] or "", given["json"])


def _parser(engine: str, room: kinds.Engine) -> argparse.ArgumentParser:
    live = "\n".join(f"  {what}: {how}" for what, how in room.LIVE)
    parser = argparse.ArgumentParser(
        prog=f"wastegate launch {engine}",
        usage=f"wastegate launch {engine} MODEL [settings] [--exec | --check URL] [-- flags of {engine}]",
        description=f"Print the command that starts {engine}, or run it. What is not given is left to the engine.",
        epilog=f"what can change while it runs:\n{live}\n\nflags behind -- are handed on as they are:\n"
        f"  wastegate launch {engine} MODEL -- --some-flag 3\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser, room.Config)
    parser.add_argument("--exec", action="store_true", help="run it in place of this command")
    parser.add_argument(
        "--check", metavar="URL", help="ask a running engine whether it runs so (exit code 1: it does not)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="for --check: the environment variable with the engine's key")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    reject_outdated(parser, room.OUTDATED)
    return parser


def _run(command: Command) -> NoReturn:
    argv = list(command.argv)
    if argv[0] == "wastegate":  # this one, wherever it is installed
        argv[:1] = [sys.executable, "-m", "wastegate"]
    program = shutil.which(argv[0])
    if program is None:
        sys.exit(_say(f"{command.argv[0]} is not installed here, or not on the PATH; the command is: {command.line()}"))
    sys.stderr.flush()
    os.execve(program, argv, {**os.environ, **dict(command.env)})


def _say(text: str) -> int:
    print(f"wastegate launch: {text}", file=sys.stderr)
    return 2


def _check(room: kinds.Engine, wish: Wish) -> int:
    try:
        checked = check(room, wish.check, wish.asked, _key(wish.key_env))
    except CheckError as error:
        return _say(str(error))
    if wish.json:
        print(msgspec.json.format(msgspec.json.encode(checked)).decode())
    else:
        _print(checked)
    return 1 if checked.comparison.warnings else 0


def _key(name: str) -> str:
    if name and not os.environ.get(name):
        raise CheckError(f"${name} is not set: --key-env takes the name of a variable, not the key itself")
    return os.environ[name] if name else ""


def check(room: kinds.Engine, url: str, asked: Effective, key: str = "") -> Checked:
    """Read back how the engine at ``url`` runs, and compare; ``key`` is sent as a bearer token. Raises CheckError where
    it has no /metrics to read."""
    base = url.rstrip("/").removesuffix("/v1")
    page = parse(_get(f"{base}/metrics", key).decode("utf-8", "replace"), Meter(room.RULES).wanted)
    pages: dict[str, Any] = {}
    for path in room.PAGES:
        try:
            pages[path] = msgspec.json.decode(_get(base + path, key))
        except (CheckError, msgspec.DecodeError):
            continue  # what it does not show stays unverified
    found = room.effective(Pages(page, pages))
    return Checked(found, compare(asked, found))


def _get(url: str, key: str) -> bytes:
    try:
        request = urllib.request.Request(url)
        if key:  # for this address alone, wherever it sends us on to
            request.add_unredirected_header("authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            body: bytes = answer.read(_LARGEST)
            return body
    except (OSError, ValueError) as error:
        raise CheckError(f"{url} cannot be read: {getattr(error, 'reason', error)}") from None


def _print(checked: Checked) -> None:
    console = Console()
    table = Table(title="how it runs", title_justify="left", show_header=False)
    for name, value in msgspec.structs.asdict(checked.found).items():
        if value is not None and name != "notes":
            table.add_row(name.replace("_", " "), escape(str(value)))
    console.print(table)
    for style, sentences in (
        ("red", checked.comparison.warnings),
        ("yellow", checked.found.notes),
        ("dim", checked.comparison.unverified),
    ):
        for sentence in sentences:
            console.print(escape(sentence), style=style, soft_wrap=True)
