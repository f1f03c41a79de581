"""vLLM's own scheduler with the mixin in front, and the way from its server into the engine's process."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.vllm_like import FakeScheduler, Reason, Request
from wastegate.vllm_plugin.scheduler import Scheduler, answer, register


class FakeAsyncScheduler(FakeScheduler):
    pass


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module of this name, with the packages that it stands in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        package = ".".join(parts[:end])
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for key, value in content.items():
        monkeypatch.setattr(sys.modules[name], key, value, raising=False)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "vllm.v1.core.sched.scheduler", Scheduler=FakeScheduler)
    module(monkeypatch, "vllm.v1.core.sched.async_scheduler", AsyncScheduler=FakeAsyncScheduler)


def scheduler(vllm_config: Any, **other: Any) -> Any:
    return Scheduler(vllm_config=vllm_config, **other)


def configured(asynchronous: bool) -> Any:
    return SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous))


@pytest.mark.parametrize(("asynchronous", "base"), [(False, FakeScheduler), (True, FakeAsyncScheduler)])
@pytest.mark.usefixtures("vllm")
def test_it_is_the_scheduler_that_vllm_would_have_taken(asynchronous: bool, base: type) -> None:
    made = scheduler(configured(asynchronous), chunk=4)
    assert issubclass(type(made), base)
    assert issubclass(type(made), FakeAsyncScheduler) == asynchronous
    assert made.chunk == 4
    one = made.add(Request("x.1", 6, 9))
    made.schedule()
    made.schedule()
    made.finish(one, Reason.LENGTH)
    (record,) = json.loads(answer(made, {"records": True, "boot": "", "after": 0, "limit": 9}))["page"]["records"]
    assert (record["id"], sum(run[3] for run in record["runs"])) == ("x.1", 6)


@pytest.mark.usefixtures("vllm")
def test_vllm_goes_on_whatever_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    made = scheduler(configured(False))
    one = made.add(Request("x.1", 6, 9))
    made.kv_cache_manager = None
    assert made.schedule().num_scheduled_tokens == {"x.1": 6}
    made.finish(one, Reason.LENGTH)
    assert made.requests == {}
    assert caplog.text.count("records nothing step by step") == 1
    page = json.loads(answer(made, {"records": True, "boot": "", "after": 0, "limit": 9}))["page"]
    assert page["lacks"].startswith("AttributeError")


@pytest.mark.usefixtures("vllm")
def test_questions_are_answered_and_none_ends_the_engine() -> None:
    made = scheduler(configured(False))
    assert json.loads(answer(made, {}))["status"]["scheduler"] == "WatchedScheduler"
    assert json.loads(answer(made, {"settings": {"cap": 3}}))["status"]["cap"] == 3
    assert "cap is 0" in json.loads(answer(made, {"settings": {"cap": 0}}))["error"]
    assert "batched_tokens is 999" in json.loads(answer(made, {"settings": {"batched_tokens": 999}}))["error"]
    assert "KeyError" in json.loads(answer(made, {"records": True}))["error"]
    assert "--scheduler-cls" in json.loads(answer(FakeScheduler(), {}))["error"]


def test_the_engine_is_given_a_way_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineCore:
        scheduler = FakeScheduler()

    module(monkeypatch, "vllm.v1.engine.core", EngineCore=EngineCore)
    register()
    way = EngineCore.wastegate  # type: ignore[attr-defined]
    register()
    assert EngineCore.wastegate is way  # type: ignore[attr-defined]
    assert "another scheduler" in json.loads(way(EngineCore(), {}))["error"]


def test_an_engine_elsewhere_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    module(monkeypatch, "vllm.v1.engine.core")
    monkeypatch.delattr(sys.modules["vllm.v1.engine.core"], "EngineCore", raising=False)
    register()
    assert caplog.text.count("cannot reach this vLLM's engine") == 1
