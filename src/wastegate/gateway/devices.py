"""What replicas' accelerators and processes do, fetched in the background from whoever measures it: a DCGM exporter, a
Prometheus server, this machine's driver, or somebody who pushes. Energy is added up here and goes to the roster."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.world import World
from wastegate.engines import nvml, prometheus
from wastegate.engines.devices import NAMES, Device, Load, chosen, from_dcgm, together
from wastegate.engines.energy import EnergyMeter
from wastegate.engines.exposition import parse
from wastegate.gateway.pages import Limits, NoPageError, get
from wastegate.gateway.pushed import Board
from wastegate.gateway.pushed_redis import RedisError, collect

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_MAX_KB = 8192
_NOBODY = ("nobody's",)
"""A server's devices are many replicas': without names none is this one's."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where accelerators are measured. DCGM exporters stand with the replicas that they measure."""

    every: float = 10.0
    """Seconds between two looks; 0: never."""
    timeout: float = 5.0
    prometheus: str = ""
    """A server that has DCGM's metrics, such as http://prometheus:9090; replicas then name their devices by UUID."""
    prometheus_match: str = ""
    """Labels that the metrics must have, as in PromQL."""
    nvml: bool = False
    """Read this machine's own NVIDIA GPUs (pip install 'wastegate[gpu]')."""
    redis: str = ""
    """Where others leave what they measured, as redis://…; see docs/engines.md for the keys."""
    redis_env: str = ""
    """The environment variable that holds it: for URLs with a password."""
    site: str = "wastegate"
    """A part of the keys' names, for several fleets in one Redis."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.timeout <= 0:
            raise ValueError("every must not be below 0 seconds, and timeout must be above 0")
        if self.prometheus and not self.prometheus.startswith(("http://", "https://")):
            raise ValueError("prometheus must begin with http:// or https://")
        if self.redis and not self.redis.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("redis must begin with redis://, rediss:// or unix://")


class Place(Struct, frozen=True):
    """Where one replica's accelerators are measured."""

    dcgm: str = ""
    """The exporter's page, such as http://gpu-a:9400/metrics."""
    devices: tuple[str, ...] = ()
    """UUIDs or numbers; empty: all that the exporter (or this machine's driver) has."""


class Gauges:
    """Looks at every replica's accelerators now and then."""

    def __init__(
        self, world: World, config: Config, now: Callable[[], float], used: Callable[[str, float], None], board: Board
    ) -> None:
        """``used`` is told joules by the replica's name, as they come."""
        self._world = world
        self.config = config
        self.places: Mapping[str, Place] = {}
        """By the replica's name."""
        self._now = now
        self._used = used
        self._board = board
        self._meters: dict[str, EnergyMeter] = {}
        self._joules: dict[str, float] = {}
        self._loads: dict[str, Load] = {}
        self._errors: dict[str, str] = {}
        """What cannot be had, by where; said once."""
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Be ready to look."""
        self._session = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=32))

    def start(self) -> None:
        """Look again and again."""
        self.open()
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._session is not None:
            await self._session.close()

    def load(self, name: str) -> Load | None:
        """The newest of a replica's accelerators; where nobody measures a figure, what was pushed."""
        measured, pushed = self._loads.get(name), self._board.load(name)
        if pushed is not None:
            pushed = replace(pushed, joules=self._joules.get(name))
        if measured is None or pushed is None:
            return measured or pushed
        missing = {
            field: getattr(pushed, field)
            for field in measured.__struct_fields__
            if getattr(measured, field) is None and getattr(pushed, field) is not None
        }
        return replace(measured, **missing)

    @property
    def errors(self) -> tuple[str, ...]:
        """What cannot be had now."""
        return tuple(self._errors.values())

    async def _run(self) -> None:
        while True:
            if self.config.every > 0:
                try:
                    await self.look()
                except Exception:  # whatever a page holds, the next look may go well
                    log.exception("reading the accelerators failed")
            await asyncio.sleep(self.config.every or 1.0)

    async def look(self) -> None:
        """One look at all that measures."""
        names = [state.replica.name for state in self._world.states]
        for gone in self._meters.keys() - set(names):
            del self._meters[gone]
            self._joules.pop(gone, None)
            self._loads.pop(gone, None)
        self._board.forget(names)
        exporters = {place.dcgm for name, place in self.places.items() if place.dcgm and name in names}
        pages = dict(zip(exporters, await asyncio.gather(*map(self._exporter, exporters)), strict=True))
        if self.config.redis:
            await self._try("redis", lambda: self._collect(names))
        server = await self._server() if self.config.prometheus else None
        here = await self._here() if self.config.nvml else None
        for name in names:
            place = self.places.get(name, Place())
            if place.dcgm:
                self._take(name, "dcgm", pages[place.dcgm], place.devices)
            elif self.config.prometheus:
                self._take(name, "prometheus", server, place.devices or _NOBODY)
            elif self.config.nvml:
                self._take(name, "nvml", here, place.devices)
            elif (pushed := self._board.load(name)) is not None and pushed.power is not None:
                self._add(name, (Device("pushed", power=pushed.power),))

    def _take(self, name: str, source: str, devices: tuple[Device, ...] | None, wanted: tuple[str, ...]) -> None:
        mine = chosen(devices or (), wanted)
        if not mine:
            self._loads.pop(name, None)
            return
        self._add(name, mine)
        self._loads[name] = together(mine, source, self._now(), self._joules.get(name))

    def _add(self, name: str, devices: tuple[Device, ...]) -> None:
        """Add up the energy that they have used since the look before."""
        used = self._meters.setdefault(name, EnergyMeter()).look(self._now(), devices)
        if used is not None:
            self._joules[name] = self._joules.get(name, 0.0) + used
            self._used(name, used)

    async def _exporter(self, url: str) -> tuple[Device, ...] | None:
        async def fetch() -> tuple[Device, ...]:
            return from_dcgm(await asyncio.to_thread(parse, (await self._get(url)).decode("utf-8", "replace"), NAMES))

        return await self._try(url, fetch)

    async def _server(self) -> tuple[Device, ...] | None:
        url = f"{self.config.prometheus.rstrip('/')}/api/v1/query"

        async def ask() -> tuple[Device, ...]:
            return from_dcgm(
                prometheus.page(await self._get(url, prometheus.query(NAMES, self.config.prometheus_match)))
            )

        return await self._try(url, ask)

    async def _collect(self, names: Sequence[str]) -> None:
        await collect(self.config.redis, self.config.site, names, self._board, self.config.timeout)

    async def _here(self) -> tuple[Device, ...] | None:
        async def read() -> tuple[Device, ...]:
            try:
                binding = importlib.import_module("pynvml")
            except ImportError:
                raise nvml.NvmlError("NVIDIA's binding is not installed: pip install 'wastegate[gpu]'") from None
            return await asyncio.to_thread(nvml.read, binding)

        return await self._try("nvml", read)

    async def _try(self, where: str, fetch: Callable[[], Awaitable[_T]]) -> _T | None:
        """What is fetched; None, and a warning the first time, where that cannot be."""
        try:
            found = await fetch()
        except (NoPageError, prometheus.QueryError, nvml.NvmlError, RedisError) as error:
            text = f"{where}: {error}"
            if self._errors.get(where) != text:
                log.warning("accelerators are not measured: %s", text)
            self._errors[where] = text
            return None
        self._errors.pop(where, None)
        return found

    async def _get(self, url: str, query: str = "") -> bytes:
        assert self._session is not None, "look() before open()"
        limits = Limits(self.config.timeout, _MAX_KB)
        return await get(self._session, url, limits, query={"query": query} if query else None)
