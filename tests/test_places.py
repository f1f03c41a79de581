"""Mistakes in a TOML text are found with their line, and a name that does not exist with the nearest that does."""

from __future__ import annotations

import tomllib

import msgspec
import pytest
from msgspec import Struct

from wastegate.places import Lines, UnknownKeyError, check_names, explain, struct_of


class Timers(Struct, frozen=True, forbid_unknown_fields=True):
    connect: float = 2.0
    first_byte: float = 3.0


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    timers: Timers | None = None


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    timers: Timers = Timers()
    routes: tuple[Route, ...] = ()


TEXT = """\
# a comment = 1
[timers]
connect = 1.0

[[routes]]
name = "one"
[[routes]]
name = "two"
timers = { connect = 1.0 }
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("timers",), ":2"),
        (("timers", "connect"), ":3"),
        (("timers", "gone"), ":2"),
        (("routes", 0, "name"), ":6"),
        (("routes", 1), ":7"),
        (("routes", 1, "timers", "connect"), ":9"),
        (("elsewhere",), ""),
        ((), ""),
    ],
)
def test_a_key_is_found_or_the_nearest_table_around_it(path: tuple[str | int, ...], line: str) -> None:
    assert Lines(TEXT, "x.toml").of(path) == f"x.toml{line}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[timer]\n", "x.toml:1: unknown key 'timer'; did you mean 'timers'?"),
        ("[timers]\nconect = 1.0\n", "x.toml:2: unknown key 'conect' in [timers]; did you mean 'connect'?"),
        ("[timers]\nzzz = 1.0\n", "x.toml:2: unknown key 'zzz' in [timers]; valid here: connect, first_byte"),
        (TEXT.replace("name = \"two\"", "nam = 2"), "x.toml:8: unknown key 'nam' in [routes.1]; did you mean 'name'?"),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_told_the_nearest(text: str, said: str) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        check_names(tomllib.loads(text), Shape, (), Lines(text, "x.toml"))
    assert str(caught.value) == said


def test_good_names_pass_and_wrong_types_are_left_to_the_conversion() -> None:
    for text in (TEXT, "timers = 7\n", "routes = [1, 2]\n"):
        check_names(tomllib.loads(text), Shape, (), Lines(text, "x.toml"))


def test_a_conversion_that_fails_is_told_its_line() -> None:
    text = '[[routes]]\nname = "one"\n[[routes]]\nname = 2\n'
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(tomllib.loads(text), Shape)
    assert explain(caught.value, Lines(text, "x.toml")) == ("x.toml:4: expected `str`, got `int` (at routes[1].name)")


def test_the_struct_in_a_type_is_found() -> None:
    assert struct_of(tuple[Route, ...]) is Route
    assert struct_of(Timers | None) is Timers
    assert struct_of(dict[str, int]) is None
    assert struct_of(int) is None
