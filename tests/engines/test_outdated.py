"""No flag that is called outdated exists, and every flag that is named in its place does."""

from __future__ import annotations

import argparse
import re

import pytest

from tests.engines.test_launch import known_flags, parser_of
from wastegate.engines import kinds

ARTICLE = ("--enable-streaming", "--speculative-model", "--num-speculative-tokens", "--cache-ttl",
           "--fallback-strategy", "--fallback-to-original")  # fmt: skip
"""What a well-known guide tells its readers to set."""


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_what_guides_name_is_answered_for_every_engine(engine: str) -> None:
    assert set(ARTICLE) <= kinds.ENGINES[engine].OUTDATED.keys()


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_no_outdated_flag_exists(engine: str) -> None:
    assert kinds.ENGINES[engine].OUTDATED.keys() & known_flags(engine) == set()


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_what_stands_in_its_place_exists(engine: str) -> None:
    room = kinds.ENGINES[engine]
    actions = parser_of(engine)._option_string_actions
    ours = {flag for flag, action in actions.items() if action.help != argparse.SUPPRESS}
    for flag, sentence in room.OUTDATED.items():
        engines, _, here = sentence.partition("here: ")
        assert set(re.findall(r"--[a-z][\w-]+", engines)) <= known_flags(engine), flag
        assert set(re.findall(r"--[a-z][\w-]+", here)) <= ours, flag
