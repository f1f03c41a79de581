"""A what-if as its file describes it: machines, policy and traffic, as values. It builds them and runs nothing; the
gateway's own configuration is read elsewhere."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import Replica
from wastegate.core.ledger import NANO
from wastegate.core.plan import Rules, Timers
from wastegate.core.prices import PriceError, find_price
from wastegate.core.world import Breaker, RetryBudget
from wastegate.levers import Config as Levers
from wastegate.load.generate import Shape as Traffic
from wastegate.places import Lines, UnknownKeyError, check_names, explain
from wastegate.sim.fit import fit, from_calls
from wastegate.sim.hardware import Device, HardwareError, Shape, find_device, find_shape
from wastegate.sim.replica import UNBOUNDED, Faults, Machine, Settings, llamacpp, local
from wastegate.sim.roofline import FRONT_SECONDS, Efficiency, Roofline
from wastegate.sim.timing import Linear, Table, Timing
from wastegate.store.entries import Ledger

Engine = Literal["vllm", "vllm-cpu", "llamacpp", "local"]
PRESETS: dict[str, Settings] = {
    "vllm": Settings(running=1024, step_tokens=8192),
    "vllm-cpu": Settings(running=128, step_tokens=2048, block=128),
    "llamacpp": llamacpp(slots=4, context=4096),
    "local": local(cap=32, queue=256, kv_tokens=40_000),
}
"""What each engine does by default; ``settings`` goes over it."""


class FileError(ValueError):
    """The what-if cannot be run. The text names file and line, and what to write instead."""


class OnHardware(Struct, frozen=True, forbid_unknown_fields=True):
    """Step times that nobody measured. ``device`` and ``shape`` describe what has no name here."""

    hardware: str = ""
    model: str = ""
    devices: int = 1
    precision: str = "bf16"
    kv_precision: str = "bf16"
    efficiency: Efficiency = Efficiency()
    device: Device | None = None
    shape: Shape | None = None

    def roofline(self) -> Roofline:
        device = self.device or find_device(self.hardware)
        shape = self.shape or find_shape(self.model)
        return Roofline(device, shape, self.devices, self.precision, self.kv_precision, self.efficiency)


class FromLedger(Struct, frozen=True, forbid_unknown_fields=True):
    """Step times fitted to what a replica really did."""

    path: str
    replica: str
    step_tokens: int = 2048
    front: float = 0.0


class Machines(Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas that are alike. Exactly one of ``roofline``, ``linear``, ``table`` and ``ledger`` says how fast."""

    name: str = "replica"
    count: int = 1
    engine: Engine = "vllm"
    models: tuple[str, ...] = ()
    cap: int | None = None
    price_per_hour: float | None = None
    accelerator: str = ""
    front: float | None = None
    """Seconds from a request's arrival until its engine knows of it."""
    settings: dict[str, Any] = {}
    faults: Faults = Faults()
    roofline: OnHardware | None = None
    linear: Linear | None = None
    table: Table | None = None
    ledger: FromLedger | None = None

    def __post_init__(self) -> None:
        sources = [name for name in ("roofline", "linear", "table", "ledger") if getattr(self, name) is not None]
        if len(sources) != 1:
            named = ", ".join(sources) or "none"
            raise ValueError(f"machines need one of roofline, linear, table and ledger to say how fast; given: {named}")
        if self.count < 0:
            raise ValueError(f"count is {self.count}: machines are counted from 0")


class Goal(Struct, frozen=True, forbid_unknown_fields=True):
    """A call within both is good. Seconds."""

    ttft: float = math.inf
    tpot: float = math.inf


class _Limits(Struct, frozen=True, forbid_unknown_fields=True):
    line: int = 1_000


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """Sections that wastegate.toml has as well mean the same."""

    machines: tuple[Machines, ...]
    timers: Timers = Timers()
    retry: Rules = Rules()
    retry_budget: RetryBudget = RetryBudget()
    breaker: Breaker = Breaker()
    limits: _Limits = _Limits()
    levers: Levers = Levers()
    goal: Goal = Goal()
    traffic: Traffic | None = None
    seed: int = 0


