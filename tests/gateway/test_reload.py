"""A running gateway takes another configuration: all of it at once, or nothing; calls in flight do not notice."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import Running, chat, running
from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker
from wastegate.gateway import control, probe, recorder, reload
from wastegate.gateway.config import Config
from wastegate.gateway.reload import Follower, Ready, Reloader, ReloadError, pack, prepare, unpack
from wastegate.gateway.request import Route
from wastegate.gateway.serve import Limits
from wastegate.gateway.tls import Files
from wastegate.gateway.upstream import Access
from wastegate.store.entries import Ledger

PLAIN = Config(data=Path("somewhere"))


class File:
    """What a reload reads: a configuration, or a mistake."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.mistake = ""
        self.reads = 0

    def __call__(self) -> Config:
        self.reads += 1
        if self.mistake:
            raise ValueError(self.mistake)
        assert self.config is not None
        return self.config


async def change(gateway: Running, file: File, **members: Any) -> dict[str, Any]:
    """Change the file, reload, and what that said."""
    assert gateway.gateway.front is not None
    file.config = replace(file.config or gateway.gateway.front._config, **members)
    status, body = await gateway.admin("/admin/reload", method="POST")
    assert status == 200, body
    said: dict[str, Any] = msgspec.json.decode(body)
    return said


async def state(gateway: Running) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode((await gateway.admin("/admin/state"))[1])
    return told


# ---- whole or not at all


async def test_a_mistake_leaves_all_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File()
    file.mistake = "wastegate.toml:3: unknown key 'timer'; did you mean 'timers'?"
    async with FakeReplica() as replica, running(tmp_path, replica, load=file, source="wastegate.toml") as gateway:
        before = (await state(gateway))["config"]
        assert before["source"] == "wastegate.toml"
        assert before["last_error"] == ""
        status, body = await gateway.admin("/admin/reload", method="POST")
        assert (status, msgspec.json.decode(body)) == (422, {"error": file.mistake})
        assert (await gateway.post(chat())).status == 200
        after = (await state(gateway))["config"]
        assert after == {**before, "last_error": file.mistake}
        assert f"the last good one stays in force: {file.mistake}" in caplog.text
        metrics = (await gateway.admin("/metrics"))[1].decode()
        assert "wastegate_config_reload_failures_total 1\n" in metrics
        assert f"wastegate_config_loaded_timestamp_seconds {before['loaded_at']:.3f}\n" in metrics

        file.mistake = ""
        await change(gateway, file, sha256="ab" * 32)
        good = (await state(gateway))["config"]
        assert (good["last_error"], good["sha256"]) == ("", "ab" * 32)
        assert good["loaded_at"] > before["loaded_at"]


async def test_one_bad_part_stops_all_good_ones(tmp_path: Path) -> None:
    """The certificate is read last; by then nothing may have changed."""
    file = File()
    async with FakeReplica() as replica, running(tmp_path, replica, load=file) as gateway:
        assert gateway.gateway.front is not None
        now = gateway.gateway.front._config
        file.config = replace(
            now, rules=Rules(max_attempts=1), replicas=(*now.replicas, Replica("bad", "ftp://nowhere")), routes=()
        )
        status, body = await gateway.admin("/admin/reload", method="POST")
        assert status == 422
        assert b"'ftp://nowhere' is not an http:// or https:// URL" in body
        assert gateway.hub.rules == Rules()
        assert [s.replica.name for s in gateway.world.states] == ["r1"]


async def test_a_fault_of_ours_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Config:
        raise KeyError("oh")

    reloader = Reloader(PLAIN, load)
    with pytest.raises(ReloadError, match="KeyError: 'oh'"):
        await reloader.reload()
    assert reloader.state()["last_error"] == "KeyError: 'oh'"
    assert "Traceback" in caplog.text


async def test_a_file_that_cannot_be_read_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_READ_SECONDS", 0.05)
    free = threading.Event()

    def load() -> Config:
        free.wait(5)
        return PLAIN

    reloader = Reloader(PLAIN, load)
    try:
        with pytest.raises(ReloadError, match=r"could not be read within 0\.05 s"):
            await reloader.reload()
    finally:
        free.set()


async def test_a_gateway_that_stops_takes_nothing_any_more() -> None:
    reloader = Reloader(PLAIN, lambda: replace(PLAIN, timers=Timers(total=1.0)))
    reloader.stop()
    with pytest.raises(ReloadError, match="shutting down"):
        await reloader.reload()
    assert reloader.config == PLAIN


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    with pytest.raises(ReloadError, match="not started from a configuration that could be read again"):
        await Reloader(PLAIN).reload()


