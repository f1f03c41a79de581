from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import attempt, entry
from wastegate.core.ledger import NANO
from wastegate.sim.fit import Fitted
from wastegate.sim.roofline import FRONT_SECONDS, Roofline
from wastegate.sim.timing import Linear, Load
from wastegate.steps.whatif_file import FileError, build, read, settings, shaped
from wastegate.store.entries import Ledger

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "whatif.toml"
LINEAR = "\n[machines.linear]\nstep_seconds = 0.01\n"


def file(text: str) -> Any:
    return shaped(tomllib.loads(text), "what.toml", text)


def test_the_example_loads_and_its_fleet_is_as_it_says() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    example = shaped(read(EXAMPLE), EXAMPLE.name, text)
    fleet = build(example, EXAMPLE.name)
    assert [machine.replica.name for machine in fleet] == [f"l40s-{number}" for number in range(1, 9)]
    assert {machine.replica.cap for machine in fleet} == {64}
    assert fleet[0].replica.price > 0.5 * NANO, "the catalogue's price of an L40S"
    assert isinstance(fleet[0].timing, Roofline)
    assert fleet[0].settings.kv_tokens == fleet[0].timing.kv_tokens(), "what fits beside the weights"
    assert (fleet[0].settings.step_tokens, fleet[0].settings.running) == (2048, 1024)
    assert fleet[0].front == FRONT_SECONDS
    assert example.traffic is not None
    assert example.traffic.pattern == "diurnal"


def test_a_settings_table_goes_over_the_engines_own() -> None:
    row = file('[[machines]]\nengine = "local"\nsettings = { running = 4, accepted = [0.7, 0.4] }' + LINEAR).machines[0]
    made = settings(row)
    assert (made.running, made.accepted, made.part_block) == (4, (0.7, 0.4), 32)


def test_the_traffics_blocks_are_the_caches() -> None:
    plain = file("[[machines]]" + LINEAR)
    assert build(plain, "f", 512)[0].settings.hashed_tokens == 512
    told = file("[[machines]]\nsettings = { hashed_tokens = 64 }" + LINEAR)
    assert build(told, "f", 512)[0].settings.hashed_tokens == 64


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("price_per_hour = 2.5", 2.5),
        ('accelerator = "2xh100"', 13.76),
        ("", 0.0),
    ],
)
def test_prices_are_given_or_the_catalogues(text: str, price: float) -> None:
    (machine,) = build(file(f"[[machines]]\n{text}" + LINEAR), "f")
    assert machine.replica.price / NANO == price
    assert machine.timing == Linear(step_seconds=0.01)


def test_a_ledger_tells_how_fast_a_replica_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.add(
            [
                entry(f"c{n}", attempt(
                    "a", 10.0 * n, 10.0 * n + 1.2, sent=10.0 * n, first_token=10.0 * n + 0.2, prompt_tokens=100 + n,
                    output_tokens=51, usage="engine", outcome="finished",
                ))
                for n in range(12)
            ]
        )  # fmt: skip
    text = f'[[machines]]\n[machines.ledger]\npath = "{path}"\nreplica = "a"\n'
    (machine,) = build(file(text), "f")
    assert isinstance(machine.timing, Fitted)
    assert machine.timing.step(Load(decoding=1, kv=130)) == pytest.approx(0.02, rel=0.05)
    with pytest.raises(FileError, match=r"knows no replica 'b'; known: a"):
        build(file(text.replace('"a"', '"b"')), "f")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing required field `machines`"),
        ("[[machines]]\ncount = 0" + LINEAR, "there are no machines"),
        ("[[machines]]\n", "what.toml:1: machines need one of roofline, linear, table and ledger to say how fast"),
        ("[[machines]]" + LINEAR + "[machines.table]\ndecode = [[1, 1]]\nprefill = [[1, 1]]", "given: linear, table"),
        ("[[machines]]\ncuont = 2" + LINEAR, "what.toml:2: unknown key 'cuont' in [machines.0]; did you mean 'count'?"),
        ("[[machines]]\nsettings = { running = 0 }" + LINEAR, "settings: running is 0"),
        ("[[machines]]\nsettings = { runing = 1 }" + LINEAR, "settings: Object contains unknown field `runing`"),
        ("[timers]\ntotal = 0\n[[machines]]" + LINEAR, "what.toml:1: a timer must be above 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(FileError) as caught:
        file(text)
    if "timer" in problem:
        assert "total is 0" in str(caught.value)
    else:
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[machines]]\n[machines.roofline]\nhardware = "h100"\nmodel = "gpt-oss-120b"', "is a mixture of 128 experts"),
        ('[[machines]]\n[machines.roofline]\nhardware = "h10"\nmodel = "qwen3-8b"', "no hardware is called 'h10'"),
        ('[[machines]]\n[machines.roofline]\nhardware = "t4"\nmodel = "llama-3.1-70b"', "does not fit 1 × t4"),
        ('[[machines]]\naccelerator = "abacus"' + LINEAR, "no price is known for the accelerator 'abacus'"),
        ('[[machines]]\n[machines.ledger]\npath = "/nowhere.db"\nreplica = "a"', "machines 'replica': "),
        ("[[machines]]" + LINEAR + "[[machines]]" + LINEAR, "two machines are called 'replica'"),
    ],
)
def test_machines_that_cannot_be_built_are_named(text: str, problem: str) -> None:
    with pytest.raises(FileError) as caught:
        build(file(text), "what.toml")
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read"):
        read(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[[machines\n")
    with pytest.raises(FileError, match=r"broken\.toml: "):
        read(broken)


def test_own_hardware_and_shapes_may_be_described() -> None:
    text = """
[[machines]]
[machines.roofline.device]
name = "npu"
tflops = { bf16 = 100.0 }
memory_gb = 64.0
bandwidth_gbs = 800.0
link_gbs = 0.0
watts = 200.0
price = ""
source = "its maker"
date = 2026-01-01
[machines.roofline.shape]
name = "mine"
layers = 24
hidden = 2048
heads = 16
kv_heads = 8
head = 128
inner = 8192
vocabulary = 50000
"""
    (machine,) = build(file(text), "f")
    assert machine.timing.step(Load(decoding=1)) > 0
    assert machine.replica.price == 0
