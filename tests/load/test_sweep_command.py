"""`wastegate bench` as a person runs it: flags, files, signals, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.load.conftest import ToyServer
from tests.load.test_sweep import blocks, config, made
from wastegate.cli import _parser
from wastegate.core.prices import find_price
from wastegate.load.sweep_arm import Shape, Slo
from wastegate.load.sweep_command import config_from, exit_code, key_from, save, this_machine
from wastegate.load.sweep_target import Spec

TWO = "a=http://a b=http://b"


def flags(words: str = "") -> Any:
    return _parser().parse_args(["bench", *shlex.split(words)])


def test_plain_flags_sweep_the_local_engine() -> None:
    found = config_from(flags())
    cores = os.cpu_count() or 1
    assert found.targets == (Spec(name="local", model="smollm2-135m-instruct"),)
    assert found.levels == (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    assert (found.shapes, found.asked.mode, found.asked.settle.seconds) == ((Shape(110, 32),), "closed", 2.0)
    assert (found.design.blocks, found.design.mirrored, found.design.unit) == (6, False, " at once")
    assert found.prices["local"].dollars_per_hour == pytest.approx(cores * find_price("cpu-core"))
    assert found.device == this_machine()
    assert found.device.memory > 1e8


def test_every_flag_has_its_place() -> None:
    found = config_from(
        flags(
            f"{TWO} --rate 4,1,2 --lengths 512:128,64:8 --model m --timeout 9 --repeats 3 --spares 1 --seconds 7 "
            "--most 8 --warmup 2 --drain 1 --seed 5 --level 0.9 --keep-disturbed --slo-ttft 0.5 --slo-tpot 0.05 "
            "--slo-e2e 3 --enough 0.9 --price l4 --price b=1.5 --memory a=9.5 --device l4:24:0.8 --demand 50,20 "
            "--remark 'b=speed only'"
        )
    )
    assert found.levels == (1.0, 2.0, 4.0)
    assert found.shapes == (Shape(512, 128), Shape(64, 8))
    assert (found.asked.mode, found.asked.model, found.asked.timeout, found.asked.drain) == ("open", "m", 9.0, 1.0)
    assert found.asked.slo == Slo(ttft=0.5, tpot=0.05, e2e=3.0)
    design = found.design
    assert (design.seconds, design.warmup, design.blocks, design.spares, design.seed) == (7.0, 2.0, 3, 1, 5)
    assert (design.level, design.rule.others, design.rule.own, design.unit) == (0.9, 1.0, None, "/s")
    assert found.prices["a"].dollars_per_hour == find_price("l4")
    assert found.prices["b"].dollars_per_hour == 1.5
    assert (found.memory, found.enough, found.demands) == ({"a": 9_500_000_000}, 0.9, (20.0, 50.0))
    assert found.device is not None
    assert (found.device.name, found.device.memory, found.device.dollars_per_hour) == ("l4", 24_000_000_000, 0.8)
    assert [spec.title for spec in found.targets] == ["a", "b (speed only)"]


def test_an_engine_on_some_cores_costs_those() -> None:
    core = find_price("cpu-core")
    found = config_from(flags("one=engine:m,cores=1 three=engine:m,cores=0-2 all=engine:m"))
    assert found.prices["one"].dollars_per_hour == pytest.approx(core)
    assert found.prices["three"].dollars_per_hour == pytest.approx(3 * core)
    assert found.prices["one"].source == "list price of a core"


def test_servers_have_no_price_and_no_device_until_told() -> None:
    found = config_from(flags(TWO))
    assert (found.prices, found.device, found.demands) == ({}, None, ())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--concurrency 1,x", "--concurrency 1,x: write numbers"),
        ("--rate 0,1", "--rate 0,1: each must be above 0"),
        ("--concurrency 1.5", "whole numbers"),
        ("--lengths 12", "--lengths 12: write tokens"),
        ("--lengths 0:1", "--lengths 0:1"),
        ("a=http://a a=http://b", "two targets have one name"),
        ("--remark x=y", "--remark x: no target"),
        ("--remark x", "--remark x: write NAME=VALUE"),
        ("--price nonsense", "nonsense"),
        ("--price 0", "--price 0: a price is above 0"),
        ("--price x=1", "no target is called x"),
        ("--memory local=x", "could not convert"),
        ("--device l4:24", "--device l4:24: write NAME:GB:PRICE"),
        ("--device l4:0:1", "no room"),
        ("--seconds 0", "0 < seconds"),
        ("what", "NAME=URL"),
    ],
)
def test_flags_that_do_not_fit_are_told(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config_from(flags(words))


def test_the_key_comes_from_the_environment() -> None:
    assert key_from(flags("--api-key-env KEY"), {"KEY": "secret"}) == "secret"
    assert key_from(flags(), {}) == ""
    with pytest.raises(ValueError, match="no such environment variable"):
        key_from(flags("--api-key-env KEY"), {})


def test_files_are_written_whole(tmp_path: Path) -> None:
    report = made(config(), blocks())
    asked = flags(f"--json {tmp_path}/a.json --html {tmp_path}/a.html --svg {tmp_path}/a.svg")
    save(report, asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "a.svg"]
    assert json.loads((tmp_path / "a.json").read_text())["sheets"][0]["curves"][0]["target"] == "slow"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    save(report, flags())


def test_exit_codes() -> None:
    report = made(config(), blocks())
    assert exit_code(report) == 0
    assert exit_code(replace(report, invalid=("noise",))) == 1
    assert exit_code(replace(report, invalid=("noise",), interrupted=True)) == 130


async def start(toy: ToyServer, tmp_path: Path, words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wastegate", "bench", f"toy={toy.url}", "--keep-disturbed", "--spares", "0",
        *shlex.split(words), stdout=PIPE, stderr=PIPE, cwd=tmp_path, env={**os.environ, "COLUMNS": "150"},
    )  # fmt: skip


async def test_a_sweep_from_the_command_line(toy: ToyServer, tmp_path: Path) -> None:
    toy.gap = 0.002
    words = "--concurrency 1,2,4 --repeats 2 --seconds 0.1 --lengths 30:4 --price 1 --json r.json --html r.html"
    process = await start(toy, tmp_path, words)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "toy: 30 tokens in, 4 out" in out.decode()
    assert "toy: no knee is concluded" in out.decode() or "toy: the knee is at" in out.decode()
    report = json.loads((tmp_path / "r.json").read_bytes())
    assert [point["level"] for point in report["sheets"][0]["curves"][0]["points"]] == [1.0, 2.0, 4.0]
    assert report["targets"][0]["price"]["dollars_per_hour"] == 1.0


async def test_a_signal_shows_what_ran(toy: ToyServer, tmp_path: Path) -> None:
    under_way = asyncio.Event()

    def slow() -> float:
        if len(toy.calls) > 60:
            under_way.set()
        return 0.01

    toy.delay = slow
    process = await start(toy, tmp_path, "--concurrency 1,2 --repeats 50 --seconds 0.1 --lengths 30:4")
    await under_way.wait()
    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()
    assert process.returncode == 130, err.decode()
    assert "INVALID: it was interrupted" in out.decode()


async def test_a_signal_before_anything_ran_ends_it(toy: ToyServer, tmp_path: Path) -> None:
    called = asyncio.Event()

    def hang() -> float:
        called.set()
        return 600.0

    toy.delay = hang
    process = await start(toy, tmp_path, "--concurrency 1 --repeats 2 --lengths 30:4")
    await called.wait()
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert (process.returncode, out) == (130, b"")


async def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    for words, why in (
        ("toy=http://127.0.0.1:9 --concurrency 1", "cannot be reached"),
        ("gone=engine:nothing.gguf --concurrency 1", "nothing.gguf: there is no such file"),
        ("toy", "write NAME=URL"),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "wastegate", "bench", *shlex.split(words), "--no-progress",
            stdout=PIPE, stderr=PIPE, cwd=tmp_path,
        )  # fmt: skip
        out, err = await process.communicate()
        assert (process.returncode, out) == (2, b"")
        assert err.decode().startswith("wastegate bench: ")
        assert why in err.decode()
