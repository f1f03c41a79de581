"""Accelerators are looked at in the background, and their energy goes to whoever keeps it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp.web
import msgspec
import pytest

from tests.engines.pages import devices_text
from tests.engines.test_nvml import CARD, Driver
from tests.fake_replica import FakeReplica, Json, Reply
from tests.gateway.running import running
from tests.redis_server import RedisServer, needs_redis
from wastegate.core.fleet import Replica
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway import devices
from wastegate.gateway.devices import Config, Gauges, Place
from wastegate.gateway.pushed import Board
from wastegate.gateway.pushed_redis import key
from wastegate.store.entries import Ledger


class Bench:
    """Gauges with a clock of their own."""

    def __init__(self, config: Config, places: dict[str, Place], *names: str) -> None:
        self.at = 1000.0
        self.used: list[tuple[str, float]] = []
        self.world = World(Breaker(), RetryBudget())
        self.world.set_fleet(Replica(name, "http://x") for name in names)
        self.board = Board(lambda: self.at)
        self.gauges = Gauges(
            self.world, config, lambda: self.at, lambda name, joules: self.used.append((name, joules)), self.board
        )
        self.gauges.places = places


@asynccontextmanager
async def bench(config: Config, places: dict[str, Place], *names: str) -> AsyncIterator[Bench]:
    """It looks only when it is told to."""
    made = Bench(config, places, *names)
    made.gauges.open()
    try:
        yield made
    finally:
        await made.gauges.stop()


def page(body: str, status: int = 200) -> Reply:
    return Reply(body=Json(status=status, body=body.encode()))


async def test_replicas_share_an_exporter_and_each_has_its_own_cards() -> None:
    async with FakeReplica() as exporter:
        url = f"{exporter.url}/metrics"
        exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
        places = {"a": Place(url, ("0",)), "b": Place(url, ("GPU-22222222-bbbb",)), "both": Place(url)}
        async with bench(Config(), places, "a", "b", "both", "none") as b:
            await b.gauges.look()
            assert len(exporter.probes) == 1, "one page for all three"
            loads = {name: b.gauges.load(name) for name in ("a", "b", "both", "none")}
    assert loads["none"] is None
    assert {name: (load.power, load.devices) for name, load in loads.items() if load is not None} == {
        "a": (312.5, 1),
        "b": (61.25, 1),
        "both": (373.75, 2),
    }


async def test_energy_is_what_the_counter_rose_by_and_is_told_as_it_comes() -> None:
    text = devices_text("dcgm-4.8.prom")
    async with FakeReplica() as exporter:
        exporter.pages["/metrics"] = page(text)
        async with bench(Config(), {"a": Place(f"{exporter.url}/metrics", ("0",))}, "a") as b:
            await b.gauges.look()
            assert b.used == []
            exporter.pages["/metrics"] = page(text.replace(" 123456789\n", " 126456789\n"))
            b.at += 10
            await b.gauges.look()
            exporter.pages["/metrics"] = page(text.replace(" 123456789\n", " 500000\n"))
            b.at += 10
            await b.gauges.look()
            load = b.gauges.load("a")
    assert b.used == [("a", pytest.approx(3000.0)), ("a", 500.0)], "the driver was loaded anew"
    assert load is not None
    assert load.joules == pytest.approx(3500.0)


async def test_who_does_not_answer_is_said_once_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeReplica() as exporter:
        exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
        async with bench(Config(), {"a": Place(f"{exporter.url}/metrics")}, "a") as b:
            await b.gauges.look()
            exporter.pages["/metrics"] = page("", 503)
            await b.gauges.look()
            await b.gauges.look()
            assert b.gauges.load("a") is None, "what was true once is not told as true now"
            assert b.gauges.errors == (f"{exporter.url}/metrics: /metrics is answered with status 503",)
            assert len(caplog.records) == 1
            exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
            await b.gauges.look()
            assert not b.gauges.errors
            assert b.gauges.load("a") is not None


async def test_a_prometheus_server_knows_devices_by_their_uuid() -> None:
    asked: list[str] = []

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        asked.append(request.path_qs)
        metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1", "gpu": "0", "instance": "x:9400"}
        series = [{"metric": metric, "value": [1.0, "70.5"]}]
        body = {"status": "success", "data": {"resultType": "vector", "result": series}}
        return aiohttp.web.json_response(body)

    app = aiohttp.web.Application()
    app.router.add_get("/api/v1/query", answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        config = Config(prometheus=url, prometheus_match='cluster="a"')
        async with bench(config, {"a": Place(devices=("GPU-1",))}, "a", "b") as b:
            await b.gauges.look()
            loads = b.gauges.load("a"), b.gauges.load("b")
    finally:
        await runner.cleanup()
    assert loads[0] is not None
    assert (loads[0].power, loads[0].source) == (70.5, "prometheus")
    assert loads[1] is None, "without names none is its own"
    (query,) = parse_qs(urlsplit(asked[0]).query)["query"]
    assert query.endswith(',cluster="a"}')
    assert "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL" in query


async def test_a_server_that_refuses_the_query_is_told() -> None:
    async with FakeReplica() as server:
        server.pages["/api/v1/query"] = page('{"status":"error","error":"no such label"}')
        async with bench(Config(prometheus=server.url), {"a": Place(devices=("GPU-1",))}, "a") as b:
            await b.gauges.look()
            assert b.gauges.load("a") is None
            assert len(b.gauges.errors) == 1


async def test_this_machines_own_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(CARD))
    async with bench(Config(nvml=True), {}, "a") as b:
        await b.gauges.look()
        load = b.gauges.load("a")
    assert load is not None
    assert (load.source, load.power, load.models) == ("nvml", 71.5, ("NVIDIA L4",))


async def test_without_the_binding_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    async with bench(Config(nvml=True), {}, "a") as b:
        await b.gauges.look()
        assert b.gauges.errors == ("nvml: NVIDIA's binding is not installed: pip install 'wastegate[gpu]'",)


async def test_what_is_pushed_fills_what_is_not_measured() -> None:
    async with FakeReplica() as exporter:
        exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
        async with bench(Config(), {"a": Place(f"{exporter.url}/metrics", ("1",))}, "a") as b:
            b.board.take(b'{"replica":"a","power":9999,"tensor":0.5}', ["a"])
            pushed = b.gauges.load("a")
            await b.gauges.look()
            load = b.gauges.load("a")
    assert pushed is not None
    assert pushed.power == 9999
    assert load is not None
    assert (load.power, load.tensor, load.source) == (61.25, 0.5, "dcgm")


async def test_pushed_power_is_energy_over_time_for_each_that_it_is_pushed_for() -> None:
    async with bench(Config(), {}, "a", "b") as b:
        b.board.take(b'[{"replica":"a","power":100},{"power":40}]', ["a", "b"])
        await b.gauges.look()
        b.at += 10
        await b.gauges.look()
        load = b.gauges.load("a")
        assert load is not None
        assert load.joules == 1000.0
        b.at += 500
        await b.gauges.look()
        assert b.gauges.load("a") is None
    assert b.used == [("a", 1000.0), ("b", 400.0)]


@needs_redis
async def test_what_lies_in_redis_is_found(tmp_path: Path) -> None:
    from redis.asyncio import Redis

    async with RedisServer(tmp_path) as server, bench(Config(redis=server.url, site="s"), {}, "a") as b:
        async with Redis.from_url(server.url) as client:
            await client.set(key("s", "a"), '{"busy":0.75}')
        await b.gauges.look()
        load = b.gauges.load("a")
        assert load is not None
        assert load.busy == 0.75
        server.stop()
        await b.gauges.look()
        assert b.gauges.errors[0].startswith("redis: ")


async def test_who_has_left_is_forgotten() -> None:
    async with FakeReplica() as exporter:
        exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
        async with bench(Config(), {"a": Place(f"{exporter.url}/metrics")}, "a") as b:
            await b.gauges.look()
            b.world.set_fleet(())
            await b.gauges.look()
            assert b.gauges.load("a") is None


async def test_a_fault_of_ours_ends_no_looking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = SimpleNamespace(count=0)

    async def look(self: Gauges) -> None:
        looks.count += 1
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Gauges, "look", look)
    async with FakeReplica() as fake, running(tmp_path, fake, devices=Config(every=0.01)) as gateway:
        await gateway.until(lambda: looks.count > 2, "it goes on")


async def test_energy_is_in_the_ledgers_spans(tmp_path: Path) -> None:
    text = devices_text("dcgm-4.9.prom")
    async with FakeReplica() as fake, FakeReplica() as exporter:
        exporter.pages["/metrics"] = page(text)
        members: dict[str, Any] = {
            "devices": Config(every=0.02),
            "places": {"r1": Place(f"{exporter.url}/metrics")},
        }
        async with running(tmp_path, fake, **members) as gateway:

            async def load() -> Any:
                rows = msgspec.json.decode((await gateway.admin("/admin/state"))[1])["replicas"]
                return rows[0]["accelerators"] or {}

            while not await load():
                pass
            exporter.pages["/metrics"] = page(text.replace(" 123456\n", " 123956\n"))
            while (await load()).get("joules") != 500.0:
                pass
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        spans = ledger.spans()
    assert sum(span.joules or 0.0 for span in spans) == 500.0


@pytest.mark.parametrize("members", [{"every": -1}, {"timeout": 0}, {"prometheus": "x:9090"}, {"redis": "x"}])
def test_a_configuration_that_makes_no_sense(members: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        devices.Config(**members)
