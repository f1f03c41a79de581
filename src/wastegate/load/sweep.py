"""The cost curve: targets swept through levels of load, interleaved, and what their figures say. How a level is run,
and how the result is shown, are told by rooms of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from time import perf_counter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.curve import Knee, Meeting, dollars, figure, knee, meet
from wastegate.core.intervals import Estimate, Floats
from wastegate.core.packing import BOTH as BELIEFS
from wastegate.core.packing import Choice, Device, Option, Stretch, choose, stretches
from wastegate.load.blocks import Design, Run, report
from wastegate.load.openloop import Stop
from wastegate.load.paired import Progress, collect
from wastegate.load.sweep_arm import Asked, Shape, Swept
from wastegate.load.sweep_target import Running, Spec, running

THOUSAND, MILLION = 1e3, 1e6
DOLLARS, INSTANCE_TIME, LATENCY = "dollars per request", "instance time per request", "E2E P95"
"""What targets are held against each other by."""
_HOUR = 3600.0
DEMANDS = 120
"""Demands at which the packing is looked at, from one instance's least to a hundred instances."""


class Price(Struct, frozen=True, kw_only=True):
    """Dollars for an hour of one instance, and who says so."""

    dollars_per_hour: float
    source: str


class Config(Struct, frozen=True, kw_only=True):
    """One sweep, as asked for. The design's rates are the levels: calls at once, or requests offered a second.
    ``prices`` and ``memory`` (bytes of one instance) by target; without a price there are no dollars. ``enough``: share
    of calls within the SLO from which a level counts as keeping it."""

    targets: tuple[Spec, ...]
    shapes: tuple[Shape, ...]
    asked: Asked
    design: Design
    prices: dict[str, Price] = {}
    memory: dict[str, int] = {}
    device: Device | None = None
    demands: tuple[float, ...] = ()
    enough: float = 0.95

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.targets]
        if not names or not self.shapes or not self.levels:
            raise ValueError("a sweep needs a target, a length and a level at least")
        if len(set(names)) < len(names):
            raise ValueError(f"two targets have one name: {', '.join(names)}")
        unknown = (self.prices.keys() | self.memory.keys()) - set(names)
        if unknown:
            raise ValueError(f"no target is called {', '.join(sorted(unknown))}: there are {', '.join(names)}")
        if self.asked.mode == "closed" and any(level != round(level) for level in self.levels):
            raise ValueError("so many calls at once must be whole numbers")

    @property
    def levels(self) -> tuple[float, ...]:
        return self.design.rates


class Point(Struct, frozen=True, kw_only=True):
    """One level of one target: means over the kept blocks with intervals, in requests, tokens, seconds and dollars.
    ``figures`` as a turn has them; None where a block lacks one."""

    level: float
    blocks: int
    figures: dict[str, Estimate | None]
    dollars_per_1000: Estimate | None
    """Of answered requests, where the instance is kept at this level."""
    dollars_per_1000_good: Estimate | None
    """Of requests within the SLO."""
    dollars_per_million_output: Estimate | None


class Capacity(Struct, frozen=True, kw_only=True):
    """The most requests per second within the SLO, and the level that gives it; None where no level keeps it."""

    level: float
    rate: Estimate


class Curve(Struct, frozen=True, kw_only=True):
    target: str
    points: tuple[Point, ...]
    knee: Knee
    capacity: Capacity | None


class Packing(Struct, frozen=True, kw_only=True):
    """Which target is cheapest on a device at the demands asked for, and along all demands under either belief."""

    device: Device
    options: tuple[Option, ...]
    choices: tuple[Choice, ...]
    along: dict[str, tuple[Stretch, ...]]
    missing: tuple[str, ...]
    """Targets that are left out, and why."""


class Sheet(Struct, frozen=True, kw_only=True):
    """All that one length showed."""

    shape: Shape
    curves: tuple[Curve, ...]
    meetings: dict[str, tuple[Meeting, ...]]
    """By what they are compared (dollars, or without prices instance time, per request; latency): each pair."""
    packing: Packing | None
    run: Run


class About(Struct, frozen=True, kw_only=True):
    """A target. ``memory``: bytes of one instance, as asked for or seen at the end; None where neither."""

    name: str
    title: str
    made_of: str
    price: Price | None
    memory: int | None


class Report(Struct, frozen=True, kw_only=True):
    """A sweep, and what it showed. ``invalid``: why nothing may be concluded; empty if something may."""

    config: Config
    targets: tuple[About, ...]
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    invalid: tuple[str, ...]
    interrupted: bool
    seconds: float


async def sweep(
    config: Config, logs: Path, progress: Progress | None = None, stop: Stop | None = None, api_key: str = ""
) -> Report:
    """Start what must be started, sweep every shape, and end it again. ``logs``: a folder for what engines say.

    Raises EngineError if an engine does not come up, PairedError if a turn cannot be run.
    """
    began = perf_counter()
    stop = stop or Stop()
    runs: list[tuple[Shape, Run]] = []
    cap = max(32, round(max(config.levels))) if config.asked.mode == "closed" else 32
    async with running(config.targets, logs, cap) as up:
        for number, shape in enumerate(config.shapes):
            if stop.asked.is_set():
                break
            arms = {one.name: Swept(one, shape, config.asked, api_key) for one in up}
            design = replace(config.design, seed=config.design.seed + number)
            runs.append((shape, await collect(arms, design, progress, stop)))
        targets = tuple(_about(one, config) for one in up)
    return _report(config, targets, runs, perf_counter() - began)


