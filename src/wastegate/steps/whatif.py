"""A what-if: traffic through the gateway's own policy, against machines that a file describes. It runs and counts; how
its report is printed stands elsewhere."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.effects import Closed
from wastegate.core.ledger import NANO
from wastegate.core.rationing import Rationing
from wastegate.core.reuse import Reuse
from wastegate.core.shares import Share
from wastegate.core.world import World
from wastegate.levers import Config as Levers
from wastegate.levers import active
from wastegate.load.generate import fitted, make
from wastegate.load.rows import BLOCK_TOKENS, Row
from wastegate.load.schedule import Pace, Planned, schedule
from wastegate.load.traces import read as read_trace
from wastegate.sim.caps import Caps
from wastegate.sim.engine import Simulation
from wastegate.sim.flight import Arrival
from wastegate.sim.replica import Machine, Spent
from wastegate.sim.tally import Figures, Tally, means
from wastegate.steps.verdict import Verdict
from wastegate.steps.whatif_file import File, FileError, build, shaped

_BEGIN = 1_000_000.0
"""Seconds of the epoch at which made-up time begins: any will do that is not 0."""
_MIX = 0x9E3779B97F4A7C15
OUTSIDE = 0.05
"""Part of the machines' busy time in loads that nobody has measured, above which the report is held."""
_TOLD_EVERY = 500

Told = Callable[[int], None]
"""Calls that have ended so far."""


class Where(Struct, frozen=True):
    """What is to be run: the file's tables, and where traffic comes from."""

    name: str
    """Of the file, for messages."""
    raw: dict[str, Any]
    text: str = ""
    trace: str = ""
    """A trace's path; empty: the file's ``[traffic]``."""
    calls: int | None = None
    """How many calls at most; of made traffic 1,000 by default."""
    like: bool = False
    """Make traffic like the trace's instead of taking it as it is."""
    speed: float | None = None
    rate: float | None = None
    label: str = ""
    """What was changed for this run, in a sweep."""


class MachineReport(Struct, frozen=True):
    """One machine's part. Shares are of the run's time, or of its busy time."""

    name: str
    busy: float
    outside: float
    doubt: float
    """Relative half-width in which 9 of 10 of its steps lie, as far as its timing knows."""
    preempted: int
    cached: float
    """Share of the prompts' tokens that its cache held."""
    kv_peak: float | None
    """Of what it can hold; None where that has no bound."""


class Report(Struct, frozen=True):
    """Seconds, US dollars and tokens."""

    label: str
    traffic: str
    calls: int
    outcomes: dict[str, int]
    good: float | None
    """Share of the calls that were answered within the goal; None where no goal is set."""
    seconds: float
    """From the first arrival to the last end."""
    ttft: Figures
    tpot: Figures
    e2e: Figures
    queue: Figures
    retried: int
    waited: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_rate: float
    """Output tokens a second."""
    dollars: float | None
    """All machines over the whole run; None where none has a price."""
    per_thousand: float | None
    per_million_output: float | None
    doubt: float
    """Relative half-width of the step times behind all this, over the machines' busy time."""
    outside: float
    """Part of the busy time in loads such as no timing was made from."""
    machines: tuple[MachineReport, ...]
    column_seconds: float
    arrivals: tuple[float, ...]
    """Calls that came, column by column over time."""
    mean_ttft: tuple[float, ...]
    notes: tuple[str, ...]
    took: float
    """Seconds of real time that the simulation ran."""


def run(where: Where, told: Told | None = None) -> Report:
    """Raises FileError for a file, and TraceError or ValueError for traffic that cannot be used."""
    file = shaped(where.raw, where.name, where.text)
    arrivals, name, block, notes = _traffic(where, file)
    notes += _without_effect(file.levers)
    fleet = build(file, where.name, block)
    tally = Tally(file.goal.ttft, file.goal.tpot)
    simulation = simulate(file, fleet, arrivals, _sink(tally, told))
    began = time.perf_counter()
    simulation.run()
    took = time.perf_counter() - began
    return _report(where.label, name, file, fleet, tally, simulation.spent, tuple(notes), took)


