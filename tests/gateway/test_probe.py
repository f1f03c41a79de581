"""Replicas are watched: what they serve, how they fare, what their steps cost. Nothing that they say ends the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply, silent_port
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.core.ledger import ReplicaSpan, Work
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway.hub import Clock
from wastegate.gateway.probe import Config, Prober
from wastegate.gateway.roster import Roster


class Watch:
    """A roster, a prober, and a way to wait for what they find out."""

    def __init__(self, config: Config) -> None:
        self.world = World(Breaker(), RetryBudget())
        self.saved: list[ReplicaSpan] = []
        self._news = asyncio.Event()
        self.roster = Roster(self.world, Clock().now, self.saved.extend, self._news.set)
        self.prober = Prober(self.roster, config)

    def watch(self, *replicas: Replica, managed: bool = False) -> None:
        self.roster.set(replicas)
        for replica in replicas:
            self.prober.watch(replica, managed)

    @property
    def state(self) -> ReplicaState:
        return self.world.states[0]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a change after which this is so."""
        async with asyncio.timeout(5):
            while not true():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watching(config: Config | None = None) -> AsyncIterator[Watch]:
    watch = Watch(config or Config(every=0.02, timeout=0.5))
    await watch.prober.start()
    try:
        yield watch
    finally:
        await watch.prober.stop()


def page(body: bytes, status: int = 200) -> Reply:
    return Reply(body=Json(status=status, body=body))


async def probed(replica: FakeReplica, path: str, count: int) -> None:
    """Wait until so many probes of a page have come."""
    async with asyncio.timeout(5):
        while sum(probe.path == path for probe in replica.probes) < count:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.005)


async def test_a_replica_that_is_well_is_named_and_ready() -> None:
    async with FakeReplica(models=("a", "b")) as fake, watching() as watch:
        watch.watch(Replica("r1", fake.url))
        assert watch.state.state == "loading"
        await watch.until(lambda: watch.state.state == "ready")
    assert (watch.state.replica.models, watch.state.replica.engine) == (("a", "b"), "fake")
    assert watch.state.in_flight == 0
    assert fake.calls == []


async def test_a_url_with_a_path_is_probed_beside_it() -> None:
    async with FakeReplica() as fake, watching() as watch:
        watch.watch(Replica("r1", f"{fake.url}/v1/"))
        await watch.until(lambda: watch.state.state == "ready")
    assert {probe.path for probe in fake.probes} >= {"/health", "/v1/models"}


async def test_models_that_are_configured_are_believed() -> None:
    async with FakeReplica(models=("other",)) as fake, watching() as watch:
        fake.pages["/v1/models"] = page(b"", 404)
        watch.watch(Replica("r1", fake.url, ("mine",), engine="vllm"))
        await watch.until(lambda: watch.state.state == "ready")
    assert (watch.state.replica.models, watch.state.replica.engine) == (("mine",), "vllm")


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[]", b"{}", b'{"data":5}', b'{"data":null}', b'{"data":[7,{"id":8},{}]}', b'{"data":[]}',
     b"[" * 100_000],
)  # fmt: skip
async def test_models_that_make_no_sense_are_asked_for_again(body: bytes) -> None:
    async with FakeReplica() as fake, watching() as watch:
        good = fake.pages["/v1/models"]
        fake.pages["/v1/models"] = page(body)
        watch.watch(Replica("r1", fake.url))
        await probed(fake, "/v1/models", 2)
        assert watch.state.state == "loading"
        fake.pages["/v1/models"] = good
        await watch.until(lambda: watch.state.state == "ready")


async def test_some_failures_in_a_row_are_down_and_one_success_is_up_again() -> None:
    async with FakeReplica() as fake, watching(Config(every=0.02, timeout=0.5, failures=3)) as watch:
        well = fake.pages["/health"]
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.state == "ready")
        fake.pages["/health"] = page(b"{}", 503)
        before = len(fake.probes)
        await watch.until(lambda: watch.state.state == "down")
        assert len(fake.probes) - before >= 3
        fake.pages["/health"] = well
        await watch.until(lambda: watch.state.state == "ready")


async def test_a_replica_that_comes_back_is_asked_anew_what_it_serves() -> None:
    async with FakeReplica(models=("old",)) as fake, watching() as watch:
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.replica.models == ("old",))
        await fake.stop()
        await watch.until(lambda: watch.state.state == "down")
        async with FakeReplica(models=("new",), port=fake.port):
            await watch.until(lambda: watch.state.state == "ready")
            assert watch.state.replica.models == ("new",)


