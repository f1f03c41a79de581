"""A model engine: continuous batching in steps, chunked prefill, and a prefix cache of limited size that forgets what
was used longest ago. Time comes from outside, so that a server and a simulation run the same lines."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 64
BLOCK_BYTES = 4 * BLOCK_TOKENS


@dataclass(frozen=True)
class Speed:
    """One step takes ``fixed + prefill × prompt tokens computed + decode × sequences decoding`` seconds. The
    proportions are a guess at an 8B model on one large GPU (10,000 tokens/s of prefill, 100 steps/s); the scale is the
    benchmark's."""

    fixed: float = 0.008
    prefill: float = 0.0001
    decode: float = 0.0002
    budget: int = 1024
    """Prompt tokens in a step at most."""
    running: int = 64
    """Sequences at once; others wait."""
    blocks: int = 1500
    """Of the prefix cache."""


@dataclass(eq=False)
class Job:
    """One request. Tokens, and times in the caller's seconds."""

    chain: Sequence[int]
    prompt: int
    output: int
    cached: int = 0
    left: int = 0
    made: int = 0
    first_token: float | None = None


@dataclass
class Done:
    """What a step has led to."""

    first: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)


class Cache:
    """Least recently used. Blocks of a prompt are given up from its end, as engines do."""

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def find(self, chain: Sequence[int]) -> int:
        """Leading blocks that are held."""
        count = 0
        while count < len(chain) and chain[count] in self._held:
            count += 1
        return count

    def use(self, chain: Sequence[int]) -> None:
        for block in reversed(chain):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self.size:
            self._held.popitem(last=False)

    def clear(self) -> None:
        self._held.clear()


class Engine:
    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.cache = Cache(speed.blocks)
        self.waiting: deque[Job] = deque()
        self.prefilling: deque[Job] = deque()
        self.decoding: list[Job] = []
        self.computed = 0
        """Prompt tokens computed since the last reset."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.prefilling or self.decoding)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def drop(self, job: Job) -> None:
        for queue in (self.waiting, self.prefilling, self.decoding):
            if job in queue:
                queue.remove(job)

    def begin(self) -> tuple[float, list[Job], list[Job]]:
        """The next step: (seconds, whose prefill it ends, who decodes in it)."""
        speed = self.speed
        while self.waiting and len(self.prefilling) + len(self.decoding) < speed.running:
            job = self.waiting.popleft()
            job.cached = min(self.cache.find(job.chain) * BLOCK_TOKENS, job.prompt - 1)
            job.left = job.prompt - job.cached
            self.cache.use(job.chain)  # as engines do: blocks are taken when the request is scheduled
            self.prefilling.append(job)
        room, finished = speed.budget, []
        for job in self.prefilling:
            part = min(room, job.left)
            job.left -= part
            room -= part
            if job.left == 0:
                finished.append(job)
            if room == 0:
                break
        computed = speed.budget - room
        self.computed += computed
        decoding = list(self.decoding)
        return speed.fixed + speed.prefill * computed + speed.decode * len(decoding), finished, decoding

    def end(self, finished: list[Job], decoding: list[Job], now: float) -> Done:
        """The step is over."""
        done = Done()
        for job in finished:
            if job in self.prefilling:
                self.prefilling.remove(job)
                job.first_token = now
                job.made = 1
                done.first.append(job)
                if job.made >= job.output:
                    done.ended.append(job)
                else:
                    self.decoding.append(job)
        for job in decoding:
            if job in self.decoding:
                job.made += 1
                if job.made >= job.output:
                    self.decoding.remove(job)
                    done.ended.append(job)
        return done
