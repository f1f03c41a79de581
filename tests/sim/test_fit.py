from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Attempt, EngineRecord, Run
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.sim.engine import Simulation
from wastegate.sim.fit import Fitted, Observation, fit, from_calls, from_records
from wastegate.sim.flight import Arrival
from wastegate.sim.replica import Machine, Settings
from wastegate.sim.timing import Linear, Load, Table, Timing

CPU = Table(decode=((1, 0.02), (8, 0.022), (32, 0.07)), prefill=((32, 0.03), (256, 0.25)), per_kv=1e-7)


def steps(timing: Timing, count: int = 300, most: int = 32, seed: int = 1) -> list[Observation]:
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        running, prefill = chance.randint(0, most), chance.choice([0, 0, chance.randint(1, 256)])
        if running or prefill:
            load = Load(prefill, prefill**2 / 2, running, running * chance.randint(50, 500))
            found.append(Observation(load, timing.step(load) * chance.gauss(1, 0.02)))
    return found


def test_a_sum_is_found_back() -> None:
    made = Linear(0.01, 1e-3, 1e-7, 1e-3, 1e-6)
    found = fit(steps(made))
    for load in (Load(decoding=4, kv=800), Load(100, 5000, 0, 0), Load(64, 2048, 20, 4000)):
        assert found.step(load) == pytest.approx(made.step(load), rel=0.03)
    assert found.middle < 0.03
    assert found.residual < 0.06


def test_a_cost_that_begins_late_is_found_too() -> None:
    found = fit(steps(CPU))
    for running in (1, 4, 8, 20, 32):
        load = Load(decoding=running, kv=200 * running)
        assert found.step(load) == pytest.approx(CPU.step(load), rel=0.12)


def test_beyond_what_was_seen_it_says_so_and_widens() -> None:
    found = fit(steps(CPU))
    near, far, further = Load(decoding=16, kv=4000), Load(decoding=64, kv=4000), Load(decoding=128, kv=4000)
    assert (found.inside(near), found.inside(far)) == (True, False)
    assert found.doubt(near) == found.residual < found.doubt(far) < found.doubt(further)
    assert not found.inside(Load(prefill=2048))
    without = fit([one for one in steps(CPU) if not one.load.prefill])
    assert not without.inside(Load(prefill=8)), "a kind of work that was never seen"


def test_too_little_is_no_fit() -> None:
    with pytest.raises(ValueError, match="3 observations: a fit needs at least 8"):
        fit(steps(CPU)[:3])
    with pytest.raises(ValueError, match="took no time"):
        fit([Observation(Load(decoding=1), 0.0)] * 9)


def traffic(machine: Machine, calls: int, seed: int, rate: float) -> list[Attempt]:
    """What a ledger would hold of a replica."""
    chance, at, arrivals = random.Random(seed), 1000.0, []
    for number in range(calls):
        at += chance.expovariate(rate)
        call = Call(f"c-{number}", at, "chat", "/v1/chat/completions", "m", stream=True)
        arrivals.append(Arrival(replace(call, prompt_tokens=chance.randint(20, 200)), chance.randint(10, 60)))
    simulation = Simulation([machine], World(Breaker(), RetryBudget()))
    simulation.arrive(arrivals)
    return [one.entry.attempts[0] for one in simulation.run()]


def test_calls_in_a_ledger_tell_how_long_steps_take() -> None:
    """From one load, and asked about two others: what it foretells of them is within a tenth."""
    settings = Settings(step_tokens=256)
    machine = Machine(Replica("r0", "http://r0:8000", ("m",)), CPU, settings)
    seen = traffic(machine, 300, 1, rate=2.0) + traffic(machine, 300, 2, rate=6.0)
    shifted = [_shift(one, 10_000.0 * (index >= 300)) for index, one in enumerate(seen)]
    found = fit(from_calls(shifted, step_tokens=256))
    guess = Machine(machine.replica, found, settings)
    for rate in (1.0, 4.0):
        real, foretold = traffic(machine, 200, 9, rate), traffic(guess, 200, 9, rate)
        assert _mean(foretold, "tpot") == pytest.approx(_mean(real, "tpot"), rel=0.1)
        assert _mean(foretold, "ttft") == pytest.approx(_mean(real, "ttft"), rel=0.15)


def _shift(one: Attempt, by: float) -> Attempt:
    times = {name: getattr(one, name) + by for name in ("sent", "first_token", "ended")}
    return replace(one, **times)


def _mean(attempts: list[Attempt], what: str) -> float:
    values = []
    for one in attempts:
        assert one.first_token is not None
        assert one.sent is not None
        assert one.output_tokens is not None
        tpot = (one.ended - one.first_token) / (one.output_tokens - 1)
        values.append(tpot if what == "tpot" else one.first_token - one.sent)
    return sum(values) / len(values)


def test_calls_that_tell_nothing_are_left_out() -> None:
    failed = Attempt(1, "r0", 1.0, 2.0, "failed", sent=1.0)
    counted = Attempt(
        1, "r0", 1.0, 2.0, "finished", sent=1.0, first_token=1.5, prompt_tokens=5, output_tokens=9, usage="counted"
    )
    assert from_calls([failed, counted], 256) == []


def test_an_engines_own_records_tell_it_too() -> None:
    made = Linear(0.01, 1e-3, 0.0, 1e-3, 1e-6)
    chance, records = random.Random(3), []
    for number in range(40):
        at, prompt, output = 10.0 * number, chance.randint(10, 200), chance.randint(5, 50)
        first = made.step(Load(prompt))
        load = Load(decoding=1, kv=float(prompt))
        decode = (output - 1) * made.step(load)
        runs = (
            Run(at, at + first, 1, prompt, 0, 0, 0.0),
            Run(at + first, at + first + decode, output - 1, 0, output - 1, 0, prompt * decode),
        )
        ended = at + first + decode
        records.append(EngineRecord(number + 1, f"e-{number}", at, ended, "stop", prompt, 0, output, runs=runs))
    found = fit(from_records(records))
    assert found.step(Load(100, 5000)) == pytest.approx(0.11, rel=0.05)
    assert found.step(Load(decoding=1, kv=100)) == pytest.approx(0.0111, rel=0.05)
    assert from_records([]) == []


def test_a_fit_is_a_value_that_can_be_kept() -> None:
    found = fit(steps(CPU))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Fitted) == found
