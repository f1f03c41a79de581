"""What the engine counts, and its Prometheus text. Labels are bounded: nothing that a client sends becomes one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from wastegate.core.stepcost import StepTimes
from wastegate.local.messages import Load, Ready, Report, Step

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)

OUTCOMES = ("stop", "length", "left", "refused", "failed")
"""How a call ended: a stop string or end token, its token limit, its client left, never begun, broken off."""


class Histogram:
    """Counts by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        total = 0
        out = []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            out.append(f'{name}_bucket{{le="{bound:g}"}} {total}')
        total += self._counts[-1]
        return [*out, f'{name}_bucket{{le="+Inf"}} {total}', f"{name}_sum {self._sum:.9g}", f"{name}_count {total}"]


class Metrics:
    """The engine's figures. Durations in seconds, sizes in bytes."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.loading = 0.0
        self.warmup = 0.0
        self.kv_use = 0.0
        self.kv_bytes = 0
        self.batch = Histogram(_WIDTHS)
        self.step = Histogram()
        self.first = Histogram()
        self.between = Histogram()
        self.whole = Histogram()
        self.queued = Histogram()
        self.times = StepTimes()

    def report(self, report: Report) -> None:
        """Take a report of the step loop in."""
        if isinstance(report, Step):
            self.running, self.waiting = report.running, report.waiting
            # The pipeline says what the step held; where nothing runs on, that is free again.
            self.kv_use, self.kv_bytes = report.kv_use if report.running else 0.0, report.kv_bytes
            if report.clean and report.sequences:  # the loop is sure of what it did
                self.times.add(report.seconds, report.prefill, report.decoding, report.kv_tokens)
            self.step.add(report.seconds)
            self.batch.add(report.sequences)
            self.output_tokens += report.generated
            for _, seconds in report.admitted:
                self.queued.add(seconds)
        elif isinstance(report, Load):
            self.running, self.waiting = report.running, report.waiting
            if not report.running:
                self.kv_use = 0.0
        elif isinstance(report, Ready):
            self.loading, self.warmup = report.loading, report.warmup

    def lost(self) -> None:
        """The loop is gone: nothing runs or waits."""
        self.running = self.waiting = 0
        self.kv_use = 0.0

    def text(self, *, ready: bool, restarts: int, cap: int, queue: int, kv_capacity: int) -> str:
        """Prometheus text, version 0.0.4."""
        out: list[str] = []

        def plain(name: str, kind: str, what: str, value: float) -> None:
            out.extend((f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value:.10g}"))

        def spread(name: str, what: str, histogram: Histogram) -> None:
            out.extend((f"# HELP {name} {what}", f"# TYPE {name} histogram", *histogram.lines(name)))

        name = "wastegate_engine"
        plain(f"{name}_ready", "gauge", "1 where the step loop serves.", float(ready))
        plain(f"{name}_requests_running", "gauge", "Sequences in the batch.", self.running)
        plain(f"{name}_requests_waiting", "gauge", "Sequences in line.", self.waiting)
        plain(f"{name}_requests_running_max", "gauge", "The cap: sequences that may run at once.", cap)
        plain(f"{name}_requests_waiting_max", "gauge", "Sequences that may wait.", queue)
        plain(f"{name}_kv_cache_usage_ratio", "gauge", "Share of KV blocks in use.", self.kv_use)
        plain(f"{name}_kv_cache_bytes", "gauge", "Size of the KV cache, once a step has run.", self.kv_bytes)
        plain(f"{name}_kv_cache_capacity_tokens", "gauge", "Tokens that the KV cache holds.", kv_capacity)
        plain(f"{name}_load_seconds", "gauge", "Time that loading the model took.", self.loading)
        plain(f"{name}_warmup_seconds", "gauge", "Time that warming up took.", self.warmup)
        plain(f"{name}_loop_restarts_total", "counter", "Step loops that ended and were started anew.", restarts)
        plain(f"{name}_prompt_tokens_total", "counter", "Prompt tokens of calls that began.", self.prompt_tokens)
        plain(
            f"{name}_prompt_tokens_cached_total", "counter",
            "Of them, those found in the prefix cache: reckoned, and a floor.", self.cached_tokens,
        )  # fmt: skip
        plain(f"{name}_output_tokens_total", "counter", "Tokens generated.", self.output_tokens)
        out.extend((f"# HELP {name}_requests_total Calls by how they ended.", f"# TYPE {name}_requests_total counter"))
        out.extend(f'{name}_requests_total{{outcome="{key}"}} {value}' for key, value in self.outcomes.items())
        spread(f"{name}_step_seconds", "Time of one step.", self.step)
        spread(f"{name}_step_sequences", "Sequences in a step's batch.", self.batch)
        spread(f"{name}_queue_seconds", "From arrival at the loop to the batch.", self.queued)
        spread(f"{name}_time_to_first_token_seconds", "From arrival to the first token.", self.first)
        spread(f"{name}_inter_token_seconds", "Between a sequence's tokens.", self.between)
        spread(f"{name}_request_seconds", "From arrival to the last token, of calls that were answered.", self.whole)
        return "\n".join(out) + "\n"
