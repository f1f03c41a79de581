"""Replicas' figures are fetched in the background: who they are, what they say, and what becomes of pages that are
slow, huge, refused or nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.engines.pages import devices_text, text
from tests.fake_replica import FakeReplica, Fault, Json, Reply
from tests.gateway.running import chat, running
from wastegate.core.fleet import Replica
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.engines import sglang
from wastegate.engines.readback import Seen
from wastegate.gateway import config, devices
from wastegate.gateway.hub import Clock
from wastegate.gateway.signals import Config, Watcher
from wastegate.gateway.upstream import Access, Origin

FAST = Config(every=0.02, timeout=0.5)


def page(body: str | bytes, status: int = 200) -> Reply:
    return Reply(body=Json(status=status, body=body.encode() if isinstance(body, str) else body))


class Watch:
    def __init__(self, config: Config) -> None:
        self.world = World(Breaker(), RetryBudget())
        self.watcher = Watcher(self.world, config, Clock().now)

    def watch(self, *replicas: Replica) -> None:
        self.world.set_fleet(replicas)

    async def until(self, true: Callable[[Seen], bool], name: str = "r1") -> Seen:
        async with asyncio.timeout(5):
            while not true(self.watcher.seen(name)):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.005)
        return self.watcher.seen(name)


@asynccontextmanager
async def watching(config: Config = FAST) -> AsyncIterator[Watch]:
    watch = Watch(config)
    watch.watcher.start()
    try:
        yield watch
    finally:
        await watch.watcher.stop()


def known(seen: Seen) -> bool:
    return seen.signals is not None


@pytest.mark.parametrize(
    ("file", "engine", "running"),
    [("vllm-0.32.0-busy", "vllm", 4.0), ("sglang-0.5.23", "sglang", 7.0), ("llamacpp-11549-busy", "llamacpp", 2.0),
     ("local-0.1.0-busy", "wastegate", 4.0)],
)  # fmt: skip
async def test_an_engine_is_recognised_by_its_metrics(file: str, engine: str, running: float) -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page(text(f"{file}.prom"))
        watch.watch(Replica("r1", fake.url))
        seen = await watch.until(known)
    assert seen.engine == engine
    assert seen.signals is not None
    assert seen.signals.running == running
    assert (seen.absent, seen.renamed, seen.error) == ((), (), "")
    assert fake.calls == [], "nothing but GETs"


async def test_how_it_runs_is_read_back_with_its_version() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page(text("vllm-0.32.0-busy.prom"))
        fake.pages["/version"] = page('{"version":"0.32.0"}')
        fake.pages["/v1/models"] = page('{"data":[{"id":"m","owned_by":"vllm","max_model_len":2048}]}')
        watch.watch(Replica("r1", f"{fake.url}/v1"))
        seen = await watch.until(known)
    assert seen.effective is not None
    assert (seen.effective.version, seen.effective.context, seen.effective.block) == ("0.32.0", 2048, 128)
    assert "VLLM_SERVER_DEV_MODE" in seen.warnings[0]


async def test_a_configured_engine_goes_before_what_the_page_looks_like() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page(text("vllm-0.32.0-busy.prom"))
        watch.watch(Replica("r1", fake.url, engine="sglang"))
        seen = await watch.until(known)
    assert seen.engine == "sglang"
    assert seen.signals is not None
    assert seen.signals.running is None
    assert any(sentence.startswith("running is unknown: sglang:num_running_reqs") for sentence in seen.absent)


async def test_the_page_of_nobody_we_know() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page("http_requests_total 3\n")
        watch.watch(Replica("r1", fake.url))
        seen = await watch.until(lambda seen: bool(seen.error))
        assert "set engine for this replica" in seen.error
        fake.pages["/metrics"] = page(text("local-0.1.0-busy.prom"))
        assert (await watch.until(known)).engine == "wastegate"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page("", 404), "/metrics is answered with status 404"),
        (page("", 307), "/metrics is answered with status 307"),
        (page(b"x" * 3000), "more than 2 KB"),
        (Reply(body=Json(body=b""), fault=Fault("headers_read", "hang")), "not answered within 0.1 s"),
        (Reply(body=Json(body=b""), fault=Fault("headers_read", "reset")), "cannot be read"),
    ],
)
async def test_a_page_that_cannot_be_had_is_no_signals(answer: Reply, said: str) -> None:
    async with FakeReplica() as fake, watching(Config(every=0.02, timeout=0.1, max_kb=2)) as watch:
        fake.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        watch.watch(Replica("r1", fake.url))
        await watch.until(known)
        fake.pages["/metrics"] = answer
        seen = await watch.until(lambda seen: bool(seen.error))
    assert said in seen.error
    assert seen.signals is None, "what was true once is not told as true now"


async def test_an_engine_without_metrics_is_known_by_its_own_page_and_says_why() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page("", 501)
        fake.pages["/props"] = page(
            '{"default_generation_settings":{"n_ctx":2048},"total_slots":2,"endpoint_metrics":false}'
        )
        watch.watch(Replica("r1", fake.url))
        seen = await watch.until(lambda seen: bool(seen.engine))
        assert (seen.engine, seen.signals) == ("llamacpp", None)
        assert seen.effective is not None
        assert seen.effective.sequences == 2
        assert seen.warnings == ("it was started without --metrics: there are no signals",)
        asked = len([probe for probe in fake.probes if probe.path == "/props"])
        fake.pages["/metrics"] = page("", 502)
        await watch.until(lambda seen: "502" in seen.error)
        assert len([probe for probe in fake.probes if probe.path == "/props"]) == asked, "not at every look"
        fake.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        seen = await watch.until(known)
        assert seen.error == ""


async def test_a_slow_replica_delays_no_other() -> None:
    async with FakeReplica() as slow, FakeReplica() as quick, watching(Config(every=0.02, timeout=4.0)) as watch:
        slow.pages["/metrics"] = Reply(body=Json(body=b""), fault=Fault("headers_read", "hang"))
        quick.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        watch.watch(Replica("slow", slow.url), Replica("r1", quick.url))
        first = await watch.until(known)
        await watch.until(lambda seen: seen.signals is not None and first.signals != seen.signals)
    assert watch.watcher.seen("slow") == Seen()


async def test_bytes_that_are_no_text_harm_nobody() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page(b"llamacpp:requests_processing 1\n\xff\xfe{{{ \nllamacpp:requests_deferred x\n")
        watch.watch(Replica("r1", fake.url))
        seen = await watch.until(known)
    assert seen.signals is not None
    assert (seen.signals.running, seen.signals.waiting) == (1.0, None)


@pytest.mark.parametrize(("before", "after"), [("", ""), ("whoever", "whoever"), ("vllm", "sglang")])
async def test_another_engine_at_the_same_address_is_recognised(before: str, after: str) -> None:
    """By its page, or because it says who it is: ``engine`` is what /v1/models names as the owner."""
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page(text("vllm-0.32.0-busy.prom"))
        watch.watch(Replica("r1", fake.url, engine=before))
        await watch.until(lambda seen: seen.engine == "vllm")
        fake.pages["/metrics"] = page(text("sglang-0.5.23.prom"))
        watch.watch(Replica("r1", fake.url, engine=after))
        seen = await watch.until(lambda seen: seen.engine == "sglang")
    assert seen.absent == ()


async def test_a_large_page_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    inline = asyncio.to_thread

    async def noted(function: Callable[..., Any], *given: Any) -> Any:
        threads.append(function)
        return await inline(function, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page("llamacpp:requests_processing 2\n" + "# padding\n" * 40_000)
        watch.watch(Replica("r1", fake.url))
        seen = await watch.until(known)
    assert seen.signals is not None
    assert seen.signals.running == 2.0
    assert threads


async def test_counters_go_on_over_a_restart_and_begin_anew_at_another_address() -> None:
    async with FakeReplica() as fake, FakeReplica() as other, watching() as watch:
        fake.pages["/metrics"] = page("llamacpp:tokens_predicted_total 100\n")
        watch.watch(Replica("r1", fake.url))
        await watch.until(known)
        fake.pages["/metrics"] = page("llamacpp:tokens_predicted_total 130\n")
        await watch.until(lambda seen: seen.signals is not None and seen.signals.output_tokens == 30)
        fake.pages["/metrics"] = page("llamacpp:tokens_predicted_total 5\n")
        seen = await watch.until(lambda seen: seen.signals is not None and seen.signals.output_tokens == 35)
        assert seen.restarts == 1
        other.pages["/metrics"] = page("llamacpp:tokens_predicted_total 500\n")
        watch.watch(Replica("r1", other.url))
        seen = await watch.until(lambda seen: seen.signals is not None and seen.signals.output_tokens == 0)
        assert seen.restarts == 0


async def test_who_is_down_or_gone_is_not_asked() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        watch.watch(Replica("r1", fake.url), Replica("unborn", ""))
        await watch.until(known)
        watch.world.set_state("r1", "down")
        seen = await watch.until(lambda seen: not known(seen))
        assert seen.error == "the replica is down"
        watch.watch()
        await watch.until(lambda seen: seen == Seen())
        assert watch.watcher.seen("unborn") == Seen()


async def test_a_key_goes_along() -> None:
    async with FakeReplica() as fake, watching() as watch:
        fake.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        watch.watcher.origins = {"r1": Origin(fake.url, Access("the-key", "KEY"))}
        watch.watch(Replica("r1", fake.url))
        await watch.until(known)
    assert {probe.headers.get("authorization") for probe in fake.probes} == {"Bearer the-key"}


async def test_it_can_be_turned_off() -> None:
    async with FakeReplica() as fake, watching(Config(every=0)) as watch:
        watch.watch(Replica("r1", fake.url))
        await asyncio.sleep(0.05)
        assert fake.probes == []


@pytest.mark.parametrize("members", [{"every": -1}, {"timeout": 0}, {"max_kb": 0}])
def test_a_configuration_that_makes_no_sense(members: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0"):
        Config(**members)  # type: ignore[arg-type]


async def test_a_fault_of_ours_costs_one_replica_its_signals_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pages: object) -> None:
        raise RuntimeError("a fault of ours")

    async with FakeReplica() as bad, FakeReplica() as good, watching() as watch:
        bad.pages["/metrics"] = page(text("sglang-0.5.23.prom"))
        good.pages["/metrics"] = page("llamacpp:requests_processing 1\n")
        monkeypatch.setattr(sglang, "effective", fail)
        watch.watch(Replica("bad", bad.url), Replica("r1", good.url))
        seen = await watch.until(lambda seen: bool(seen.error), "bad")
        assert seen.error == "RuntimeError: a fault of ours"
        await watch.until(known)
        monkeypatch.undo()
        assert (await watch.until(known, "bad")).error == ""


async def test_a_reload_turns_it_on_and_tells_where_accelerators_are_measured(tmp_path: Path) -> None:
    async with FakeReplica() as fake, FakeReplica() as exporter:
        fake.pages["/metrics"] = page(text("llamacpp-11549-busy.prom"))
        exporter.pages["/metrics"] = page(devices_text("dcgm-4.8.prom"))
        new: list[config.Config] = []
        off: dict[str, Any] = {"signals": Config(every=0), "devices": devices.Config(every=0)}
        async with running(tmp_path, fake, load=lambda: new[0], **off) as gateway, asyncio.timeout(10):
            before = gateway.gateway._config
            places = {"r1": devices.Place(f"{exporter.url}/metrics", ("1",))}
            new.append(replace(before, signals=FAST, devices=devices.Config(every=0.02), places=places))
            assert (await gateway.admin("/admin/reload", method="POST"))[0] == 200
            while True:
                (row,) = msgspec.json.decode((await gateway.admin("/admin/state"))[1])["replicas"]
                if row["seen"]["signals"] and row["accelerators"]:
                    break
                await asyncio.sleep(0.01)
    assert (row["seen"]["signals"]["running"], row["accelerators"]["power"]) == (2, 61.25)


async def test_the_operator_sees_it(tmp_path: Path) -> None:
    async with FakeReplica() as fake:
        fake.pages["/metrics"] = page(text("llamacpp-11549-busy.prom"))
        async with running(tmp_path, fake, signals=FAST) as gateway, asyncio.timeout(5):
            assert (await gateway.post(chat())).status == 200
            while True:
                (row,) = msgspec.json.decode((await gateway.admin("/admin/state"))[1])["replicas"]
                if row["seen"]["signals"]:
                    break
                await asyncio.sleep(0.01)
    assert row["seen"]["engine"] == "llamacpp"
    assert row["seen"]["signals"]["waiting"] == 3
    assert row["seen"]["signals"]["kv_usage"] is None
