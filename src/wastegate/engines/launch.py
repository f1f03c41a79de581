"""How an engine is started: a command line from a typed configuration. What each engine calls its flags is its own
room's; what was wrong or is gone is ``outdated``'s. Nothing is started here."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

LOOPBACK = ("127.0.0.1", "localhost", "::1")

Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every engine's configuration has. None leaves a setting to the engine."""

    model: Annotated[str, Meta(min_length=1, description="a name on a model hub, a folder or a file")]
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    name: Annotated[str, Meta(description="what the model is called over HTTP")] = ""


class Command(Struct, frozen=True):
    """What to run."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    """To be set besides what the environment has."""
    notes: tuple[str, ...] = ()
    """What whoever runs it should know."""

    def line(self) -> str:
        """As a shell takes it."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env), *map(shlex.quote, self.argv)])


def flags(*pairs: tuple[str, object]) -> tuple[str, ...]:
    """``--flag value`` for each setting that is given: None is left out, True stands alone, False is left out too."""
    return tuple(_words(pairs))


def _words(pairs: Sequence[tuple[str, object]]) -> Iterator[str]:
    for flag, value in pairs:
        if value is None or value is False or value == "":
            continue
        yield flag
        if value is not True:
            yield f"{value:g}" if isinstance(value, float) else str(value)


C = TypeVar("C", bound=Common)


def configure(kind: type[C], given: dict[str, Any]) -> C:
    """A configuration from settings by name. Raises ValueError that names the flag."""
    try:
        return msgspec.convert({key: value for key, value in given.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise ValueError(f"{_flag(path.rstrip('`'))}: {text}" if path else text) from None


def _flag(name: str) -> str:
    return name.upper() if name == "model" else f"--{name.replace('_', '-')}"


def add_flags(parser: argparse.ArgumentParser, kind: type[Common]) -> None:
    """A flag for each field; its help is the field's description."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        base, text = _plain(hints[field.name])
        default = None if field.required or field.default in (None, "") else field.default
        words: dict[str, Any] = {"help": text if default in (None, False) else f"{text} (default: {_said(default)})"}
        if field.name == "model":
            parser.add_argument("model", **words)
        elif base is bool:
            parser.add_argument(_flag(field.name), action=argparse.BooleanOptionalAction, **words)
        elif get_origin(base) is Literal:
            parser.add_argument(_flag(field.name), choices=get_args(base), **words)
        else:
            metavar = {int: "N", float: "X"}.get(base, "TEXT")
            parser.add_argument(_flag(field.name), type=base, metavar=metavar, **words)


def _said(value: object) -> str:
    return "on" if value is True else str(value)


def _plain(hint: Any) -> tuple[Any, str]:
    """A field's type without None and constraints, and its description."""
    text = ""
    while True:
        metadata = getattr(hint, "__metadata__", ())
        text = next((meta.description for meta in metadata if meta.description), text)
        if metadata:
            hint = hint.__origin__
        elif get_origin(hint) is not Literal and (choices := [a for a in get_args(hint) if a is not type(None)]):
            hint = choices[0]
        else:
            return hint, text


Outdated = Callable[[str], str]


def reject_outdated(parser: argparse.ArgumentParser, table: dict[str, str]) -> None:
    """Flags that are wrong get their sentence and exit code 2, not "unrecognized"."""
    for flag, sentence in table.items():
        if flag not in parser._option_string_actions:
            parser.add_argument(flag, nargs="?", action=_Reject, help=argparse.SUPPRESS, const=sentence, dest="_")


class _Reject(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]}: {self.const}")


def check_more(more: Sequence[str], table: dict[str, str]) -> None:
    """Flags that are handed on to the engine as they stand. Raises ValueError for one that it does not have."""
    for word in more:
        flag = word.split("=", 1)[0].replace("_", "-") if word.startswith("--") else word
        if flag in table:
            raise ValueError(f"{flag}: {table[flag]}")