async def test_a_token_cannot_go_while_others_can_reach_the_listener() -> None:
    running_config = replace(PLAIN, control=control.Config("0.0.0.0:8081", "secret"))
    reloader = Reloader(running_config, lambda: PLAIN)
    with pytest.raises(
        ReloadError, match=r"stays on 0\.0\.0\.0 until a restart, and others can reach it: keep a token"
    ):
        await reloader.reload()
    assert reloader.config == running_config


async def test_what_needs_a_restart_is_said_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File()
    async with FakeReplica() as replica, running(tmp_path, replica, load=file) as gateway:
        said = await change(gateway, file, listen="127.0.0.1:1", tls=Files("a", "b"), timers=Timers(total=5.0))
        assert said["changed"] == ["[timers] total: 600 → 5"]
        assert [line.partition(":")[0] for line in said["needs_restart"]] == [
            "[gateway] listen", "[gateway] tls_cert", "[gateway] tls_key",
        ]  # fmt: skip
        assert "needs a restart: [gateway] listen: 127.0.0.1:0 → 127.0.0.1:1" in caplog.text
        assert (await state(gateway))["config"]["needs_restart"] == said["needs_restart"]
        said = await change(gateway, file, listen="127.0.0.1:0", tls=Files())
        assert said == {"changed": [], "needs_restart": []}


# ---- wishes


async def test_many_wishes_at_once_are_one_and_none_is_lost() -> None:
    file = File()
    file.config = PLAIN
    reading, go_on = threading.Event(), threading.Event()

    def load() -> Config:
        reading.set()
        go_on.wait(5)
        return file()

    reloader = Reloader(PLAIN, load)
    reloader.wish()
    reloader.wish()
    await asyncio.to_thread(reading.wait, 5)
    reloader.wish()  # the file may have changed since it was read
    reloader.wish()
    go_on.set()
    assert reloader._granting is not None
    await reloader._granting
    assert file.reads == 2
    file.mistake = "wrong"
    reloader.wish()
    await reloader._granting
    assert file.reads == 3, "a wish that fails ends nothing"
    assert reloader.state()["last_error"] == "wrong"
    reloader.stop()


# ---- the parts


async def test_a_new_replica_takes_calls_once_it_is_well(tmp_path: Path) -> None:
    file = File()
    async with FakeReplica() as one, FakeReplica() as two, running(tmp_path, one, load=file) as gateway:
        said = await change(gateway, file, replicas=(Replica("r1", one.url), Replica("r2", two.url)))
        assert said["changed"] == [f"replica r2: added ({two.url})"]
        await gateway.ready(2)
        one.stop_listening()
        await one.stop()
        assert (await gateway.post(chat())).status == 200
        assert len(two.calls) == 1


async def test_a_removed_replica_ends_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    file = File()
    slow = Reply(body=Sse(chunks=2), fault=Fault("between_tokens"))
    async with FakeReplica(slow) as one, FakeReplica() as two, running(tmp_path, one, load=file) as gateway:
        async with await gateway.connect() as wire:
            wire.post(chat(stream=True))
            answer = await wire.head()
            await change(gateway, file, replicas=(Replica("r2", two.url),))
            await gateway.until(lambda: _states(gateway) == {"r1": "draining", "r2": "ready"}, "r1 drains, r2 serves")
            probes = len(one.probes)
            for _ in range(3):
                assert (await gateway.post(chat())).status == 200
            assert (len(one.calls), len(two.calls)) == (1, 3)
            one.release()
            while await wire.piece(answer):
                pass
            assert answer.body.endswith(b"data: [DONE]\n\n")
        await gateway.until(lambda: _states(gateway) == {"r2": "ready"}, "r1 is gone")
        assert len(one.probes) <= probes + 1, "who leaves is not watched"
        await one.calls[0].wait("closed")
        assert one.calls[0].closed_by == "peer", "its pool is closed"
        outcomes = [entry.outcome for entry in await gateway.closed(4)]
        assert outcomes == ["finished"] * 4


async def test_a_removed_replica_may_come_back_while_it_drains(tmp_path: Path) -> None:
    file = File()
    slow = Reply(body=Sse(chunks=2), fault=Fault("between_tokens"))
    async with FakeReplica(slow) as one, FakeReplica() as two, running(tmp_path, one, load=file) as gateway:
        async with await gateway.connect() as wire:
            wire.post(chat(stream=True))
            answer = await wire.head()
            await change(gateway, file, replicas=(Replica("r2", two.url),))
            assert _states(gateway)["r1"] == "draining"
            await change(gateway, file, replicas=(Replica("r1", one.url),))
            await gateway.until(lambda: _states(gateway) == {"r1": "ready"}, "r1 serves again, r2 is gone")
            one.release()
            while await wire.piece(answer):
                pass
        one.default = Reply()
        assert (await gateway.post(chat())).status == 200


