"""The schedulers that vLLM is started with, and the way into its engine process. Hooks only: what is made of what they
see stands in ``watch``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from wastegate.core.records import Page, Settings
from wastegate.vllm_plugin.watch import Watch

log = logging.getLogger("vllm.wastegate")
_encode = msgspec.json.Encoder().encode


class Mixin:
    """In front of any scheduler of vLLM's. Every hook calls vLLM's own method first or last, whatever becomes of us."""

    wastegate: Watch

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.wastegate = Watch(self)

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        output = super().schedule(*arguments, **named)  # type: ignore[misc]
        self.wastegate.scheduled(output)
        return output

    def _free_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        self.wastegate.freed(request)
        return super()._free_request(request, *arguments, **named)  # type: ignore[misc]


class Scheduler:
    """``vllm serve --scheduler-cls wastegate.vllm_plugin.scheduler.Scheduler``: vLLM's own scheduler with the mixin in
    front, the asynchronous one or the plain one, as vLLM is configured."""

    def __new__(cls, *arguments: Any, vllm_config: Any, **named: Any) -> Any:
        return watched(is_async(vllm_config))(*arguments, vllm_config=vllm_config, **named)


def is_async(vllm_config: Any) -> bool:
    """vLLM schedules the next step while the last one runs."""
    return bool(getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", False))


def watched(asynchronous: bool) -> type:
    """The class that vLLM would have taken, with the mixin in front."""
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return type("WatchedAsyncScheduler", (Mixin, AsyncScheduler), {"__module__": __name__})
    from vllm.v1.core.sched.scheduler import Scheduler as PlainScheduler

    return type("WatchedScheduler", (Mixin, PlainScheduler), {"__module__": __name__})


def answer(scheduler: Any, question: Mapping[str, Any]) -> str:
    """What the endpoint asked the engine process, as JSON: ``{"page": …}``, ``{"status": …}`` or ``{"error": …}``."""
    watch = getattr(scheduler, "wastegate", None)
    if not isinstance(watch, Watch):
        return json.dumps({"error": "vLLM runs another scheduler: start it with --scheduler-cls (see docs/engines.md)"})
    try:
        if question.get("settings") is not None:
            return _encode({"status": watch.set(msgspec.convert(question["settings"], Settings))}).decode()
        if question.get("records"):
            after, limit = int(question["after"]), int(question["limit"])
            return _encode({"page": page(watch, str(question["boot"]), after, limit)}).decode()
        return _encode({"status": watch.status()}).decode()
    except Exception as error:  # a fault here must not end the engine
        return json.dumps(
            {"error": f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)}
        )


def page(watch: Watch, boot: str, after: int, limit: int) -> Page:
    told = watch.ring.page(boot, after, limit, watch.now(), watch.kv_capacity, watch.lacks)
    return replace(told, work=watch.work())


def register() -> None:
    """vLLM calls this in each of its processes: its engine then answers the endpoint. It may be called twice."""
    try:
        from vllm.v1.engine.core import EngineCore

        if not hasattr(EngineCore, "wastegate"):
            EngineCore.wastegate = lambda self, question: answer(self.scheduler, question)
    except Exception as error:
        log.warning("wastegate cannot reach this vLLM's engine (%s): requests are counted by their times alone", error)
