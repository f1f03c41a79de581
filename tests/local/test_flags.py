from __future__ import annotations

import argparse
from typing import Any

import pytest

from wastegate.local import flags
from wastegate.local.settings import EngineOptions, options_of


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wastegate")
    commands = parser.add_subparsers()
    flags.engine(commands, lambda _: 0)
    flags.models(commands, lambda _: 0)
    return parser.parse_args(argv)


def test_without_flags_the_options_are_their_own_defaults() -> None:
    assert options_of(parse("engine")) == EngineOptions(name="smollm2-135m-instruct")


def test_each_flag_reaches_its_option() -> None:
    arguments = parse(
        "engine", "--model", "a/b.gguf", "--host", "::1", "--port", "0", "--cap", "3", "--queue", "4",
        "--context", "99", "--kv-gb", "0.5", "--step-tokens", "64", "--threads", "2", "--hint", "throughput",
        "--kv-precision", "f16", "--no-prefix-caching", "--drain", "5", "--admin-token", "t",
    )  # fmt: skip
    assert options_of(arguments) == EngineOptions(
        name="b", host="::1", port=0, cap=3, queue=4, context=99, kv_gb=0.5, batched_tokens=64, threads=2,
        hint="throughput", kv_precision="f16", prefix_caching=False, drain=5.0, admin_token="t",
    )  # fmt: skip
    assert options_of(parse("engine", "--model", "x.gguf", "--name", "mine")).name == "mine"


def test_the_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("engine", "--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert "/admin/limits" in shown
    assert "(default: 32)" in shown


@pytest.mark.parametrize(
    "argv", [("models",), ("models", "pull"), ("engine", "--kv-precision", "u4"), ("engine", "--ca", "3")]
)
def test_what_is_incomplete_or_unknown_is_refused(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("models", "list", "--json"), {"action": "list", "json": True}),
        (("models", "pull", "m"), {"action": "pull", "model": "m"}),
        (("models", "rm", "m"), {"action": "rm", "model": "m"}),
    ],
)
def test_models_takes_an_action(argv: tuple[str, ...], found: dict[str, Any]) -> None:
    assert found.items() <= vars(parse(*argv)).items()