async def test_a_replica_that_moves_is_found_at_its_new_address(tmp_path: Path) -> None:
    file = File()
    slow = Reply(body=Sse(chunks=2), fault=Fault("between_tokens"))
    async with (
        FakeReplica(slow) as old,
        FakeReplica() as new,
        running(tmp_path, old, load=file) as gateway,
        await gateway.connect() as wire,
    ):
        wire.post(chat(stream=True))
        answer = await wire.head()
        said = await change(gateway, file, replicas=(Replica("r1", new.url),))
        assert said["changed"] == [f"replica r1: url: {old.url} → {new.url}"]
        assert (await gateway.post(chat())).status == 200, "held until the new address is found well"
        assert (len(old.calls), len(new.calls)) == (1, 1)
        old.release()
        while await wire.piece(answer):
            pass
        assert answer.body.endswith(b"data: [DONE]\n\n"), "its call at the old address goes on"


async def test_no_call_notices_a_fleet_that_changes_all_the_time(tmp_path: Path) -> None:
    file = File()
    stream = Reply(body=Sse(chunks=4, gap=0.01))
    async with (
        FakeReplica(stream) as one,
        FakeReplica(stream) as two,
        FakeReplica(stream) as three,
        running(tmp_path, one, two, load=file) as gateway,
    ):
        fleets = [(one, two), (two, three), (three,), (three, one)]

        async def talk() -> None:
            for _ in range(8):
                answer = await gateway.post(chat(stream=True))
                assert answer.body.endswith(b"data: [DONE]\n\n")

        calls = [asyncio.ensure_future(talk()) for _ in range(12)]
        changes = 0
        while not all(call.done() for call in calls):
            fleet = fleets[changes % len(fleets)]
            named = {one: "r1", two: "r2", three: "r3"}
            await change(gateway, file, replicas=tuple(Replica(named[each], each.url) for each in fleet))
            changes += 1
            await asyncio.sleep(0.02)
        for call in calls:
            await call
        assert changes >= 8
        assert {entry.outcome for entry in await gateway.closed(96)} == {"finished"}
        assert all(len(entry.attempts) == 1 for entry in gateway.entries), "nothing had to be tried again"


async def test_a_stale_connection_is_replaced_by_one_to_where_the_call_was_sent(tmp_path: Path) -> None:
    """Though the fleet knows another address by then."""
    file = File()
    silent = Reply(body=Json(), fault=Fault("before_first_byte"))
    async with FakeReplica(script=[silent]) as old, FakeReplica() as new, running(tmp_path, old, load=file) as gateway:
        call = asyncio.ensure_future(gateway.post(chat()))
        await old.wait_calls(1)
        await change(gateway, file, replicas=(Replica("r1", new.url),))
        (flight,) = gateway.hub.flights
        assert flight._connection is not None
        flight._connection.abort()
        flight.on_lost("it closed the connection", stale=True)
        assert (await call).status == 200
        assert (len(old.calls), len(new.calls)) == (2, 0)


async def test_a_call_keeps_the_timers_that_it_started_with(tmp_path: Path) -> None:
    file = File()
    never = Reply(body=Json(), fault=Fault("before_first_byte"))
    timers = Timers(first_byte=0.3)
    async with FakeReplica(never) as replica, running(tmp_path, replica, load=file, timers=timers) as gateway:
        early = asyncio.ensure_future(gateway.post(chat()))
        await replica.wait_calls(1)
        await change(gateway, file, timers=Timers(first_byte=60.0), rules=Rules(max_attempts=1))
        late = asyncio.ensure_future(gateway.post(chat()))
        answer = await early
        assert (answer.status, answer.json()["error"]["code"]) == (504, "timeout_first_byte")
        assert not late.done()
        replica.release()
        assert (await late).status == 200