def _about(one: Running, config: Config) -> About:
    spec = one.spec
    return About(
        name=spec.name,
        title=spec.title,
        made_of=spec.made_of,
        price=config.prices.get(spec.name),
        memory=config.memory.get(spec.name, one.memory()),
    )


def _report(config: Config, targets: tuple[About, ...], runs: Sequence[tuple[Shape, Run]], seconds: float) -> Report:
    judged = [report(run) for _, run in runs]
    return Report(
        config=config,
        targets=targets,
        sheets=tuple(_sheet(config, targets, shape, run) for shape, run in runs),
        notes=tuple(dict.fromkeys(note for one in judged for note in one.notes)) + _notes(config, targets),
        invalid=tuple(dict.fromkeys(why for one in judged for why in one.invalid)),
        interrupted=len(runs) < len(config.shapes) or any(run.interrupted for _, run in runs),
        seconds=seconds,
    )


def _notes(config: Config, targets: Sequence[About]) -> tuple[str, ...]:
    outside = [spec.name for spec in config.targets if spec.url]
    found = []
    if outside and len(targets) > 1:
        found.append(f"{', '.join(outside)}: not started here, so not paused while others are measured")
    return tuple(found)


def _sheet(config: Config, targets: Sequence[About], shape: Shape, run: Run) -> Sheet:
    curves = tuple(_curve(config, about, run) for about in targets)
    return Sheet(
        shape=shape,
        curves=curves,
        meetings=_meetings(config, targets, run),
        packing=_packing(config, config.device, targets, curves) if config.device is not None else None,
        run=run,
    )


def _curve(config: Config, about: About, run: Run) -> Curve:
    rates = [run.series(about.name, "qps", level) for level in config.levels]
    waits = [run.series(about.name, "wait", level) for level in config.levels]
    points = tuple(_point(config, about, run, level) for level in config.levels)
    whole = not any(np.isnan(rung).any() for rung in (*rates, *waits))
    found = Knee(level=None, rate=None, why="a turn has no figures")
    if whole:
        found = knee(config.levels, rates, waits, config.design.seed, config.design.level)
    return Curve(target=about.name, points=points, knee=found, capacity=_capacity(config, points))


def _point(config: Config, about: About, run: Run, level: float) -> Point:
    names = dict.fromkeys(name for block in run.kept(level) for turn in block.turns for name in turn.figures)
    found = {name: figure(run.series(about.name, name, level), config.design.level) for name in names}

    def cost(of: str, units: float) -> Estimate | None:
        rate = found.get(of)
        return dollars(about.price.dollars_per_hour, rate, units) if about.price and rate else None

    return Point(
        level=level,
        blocks=len(run.kept(level)),
        figures=found,
        dollars_per_1000=cost("qps", THOUSAND),
        dollars_per_1000_good=cost("goodput", THOUSAND),
        dollars_per_million_output=cost("output_tokens_per_s", MILLION),
    )


def _capacity(config: Config, points: Sequence[Point]) -> Capacity | None:
    """The best level by goodput, of those that keep the SLO for enough of their calls."""
    kept = [
        Capacity(level=point.level, rate=rate)
        for point in points
        if (rate := point.figures.get("goodput")) is not None
        and (share := point.figures.get("good_share")) is not None
        and share.value >= config.enough
    ]
    return max(kept, key=lambda one: one.rate.value, default=None)


def _meetings(config: Config, targets: Sequence[About], run: Run) -> dict[str, tuple[Meeting, ...]]:
    """Each pair by what a request costs (by what it takes of an instance where a price is missing), and by latency."""
    priced = all(about.price for about in targets)
    costs, waits = {}, {}
    for about in targets:
        price = about.price.dollars_per_hour if about.price and priced else _HOUR
        costs[about.name] = [_inverse(run.series(about.name, "qps", level), price) for level in config.levels]
        waits[about.name] = [run.series(about.name, "e2e_p95", level) for level in config.levels]
    return {
        name: tuple(
            meet((one, other), config.levels, rows[one], rows[other], config.design.seed, config.design.level)
            for one, other in combinations(rows, 2)
        )
        for name, rows in ((DOLLARS if priced else INSTANCE_TIME, costs), (LATENCY, waits))
    }


def _inverse(rates: Floats, price: float) -> Floats:
    """Cost per request of each block; infinite where nothing was answered."""
    found = np.full(len(rates), np.inf)
    np.divide(price / _HOUR, rates, out=found, where=rates > 0)
    return found


def _packing(config: Config, device: Device, targets: Sequence[About], curves: Sequence[Curve]) -> Packing:
    options: list[Option] = []
    missing: list[str] = []
    for about, curve in zip(targets, curves, strict=True):
        if about.memory is None:
            missing.append(f"{about.name}: its memory cannot be seen from here: give --memory {about.name}=GB")
        elif curve.capacity is None:
            missing.append(f"{about.name}: no level keeps the SLO for {config.enough:.0%} of its calls")
        else:
            options.append(Option(name=about.name, capacity=curve.capacity.rate, memory=about.memory))
    demands: Sequence[float] = ()
    if options:
        rates = [option.capacity.value for option in options]
        demands = [float(demand) for demand in np.geomspace(min(rates) / 10, 100 * max(rates), DEMANDS)]
    return Packing(
        device=device,
        options=tuple(options),
        choices=tuple(choose(options, device, demand) for demand in config.demands),
        along={belief: stretches(options, device, demands, belief) for belief in BELIEFS},
        missing=tuple(missing),
    )
