"""The fleet's keeper: what it watches follows the configuration, and what it began it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fake_replica import FakeReplica
from tests.gateway.running import Running, running
from wastegate.core.fleet import Replica
from wastegate.gateway import control
from wastegate.gateway.app import Gateway
from wastegate.gateway.config import Config, StartError
from wastegate.store.entries import Ledger


async def test_a_replica_that_changes_is_watched_by_what_it_is_now(tmp_path: Path) -> None:
    """Its models were asked for; from now on they are given. It serves on meanwhile."""
    configs: list[Config] = []
    async with (
        FakeReplica() as one,
        FakeReplica() as two,
        running(tmp_path, one, two, load=lambda: configs[0]) as gateway,
    ):
        assert gateway.gateway.front is not None
        assert models(gateway) == {"r1": ("fake",), "r2": ("fake",)}
        now = gateway.gateway.front._config
        configs.append(replace(now, replicas=(Replica("r1", one.url, ("mine",), cap=3), now.replicas[1])))
        asked = len(two.probes)
        assert (await gateway.admin("/admin/reload", method="POST"))[0] == 200
        assert {s.replica.name: s.state for s in gateway.world.states} == {"r1": "ready", "r2": "ready"}
        await gateway.until(lambda: len(two.probes) > asked + 4, "some rounds of probes")
        assert models(gateway) == {"r1": ("mine",), "r2": ("fake",)}, "what the file says is not overruled by a probe"
        assert [probe.path for probe in two.probes[asked:]].count("/v1/models") == 0, "who stays is not asked anew"


async def test_an_address_in_use_is_said_with_its_setting(tmp_path: Path) -> None:
    async with FakeReplica() as taken:
        for members in ({"control": control.Config(f"127.0.0.1:{taken.port}")}, {"listen": f"127.0.0.1:{taken.port}"}):
            defaults = {"listen": "127.0.0.1:0", "control": control.Config("127.0.0.1:0")}
            gateway = Gateway(Config(tmp_path, replicas=(Replica("r1", taken.url),), **{**defaults, **members}))  # type: ignore[arg-type]
            with pytest.raises(
                StartError, match=rf"cannot listen on 127\.0\.0\.1:{taken.port}: .*address already in use"
            ):
                await gateway.run(lambda: None)


async def test_every_span_is_closed_at_the_end(tmp_path: Path) -> None:
    async with FakeReplica() as one, running(tmp_path, one) as gateway:
        began = gateway.hub.now()
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        spans = ledger.spans()
    assert {span.phase for span in spans} == {"loading", "serving"}
    for span in spans:
        assert span.end is not None
        assert span.end >= span.start
    assert max(span.end or 0.0 for span in spans) >= began


def models(gateway: Running) -> dict[str, tuple[str, ...]]:
    return {s.replica.name: s.replica.models for s in gateway.world.states}
