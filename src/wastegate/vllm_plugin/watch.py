"""One scheduler of vLLM, watched from within: its steps become records, and settings reach it. Whatever it lacks in
another version is said once and done without; no error of ours may reach it."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from wastegate.core.admission import CapConfig, CapState, Signals, decide
from wastegate.core.ledger import EngineRecord, Work
from wastegate.core.records import Ring, Settings, draft_table
from wastegate.core.stepcost import StepTimes
from wastegate.vllm_plugin.meter import DECODE, Holdings, Meter, Part

log = logging.getLogger("vllm.wastegate")  # below vllm, whose handler prints it

KEPT = 16_384
"""Finished requests remembered for a gateway that is away: some 16 MB."""
DECIDE_SECONDS = 0.25
FIT_SECONDS = 10.0
NEEDED = ("running", "waiting", "requests", "kv_cache_manager", "block_size")


class Clock:
    """Seconds since the epoch that never go back."""

    def __init__(self) -> None:
        offset = time.time() - time.monotonic()
        self.now: Callable[[], float] = lambda: time.monotonic() + offset


class Watch:
    """Told of every step and every end."""

    def __init__(self, scheduler: Any, now: Callable[[], float] | None = None, kept: int = KEPT) -> None:
        self.scheduler = scheduler
        self.now = now if now is not None else Clock().now
        self.lacks = ""
        """Empty, or why there are no records from here."""
        started = self.now()
        self.ring = Ring(kept, f"{os.getpid():x}-{int(started * 1e6):x}", started)
        self._meter = Meter()
        self._seen: dict[str, int] = {}
        """Of each request that has run, the prompt tokens that the prefix cache had."""
        self.steps = 0
        self.preemptions = 0
        """Of requests that have ended."""
        self._preempted = 0
        """Those that decisions have been told of."""
        self._policy = CapConfig(policy="fixed")
        self._state: CapState | None = None
        self._decided = started
        self._samples: deque[tuple[int, float]] = deque(maxlen=256)
        self._step: tuple[float, int, int, float] | None = None
        """The last step, if it goes on until now: when it began, tokens computed beside decoding, how many decoded,
        and tokens of KV."""
        self._times = StepTimes()
        self._fitted: tuple[float, Work | None] = (started, None)
        self.kv_capacity: int | None = None
        self._guard(self._probe)

    # ---- told by the scheduler

    def scheduled(self, output: Any) -> None:
        """A step begins with ``output``."""
        self._guard(lambda: self._scheduled(output))

    def freed(self, request: Any) -> None:
        """A request has ended and still holds its blocks."""
        self._guard(lambda: self._freed(request))

    def _guard(self, work: Callable[[], None]) -> None:
        if self.lacks:
            return
        try:
            work()
        except Exception as error:  # vLLM must go on, whatever its insides have become
            self.lacks = f"{type(error).__name__}: {error}"
            log.warning(
                "wastegate records nothing step by step from here on, this vLLM differs from those it knows (%s)",
                self.lacks,
            )
            self._let_go()

    def _let_go(self) -> None:
        """A cap that followed the load until now would stay where it is: give the engine its own back."""
        if self._state is not None:
            self._policy, self._state = replace(self._policy, policy="fixed"), None
            with suppress(Exception):  # as above
                self.scheduler.max_num_active_reqs = self._most_cap()

    def _probe(self) -> None:
        """Find out at the start, not in the first request."""
        scheduler = self.scheduler
        missing = [name for name in NEEDED if not hasattr(scheduler, name)]
        if missing or not callable(getattr(scheduler.kv_cache_manager, "get_blocks", None)):
            raise AttributeError(f"the scheduler has no {', '.join(missing) or 'kv_cache_manager.get_blocks'}")
        self._holdings = Holdings(int(scheduler.block_size))
        count = getattr(getattr(scheduler, "cache_config", None), "num_gpu_blocks", None)
        if isinstance(count, int):
            self.kv_capacity = count * int(scheduler.block_size)

    def _scheduled(self, output: Any) -> None:
        now = self.now()
        counts: dict[str, int] = output.num_scheduled_tokens
        if not counts:
            self._meter.pause(now)
            self._step = None
            return
        self.steps += 1
        manager = self.scheduler.kv_cache_manager
        running = self.scheduler.running
        held = self._holdings.of({one.request_id: manager.get_blocks(one.request_id).blocks for one in running})
        parts = [(one.request_id, self._part(one, counts, output), held[one.request_id]) for one in running]
        self._sample(now, parts)
        self._meter.step(now, parts)
        self._follow(now)

    def _part(self, request: Any, counts: dict[str, int], output: Any) -> Part:
        count = counts.get(request.request_id, 0)
        if not count:
            return Part()
        before = request.num_computed_tokens - count
        if request.request_id not in self._seen:
            self._seen[request.request_id] = before
        drafts = min(len(output.scheduled_spec_decode_tokens.get(request.request_id, ())), count)
        if before >= request.num_prompt_tokens and count - drafts == 1:
            return Part(decode=1, draft=drafts) if drafts else DECODE
        return Part(prefill=count - drafts, draft=drafts)

    def _freed(self, request: Any) -> None:
        now = self.now()
        runs = self._meter.end(now, request.request_id)
        preemptions = int(getattr(request, "num_preemptions", 0))
        self.preemptions += preemptions
        self.ring.add(
            EngineRecord(
                sequence=0,
                id=request.request_id,
                arrived=float(request.arrival_time),
                ended=now,
                finish=str(getattr(request.get_finished_reason(), "name", "")).lower(),
                prompt=int(request.num_prompt_tokens),
                cached=min(self._seen.pop(request.request_id, 0), int(request.num_prompt_tokens)),
                output=int(request.num_output_tokens),
                preemptions=preemptions,
                runs=runs,
            )
        )

    # ---- settings

    def status(self) -> dict[str, Any]:
        """What is in force, and how the engine stands; a name that this vLLM does not have is None."""
        scheduler = self.scheduler
        table = getattr(scheduler, "dynamic_sd_lookup", None)
        return {
            "cap": getattr(scheduler, "max_num_active_reqs", None),
            "most_cap": getattr(scheduler, "max_num_running_reqs", None),
            "batched_tokens": getattr(scheduler, "max_num_scheduled_tokens", None),
            "drafts": list(table[1:]) if table is not None else None,
            "policy": msgspec.to_builtins(self._policy),
            "why": self._state.why if self._state is not None else "",
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_use": getattr(scheduler.kv_cache_manager, "usage", None),
            "steps": self.steps,
            "preemptions": self.preemptions,
            "scheduler": type(scheduler).__name__,
            "lacks": self.lacks,
        }

    def set(self, settings: Settings) -> dict[str, Any]:
        """Put settings in force from the next step on; what is in force then. Raises ValueError for one that this
        engine cannot take; then none is taken."""
        scheduler = self.scheduler
        if (settings.cap is not None or settings.policy is not None) and not hasattr(scheduler, "max_num_active_reqs"):
            raise ValueError("this vLLM cannot change how many requests run at once: it has no max_num_active_reqs")
        if settings.drafts is not None and getattr(scheduler, "dynamic_sd_lookup", None) is None:
            raise ValueError(
                "drafts can change only where vLLM was started with num_speculative_tokens_per_batch_size in its "
                "speculative config"
            )
        most = getattr(getattr(scheduler, "scheduler_config", None), "max_num_batched_tokens", None)
        if settings.batched_tokens is not None and (not isinstance(most, int) or settings.batched_tokens > most):
            raise ValueError(f"batched_tokens is {settings.batched_tokens}: at most {most}, as it was started")
        if settings.policy is not None:
            self._policy = replace(settings.policy, max=min(settings.policy.max, self._most_cap()))
            self._state = CapState(self._cap()) if self._policy.policy != "fixed" else None
        if settings.cap is not None:
            scheduler.max_num_active_reqs = min(settings.cap, self._most_cap())
            if self._state is not None:
                self._state = replace(self._state, cap=self._cap())
        if settings.batched_tokens is not None:
            scheduler.max_num_scheduled_tokens = settings.batched_tokens
        if settings.drafts is not None:
            table = scheduler.dynamic_sd_lookup
            scheduler.dynamic_sd_lookup = draft_table(settings.drafts, len(table), int(scheduler.num_spec_tokens))
        return self.status()

    def work(self) -> Work | None:
        """What a step costs, by what is done in it; fitted now and then."""
        now = self.now()
        if now - self._fitted[0] >= FIT_SECONDS:
            cost = self._times.cost()
            work = None
            if cost.prefill is not None and cost.decode is not None and cost.kv is not None:
                work = Work(cost.prefill, cost.decode, cost.kv, cost.fixed or 0.0, "engine steps")
            self._fitted = now, work
        return self._fitted[1]

    def _cap(self) -> int:
        return int(self.scheduler.max_num_active_reqs)

    def _most_cap(self) -> int:
        return int(self.scheduler.max_num_running_reqs)

    # ---- the cap follows the load

    def _sample(self, now: float, parts: list[tuple[str, Part, float]]) -> None:
        """What the last step took; for the cap only where all decoded: prompts say nothing of a token's time."""
        if self._step is not None and self._meter.busy:  # otherwise all had ended, and then nothing ran for a while
            began, computed, decoding, held = self._step
            self._times.add(now - began, computed, decoding, held)
            if decoding and not computed:
                self._samples.append((decoding, now - began))
        self._step = (
            now,
            sum(part.prefill + part.draft for _, part, _ in parts),
            sum(part.decode for _, part, _ in parts),
            sum(held for _, _, held in parts),
        )

    def _follow(self, now: float) -> None:
        if self._state is None or now - self._decided < DECIDE_SECONDS:
            return
        self._decided = now
        scheduler = self.scheduler
        preempted = sum(int(getattr(one, "num_preemptions", 0)) for one in scheduler.requests.values())
        usage = getattr(scheduler.kv_cache_manager, "usage", None)
        signals = Signals(
            now=now,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            samples=tuple(self._samples),
            preemptions=max(preempted + self.preemptions - self._preempted, 0),
            kv_use=float(usage) if usage is not None else None,
        )
        self._preempted = preempted + self.preemptions
        self._samples.clear()
        self._state = decide(signals, self._state, self._policy)
        scheduler.max_num_active_reqs = min(self._state.cap, self._most_cap())
