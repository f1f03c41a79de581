"""Commands from configurations: every flag is one that the engine has, and a wrong setting is named by its flag."""

from __future__ import annotations

import argparse
import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.engines.pages import text
from wastegate.engines import kinds, llamacpp, local, sglang, vllm
from wastegate.engines.launch import Command, add_flags, check_more, configure, flags, reject_outdated
from wastegate.local import flags as local_flags

PINNED = {"vllm": "vllm-0.32.0", "sglang": "sglang-0.5.23", "llamacpp": "llamacpp-11549"}


def known_flags(engine: str) -> set[str]:
    """What the engine's own parser has, in the version that its room was read in."""
    if engine == "wastegate":
        parser = argparse.ArgumentParser()
        local_flags.engine(parser.add_subparsers(), lambda _: 0)
        (actions,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        return set(actions.choices["engine"]._option_string_actions)
    return set(text(f"{PINNED[engine]}-flags.txt").split())


EVERYTHING: dict[str, dict[str, Any]] = {
    "vllm": {
        "name": "n", "context": 8192, "sequences": 64, "active": 32, "queued": 100, "step_tokens": 4096, "memory": 0.5,
        "kv_bytes": 1 << 30, "kv_type": "fp8", "kv_offload_gb": 4.0, "block": 16, "prefix_caching": False,
        "dtype": "bfloat16", "quantization": "awq", "tensor_parallel": 2, "speculation": "draft", "draft": "d",
        "draft_tokens": 5, "draft_table": "1-4:5,5-16:2", "eager": True, "priority": True, "plugin": True,
        "dev_mode": True,
    },
    "sglang": {
        "name": "n", "context": 8192, "sequences": 64, "queued": 9, "step_tokens": 4096, "memory": 0.8,
        "kv_tokens": 9000, "kv_type": "fp8_e5m2", "host_cache_gb": 4, "block": 16, "prefix_caching": False,
        "dtype": "bfloat16",
        "quantization": "fp8", "tensor_parallel": 2, "speculation": "eagle", "draft": "d", "draft_tokens": 4,
        "priority": True,
    },
    "llamacpp": {
        "name": "n", "context": 2048, "sequences": 8, "step_tokens": 512, "gpu_layers": 99, "threads": 4,
        "kv_type": "q8_0", "prompt_cache_mb": 0, "prefix_caching": False, "speculation": "draft-simple", "draft": "d",
        "draft_tokens": 4, "draft_confidence": 0.6, "sleep_seconds": 60,
    },
    "wastegate": {
        "name": "n", "context": 2048, "sequences": 8, "queued": 9, "step_tokens": 64, "kv_gb": 0.5, "kv_type": "f16",
        "prefix_caching": False, "cores": "0",
    },
}  # fmt: skip


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_every_flag_is_one_that_the_engine_has(engine: str) -> None:
    room = kinds.ENGINES[engine]
    for given in ({}, EVERYTHING[engine]):
        command = room.command(configure(room.Config, {"model": "m", **given}))
        used = {word for word in command.argv if word.startswith("--")}
        assert used <= known_flags(engine)
        assert {name.replace("_", "-") for name in given} <= {
            action.removeprefix("--") for action in parser_of(engine)._option_string_actions
        }


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_only_this_machine_reaches_it(engine: str) -> None:
    room = kinds.ENGINES[engine]
    argv = room.command(configure(room.Config, {"model": "m"})).argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"


def parser_of(engine: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch")
    room = kinds.ENGINES[engine]
    add_flags(parser, room.Config)
    reject_outdated(parser, room.OUTDATED)
    return parser


@pytest.mark.parametrize("engine", kinds.ENGINES)
def test_a_flag_a_field_and_back(engine: str) -> None:
    room = kinds.ENGINES[engine]
    words = ["m"]
    for name, value in EVERYTHING[engine].items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    given = {key: value for key, value in vars(parser_of(engine).parse_args(words)).items() if key != "_"}
    assert configure(room.Config, given) == configure(room.Config, {"model": "m", **EVERYTHING[engine]})


def test_the_help_tells_each_setting_and_its_default() -> None:
    shown = parser_of("llamacpp").format_help()
    assert "--context N" in shown
    assert "(default: 4096)" in shown
    assert "--enable-streaming" not in shown


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ("vllm", {"context": 0}, "--context: "),
        ("vllm", {"memory": 1.5}, "--memory: "),
        ("vllm", {"kv_bytes": -1}, "--kv-bytes: "),
        ("vllm", {"port": 70000}, "--port: "),
        ("vllm", {"model": ""}, "MODEL: "),
        ("vllm", {"quantization": "bitsandbytes"}, "not in vLLM 0.32 any more"),
        ("vllm", {"speculation": "draft"}, "needs --draft"),
        ("vllm", {"draft": "d"}, "use --speculation draft"),
        ("vllm", {"speculation": "suffix", "draft_table": "1-4:3"}, "fails at a draft table"),
        ("vllm", {"speculation": "ngram", "draft_table": "1-4:9"}, "raise that"),
        ("vllm", {"speculation": "ngram", "draft_table": "1-4"}, "FROM-TO:TOKENS"),
        ("vllm", {"speculation": "ngram", "draft_table": "1-4:2,9-12:1"}, "follow one another"),
        ("vllm", {"speculation": "ngram", "draft_table": "4-1:2"}, "follow one another"),
        ("vllm", {"dev_mode": True, "host": "0.0.0.0"}, "keep it on 127.0.0.1"),
        ("sglang", {"speculation": "eagle"}, "needs --draft"),
        ("sglang", {"speculation": "ngram", "draft": "d"}, "does nothing"),
        ("llamacpp", {"speculation": "draft-simple"}, "go together"),
        ("llamacpp", {"draft": "d"}, "go together"),
        ("llamacpp", {"speculation": "ngram-simple", "draft_tokens": 3}, "has no --draft-tokens"),
        ("wastegate", {"kv_type": "int3"}, "--kv-type: "),
    ],
)
def test_a_setting_that_cannot_be(engine: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        configure(kinds.ENGINES[engine].Config, {"model": "m", **given})


def test_vllm_gets_its_speculation_as_json() -> None:
    command = vllm.command(vllm.Config(model="m", speculation="ngram", draft_tokens=5, draft_table="1-4:5,5-16:0"))
    at = command.argv.index("--speculative-config")
    assert command.argv[at + 1] == (
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, '
        '"num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 16, 0]]}'
    )
    assert vllm.asked(vllm.Config(model="m", speculation="draft", draft="d")).speculation == "draft_model"


def test_vllm_is_warned_of_its_memory_and_shows_itself_to_developers() -> None:
    command = vllm.command(vllm.Config(model="m", dev_mode=True))
    assert command.env == (("VLLM_SERVER_DEV_MODE", "1"),)
    assert command.line().startswith("VLLM_SERVER_DEV_MODE=1 vllm serve m ")
    assert "--kv-bytes" in command.notes[0]
    assert vllm.command(vllm.Config(model="m", kv_bytes=1)).notes == ()


def test_vllm_with_our_plugin() -> None:
    config = vllm.Config(model="m", kv_bytes=1, plugin=True)
    command = vllm.command(config)
    assert command.argv[command.argv.index("--scheduler-cls") + 1] == vllm.SCHEDULER == vllm.asked(config).scheduler
    assert command.env == (("VLLM_PLUGINS", "wastegate"),)
    assert "WASTEGATE_PLUGIN_TOKEN" in command.notes[0]
    module, _, name = vllm.SCHEDULER.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert name in Path(spec.origin).read_text(encoding="utf-8")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert dict(command.env)["VLLM_PLUGINS"] in project["entry-points"]["vllm.endpoint_plugins"]


def test_sglang_counts_the_certain_token_too() -> None:
    chain = sglang.Config(model="m", speculation="standalone", draft="d", draft_tokens=3)
    argv = sglang.command(chain).argv
    assert argv[argv.index("--speculative-num-steps") + 1] == "3"
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "4"
    assert sglang.asked(chain).draft_tokens == 4
    ngram = sglang.Config(model="m", speculation="ngram", draft_tokens=3)
    assert "--speculative-num-steps" not in sglang.command(ngram).argv
    assert sglang.asked(ngram).draft_tokens == 3
    assert sglang.asked(sglang.Config(model="m")).draft_tokens is None


def test_llamacpp_divides_its_context_and_bounds_its_cache() -> None:
    argv = llamacpp.command(llamacpp.Config(model="m", context=2048, sequences=8)).argv
    assert argv[argv.index("--ctx-size") + 1] == "16384"
    assert argv[argv.index("--cache-ram") + 1] == "1024"
    mod = llamacpp.command(llamacpp.Config(model="m", speculation="ngram-mod", draft_tokens=9)).argv
    assert mod[mod.index("--spec-ngram-mod-n-max") + 1] == "9"
    with pytest.raises(ValueError, match="--context-shift ends the server"):
        llamacpp.command(llamacpp.Config(model="m", speculation="ngram-simple"), ("--context-shift",))


def test_more_flags_are_handed_on() -> None:
    assert local.command(local.Config(model="m"), ("--hint", "none")).argv[-2:] == ("--hint", "none")


def test_words_for_flags() -> None:
    given = flags(("--a", None), ("--b", True), ("--c", False), ("--d", 0.25), ("--e", 0), ("--f", ""))
    assert given == ("--b", "--d", "0.25", "--e", "0")


def test_a_command_is_quoted_for_a_shell() -> None:
    assert Command(("run", "a b"), (("X", "c d"),)).line() == "X='c d' run 'a b'"


@pytest.mark.parametrize("word", ["--enable-streaming", "--cache-ttl=300", "--speculative_model=x"])
def test_an_outdated_flag_is_not_handed_on(word: str) -> None:
    with pytest.raises(ValueError, match=word.split("=")[0].replace("_", "-")):
        check_more(("--max-logprobs", "5", word), vllm.OUTDATED)
    check_more(("--max-logprobs", "5", "value"), vllm.OUTDATED)


def test_an_outdated_flag_ends_with_2_and_todays_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser_of("vllm").parse_args(["m", "--num-speculative-tokens", "5"])
    assert end.value.code == 2
    assert "--speculation draft --draft MODEL --draft-tokens K" in capsys.readouterr().err
