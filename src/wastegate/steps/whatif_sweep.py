"""Many what-ifs from one file: each combination of the values that are tried, run side by side in processes of this
machine or on a Ray cluster. What a run does, and how it is shown, stands elsewhere."""

from __future__ import annotations

import copy
import itertools
import logging
import multiprocessing
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from msgspec.structs import replace

from wastegate.steps.whatif import Report, Where, run

MOST_POINTS = 1_000

Spread = Callable[[Sequence[Where]], Iterator[tuple[int, Report]]]
"""Runs each, and tells (place, report) as they are done, in any order. Raises what a run raises."""


class SweepError(ValueError):
    """A sweep that cannot be run; the text says what to write instead."""


def points(where: Where, changes: Sequence[str]) -> list[Where]:
    """One for each combination. A change reads ``machines.0.count=2,4,8``: a path into the file, and TOML values.

    Raises SweepError for a change that cannot be read, for a path that leads nowhere, and for too many combinations.
    """
    axes = [_axis(change) for change in changes]
    count = 1
    for _, values in axes:
        count *= len(values)
    if count > MOST_POINTS:
        raise SweepError(f"--sweep asks for {count} combinations; at most {MOST_POINTS} are run at once")
    last = [path.rpartition(".")[2] for path, _ in axes]
    names = [short if last.count(short) == 1 else path for short, (path, _) in zip(last, axes, strict=True)]
    found = []
    for combination in itertools.product(*(values for _, values in axes)):
        raw = copy.deepcopy(where.raw)
        labels = []
        for (path, _), name, value in zip(axes, names, combination, strict=True):
            _set(raw, path, value)
            labels.append(f"{name}={_written(value)}")
        found.append(replace(where, raw=raw, text="", label=", ".join(labels)))
    return found


def _axis(change: str) -> tuple[str, list[Any]]:
    path, equals, text = change.partition("=")
    if not equals or not path.strip() or not text.strip():
        raise SweepError(f"--sweep {change!r}: write a path and its values, such as machines.0.count=2,4,8")
    for written in (f"x = [{text}]", "x = [" + ",".join(f'"{part.strip()}"' for part in text.split(",")) + "]"):
        try:
            values = tomllib.loads(written)["x"]
        except tomllib.TOMLDecodeError:
            continue  # words without quotes are words
        return path.strip(), list(values)
    raise SweepError(f"--sweep {change!r}: {text!r} are no TOML values")


def _set(raw: dict[str, Any], path: str, value: Any) -> None:
    """Tables that are not there yet are made; a list's places must be."""
    *parents, last = path.split(".")
    here: Any = raw
    for name in parents:
        here = here[_place(here, name, path)] if isinstance(here, list) else here.setdefault(name, {})
        if not isinstance(here, dict | list):
            raise SweepError(f"--sweep {path}: {name!r} is a value, not a table")
    if isinstance(here, list):
        here[_place(here, last, path)] = value
    else:
        here[last] = value


def _place(rows: list[Any], name: str, path: str) -> int:
    if not name.isdigit() or int(name) >= len(rows):
        raise SweepError(f"--sweep {path}: {name!r} is no place in a list of {len(rows)}; the first is 0")
    return int(name)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def here(processes: int) -> Spread:
    """In processes of this machine; started fresh, so that none inherits threads."""

    def spread(jobs: Sequence[Where]) -> Iterator[tuple[int, Report]]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
            places = {pool.submit(run, job): place for place, job in enumerate(jobs)}
            try:
                for done in as_completed(places):
                    yield places[done], done.result()
            finally:
                for future in places:
                    future.cancel()

    return spread


def on_ray(address: str) -> Spread:
    """On a Ray cluster; ``local`` starts one on this machine for as long as it runs. The cluster's Python needs
    wastegate, and traces must lie where its machines find them. Raises SweepError without the ``ray`` extra."""
    try:
        import ray
    except ImportError:
        raise SweepError("--ray needs the client for Ray: pip install 'wastegate[ray]'") from None

    def spread(jobs: Sequence[Where]) -> Iterator[tuple[int, Report]]:
        where = {} if address == "local" else {"address": address}
        try:
            ray.init(**where, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise SweepError(f"--ray {address}: no cluster there ({error})") from None
        try:
            remote = ray.remote(run)
            places = {remote.remote(job): place for place, job in enumerate(jobs)}
            left = list(places)
            while left:
                done, left = ray.wait(left, num_returns=1)
                yield places[done[0]], ray.get(done[0])
        finally:
            ray.shutdown()

    return spread


def sweep(jobs: Sequence[Where], spread: Spread, told: Callable[[int], None] | None = None) -> list[Report]:
    """All reports, in the order of the jobs. ``told``: how many are done."""
    reports: dict[int, Report] = {}
    for place, report in spread(jobs):
        reports[place] = report
        if told is not None:
            told(len(reports))
    return [reports[place] for place in range(len(jobs))]