@pytest.mark.parametrize(
    "fault", [Fault("headers_read", "hang"), Fault("headers_read", "reset"), Fault("in_head", "fin")]
)
async def test_a_probe_that_is_not_answered_is_a_failure(fault: Fault) -> None:
    async with FakeReplica() as fake, watching(Config(every=0.02, timeout=0.1)) as watch:
        fake.pages["/health"] = Reply(body=Json(body=b"{}"), fault=fault)
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.state == "down")


async def test_a_replica_that_cannot_be_reached_is_down() -> None:
    async with silent_port() as port, watching(Config(every=0.02, timeout=0.1)) as watch:
        watch.watch(Replica("silent", f"http://127.0.0.1:{port}"), Replica("nowhere", "http://no..host:80"))
        await watch.until(lambda: all(state.state == "down" for state in watch.world.states))


async def test_a_redirect_is_no_answer() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/health"] = Reply(body=Json(status=307, body=b""), headers=(("location", "/v1/models"),))
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.state == "down")


async def test_a_process_of_our_own_is_not_called_down_by_a_probe() -> None:
    """Its supervisor sees it end; while it loads, or is busy, probes may fail."""
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/health"] = page(b"", 503)
        watch.watch(Replica("local-1", fake.url), managed=True)
        await probed(fake, "/health", 5)
        assert watch.state.state == "loading"
        fake.pages["/health"] = page(b"{}")
        await watch.until(lambda: watch.state.state == "ready")


async def test_who_is_forgotten_is_asked_no_more() -> None:
    async with FakeReplica() as fake, watching() as watch:
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.state == "ready")
        watch.prober.forget("r1")
        watch.prober.forget("r1")
        await asyncio.sleep(0.05)  # a probe that is on its way may still arrive
        before = len(fake.probes)
        await asyncio.sleep(0.1)  # five times the pause between two probes
        assert len(fake.probes) == before


# ---- what its steps cost


async def test_an_engine_that_measures_its_steps_is_asked_for_them() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/admin/work"] = page(
            b'{"prefill":1e-3,"decode":2e-3,"kv":3,"fixed":4e-3,"kv_capacity_tokens":9000}'
        )
        watch.watch(Replica("r1", fake.url))
        await probed(fake, "/health", 4)
        watch.roster.close()
    span = watch.saved[-1]
    assert span.work == Work(1e-3, 2e-3, 3.0, 4e-3, "engine steps")
    assert span.kv_capacity == 9000
    assert span.probe_seconds > 0


async def test_a_cache_that_nobody_can_have_is_unknown() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/admin/work"] = page(b'{"prefill":1,"decode":2,"kv":3,"kv_capacity_tokens":%d}' % (1 << 70))
        watch.watch(Replica("r1", fake.url))
        await probed(fake, "/health", 4)
        watch.roster.close()
    assert watch.saved[-1].work == Work(1.0, 2.0, 3.0, 0.0, "engine steps")
    assert watch.saved[-1].kv_capacity is None


async def test_an_engine_that_does_not_is_asked_once() -> None:
    async with FakeReplica() as fake, watching() as watch:
        watch.watch(Replica("r1", fake.url))
        await probed(fake, "/health", 5)
        watch.roster.close()
    assert sum(probe.path == "/admin/work" for probe in fake.probes) == 1
    assert watch.saved[-1].work is None


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"prefill":"1","decode":2,"kv":3}',
        b'{"prefill":null}',
        b'{"prefill":NaN,"decode":2,"kv":3}',
        b'{"prefill":1%b,"decode":2,"kv":3}' % (b"0" * 400),
        b'{"prefill":-1,"decode":2,"kv":3}',
    ],
    ids=["nothing", "a list", "text", "null", "not a number", "beyond all numbers", "negative"],
)
async def test_a_measure_that_makes_no_sense_is_none(body: bytes) -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/admin/work"] = page(body)
        watch.watch(Replica("r1", fake.url))
        await probed(fake, "/admin/work", 3)
        await watch.until(lambda: watch.state.state == "ready")
        watch.roster.close()
    assert watch.saved[-1].work is None


@pytest.mark.parametrize("members", [{"every": 0}, {"timeout": -1}, {"failures": 0}])
def test_a_configuration_that_makes_no_sense(members: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        Config(**members)  # type: ignore[arg-type]


async def test_a_fault_of_ours_does_not_end_a_replicas_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure, faults = Prober._measure, [RuntimeError("broken on purpose")]

    async def fails_once(prober: Prober, replica: Replica) -> None:
        if faults:
            raise faults.pop()
        await measure(prober, replica)

    monkeypatch.setattr(Prober, "_measure", fails_once)
    async with FakeReplica() as fake, watching() as watch:
        watch.watch(Replica("r1", fake.url))
        await watch.until(lambda: watch.state.state == "ready")
    assert "replica r1: its probe failed" in caplog.text
