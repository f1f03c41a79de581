"""The help teaches: every flag has its sentence, and the examples are commands that parse."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from wastegate.cli import _parser
from wastegate.load.sweep_command import config_from


def parser() -> argparse.ArgumentParser:
    (commands,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    found = commands.choices["bench"]
    assert isinstance(found, argparse.ArgumentParser)
    return found


def test_every_flag_says_what_it_does() -> None:
    for action in parser()._actions:
        if action.option_strings and action.option_strings[0] != "--no-progress":
            assert action.help, action.option_strings


def test_the_examples_can_be_typed() -> None:
    epilog = (parser().epilog or "").replace("\\\n", " ")
    examples = re.findall(r"^  wastegate (bench.*)$", epilog, re.M)
    assert len(examples) >= 4
    for example in examples:
        _parser().parse_args(shlex.split(re.split(r"   +(?=[a-z])", example)[0]))


def test_what_the_page_shows_can_be_asked_for() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    shown = re.findall(r"^wastegate (bench.*)$", page, re.M)
    assert len(shown) >= 4
    for command in shown:
        assert config_from(_parser().parse_args(shlex.split(command))).levels
    named = set(re.findall(r"`[^`\n]*?(--[a-z][a-z-]*)", page))
    known = {flag for action in parser()._actions for flag in action.option_strings}
    assert named <= known


def test_calls_at_once_or_a_rate_but_not_both() -> None:
    flags = parser().parse_args([])
    assert (flags.targets, flags.rate, flags.concurrency) == ([], None, "1,2,4,8,16,32,64")
    assert parser().parse_args(["--rate", "1,2"]).rate == "1,2"
