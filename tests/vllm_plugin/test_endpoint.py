"""The plugin's routes: only with the token, never waiting for ever, and with what there is where an engine has less."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.vllm_plugin.test_scheduler import module
from tests.vllm_plugin.test_stat_logger import finished
from tests.vllm_plugin.vllm_like import FakeScheduler, Reason, Request
from wastegate.vllm_plugin import endpoint
from wastegate.vllm_plugin.endpoint import TOKEN, Endpoint
from wastegate.vllm_plugin.scheduler import Mixin, answer
from wastegate.vllm_plugin.stat_logger import Finished


class Watched(Mixin, FakeScheduler):
    pass


class Core:
    """vLLM's client of its engine's process."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.hangs = False
        self.cancelled = False

    async def call_utility_async(self, method: str, question: dict[str, Any]) -> str:
        assert method == "wastegate"
        if self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        # As vLLM sends it between processes.
        return answer(self.scheduler, msgspec.msgpack.decode(msgspec.msgpack.encode(question)))


class Answer:
    def __init__(self, body: bytes, status: int, media_type: str) -> None:
        self.status = status
        self.told = json.loads(body)
        assert media_type == "application/json"


@pytest.fixture(autouse=True)
def starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "starlette.responses", Response=Answer)
    module(monkeypatch, "starlette.routing", Route=lambda path, handler, methods: (path, handler, methods))


class Server:
    """The routes as vLLM's server has them."""

    def __init__(self, scheduler: Any, logger: Any = None, token: str = "secret") -> None:
        self.core = Core(scheduler)
        manager = SimpleNamespace(stat_loggers=[SimpleNamespace(wastegate=logger)] if logger else [])
        self.client = SimpleNamespace(engine_core=self.core, logger_manager=manager)
        self.plugin = Endpoint(token)
        self.app = SimpleNamespace(router=SimpleNamespace(routes=[]))
        self.plugin.attach_router(self.app)

    async def ask(self, path: str, body: bytes | None = None, token: str = "secret", **query: str) -> Answer:
        await self.plugin.init_state(self.client, None, None)
        method = "GET" if body is None else "PUT"

        async def read() -> bytes:
            assert body is not None
            return body

        request = SimpleNamespace(
            headers={"authorization": f"Bearer {token}"}, query_params=query, method=method, body=read
        )
        (handler,) = [handler for at, handler, methods in self.app.router.routes if at == path and method in methods]
        told = await handler(request)
        assert isinstance(told, Answer)
        return told


def busy() -> Watched:
    scheduler = Watched()
    for name in ("a", "b", "c"):
        one = scheduler.add(Request(f"chatcmpl-{name}.1-0a1b2c3d", 6, 9))
        scheduler.schedule()
        scheduler.finish(one, Reason.LENGTH)
    return scheduler


async def test_records_come_from_the_engine_after_a_number() -> None:
    server = Server(busy())
    first = (await server.ask("/wastegate/records")).told
    assert [record["sequence"] for record in first["records"]] == [1, 2, 3]
    assert (first["measured"], first["kv_capacity"], first["lacks"]) == ("steps", 400, "")
    some = (await server.ask("/wastegate/records", boot=first["boot"], after="1", limit="1")).told
    assert [record["sequence"] for record in some["records"]] == [2]
    other = (await server.ask("/wastegate/records", boot="of another life", after="3")).told
    assert len(other["records"]) == 3
    assert (await server.ask("/wastegate/records", after="x")).status == 400


async def test_settings_are_read_and_put() -> None:
    server = Server(busy())
    assert (await server.ask("/wastegate/settings")).told["cap"] == 8
    assert (await server.ask("/wastegate/settings", b'{"cap": 2}')).told["cap"] == 2
    assert (await server.ask("/wastegate/settings")).told["cap"] == 2
    for body, status in ((b'{"cap": 0}', 400), (b'{"cup": 3}', 400), (b"not json", 400), (b'{"drafts": [1]}', 409)):
        refused = await server.ask("/wastegate/settings", body)
        assert (refused.status, bool(refused.told["error"])) == (status, True)


async def test_without_the_token_nothing_is_told_and_nothing_changes() -> None:
    server = Server(busy())
    for token in ("", "other", "sécret"):
        assert (await server.ask("/wastegate/records", token=token)).status == 401
        assert (await server.ask("/wastegate/settings", b'{"cap": 1}', token=token)).status == 401
    assert (await server.ask("/wastegate/settings")).told["cap"] == 8


def test_without_a_token_of_its_own_there_is_no_route(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Server(busy(), token="").app.router.routes
    assert TOKEN in caplog.text
    monkeypatch.setenv(TOKEN, " from the environment ")
    assert Endpoint()._token == "from the environment"


def test_a_server_of_another_kind_gets_no_route_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    Endpoint("secret").attach_router(SimpleNamespace())
    assert caplog.text.count("opens no route") == 1


async def test_where_another_scheduler_runs_the_statistics_tell() -> None:
    logger = Finished(lambda: 50.0)
    logger.take(finished())
    told = (await Server(FakeScheduler(), logger).ask("/wastegate/records")).told
    assert (told["measured"], len(told["records"])) == ("times", 1)
    assert "--scheduler-cls" in told["lacks"]
    nothing = await Server(FakeScheduler()).ask("/wastegate/records")
    assert (nothing.status, "--scheduler-cls" in nothing.told["error"]) == (503, True)


async def test_where_the_scheduler_gave_up_the_statistics_go_on() -> None:
    scheduler = busy()
    scheduler.wastegate.lacks = "AttributeError: changed"
    logger = Finished(lambda: 50.0)
    assert (await Server(scheduler, logger).ask("/wastegate/records")).told["lacks"] == "AttributeError: changed"
    assert (await Server(scheduler).ask("/wastegate/records")).told == {"error": "AttributeError: changed"}


async def test_an_engine_that_is_in_a_long_step_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_WAIT_SECONDS", 0.01)
    server = Server(busy())
    server.core.hangs = True
    logger = Finished(lambda: 50.0)
    logger.take(finished())
    server.client.logger_manager.stat_loggers.append(SimpleNamespace(wastegate=logger))
    for path in ("/wastegate/settings", "/wastegate/records"):
        told = await server.ask(path)
        assert (told.status, "in one step" in told.told["error"]) == (504, True), "not another's records in their place"
    assert not server.core.cancelled, "vLLM could not deliver the answer any more"


async def test_an_engine_that_cannot_be_asked_is_a_sentence() -> None:
    server = Server(busy())
    server.core.scheduler = None
    server.client.engine_core = SimpleNamespace()
    assert "cannot be asked from its server" in (await server.ask("/wastegate/settings")).told["error"]

    async def broken(method: str, question: dict[str, Any]) -> str:
        raise RuntimeError("dead")

    server.client.engine_core = SimpleNamespace(call_utility_async=broken)
    assert "RuntimeError: dead" in (await server.ask("/wastegate/settings")).told["error"]
