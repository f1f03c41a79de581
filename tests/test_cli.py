"""The command line: each command's help, exit codes, and errors that a person can act on."""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wastegate import __version__, cli
from wastegate.core.ledger import Attempt, Entry, ReplicaSpan
from wastegate.store.entries import Ledger

HEAVY = ("aiohttp", "httptools", "numpy", "openvino", "openvino_genai", "rich", "sqlite3", "uvloop")
"""Libraries that cost time to load: a command loads only its own."""


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty home, an empty working directory, nothing of ours in the environment."""
    for name in ("WASTEGATE_CONFIG", "WASTEGATE_DATA", "WASTEGATE_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def commands(parser: argparse.ArgumentParser, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command and action, as it is typed."""
    yield before
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from commands(inner, *before, name)


COMMANDS = list(commands(cli._parser()))


def run(*argv: str) -> int:
    """The exit code, however it is given."""
    try:
        return cli.main(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


def process(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "wastegate", *argv], capture_output=True, text=True, timeout=60)


# ---- help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_its_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: wastegate{''.join(f' {word}' for word in command)}")
    assert max(len(line) for line in out.splitlines()) <= 100


def test_the_commands_that_there_are() -> None:
    names = {command[0] for command in COMMANDS if len(command) == 1}
    assert names >= {"up", "engine", "models", "replay", "audit", "explain"}


@pytest.mark.parametrize("command", COMMANDS[1:], ids=" ".join)
def test_every_command_says_what_it_is_for_in_the_list(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*command[:-1], "--help")
    assert re.search(rf"^    {command[-1]} +\S", capsys.readouterr().out, re.M)


def test_help_loads_no_library() -> None:
    script = "import sys; from wastegate import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    script += f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("LOADED []\n")


def test_without_a_command_there_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "usage: wastegate" in capsys.readouterr().out


def test_the_version() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"wastegate {__version__}\n")


@pytest.mark.parametrize("argv", [["upp"], ["up", "--lis", "x"], ["up", "--nonsense"], ["models"], ["replay", "x"]])
def test_bad_usage_is_2_and_nothing_is_guessed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    assert "usage: wastegate" in capsys.readouterr().err


# ---- up


def test_a_configuration_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.toml").write_text('[[replicas]]\nurl = "http://127.0.0.1:9"\n' * 3)
    assert run("up", "--config", "good.toml", "--check") == 0
    assert capsys.readouterr().out == "good.toml: ok; 3 replicas\n"
    assert run("up", "--check") == 0
    assert capsys.readouterr().out == "defaults: ok; 2 replicas\n"
    Path("good.toml").rename("wastegate.toml")
    assert run("up", "--check") == 0
    assert capsys.readouterr().out == "wastegate.toml: ok; 3 replicas\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[gateway]\n\n\n[timers]\nidel = 5\n", "bad.toml:5: unknown key 'idel' in [timers]; did you mean 'idle'?"),
        ("[gatway]\n", "bad.toml:1: unknown key 'gatway'; did you mean 'gateway'?"),
        ("[limits]\nline = true\n", "bad.toml:2:"),
        ("[limits\n", "bad.toml: "),
        ('[[replicas]]\nurl = "ftp://x"\n', "'ftp://x' is not an http:// or https:// URL"),
        ('[admin]\nlisten = "0.0.0.0:8081"\n', "which others can reach"),
    ],
)
def test_a_configuration_that_is_wrong_says_where_and_what_instead(
    text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text(text)
    assert run("up", "--config", "bad.toml") == 2
    err = capsys.readouterr().err
    assert err.startswith("wastegate up: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("flag", [("--listen", "8080"), ("--admin", "nowhere"), ("--workers", "0")])
def test_a_flag_that_is_wrong_is_2(flag: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("up", *flag, "--check") == 2
    assert "wastegate up: " in capsys.readouterr().err


def test_a_gateway_that_cannot_start_is_2_and_says_why(tmp_path: Path) -> None:
    Path("one.toml").write_text('[[replicas]]\nurl = "http://127.0.0.1:9"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = process("up", "--config", "one.toml", "--listen", listen, "--admin", "127.0.0.1:0")
    assert done.returncode == 2
    assert f"cannot listen on {listen}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# ---- engine and models


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["engine", "--model", "./none.gguf"], ["models", "rm", "nonsense"], ["models", "pull", "./none.gguf"]):
        assert run(*argv) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"wastegate {' '.join(argv[:2] if argv[0] == 'models' else argv[:1])}: ")
        assert "Traceback" not in err


def test_the_models_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "list") == 0
    assert "smollm2-135m-instruct" in capsys.readouterr().out
    assert run("models", "list", "--json") == 0
    (row, *_) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["path"]) == ("smollm2-135m-instruct", "")


# ---- replay


def test_a_trace_that_is_not_there_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", "none.jsonl", "--url", "http://127.0.0.1:9", "--no-progress") == 2
    assert "wastegate replay: " in capsys.readouterr().err


# ---- audit and explain


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """One call on one replica."""
    path = tmp_path / "ledger.db"
    attempt = Attempt(1, "r1", 10.0, 12.0, "finished", sent=10.0, first_token=10.5, status=200, prompt_tokens=9,
                      output_tokens=5, usage="engine")  # fmt: skip
    call = Entry("abc-1", 10.0, 12.0, "chat", "/v1/chat/completions", "m", "t", "short", True, "finished", 200,
                 attempts=(attempt,), trail=("baseline: r1, the only one open (0 in flight)",))  # fmt: skip
    with Ledger(path) as made:
        made.add([call])
        made.save_spans([ReplicaSpan("r1", "serving", 0.0, 20.0, 3_600_000_000, seen=20.0)])
    return path


def test_an_audit_as_a_table_and_as_json(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", "--ledger", str(ledger)) == 0
    assert capsys.readouterr().out.strip()
    assert run("audit", "--ledger", str(ledger), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"report", "verdict"}


def test_a_call_explained(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "abc", "--ledger", str(ledger)) == 0
    assert "the only one open" in capsys.readouterr().out
    assert run("explain", "abc", "--ledger", str(ledger), "--json") == 0
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["audit"], "ledger.db"),
        (["audit", "--ledger", "none.db"], "none.db"),
        (["audit", "--since", "yesterday-ish"], "yesterday-ish"),
        (["audit", "--config", "none.toml"], "none.toml"),
        (["explain", "abc"], "ledger.db"),
    ],
)
def test_no_ledger_and_no_date_are_2(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"wastegate {argv[0]}: ")
    assert says in err


def test_a_call_that_is_not_there_is_2(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "zzz", "--ledger", str(ledger)) == 2
    assert "no call" in capsys.readouterr().err


def test_the_configured_gateways_ledger_is_found(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wastegate.toml").write_text(f'[ledger]\npath = "{ledger}"\n')
    assert run("audit", "--json") == 0
    json.loads(capsys.readouterr().out)


# ---- the shell around it


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_audit", interrupted)
    assert run("audit") == 130


def test_a_reader_that_has_seen_enough_is_no_error(ledger: Path) -> None:
    """`wastegate audit --json | head -1`"""
    script = f"{sys.executable} -m wastegate audit --json --ledger {ledger}; echo code $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({script}) | (exec 0<&-; sleep 1)"], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    assert re.search(r"code (0|141)$", done.stderr.strip()), done.stderr


def test_the_module_and_the_script_are_one() -> None:
    done = process("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: wastegate ")
