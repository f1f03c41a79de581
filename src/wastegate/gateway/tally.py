"""Running counts of one gateway process for ``/metrics``. Bounded labels only: no tenant, model or id of a client."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from wastegate.core.fleet import ReplicaState
from wastegate.core.ledger import Entry

# Seconds. From a prefix-cached first token on a small model to a long answer on a loaded one.
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts in fixed buckets, as Prometheus wants them."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, help_text: str) -> list[str]:
        out = [f"# HELP {name} {help_text}", f"# TYPE {name} histogram"]
        running = 0
        for bound, count in zip(_BUCKETS, self.counts, strict=False):
            running += count
            out.append(f'{name}_bucket{{le="{bound:g}"}} {running}')
        running += self.counts[-1]
        return [
            *out,
            f'{name}_bucket{{le="+Inf"}} {running}',
            f"{name}_sum {self.total:.6f}",
            f"{name}_count {running}",
        ]


class Tally:
    """What has ended since the process started."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._cached_tokens = 0
        self._first_token = Histogram()
        self._duration = Histogram()
        self.rejected: Counter[str] = Counter()
        """Requests that never became a call, by why: too large, unreadable, no such path, …"""

    def count(self, entry: Entry) -> None:
        self._outcomes[entry.route, entry.outcome] += 1
        self._duration.add(entry.ended - entry.arrived)
        for attempt in entry.attempts:
            self._attempts[attempt.replica, attempt.outcome] += 1
            self._prompt_tokens += attempt.prompt_tokens or 0
            self._output_tokens += attempt.output_tokens or 0
            self._cached_tokens += attempt.cached_tokens or 0
            if attempt.first_token is not None:
                self._first_token.add(attempt.first_token - entry.arrived)

    def exposition(self, states: tuple[ReplicaState, ...], waiting: int, unrecorded: int) -> str:
        """Prometheus text format, version 0.0.4."""
        lines: list[str] = []
        _family(
            lines,
            "wastegate_calls_total",
            "counter",
            "Calls that have ended, by route and outcome.",
            [(f'route="{_escape(route)}",outcome="{o}"', n) for (route, o), n in sorted(self._outcomes.items())],
        )
        _family(
            lines,
            "wastegate_attempts_total",
            "counter",
            "Tries on replicas that have ended, by outcome.",
            [(f'replica="{_escape(r)}",outcome="{o}"', n) for (r, o), n in sorted(self._attempts.items())],
        )
        _family(
            lines,
            "wastegate_rejected_total",
            "counter",
            "Requests turned away before they became a call.",
            [(f'reason="{reason}"', n) for reason, n in sorted(self.rejected.items())],
        )
        for name, value, text in (
            ("wastegate_prompt_tokens_total", self._prompt_tokens, "Prompt tokens of all attempts."),
            ("wastegate_output_tokens_total", self._output_tokens, "Output tokens of all attempts."),
            ("wastegate_cached_tokens_total", self._cached_tokens, "Prompt tokens that engines report as cached."),
            ("wastegate_unrecorded_calls_total", unrecorded, "Calls served that the journal could not take."),
        ):
            _family(lines, name, "counter", text, [("", value)])
        _family(lines, "wastegate_waiting_calls", "gauge", "Calls in the gateway's line.", [("", waiting)])
        _family(
            lines,
            "wastegate_in_flight_calls",
            "gauge",
            "Calls that hold a replica's slot.",
            [(f'replica="{_escape(s.replica.name)}"', s.in_flight) for s in states],
        )
        _family(
            lines,
            "wastegate_replica_ready",
            "gauge",
            "1 where the replica takes calls.",
            [(f'replica="{_escape(s.replica.name)}",state="{s.state}"', int(s.state == "ready")) for s in states],
        )
        lines += self._first_token.lines("wastegate_time_to_first_token_seconds", "From arrival to the first token.")
        lines += self._duration.lines("wastegate_call_duration_seconds", "From arrival to the end of the call.")
        return "\n".join(lines) + "\n"


def _family(lines: list[str], name: str, kind: str, text: str, samples: list[tuple[str, int]]) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples]


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
