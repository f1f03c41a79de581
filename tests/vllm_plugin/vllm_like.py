"""As much of vLLM's scheduler as the plugin looks at: it runs every request, a step at a time, and shares full blocks
of a common prompt. Every name is vLLM 0.32's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

BLOCK = 4


class Reason(Enum):
    LENGTH = 1
    ABORT = 2


@dataclass
class Block:
    ref_cnt: int = 1
    is_null: bool = False


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float = 0.0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    reason: Reason | None = None
    blocks: list[Block] = field(default_factory=list)

    def get_finished_reason(self) -> Reason | None:
        return self.reason


class Manager:
    usage = 0.25

    def __init__(self, scheduler: FakeScheduler) -> None:
        self._scheduler = scheduler

    def get_blocks(self, id: str) -> Any:
        return SimpleNamespace(blocks=(self._scheduler.requests[id].blocks,))


class FakeScheduler:
    """``schedule`` is one step. ``chunk`` bounds the prompt tokens of a request in it, ``drafts`` are verified with
    each decoded token."""

    def __init__(self, vllm_config: Any = None, chunk: int = 8, drafts: int = 0) -> None:
        self.vllm_config = vllm_config
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.block_size = BLOCK
        self.cache_config = SimpleNamespace(num_gpu_blocks=100)
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=64)
        self.max_num_running_reqs = 8
        self.max_num_active_reqs = 8
        self.max_num_scheduled_tokens = 64
        self.num_spec_tokens = 4
        self.dynamic_sd_lookup: list[int] | None = None
        self.kv_cache_manager = Manager(self)
        self.chunk = chunk
        self.drafts = drafts

    def add(self, request: Request, cached: int = 0, shared_with: Request | None = None) -> Request:
        """It waits; ``cached`` tokens of its prompt are in the blocks of another."""
        self.requests[request.request_id] = request
        if shared_with is not None:
            request.blocks = shared_with.blocks[: cached // BLOCK]
            for block in request.blocks:
                block.ref_cnt += 1
        request.num_computed_tokens = cached
        self.waiting.append(request)
        return request

    def schedule(self) -> Any:
        while self.waiting and len(self.running) < self.max_num_active_reqs:
            self.running.append(self.waiting.pop(0))
        counts, drafted = {}, {}
        for one in self.running:
            left = one.num_prompt_tokens - one.num_computed_tokens
            count = min(left, self.chunk) if left > 0 else 1 + self.drafts
            if left <= 0 and self.drafts:
                drafted[one.request_id] = [0] * self.drafts
            counts[one.request_id] = count
            one.num_computed_tokens += count
            while len(one.blocks) * BLOCK < one.num_computed_tokens:
                one.blocks = [*one.blocks, Block()]
        return SimpleNamespace(num_scheduled_tokens=counts, scheduled_spec_decode_tokens=drafted)

    def finish(self, request: Request, reason: Reason) -> None:
        request.reason = reason
        for line in (self.running, self.waiting):
            if request in line:
                line.remove(request)
        self._free_request(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> tuple[None, None]:
        del self.requests[request.request_id]
        request.blocks = []
        return None, None