def read(path: Path) -> dict[str, Any]:
    """The file's own tables. Raises FileError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path}: {error}") from None


def shaped(raw: Mapping[str, Any], name: str, text: str = "") -> File:
    """The tables as values; ``text`` is what lines are looked up in. Raises FileError."""
    where = Lines(text, name)
    try:
        check_names(raw, File, (), where)
        file = msgspec.convert(raw, File)
        for number, row in enumerate(file.machines):
            settings(row, f"{where.of(('machines', number))}")
    except UnknownKeyError as error:
        raise FileError(str(error)) from None
    except msgspec.ValidationError as error:
        raise FileError(explain(error, where)) from None
    if not any(row.count for row in file.machines):
        raise FileError(f"{name}: there are no machines; give [[machines]] with a count above 0")
    return file


def settings(row: Machines, where: str = "machines") -> Settings:
    """The engine's own, with the row's over them. Raises FileError."""
    preset = PRESETS[row.engine]
    try:
        return msgspec.convert({**msgspec.structs.asdict(preset), **row.settings}, Settings)
    except msgspec.ValidationError as error:
        raise FileError(f"{where}: settings: {error}") from None


def build(file: File, name: str, block_tokens: int | None = None) -> list[Machine]:
    """The fleet. ``block_tokens``: what one hash of the traffic's prompts stands for. Raises FileError."""
    machines = list(_machines(file, name, block_tokens))
    names = [machine.replica.name for machine in machines]
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        raise FileError(f"{name}: two machines are called {twice!r}: give each [[machines]] a name of its own")
    return machines


def _machines(file: File, name: str, block_tokens: int | None) -> Iterator[Machine]:
    for row in file.machines:
        try:
            timing = _timing(row)
            how = settings(row)
            if isinstance(timing, Roofline) and how.kv_tokens == UNBOUNDED:
                how = replace(how, kv_tokens=timing.kv_tokens())
            if block_tokens is not None and "hashed_tokens" not in row.settings:
                how = replace(how, hashed_tokens=block_tokens)
            price = _price(row)
        except (HardwareError, PriceError, ValueError, OSError) as error:
            raise FileError(f"{name}: machines {row.name!r}: {error}") from None
        front = row.front if row.front is not None else FRONT_SECONDS if row.roofline else 0.0
        for number in range(row.count):
            own = row.name if row.count == 1 else f"{row.name}-{number + 1}"
            replica = Replica(own, f"http://{own}", row.models, row.engine, price, row.accelerator, row.cap)
            yield Machine(replica, timing, how, row.faults, front)


def _timing(row: Machines) -> Timing:
    if row.roofline is not None:
        return row.roofline.roofline()
    if row.ledger is not None:
        return _from_ledger(row.ledger)
    timing = row.linear or row.table
    assert timing is not None, "a row has one source of step times"
    return timing


def _from_ledger(source: FromLedger) -> Timing:
    with Ledger(Path(source.path).expanduser(), create=False) as ledger:
        facts = ledger.facts(-math.inf, math.inf)
        if source.replica not in facts.replicas:
            raise ValueError(f"{source.path} knows no replica {source.replica!r}; known: {', '.join(facts.replicas)}")
        mine = facts.attempts.call[facts.attempts.replica == facts.replicas.index(source.replica)]
        entries = ledger.read([int(key) for key in facts.calls.key[sorted(set(mine))]])
    attempts = [each for entry in entries for each in entry.attempts if each.replica == source.replica]
    return fit(from_calls(attempts, source.step_tokens, source.front))


def _price(row: Machines) -> int:
    if row.price_per_hour is not None:
        return round(row.price_per_hour * NANO)
    if row.accelerator:
        return round(find_price(row.accelerator) * NANO)
    if row.roofline is not None:
        device = row.roofline.device or find_device(row.roofline.hardware)
        dollars = device.dollars_per_hour(row.roofline.devices)
        return round((dollars or 0.0) * NANO)
    return 0
