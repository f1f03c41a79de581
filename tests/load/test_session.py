"""The command as a person runs it: flags, signals, files, exit codes."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fake_replica import FakeReplica, Fault, Reply
from tests.load.conftest import ToyServer
from tests.load.test_replay import lines, mooncake, say
from tests.load.test_report import report, result
from wastegate.cli import _parser
from wastegate.load.session import config_from, exit_code, record, save
from wastegate.load.traces import SAMPLE
from wastegate.openai.sse import Usage


def flags(words: str = "") -> Any:
    return _parser().parse_args(["replay", "t.jsonl", "--url", "http://x", *shlex.split(words)])


def test_plain_flags_are_the_defaults() -> None:
    config = config_from(flags(), {})
    assert (config.trace, config.url, config.format, config.model) == (Path("t.jsonl"), "http://x", None, "")
    assert (config.pace.rate, config.pace.token_scale, config.loop.max_inflight) == (None, Fraction(1), 512)
    assert (config.stream, config.on_misfit, config.api_key, config.headers) == (True, "clip", "", ())


def test_every_flag_has_its_place() -> None:
    config = config_from(
        flags(
            "--format azure --rate 2 --limit 5 --duration 9 --seed 3 --token-scale 1/16 --model m --no-stream "
            "--endpoint chat --on-misfit skip --ignore-eos never --temperature 0 --max-inflight 7 --header 'x-a: b' "
            "--timeout 8 --drain 1 --fresh-connections --api-key-env KEY --tenant t --tenant-header x-t"
        ),
        {"KEY": "secret"},
    )
    assert (config.pace.rate, config.pace.limit, config.pace.duration, config.pace.seed) == (2.0, 5, 9.0, 3)
    assert (config.pace.token_scale, config.format, config.model, config.stream) == (
        Fraction(1, 16),
        "azure",
        "m",
        False,
    )
    assert (config.endpoint, config.on_misfit, config.ignore_eos, config.temperature) == ("chat", "skip", "never", 0.0)
    assert (config.loop.max_inflight, config.loop.drain, config.timeout, config.fresh_connections) == (
        7,
        1.0,
        8.0,
        True,
    )
    assert (config.api_key, config.tenant, config.tenant_header) == ("secret", "t", "x-t")
    assert config.headers == (("x-a", "b"),)
    assert config_from(flags("--speed 4"), {}).pace.speed == 4.0


def test_the_sample_is_at_hand_unless_a_file_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = _parser().parse_args(["replay", "sample", "--url", "http://x"])
    assert config_from(plain, {}).trace == SAMPLE
    (tmp_path / "sample").touch()
    assert config_from(plain, {}).trace == Path("sample")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--api-key-env KEY", "there is no such environment variable"),
        ("--header nothing", "must look like 'name: value'"),
        ("--header 'a: b\nc: d'", "must look like 'name: value'"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from(flags(words), {})


def test_a_record_keeps_measures_and_never_text() -> None:
    kept = record(result(3, 1.0, late=0.25, usage=Usage(7, 5, 2), wanted=(8, 5), status=200, request_id="r"))
    assert (kept.row, kept.fate, kept.at, kept.drift, kept.ttft, kept.e2e) == (3, "ok", 1.0, 0.25, 0.75, 1.25)
    assert (kept.prompt_tokens, kept.output_tokens, kept.cached_tokens, kept.wanted_input) == (7, 5, 2, 8)
    skipped, failed = record(result(fate="skipped")), record(result(fate="failed", reason="cut"))
    assert (skipped.reason, failed.reason, skipped.drift) == ("too long", "cut", None)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    save([result(1), result(2)], path)
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
    with pytest.raises(OSError, match="No such file"):
        save([result(1)], tmp_path / "none" / "rows.jsonl")


def test_exit_codes() -> None:
    assert exit_code(report(result())) == 0
    assert exit_code(report(result(fate="skipped"))) == 1
    assert exit_code(report(result(), interrupted=True)) == 130


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wastegate", "replay", *words, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_prints_json_and_saves_rows(tmp_path: Path, toy: ToyServer) -> None:
    trace = mooncake(tmp_path, (0, 600, 3, [1, 2]), (50, 650, 3, [1, 3]))
    saved = tmp_path / "rows.jsonl"
    async with command(str(trace), "--url", toy.url, "--json", "--save", str(saved), "--no-progress") as process:
        code, out, err = await ended(process)
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["read"], said["ok"], said["valid"], said["lengths"]["worst"]) == (2, 2, True, 0)
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [row["output_tokens"] for row in rows] == [3, 3]
    assert [row["client_id"] for row in rows] == [headers["x-request-id"] for headers in toy.headers]


async def test_the_command_prints_a_table(tmp_path: Path, toy: ToyServer) -> None:
    async with command(str(lines(tmp_path, say("a"))), "--url", toy.url) as process:
        code, out, _ = await ended(process)
    assert code == 0
    assert "valid: the offered rate was held" in out


async def test_a_run_that_is_not_valid_ends_with_one(tmp_path: Path, toy: ToyServer) -> None:
    toy.context = 1
    async with command(str(mooncake(tmp_path, (0, 60, 3, [1]))), "--url", toy.url) as process:
        code, out, _ = await ended(process)
    assert code == 1
    assert "INVALID: no request was sent" in out


@pytest.mark.parametrize(
    ("content", "url", "message"),
    [("a,b", "http://127.0.0.1:9", "line 1: not a known trace"), ('{"prompt": "a"}', "http://127.0.0.1:9", "--rate"),
     ('{"prompt": "a", "timestamp": 1}', "http://127.0.0.1:9", "cannot be reached"),
     ('{"prompt": "a", "timestamp": 1}', "127.0.0.1:9", "must begin with http")],
)  # fmt: skip
async def test_bad_input_ends_with_two_and_a_sentence(tmp_path: Path, content: str, url: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    async with command(str(path), "--url", url) as process:
        code, out, err = await ended(process)
    assert (code, out) == (2, "")
    assert err.startswith("wastegate replay: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_sending_and_prints_what_ran(
    tmp_path: Path, toy: ToyServer, number: signal.Signals
) -> None:
    trace = lines(tmp_path, *(say("a", timestamp=second) for second in (0, 0.05, 300, 600)))
    async with command(str(trace), "--url", toy.url, "--json") as process:
        async with asyncio.timeout(30):
            while len(toy.calls) < 2:  # noqa: ASYNC110 - the server only counts
                await asyncio.sleep(0.02)
        process.send_signal(number)
        code, out, _ = await ended(process)
    said = json.loads(out)
    assert code == 130
    assert (said["interrupted"], said["sent"], said["ok"], said["not_reached"]) == (True, 2, 2, 2)


async def test_a_second_signal_aborts_what_is_in_flight(tmp_path: Path, toy: ToyServer) -> None:
    toy.delay = lambda: 300.0
    trace = lines(tmp_path, *(say("a", timestamp=second) for second in (0, 300)))
    async with command(str(trace), "--url", toy.url, "--json", "--drain", "300") as process:
        async with asyncio.timeout(30):
            while not toy.calls:  # noqa: ASYNC110 - the server only counts
                await asyncio.sleep(0.02)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
        code, out, _ = await ended(process)
    said = msgspec.json.decode(out)
    assert code == 130
    assert (said["sent"], said["failed"], said["not_reached"]) == (1, {"aborted": 1}, 1)


async def test_a_signal_before_the_first_row_ends_at_once(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        replica.pages["/v1/models"] = Reply(fault=Fault(at="before_first_byte"))
        async with command(str(lines(tmp_path, say("a"))), "--url", replica.url) as process:
            async with asyncio.timeout(30):
                while not replica.probes:  # noqa: ASYNC110 - the replica only counts
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            code, out, err = await ended(process)
    assert (code, out, err) == (130, "", "wastegate replay: interrupted before the first row was sent\n")
