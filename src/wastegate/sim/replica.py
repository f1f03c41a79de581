"""What a made-up replica is: its engine's settings, its faults, and what is asked of it. Values only; how they play out
is ``sim.batch``'s."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.sim.timing import Timing

UNBOUNDED = 1 << 50
"""Tokens or calls: more than anything holds."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine batches. The defaults are vLLM's on a data centre's accelerator."""

    running: int = 256
    """Sequences in the batch at most (vLLM ``max_num_seqs``; llama.cpp's slots)."""
    queue: int = UNBOUNDED
    """Calls that it lets wait before it refuses."""
    step_tokens: int = 8192
    """Tokens of one step (vLLM ``max_num_batched_tokens``): decoding sequences first, then parts of prompts."""
    least_prefill: int = 1
    """Prompt tokens that a step computes at least, however many sequences decode."""
    part_block: int = 1
    """Parts of a prompt end at multiples of this."""
    chunked: bool = True
    """A long prompt is computed in parts; otherwise whole, however long it makes the step."""
    mixed: bool = True
    """Prompts and running sequences share steps; otherwise prompts go first, and the others wait."""
    kv_tokens: int = UNBOUNDED
    block: int = 16
    """Tokens of a KV block. A sequence's last one is half empty on average."""
    prefix_caching: bool = True
    hashed_tokens: int = 128
    """Tokens that one hash of a call's ``blocks`` stands for."""
    tier_tokens: int = 0
    """A second tier for KV that was given up, such as the host's memory."""
    tier_rate: float = 0.0
    """Tokens of KV a second that come back from it."""
    accepted: tuple[float, ...] = ()
    """Speculation: for each drafted position, the share of drafts that are accepted up to and with it."""
    speculate_below: int = UNBOUNDED
    """It drafts only while fewer sequences than this decode."""
    draft_seconds: float = 0.0
    """For each drafted position of a step, whoever drafts."""

    def __post_init__(self) -> None:
        for name in ("running", "step_tokens", "least_prefill", "part_block", "kv_tokens", "block", "hashed_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("queue", "tier_tokens", "tier_rate", "speculate_below", "draft_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it cannot be below 0")
        if self.tier_tokens and not self.tier_rate:
            raise ValueError("tier_tokens needs tier_rate: how many tokens of KV a second come back")
        if any(not 0 <= share <= 1 for share in self.accepted) or list(self.accepted) != sorted(self.accepted)[::-1]:
            raise ValueError(f"accepted is {self.accepted}: shares from 0 to 1, none above the one before it")
        if self.least_prefill < self.part_block:
            raise ValueError(f"least_prefill is {self.least_prefill}: at least one part_block ({self.part_block})")


def llamacpp(slots: int, context: int) -> Settings:
    """llama.cpp's server with a unified KV of ``slots`` × ``context`` tokens and its default batch of 2048.

    A slot's KV is kept until the slot is used again, which is close to "the oldest first".
    """
    return Settings(running=slots, step_tokens=2048, kv_tokens=slots * context, block=1)


def local(cap: int, queue: int, kv_tokens: int, step_tokens: int = 256) -> Settings:
    """The engine that comes with wastegate: prompts in parts of whole 32-token blocks, a bounded line of its own."""
    return Settings(
        running=cap,
        queue=queue,
        step_tokens=step_tokens,
        least_prefill=32,
        part_block=32,
        kv_tokens=kv_tokens,
        block=32,
    )


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of the calls sent to a replica that it answers with 503, never answers, or cuts halfway."""

    refuse: float = 0.0
    hang: float = 0.0
    cut: float = 0.0

    def __post_init__(self) -> None:
        shares = (self.refuse, self.hang, self.cut)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"shares of faults are {shares}: none may be below 0, nor all together above 1")

    def at(self, luck: float) -> Literal["refuse", "hang", "cut", "none"]:
        """The fault of a call by its draw from [0, 1)."""
        if luck < self.refuse:
            return "refuse"
        if luck < self.refuse + self.hang:
            return "hang"
        return "cut" if luck < self.refuse + self.hang + self.cut else "none"


class Machine(Struct, frozen=True):
    """A replica of the made-up fleet. A variant of a model is a machine with another timing."""

    replica: Replica
    timing: Timing
    settings: Settings = Settings()
    faults: Faults = Faults()
    front: float = 0.0
    """Seconds from the request's arrival until its engine knows of it: HTTP, tokenising."""


class Work(Struct, frozen=True, gc=False):
    """A call as its engine sees it. ``blocks``: the prompt's chained hashes, 8 bytes each; KV is shared within a
    ``scope`` only."""

    prompt: int
    output: int
    blocks: bytes = b""
    scope: int = 0
    priority: int = 0


class Milestone(Struct, frozen=True, gc=False):
    """Something that a call's client notices, at a time in seconds."""

    key: str
    what: Literal["first_token", "finished"]
    at: float
    cached: int = 0
    """Prompt tokens that were found in the cache."""


class Spent(Struct):
    """What a replica has done so far."""

    busy: float = 0.0
    """Seconds in steps."""
    outside: float = 0.0
    """Of those, in steps such as its timing was not made from."""
    doubted: float = 0.0
    """Sum over its steps of seconds × relative half-width."""
    steps: int = 0
    prefill: int = 0
    decoded: float = 0.0
    cached: int = 0
    loaded: int = 0
    """Tokens of KV that came back from the tier."""
    preempted: int = 0
    kv_peak: float = 0.0