def simulate(
    file: File, fleet: list[Machine], arrivals: Iterable[Arrival], sink: Callable[[Closed], None]
) -> Simulation:
    """The simulation, ready to run, under the policy and the levers that the file sets."""
    world, batching = World(file.breaker, file.retry_budget), file.levers.batching
    if file.levers.routing.policy != "off":
        world.reuse = Reuse(file.levers.routing.index, file.levers.routing.sticky_seconds, _BEGIN)
    rationing = Rationing(Share()) if batching.on else None
    if rationing is not None:
        rationing.set({}, batching.calls)
    caps = Caps(batching.caps, batching.start) if batching.on and batching.caps.policy != "fixed" else None

    def ended(closed: Closed) -> None:
        sink(closed)
        if caps is not None:
            caps.ended(closed)

    simulation = Simulation(
        fleet, world, timers=file.timers, rules=file.retry, levers=active(file.levers), seed=file.seed,
        line_bound=file.limits.line, sink=ended, rationing=rationing,
    )  # fmt: skip
    if caps is not None:
        caps.start(simulation, _BEGIN)
    simulation.arrive(arrivals)
    return simulation


def _sink(tally: Tally, told: Told | None) -> Callable[[Closed], None]:
    if told is None:
        return tally.add

    def sink(closed: Closed) -> None:
        tally.add(closed)
        if tally.calls % _TOLD_EVERY == 0:
            told(tally.calls)

    return sink


# ---- traffic


def _traffic(where: Where, file: File) -> tuple[Iterator[Arrival], str, int | None, list[str]]:
    """Arrivals in order, what they are called, the tokens of a block of theirs, and what must be said of them."""
    model = next((row.models[0] for row in file.machines if row.models), "m")
    if not where.trace:
        if file.traffic is None:
            raise FileError(f"{where.name}: name a trace, or describe traffic in [traffic]")
        count = where.calls or 1_000
        shape = file.traffic
        return _made(make(shape, count, file.seed), model), f"made: {shape.pattern}, {shape.rate:g}/s", None, []
    trace = read_trace(Path(where.trace), limit=None if where.like else where.calls)
    if where.like:
        shape = fitted(trace)
        count = where.calls or len(trace.rows)
        return _made(make(shape, count, file.seed), model), f"made like {trace.path}", None, list(trace.notes)
    rows = schedule(trace, Pace(speed=where.speed, rate=where.rate, seed=file.seed))
    blocks = any(row.row.blocks for row in rows)
    notes = list(trace.notes)
    skipped = sum(bool(row.skip) for row in rows)
    if skipped:
        notes.append(f"{skipped} rows without a prompt or an answer were left out")
    if any(row.input_tokens is None and not row.skip for row in rows):
        notes.append("prompts that the trace brings as text are counted as 4 bytes a token")
    return map(partial(_arrival, model), _sent(rows)), trace.path, BLOCK_TOKENS if blocks else None, notes


def _without_effect(levers: Levers) -> Iterator[str]:
    """What is set and changes nothing here, since no traffic says what prompts say."""
    if levers.streaming.one_flight:
        yield "one_flight has no effect here: nothing tells which calls ask the same"
    if levers.streaming.answers == "buffered":
        yield 'answers = "buffered" has no effect here: answers are always relayed'
    if levers.routing.policy == "simhash":
        yield f"simhash knows no prompts here: every call goes by its fallback, {levers.routing.fallback}"


def _sent(rows: Iterable[Planned]) -> Iterator[Planned]:
    return (row for row in rows if not row.skip)


def _made(calls: Iterable[Any], model: str) -> Iterator[Arrival]:
    for number, one in enumerate(calls):
        call = Call(
            f"c-{number}", _BEGIN + one.at, "/v1/chat/completions", "/v1/chat/completions", model, stream=True,
            prompt_tokens=one.prompt,
        )  # fmt: skip
        yield Arrival(call, one.output)