async def test_routes_limits_rules_and_the_rest_hold_from_now_on(tmp_path: Path) -> None:
    file = File()
    async with FakeReplica() as replica, running(tmp_path, replica, load=file) as gateway:
        await change(
            gateway,
            file,
            routes=(Route("talk", "/v1/chat/*"),),
            limits=Limits(body_bytes=2_000, line=3),
            rules=Rules(max_attempts=1),
            breaker=Breaker(failures=1, rest=60.0),
            probe=probe.Config(every=0.05, timeout=1.0, path="/health?new"),
            ledger=recorder.Config(when_full="serve"),
            api_keys=("a-key",),
            control=control.Config("127.0.0.1:0", "a-token"),
        )
        headers = {"authorization": "Bearer a-key"}
        assert (await gateway.post(chat())).status == 401
        assert (await gateway.post(chat("x" * 2_000), headers=headers)).status == 413
        assert (await gateway.post(chat(), headers=headers)).status == 200
        assert (await gateway.closed(1))[0].route == "talk"
        assert (await gateway.admin("/admin/state"))[0] == 401
        assert (await gateway.admin("/admin/state", "a-token"))[0] == 200
        await gateway.until(lambda: any(p.path == "/health?new" for p in replica.probes), "the new probe")
        replica.default = Reply(body=Json(status=500))
        await gateway.post(chat(), headers=headers)
        assert [s.breaker for s in gateway.world.seen(gateway.hub.now())] == ["open"]
        assert gateway.hub.recorder._config.when_full == "serve"
        assert gateway.hub._lines._bound == 3


async def test_another_price_begins_another_span(tmp_path: Path) -> None:
    file = File()
    async with FakeReplica() as replica, running(tmp_path, replica, load=file) as gateway:
        await change(gateway, file, replicas=(Replica("r1", replica.url, price=5),))
        assert _states(gateway) == {"r1": "ready"}
        assert (await gateway.post(chat())).status == 200
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        spans = sorted(ledger.spans(), key=lambda span: span.start)
    assert [(span.phase, span.price) for span in spans] == [("loading", 0), ("serving", 0), ("serving", 5)]
    assert spans[1].end is not None
    assert spans[1].end <= spans[2].start


async def test_another_key_or_authority_is_used_at_once(tmp_path: Path) -> None:
    file = File()
    access = {"r1": Access("first", "R1")}
    async with FakeReplica() as replica, running(tmp_path, replica, load=file, access=access) as gateway:
        await gateway.post(chat(), headers={"authorization": "Bearer the-clients"})
        said = await change(gateway, file, access={"r1": Access("second", "R1")})
        assert said["changed"] == ["replica r1: api_key: changed"]
        await gateway.post(chat())
        assert [call.headers["authorization"] for call in replica.calls] == ["Bearer first", "Bearer second"]
        assert replica.calls[1].connection != replica.calls[0].connection
        await gateway.until(
            lambda: replica.probes[-1].headers["authorization"] == "Bearer second", "probes use it as well"
        )


async def test_a_log_of_changes_holds_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = File()
    async with FakeReplica() as replica, running(tmp_path, replica, load=file) as gateway:
        await change(
            gateway,
            file,
            access={"r1": Access("secret-1", "R1")},
            api_keys=("secret-2",),
            control=control.Config("127.0.0.1:0", "secret-3"),
        )
        for path in ("/admin/config", "/admin/state", "/metrics"):
            assert b"secret-" not in (await gateway.admin(path, "secret-3"))[1]
    assert "configuration: [admin] token: set" in caplog.text
    assert "secret-" not in caplog.text


def _states(gateway: Running) -> dict[str, str]:
    return {s.replica.name: s.state for s in gateway.world.states}


# ---- from the chief to its workers

FULL = replace(
    PLAIN,
    replicas=(Replica("a", "http://a", ("m",), cap=3),),
    access={"a": Access("key", "A")},
    api_keys=("x", "y"),
    routes=(Route("chat", "/v1/*", Timers(idle=1.0)),),
    control=control.Config(token="t"),
)


def test_a_configuration_survives_the_way_to_another_process() -> None:
    assert unpack(pack(FULL)) == FULL


def test_what_is_ready_has_an_origin_for_each_address() -> None:
    ready = prepare(replace(FULL, replicas=(*FULL.replicas, Replica("starting", ""))))
    assert ready.origins.keys() == {"a"}
    assert ready.origins["a"].authorization == b"authorization: Bearer key\r\n"
    assert ready.certificate is None


async def test_a_worker_takes_the_last_that_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Ready] = []
    follower = Follower(taken.append)
    follower.told(pack(replace(FULL, tls=Files("gone", "gone"))))
    follower.told(pack(PLAIN))
    follower.told(pack(FULL))
    assert follower._task is not None
    await follower._task
    assert [ready.config for ready in taken] == [FULL]
    follower.told(pack(replace(FULL, tls=Files("gone", "gone"))))
    await follower._task
    assert len(taken) == 1
    assert "the last one stays in force: tls_cert gone cannot be read" in caplog.text
