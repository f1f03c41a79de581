"""Every finished request as vLLM's own statistics tell it: the record where no scheduler of ours runs. It knows times
and counts, not steps and blocks, and it never hears of a request that was aborted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from wastegate.core.ledger import EngineRecord, Run
from wastegate.core.records import Ring
from wastegate.vllm_plugin.watch import KEPT, Clock

log = logging.getLogger("vllm.wastegate")


class Finished:
    """The requests that have finished, in the process that answers clients."""

    def __init__(self, now: Callable[[], float] | None = None, kept: int = KEPT) -> None:
        self.now = now if now is not None else Clock().now
        started = self.now()
        self.ring = Ring(kept, f"{os.getpid():x}-{int(started * 1e6):x}", started, "times")
        self.lacks = ""

    def take(self, iteration: Any) -> None:
        """One step's statistics, or None."""
        if self.lacks or iteration is None:
            return
        try:
            for one in iteration.finished_requests:
                self.ring.add(_record(one, self.now()))
        except Exception as error:  # vLLM's statistics are no stable interface
            self.lacks = f"{type(error).__name__}: {error}"
            log.warning(
                "wastegate records no requests from here on: this vLLM tells of them otherwise (%s)", self.lacks
            )


def _record(one: Any, now: float) -> EngineRecord:
    arrived = now - float(one.e2e_latency)
    begun = arrived + float(one.queued_time)
    first = begun + float(one.prefill_time)
    done = first + float(one.decode_time)
    prompt, cached, output = int(one.num_prompt_tokens), int(one.num_cached_tokens), int(one.num_generation_tokens)
    # Blocks are not told of: what it held is reckoned from what it read and wrote.
    runs = (
        Run(begun, first, 0, max(prompt - cached, 0), 0, 0, prompt * (first - begun)),
        Run(first, done, max(output - 1, 0), 0, max(output - 1, 0), 0, (prompt + output / 2) * (done - first)),
    )
    return EngineRecord(
        sequence=0,
        id=str(one.request_id),
        arrived=arrived,
        ended=now,
        finish=str(one.finish_reason).lower(),
        prompt=prompt,
        cached=cached,
        output=output,
        preemptions=int(getattr(one, "num_preemptions", 0)),
        runs=runs,
        measured="times",
    )


def __getattr__(name: str) -> type:
    """``StatLogger``, made when vLLM asks for it: it must be a class of vLLM's own."""
    if name != "StatLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from vllm.v1.metrics.loggers import StatLoggerBase
    except ImportError as error:  # as an AttributeError vLLM logs it and goes on
        raise AttributeError(f"this vLLM has no StatLoggerBase: {error}") from error
    return type(name, (_Logger, StatLoggerBase), {"__module__": __name__})


class _Logger:
    """One engine's."""

    def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
        self.wastegate = Finished()

    def record(self, scheduler_stats: object, iteration_stats: object, *arguments: object, **named: object) -> None:
        self.wastegate.take(iteration_stats)

    def log_engine_initialized(self) -> None:
        """vLLM wants to be able to say so."""


def find(engine_client: Any) -> Finished | None:
    """That of the engine's logger, wherever vLLM keeps it now; None where there is none."""
    for outer in getattr(getattr(engine_client, "logger_manager", None), "stat_loggers", ()):
        for logger in (outer, *getattr(outer, "per_engine_stat_loggers", {}).values()):
            if isinstance(found := getattr(logger, "wastegate", None), Finished):
                return found
    return None
