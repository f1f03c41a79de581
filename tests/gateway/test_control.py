"""The operator's listener: who may use it, what it shows, and what it does to the fleet."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.fake_replica import FakeReplica, Fault, Reply, Sse
from tests.gateway.running import Running, chat, running
from wastegate.core.plan import Rules
from wastegate.gateway import control, probe
from wastegate.gateway.request import Route
from wastegate.store.entries import Ledger

GUARDED = {
    "GET": ("/metrics", "/admin/state", "/admin/config", "/nowhere"),
    "POST": ("/admin/reload", "/admin/replicas/r1/drain", "/admin/replicas/r1/undrain"),
}


async def told(gateway: Running, path: str, method: str = "GET", token: str = "") -> Any:
    status, body = await gateway.admin(path, token, method)
    assert status == 200, body
    return msgspec.json.decode(body)


def states(gateway: Running) -> dict[str, str]:
    return {s.replica.name: s.state for s in gateway.world.states}


# ---- who may


async def test_with_a_token_everything_but_health_is_guarded(tmp_path: Path) -> None:
    guarded = control.Config("127.0.0.1:0", "the-token")
    async with FakeReplica() as replica, running(tmp_path, replica, control=guarded) as gateway:
        assert await told(gateway, "/health") == {"status": "ok"}
        for method, paths in GUARDED.items():
            for path in paths:
                for token in ("", "wrong", "the-token2"):
                    status, body = await gateway.admin(path, token, method)
                    assert status == 401, f"{method} {path} with {token!r}"
                    assert b"send 'Authorization: Bearer" in body
        assert states(gateway) == {"r1": "ready"}
        assert (await told(gateway, "/admin/state", token="the-token"))["in_flight"] == 0
        assert (await gateway.admin("/nowhere", "the-token"))[0] == 404


async def test_a_token_that_is_no_text_is_only_wrong(tmp_path: Path) -> None:
    guarded = control.Config("127.0.0.1:0", "the-token")
    async with FakeReplica() as replica, running(tmp_path, replica, control=guarded) as gateway:
        host, _, port = gateway.gateway.admin_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_no_web_page_can_act_where_no_token_is_set(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway, aiohttp.ClientSession() as browser:
        url = f"{gateway.gateway.admin_url}/admin/replicas/r1/drain"
        async with browser.post(url, headers={"origin": "http://evil.example"}) as answer:
            assert answer.status == 403
            assert "set [admin] token_env" in await answer.text()
        assert states(gateway) == {"r1": "ready"}


# ---- what it shows


async def test_the_configuration_in_force_is_shown_without_its_secrets(tmp_path: Path) -> None:
    guarded = control.Config("127.0.0.1:0", "the-token", "ADMIN")
    members: dict[str, Any] = {"control": guarded, "api_keys": ("client-1",), "routes": (Route("chat", "/v1/*"),)}
    async with FakeReplica() as replica, running(tmp_path, replica, **members) as gateway:
        status, body = await gateway.admin("/admin/config", "the-token")
        shown = msgspec.json.decode(body)
        assert status == 200
        assert shown["admin"] == {"listen": "127.0.0.1:0", "token": "***", "token_env": "ADMIN"}
        assert shown["replicas"][0]["url"] == replica.url
        assert shown["routes"][0]["name"] == "chat"
        assert shown["probe"]["every"] == 0.1
        for secret in (b"the-token", b"client-1"):
            assert secret not in body


async def test_health_and_metrics_go_on_during_calls(tmp_path: Path) -> None:
    slow = Reply(body=Sse(), fault=Fault("before_first_token"))
    async with FakeReplica(slow) as replica, running(tmp_path, replica) as gateway:
        call = asyncio.ensure_future(gateway.post(chat(stream=True)))
        await replica.wait_calls(1)
        seen = await told(gateway, "/admin/state")
        assert (seen["in_flight"], seen["replicas"][0]["in_flight"]) == (1, 1)
        assert seen["replicas"][0]["drained"] is False
        text = (await gateway.admin("/metrics"))[1].decode()
        assert 'wastegate_in_flight_calls{replica="r1"} 1\n' in text
        for line in text.splitlines():
            assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2, line
        replica.release()
        await call


# ---- drain


async def test_a_drained_replica_ends_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    slow = Reply(body=Sse(chunks=2), fault=Fault("between_tokens"))
    async with FakeReplica(script=[slow]) as one, FakeReplica() as two, running(tmp_path, one, two) as gateway:
        two.stop_listening()
        await two.stop()
        await gateway.until(lambda: states(gateway)["r2"] == "down", "r2 is down")
        async with await gateway.connect() as wire:
            wire.post(chat(stream=True))
            answer = await wire.head()
            said = await told(gateway, "/admin/replicas/r1/drain", "POST")
            assert said == {"name": "r1", "state": "draining", "drained": True, "in_flight": 1}
            await two.start()
            await gateway.until(lambda: states(gateway)["r2"] == "ready", "r2 is back")
            probes = len(one.probes)
            await gateway.until(lambda: len(one.probes) > probes + 3, "r1 is found well again and again")
            assert states(gateway)["r1"] == "draining"
            for _ in range(3):
                assert (await gateway.post(chat())).status == 200
            assert (len(one.calls), len(two.calls)) == (1, 3)
            one.release()
            while await wire.piece(answer):
                pass
            assert answer.body.endswith(b"data: [DONE]\n\n")
        assert (await told(gateway, "/admin/state"))["replicas"][0]["drained"] is True
        await told(gateway, "/admin/replicas/r2/drain", "POST")
        said = await told(gateway, "/admin/replicas/r1/undrain", "POST")
        assert said == {"name": "r1", "state": "ready", "drained": False, "in_flight": 0}
        assert (await gateway.post(chat())).status == 200
        assert len(one.calls) == 2
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        phases = [span.phase for span in sorted(ledger.spans(), key=lambda s: s.start) if span.replica == "r1"]
    assert phases == ["loading", "serving", "draining", "serving"]


async def test_a_drained_replica_may_go_down_and_come_back_drained(tmp_path: Path) -> None:
    async with FakeReplica() as one, running(tmp_path, one, probe=probe.Config(every=0.05, failures=1)) as gateway:
        await told(gateway, "/admin/replicas/r1/drain", "POST")
        await one.stop()
        await gateway.until(lambda: states(gateway)["r1"] == "down", "it is down: its time is not paid")
        await one.start()
        await gateway.until(lambda: states(gateway)["r1"] == "draining", "it is back, and gets no calls")
        said = await told(gateway, "/admin/replicas/r1/undrain", "POST")
        assert said["state"] == "ready"


async def test_calls_are_not_held_for_long_when_every_replica_is_drained(tmp_path: Path) -> None:
    async with FakeReplica() as one, running(tmp_path, one, rules=Rules(hold=0.1)) as gateway:
        await told(gateway, "/admin/replicas/r1/drain", "POST")
        answer = await gateway.post(chat())
        assert answer.status == 503
        assert "no replica is ready" in answer.error


async def test_an_unknown_replica_is_answered_with_those_that_there_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeReplica() as one, FakeReplica() as two, running(tmp_path, one, two) as gateway:
        for action in ("drain", "undrain"):
            status, body = await gateway.admin(f"/admin/replicas/gpu-7/{action}", method="POST")
            assert status == 404
            assert msgspec.json.decode(body) == {"error": "there is no replica 'gpu-7'; there are: r1, r2"}
        assert (await gateway.admin("/admin/replicas/r1/drain"))[0] == 405, "a GET changes nothing"
        await told(gateway, "/admin/replicas/r1/drain", "POST")
        assert "replica r1 was drained by hand; it is draining" in caplog.text
