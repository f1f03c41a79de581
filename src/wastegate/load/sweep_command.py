"""A sweep as a person runs it: flags made into its configuration, signals, progress, the files that are left. Nothing
is measured or concluded here."""

from __future__ import annotations

import asyncio
import os
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console

from wastegate.core.packing import Device
from wastegate.core.prices import find_price
from wastegate.core.steady import Rule as Settle
from wastegate.load.blocks import Design
from wastegate.load.curve_chart import page, svg
from wastegate.load.host import Rule
from wastegate.load.openloop import Stop
from wastegate.load.paired import Progress
from wastegate.load.paired_view import show
from wastegate.load.session import attend
from wastegate.load.sweep import Config, Price, Report, sweep
from wastegate.load.sweep_arm import Asked, Shape, Slo
from wastegate.load.sweep_target import Spec, parse_target

DEFAULT = "local=engine:smollm2-135m-instruct"
CORE = "cpu-core"
"""What an hour of a core of this machine is taken to cost, by the catalogue, where no price is given."""
GB = 1e9


def config_from(flags: Namespace) -> Config:
    """The sweep that a command line asks for. Raises ValueError for flags that do not fit."""
    specs = _specs(flags)
    closed = flags.rate is None
    levels = _numbers("--concurrency" if closed else "--rate", flags.concurrency if closed else flags.rate)
    seconds = flags.seconds if flags.seconds is not None else 2.0 if closed else 20.0
    return Config(
        targets=specs,
        shapes=tuple(_shape(text) for text in flags.lengths.split(",")),
        asked=Asked(
            mode="closed" if closed else "open",
            slo=Slo(ttft=flags.slo_ttft, tpot=flags.slo_tpot, e2e=flags.slo_e2e),
            settle=Settle(seconds=seconds if closed else 2.0, most=max(seconds, flags.most)),
            model=flags.model,
            timeout=flags.timeout,
            drain=flags.drain,
        ),
        design=Design(
            rates=levels,
            blocks=flags.repeats,
            spares=flags.spares,
            seconds=flags.most + flags.timeout if closed else seconds,
            warmup=0.0 if closed else flags.warmup,
            seed=flags.seed,
            level=flags.level,
            rule=Rule(steal=1.0, others=1.0, own=None) if flags.keep_disturbed else Rule(),
            patience=flags.most + flags.timeout + flags.drain + seconds + 60.0,
            mirrored=False,
            unit=" at once" if closed else "/s",
        ),
        prices=_prices(flags.price, specs),
        memory={name: round(float(value) * GB) for name, value in _pairs("--memory", flags.memory)},
        device=_device(flags.device, specs),
        demands=_numbers("--demand", flags.demand) if flags.demand else (),
        enough=flags.enough,
    )


def _specs(flags: Namespace) -> tuple[Spec, ...]:
    specs = {spec.name: spec for spec in map(parse_target, flags.targets or [DEFAULT])}
    if len(specs) < len(flags.targets):
        raise ValueError("two targets have one name")
    for name, remark in _pairs("--remark", flags.remark):
        if name not in specs:
            raise ValueError(f"--remark {name}: no target is called that")
        specs[name] = replace(specs[name], remark=remark)
    return tuple(specs.values())


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"{flag} {text}: write numbers with commas between them, such as 1,2,4") from None
    if not found[0] > 0 or found[-1] == float("inf"):
        raise ValueError(f"{flag} {text}: each must be above 0")
    return tuple(found)


def _shape(text: str) -> Shape:
    into, colon, out = text.partition(":")
    if not (colon and into.isdigit() and out.isdigit() and int(into) and int(out)):
        raise ValueError(f"--lengths {text}: write tokens of prompt and answer, such as 512:128")
    return Shape(int(into), int(out))


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    for text in texts:
        if "=" not in text:
            raise ValueError(f"{flag} {text}: write NAME=VALUE")
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


def _prices(given: Sequence[str], specs: Sequence[Spec]) -> dict[str, Price]:
    cores = {spec.name: _cores(spec) for spec in specs if not spec.url}
    found = {
        name: Price(
            dollars_per_hour=count * find_price(CORE),
            source=f"list price of {count} cores" if count > 1 else "list price of a core",
        )
        for name, count in cores.items()
    }
    for text in given:
        name, equals, value = text.rpartition("=")
        price = Price(dollars_per_hour=_dollars(value), source=f"--price {text}")
        found |= {name: price} if equals else {spec.name: price for spec in specs}
    return found


def _cores(spec: Spec) -> int:
    asked = dict(spec.flags).get("cores", "")
    if not asked:
        return os.cpu_count() or 1
    spans = [part.partition("-") for part in asked.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans if first.isdigit())


def _dollars(text: str) -> float:
    """A number, or an accelerator by its name. Raises PriceError, which names those that are known."""
    try:
        value = float(text)
    except ValueError:
        return find_price(text)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"--price {text}: a price is above 0")
    return value


def _device(text: str | None, specs: Sequence[Spec]) -> Device | None:
    """The device named; this machine where all targets are started on it."""
    if text is None:
        if any(spec.url for spec in specs):
            return None
        return this_machine()
    parts = text.split(":")
    try:
        name, size, price = parts
        return Device(name=name, memory=round(float(size) * GB), dollars_per_hour=_dollars(price))
    except ValueError as error:
        raise ValueError(f"--device {text}: write NAME:GB:PRICE, such as l4:24:0.80 ({error})") from None


def this_machine() -> Device:
    """Its memory, and its cores by list price."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(name="this machine", memory=memory, dollars_per_hour=(os.cpu_count() or 1) * find_price(CORE))


def key_from(flags: Namespace, environment: Mapping[str, str]) -> str:
    """The servers' key. Raises ValueError where the variable named does not exist."""
    if flags.api_key_env and flags.api_key_env not in environment:
        raise ValueError(f"--api-key-env {flags.api_key_env}: there is no such environment variable")
    return environment[flags.api_key_env] if flags.api_key_env else ""


async def watched(config: Config, console: Console | None, api_key: str = "") -> Report:
    """Run to the end, or to the end of the turn under way once SIGINT or SIGTERM came; a second one ends it at once
    (KeyboardInterrupt). Raises EngineError, PairedError."""
    stop, progress = Stop(), Progress()
    with tempfile.TemporaryDirectory(prefix="wastegate-bench-") as logs:
        display = asyncio.create_task(show(progress, console)) if console is not None else None
        work = asyncio.create_task(sweep(config, Path(logs), progress, stop, api_key))

        def asked() -> None:
            if progress.done and not stop.asked.is_set():
                stop.ask()
            else:
                work.cancel()

        if not await attend(work, display, asked):
            raise KeyboardInterrupt
        return work.result()


def save(report: Report, flags: Namespace) -> None:
    """Write the files that were asked for, each whole or not at all. Raises OSError."""
    if flags.json is not None:
        _write(flags.json, msgspec.json.format(msgspec.json.encode(report)))
    if flags.html is not None:
        _write(flags.html, page(report).encode())
    if flags.svg is not None:
        _write(flags.svg, svg(report).encode())


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(path.name + ".partial")
    beside.write_bytes(data)
    beside.replace(path)


def exit_code(report: Report) -> int:
    """130 for an interrupted sweep, 1 for one that is not valid, else 0."""
    return 130 if report.interrupted else 1 if report.invalid else 0
