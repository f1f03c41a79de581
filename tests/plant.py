"""An engine as a batching policy sees it, in made-up time: steps, a line, a KV cache. For tests of what the policy does
to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wastegate.core.admission import CapConfig, CapState, Signals, decide


@dataclass
class Plant:
    """Continuous batching: a step takes ``fixed + each × width`` seconds and gives every running call one token."""

    config: CapConfig
    cap: int = 8
    fixed: float = 0.02
    each: float = 0.001
    tokens: int = 32
    kv: int = 10_000
    """Tokens that the cache holds; each call holds 100 and what it has made."""
    now: float = 0.0
    arriving: float = 0.0
    """A share of the next call: what a rate has earned so far."""
    waits: list[float] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)
    served: int = 0
    _line: list[float] = field(default_factory=list)
    _running: list[int] = field(default_factory=list)
    _samples: list[tuple[int, float]] = field(default_factory=list)
    _waited: list[float] = field(default_factory=list)
    _preemptions: int = 0
    _busy: float = 0.0
    _ticked: float = 0.0

    def __post_init__(self) -> None:
        self.state = CapState(self.cap)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return len(self._running)

    def run(self, seconds: float, rate: Callable[[float], float]) -> None:
        """``rate``: calls a second at a time."""
        end = self.now + seconds
        while self.now < end:
            self._step(rate(self.now))
            if self.now - self._ticked >= 0.25:
                self._tick()

    def _step(self, rate: float) -> None:
        while self._line and len(self._running) < self.state.cap:
            self._waited.append(self.now - self._line.pop(0))
            self._running.append(0)
        width = len(self._running)
        seconds = self.fixed + self.each * width
        self.now += seconds
        self.arriving += rate * seconds
        while self.arriving >= 1:
            self.arriving -= 1
            self._line.append(self.now)
        if not width:
            return
        self._busy += seconds
        self._samples.append((width, seconds))
        made = [tokens + 1 for tokens in self._running]
        while sum(100 + tokens for tokens in made) > self.kv:  # the youngest begins anew
            made.pop()
            self._line.insert(0, self.now)
            self._preemptions += 1
        self.served += sum(tokens >= self.tokens for tokens in made)
        self._running = [tokens for tokens in made if tokens < self.tokens]

    def _tick(self) -> None:
        waited = sorted(self._waited)[len(self._waited) // 2] if self._waited else None
        used = sum(100 + tokens for tokens in self._running) / self.kv
        use = self._busy / (self.now - self._ticked)
        signals = Signals(
            self.now, self.running, self.waiting, tuple(self._samples), self._preemptions, used, waited, use
        )
        before = self.state.cap
        self.state = decide(signals, self.state, self.config)
        if self.state.cap != before:
            self.changes.append((self.now, self.state.cap))
        self.waits += self._waited
        self._samples, self._waited, self._preemptions = [], [], 0
        self._busy, self._ticked = 0.0, self.now
