"""The gateway reads an engine's records: each once, from where it left off, whatever the engine does meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.gateway_process import GatewayProcess
from tests.ledgers import record, run
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Work
from wastegate.core.records import Cursor, Heard, Page, Ring, attempt_of
from wastegate.gateway import records
from wastegate.gateway.records import Collector, Config
from wastegate.store.entries import Ledger

SOON = 5.0
TOKEN = "the token"


class Plugin:
    """vLLM with the plugin, as far as a gateway can tell."""

    def __init__(self, size: int = 10_000) -> None:
        self.size = size
        self.ring = Ring(size, "first", 0.0)
        self.status = 200
        self.asked: list[dict[str, str]] = []
        self.body: bytes | None = None
        self.url = ""

    def finish(self, *names: str) -> None:
        for name in names:
            self.ring.add(record(f"{name}.1", run(1.0, 2.0)))

    def restart(self) -> None:
        self.ring = Ring(self.size, "second", 0.0)

    async def well(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        if self.status != 200 or self.body is not None:
            return web.Response(status=self.status, body=self.body or b'{"error": "no scheduler"}')
        query = request.query
        page = self.ring.page(query["boot"], int(query["after"]), int(query["limit"]), now=100.0)
        return web.Response(body=msgspec.json.encode(page))


@asynccontextmanager
async def served() -> AsyncIterator[Plugin]:
    plugin = Plugin()
    app = web.Application()
    app.router.add_get("/wastegate/records", plugin.answer)
    app.router.add_get("/health", plugin.well)
    app.router.add_get("/v1/models", plugin.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    plugin.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield plugin
    finally:
        await runner.cleanup()


class Kept:
    """Where records go."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.room = True
        self._more = asyncio.Event()

    def save(self, heard: Heard) -> bool:
        if self.room:
            self.heard.append(heard)
        self._more.set()
        return self.room

    @property
    def names(self) -> list[str]:
        found = [attempt_of(one.id) for heard in self.heard for one in heard.records]
        return [attempt[0] for attempt in found if attempt]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not true():
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def collecting(
    plugin: Plugin, kept: Kept, cursors: Mapping[str, Cursor] | None = None, **config: Any
) -> AsyncIterator[Collector]:
    collector = Collector(Config(**{"token": TOKEN, "every": 0.01, **config}), kept.save, cursors or {}, lambda: 100.0)
    await collector.start()
    collector.watch([Replica("a", plugin.url)])
    try:
        yield collector
    finally:
        await collector.stop()


async def test_a_gateway_keeps_them_in_its_ledger_and_goes_on_from_there_after_a_restart(tmp_path: Path) -> None:
    async with served() as plugin:
        plugin.finish("x", "y")
        replica = f'[[replicas]]\nname = "a"\nurl = "{plugin.url}"\n'
        toml = f'[records]\ntoken_env = "THE_TOKEN"\nevery = 0.02\n{replica}'
        gateway = GatewayProcess(tmp_path, toml=toml, environ={"THE_TOKEN": TOKEN})
        for ended in ("z", "last"):
            async with gateway:
                await gateway.ready(1)
                plugin.finish(ended)
        with Ledger(gateway.data / "ledger.db", create=False) as ledger:
            kept = {name: [record.sequence for _, record in ledger.records(name)] for name in ("x", "y", "z", "last")}
            assert ledger.cursors()["a"].sequence == 4
    assert kept == {"x": [1], "y": [2], "z": [3], "last": [4]}
    again = [asked for asked in plugin.asked if asked["after"] == "3"]
    assert again[0]["boot"] == "first"
    assert not any(asked["after"] == "0" for asked in plugin.asked[1:]), "it never began anew"


async def test_every_record_is_read_once_and_then_the_new_ones() -> None:
    async with served() as plugin:
        kept = Kept()
        plugin.finish("x", "y")
        async with collecting(plugin, kept):
            await kept.until(lambda: len(kept.names) == 2)
            plugin.finish("z")
            await kept.until(lambda: len(kept.names) == 3)
    assert kept.names == ["x", "y", "z"]
    assert kept.heard[-1].cursor == Cursor("first", 3, 100.0)


async def test_many_records_come_in_pages_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LIMIT", 2)
    async with served() as plugin:
        kept = Kept()
        plugin.finish(*"abcdefg")
        async with collecting(plugin, kept, every=SOON * 10):
            await kept.until(lambda: len(kept.names) == 7)
    assert kept.names == list("abcdefg")
    assert [asked["after"] for asked in plugin.asked[:4]] == ["0", "2", "4", "6"]


async def test_it_goes_on_where_the_ledger_says_that_it_was() -> None:
    async with served() as plugin:
        kept = Kept()
        plugin.finish("x", "y", "z")
        async with collecting(plugin, kept, {"a": Cursor("first", 2, 50.0)}):
            await kept.until(lambda: bool(kept.names))
    assert kept.names == ["z"]
    assert plugin.asked[0] == {"boot": "first", "after": "2", "limit": str(records.LIMIT)}


