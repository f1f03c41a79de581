"""inference-perf's reports of a load test, stage by stage: what its client saw, and beside it what Prometheus said of
the server. Reading only; whether the two may be believed is judged elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from wastegate.load.documents import Unread
from wastegate.load.imports_rows import RowError, members, number_of

_STAGE = re.compile(r"stage_(\d+)_(lifecycle|prometheus)_metrics\.json")
_CAP = re.compile(r"^\s*(num_workers|worker_max_concurrency):\s*(\d+)\s*(?:#.*)?$", re.M)


class Client(Struct, frozen=True):
    """What the client saw of one stage, in requests, seconds and tokens. None where it does not say."""

    count: int
    failed: int
    rate: float
    """Answered requests a second, over the stage and its tail."""
    asked: float | None
    """Requests a second that the stage was to send."""
    latency: float | None
    """Mean, and P95."""
    p95: float | None
    ttft_p95: float | None
    prompt: float | None
    """Mean tokens."""
    output: float | None
    output_rate: float | None
    """Output tokens a second."""

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        return self.count / self.rate

    @property
    def in_flight(self) -> float | None:
        """On average, by Little's law."""
        return self.rate * self.latency if self.latency is not None else None


class Server(Struct, frozen=True):
    """What Prometheus said of the server in what it takes for the same stage."""

    count: int
    rate: float
    prompt: float | None
    kv: tuple[float, ...] | None
    """KV cache in use: mean and quantiles, as they stand there; None where they are missing."""

    @property
    def seconds(self) -> float:
        return self.count / self.rate


class Stage(Struct, frozen=True):
    number: int
    client: Client
    server: Server | None


class Run(Struct, frozen=True):
    """One folder of reports."""

    name: str
    stages: tuple[Stage, ...]
    most_in_flight: int | None
    """That the client may have open at once, by its configuration; None where that was not found."""
    read: int
    """Files of stages, of both kinds."""
    unread: tuple[Unread, ...]


def read(paths: Sequence[Path]) -> tuple[Run, ...]:
    """The runs below these folders. Raises ValueError where there is none, OSError for what cannot be opened."""
    runs = [run for path in paths for run in _runs(path)]
    if not runs:
        raise ValueError(
            f"no stage_N_lifecycle_metrics.json below {', '.join(map(str, paths))}: name a folder of inference-perf's "
            "reports (report.request_lifecycle.per_stage)"
        )
    return tuple(runs)


def _runs(root: Path) -> Iterator[Run]:
    folders = sorted({file.parent for file in root.rglob("stage_*_lifecycle_metrics.json")})
    for folder in folders:
        shown = folder.parent if folder.name in ("results", "reports") else folder
        name = str(shown.relative_to(root)) if shown != root and shown.is_relative_to(root) else shown.name
        yield _run(name, folder, root)


def _run(name: str, folder: Path, root: Path) -> Run:
    clients: dict[int, Client] = {}
    servers: dict[int, Server] = {}
    unread: list[Unread] = []
    count = 0
    for file in sorted(folder.iterdir()):
        match = _STAGE.fullmatch(file.name)
        if match is None:
            continue
        count += 1
        number = int(match[1])
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            if match[2] == "lifecycle":
                clients[number] = _client(body)
            else:
                servers[number] = _server(body)
        except (RowError, ValueError, RecursionError) as error:
            reason = error.reason if isinstance(error, RowError) else "not JSON"
            unread.append(Unread(str(file), reason, str(error)))
    unread += [
        Unread(f"{folder}, stage {number}", "no client", "Prometheus' report stands alone")
        for number in sorted(servers.keys() - clients.keys())
    ]
    stages = tuple(Stage(number, clients[number], servers.get(number)) for number in sorted(clients))
    return Run(name, stages, _cap(folder, root), count, tuple(unread))


def _client(body: object) -> Client:
    load, done = members(body, "load_summary"), members(body, "successes")
    latency, through = members(done, "latency"), members(done, "throughput")
    total = members(latency, "request_latency")
    return Client(
        count=_whole(done, "count"),
        failed=_whole(members(body, "failures"), "count"),
        rate=_above_zero(through, "requests_per_sec"),
        asked=number_of(load, "requested_rate"),
        latency=number_of(total, "mean"),
        p95=number_of(total, "p95"),
        ttft_p95=number_of(members(latency, "time_to_first_token"), "p95"),
        prompt=number_of(members(done, "prompt_len"), "mean"),
        output=number_of(members(done, "output_len"), "mean"),
        output_rate=number_of(through, "output_tokens_per_sec"),
    )


def _server(body: object) -> Server:
    done = members(body, "successes")
    usage = members(done, "kv_cache_usage_percentage")
    return Server(
        count=_whole(done, "count"),
        rate=_above_zero(done, "rate"),
        prompt=number_of(members(done, "prompt_len"), "mean"),
        kv=tuple(value for name in usage if (value := number_of(usage, name)) is not None) if usage else None,
    )


def _whole(value: Mapping[str, Any], name: str) -> int:
    found = number_of(value, name)
    if found is None or found < 0 or found != int(found):
        raise RowError("bad number", f"{name} is {found}, not a count")
    return int(found)


def _above_zero(value: Mapping[str, Any], name: str) -> float:
    found = number_of(value, name)
    if not found or found < 0:
        raise RowError("bad number", f"{name} is {found}: nothing was answered, or it is missing")
    return found


def _cap(folder: Path, root: Path) -> int | None:
    """Workers × requests that each may have open, from the nearest config.yaml up to ``root``."""
    for place in (folder, *folder.parents):
        file = place / "config.yaml"
        if file.is_file():
            found = {name: int(number) for name, number in _CAP.findall(file.read_text(encoding="utf-8"))}
            if len(found) == 2:
                return found["num_workers"] * found["worker_max_concurrency"]
        if place == root:
            break
    return None