def _arrival(model: str, planned: Planned) -> Arrival:
    row = planned.row
    at = _BEGIN + planned.at
    prompt = planned.input_tokens if planned.input_tokens is not None else _guess(row)
    call = Call(
        f"c-{planned.number}", at, row.route or "/v1/chat/completions", "/v1/chat/completions", row.model or model,
        tenant=row.tenant or "default", stream=row.stream, prompt_tokens=max(1, prompt), blocks=_blocks(row),
        tags=row.tags,
    )  # fmt: skip
    output = planned.output_tokens or 1
    if row.hang_up is not None and row.hang_up.tokens is not None:
        output = min(output, row.hang_up.tokens)
    leaves = at + row.hang_up.seconds if row.hang_up is not None and row.hang_up.seconds is not None else None
    return Arrival(call, output, leaves)


def _guess(row: Row) -> int:
    text = row.prompt if row.prompt is not None else "".join(str(one.get("content", "")) for one in row.messages or ())
    return len(text.encode()) // 4


def _blocks(row: Row) -> bytes:
    """A trace's block ids name whole prefixes; mixed, so that small numbers do not look alike to a hash table."""
    return array("Q", [(one + 1) * _MIX & (1 << 64) - 1 for one in row.blocks]).tobytes()


# ---- the report


def _report(
    label: str, traffic: str, file: File, fleet: list[Machine], tally: Tally, spent: dict[str, Spent],
    notes: tuple[str, ...], took: float,
) -> Report:  # fmt: skip
    seconds = max(0.0, tally.last - tally.first) if tally.calls else 0.0
    price = sum(machine.replica.price for machine in fleet) / NANO
    dollars = price * seconds / 3600 if price else None
    finished = tally.outcomes.get("finished", 0)
    busy = sum(one.busy for one in spent.values())
    goal = not (math.isinf(file.goal.ttft) and math.isinf(file.goal.tpot))
    return Report(
        label=label, traffic=traffic, calls=tally.calls, outcomes=tally.outcomes,
        good=tally.good / tally.calls if goal and tally.calls else None, seconds=seconds,
        ttft=Figures.of(tally.ttft), tpot=Figures.of(tally.tpot), e2e=Figures.of(tally.e2e),
        queue=Figures.of(tally.queue), retried=tally.retried, waited=tally.waited, prompt_tokens=tally.prompt,
        cached_tokens=tally.cached, output_tokens=tally.output,
        output_rate=tally.output / seconds if seconds else 0.0, dollars=dollars,
        per_thousand=dollars / finished * 1000 if dollars is not None and finished else None,
        per_million_output=dollars / tally.output * 1e6 if dollars is not None and tally.output else None,
        doubt=sum(one.doubted for one in spent.values()) / busy if busy else 0.0,
        outside=sum(one.outside for one in spent.values()) / busy if busy else 0.0,
        machines=tuple(_machine(machine, spent[machine.replica.name], seconds) for machine in fleet),
        column_seconds=tally.arrivals.width, arrivals=tuple(tally.arrivals.columns),
        mean_ttft=tuple(means(tally.slow.columns, tally.arrivals.columns)), notes=notes, took=took,
    )  # fmt: skip


def _machine(machine: Machine, spent: Spent, seconds: float) -> MachineReport:
    prompts = spent.prefill + spent.cached
    bound = machine.settings.kv_tokens
    return MachineReport(
        machine.replica.name, spent.busy / seconds if seconds else 0.0, spent.outside / (spent.busy or 1.0),
        spent.doubted / (spent.busy or 1.0), spent.preempted, spent.cached / prompts if prompts else 0.0,
        spent.kv_peak / bound if bound < 1 << 40 else None,
    )  # fmt: skip


def judge(report: Report) -> Verdict:
    """Held where the figures rest on loads that nobody has measured, or where there are none."""
    doubts = []
    if not report.outcomes.get("finished"):
        doubts.append("no call was answered: there is nothing to go by")
    if report.outside > OUTSIDE:
        doubts.append(
            f"for {report.outside:.0%} of their busy time machines had loads such as their step times were not made "
            f"from; steps there may be off by ±{report.doubt:.0%} and more"
        )
    return Verdict.of((), doubts)