async def test_an_engine_that_was_started_anew_is_read_from_its_beginning_and_leaves_a_gap(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as plugin:
        kept = Kept()
        plugin.finish("x", "y", "z")
        async with collecting(plugin, kept):
            await kept.until(lambda: len(kept.names) == 3)
            plugin.restart()
            plugin.finish("n")
            await kept.until(lambda: len(kept.names) == 4)
    assert kept.names == ["x", "y", "z", "n"]
    gaps = [heard.gap for heard in kept.heard if heard.gap is not None]
    assert [(gap.replica, gap.lost) for gap in gaps] == [("a", None)]
    assert "some records of a are lost" in caplog.text


async def test_what_gave_way_before_it_was_read_is_a_gap() -> None:
    async with served() as plugin:
        kept = Kept()
        plugin.ring = Ring(2, "first", 0.0)
        plugin.finish(*"abcdef")
        async with collecting(plugin, kept, {"a": Cursor("first", 1, 50.0)}):
            await kept.until(lambda: bool(kept.heard))
    (gap,) = [heard.gap for heard in kept.heard if heard.gap is not None]
    assert gap.lost == 3
    assert kept.names == ["e", "f"]


async def test_without_room_the_same_is_read_again() -> None:
    async with served() as plugin:
        kept = Kept()
        kept.room = False
        plugin.finish("x")
        async with collecting(plugin, kept):
            await kept.until(lambda: len(plugin.asked) > 2)
            kept.room = True
            await kept.until(lambda: bool(kept.names))
    assert kept.names == ["x"]
    assert {asked["after"] for asked in plugin.asked[:3]} == {"0"}


async def test_what_steps_cost_and_how_much_kv_there_is_is_passed_on() -> None:
    async with served() as plugin:
        kept = Kept()
        work = Work(0.001, 0.002, 1e-7, 0.01, "engine steps")
        plugin.body = msgspec.json.encode(replace(plugin.ring.page("", 0, 1, 1.0, kv_capacity=640), work=work))
        told: list[object] = []
        collector = Collector(Config(token=TOKEN), kept.save, {}, lambda: 100.0, lambda *what: told.append(what))
        await collector.start()
        await collector._read(Replica("a", plugin.url))
        await collector.stop()
    assert told[0] == ("a", work, 640)


async def test_an_idle_engine_makes_no_entries() -> None:
    async with served() as plugin:
        kept = Kept()
        async with collecting(plugin, kept):
            await kept.until(lambda: bool(kept.heard))
            asked = len(plugin.asked)
            async with asyncio.timeout(SOON):
                while len(plugin.asked) < asked + 3:  # noqa: ASYNC110  # the fake has no event for this
                    await asyncio.sleep(0.005)
    assert len(kept.heard) == 1


def page(**counted: int) -> bytes:
    """What an engine may tell, with one record that has counted this."""
    told = record("a.1", run(1.0, 2.0))
    return msgspec.json.encode(Page("first", 0.0, 3.0, 1, 1, (replace(told, **counted),)))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, None, ""),
        (401, None, "token_env names here must be the same"),
        (503, None, "no scheduler"),
        (504, None, ""),
        (200, b"not json", "make no sense"),
        (200, json.dumps({"boot": 1}).encode(), "make no sense"),
        (200, page(prompt=1 << 64), "make no sense"),
        (200, page(sequence=-1), "make no sense"),
    ],
)
async def test_what_an_engine_answers_instead_is_said_once(
    status: int, body: bytes | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with served() as plugin:
        kept = Kept()
        plugin.status, plugin.body = status, body
        collector = Collector(Config(token=TOKEN), kept.save, {}, lambda: 100.0)
        await collector.start()
        for _ in range(2):
            await collector._read(Replica("a", plugin.url))
        await collector.stop()
    assert not kept.heard
    assert caplog.text.count("replica a:") == (1 if said else 0)
    assert said in caplog.text


async def test_an_answer_without_end_is_not_taken_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "_BODY_BYTES", 100)
    async with served() as plugin:
        kept = Kept()
        plugin.finish(*"abcdefgh")
        async with collecting(plugin, kept):
            await asyncio.wait_for(until_said(caplog, "its answer is over"), SOON)
    assert not kept.heard


async def until_said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while words not in caplog.text:  # noqa: ASYNC110  # a log has no event
        await asyncio.sleep(0.005)


async def test_an_engine_that_is_down_is_asked_again() -> None:
    kept = Kept()
    gone = Plugin()
    gone.url = "http://127.0.0.1:1"
    async with collecting(gone, kept) as collector:
        assert await collector._read(Replica("a", gone.url)) == 0.01
    assert not kept.heard


async def test_what_ended_last_is_read_before_the_end() -> None:
    async with served() as plugin:
        kept = Kept()
        async with collecting(plugin, kept, every=SOON * 10):
            await kept.until(lambda: bool(kept.heard))
            plugin.finish("last")
    assert kept.names == ["last"]


async def test_a_replica_that_leaves_is_asked_no_more_and_without_a_token_nobody_is() -> None:
    async with served() as plugin:
        kept = Kept()
        async with collecting(plugin, kept) as collector:
            await kept.until(lambda: bool(kept.heard))
            collector.watch([Replica("a", plugin.url), Replica("unborn", "")])
            collector.watch([])
            await asyncio.sleep(0)
            asked = len(plugin.asked)
            plugin.finish("x")
            collector.config = Config()
            collector.watch([Replica("a", plugin.url)])
            await asyncio.sleep(0.05)
            assert len(plugin.asked) <= asked + 1
    assert not kept.names


def test_waits_of_nothing_are_refused() -> None:
    for bad in ({"every": 0.0}, {"timeout": -1.0}):
        with pytest.raises(ValueError, match="above 0 seconds"):
            Config(**bad)  # type: ignore[arg-type]
