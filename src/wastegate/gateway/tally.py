"""Running counts of one gateway process for ``/metrics``. Bounded labels only: no tenant, model or id of a client."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import ReplicaState
from wastegate.core.ledger import NANO, Entry

# Seconds. From a prefix-cached first token on a small model to a long answer on a loaded one.
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram(Struct):
    """Counts in fixed buckets, as Prometheus wants them."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def merge(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

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


class Paced(Struct):
    """Streams that were answered whole: how many, their tokens after the first, and the seconds that these took."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Tally(Struct):
    """What has ended since the process started. Several processes' tallies can be merged into one."""

    outcomes: dict[str, int] = {}
    """Calls, by outcome and route: ``finished /v1/chat/completions``."""
    attempts: dict[str, int] = {}
    """Tries on replicas, by outcome and replica."""
    rejected: dict[str, int] = {}
    """Requests that never became a call, by why: too large, unreadable, no such path, …"""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    stored_answers: int = 0
    """Calls that were given a stored answer."""
    stored_tokens: int = 0
    """Those of stored answers, prompts included: not computed again."""
    first_token: Histogram = msgspec.field(default_factory=Histogram)
    duration: Histogram = msgspec.field(default_factory=Histogram)
    paces: dict[str, Paced] = {}
    """By replica; counted where caps follow the load."""

    def count(self, entry: Entry) -> None:
        """A call has ended."""
        _add(self.outcomes, f"{entry.outcome} {entry.route}")
        self.duration.add(entry.ended - entry.arrived)
        if entry.flew is not None and entry.was_stored:
            self.stored_answers += 1
            self.stored_tokens += (entry.flew.prompt_tokens or 0) + (entry.flew.output_tokens or 0)
        for attempt in entry.attempts:
            _add(self.attempts, f"{attempt.outcome} {attempt.replica}")
            self.prompt_tokens += attempt.prompt_tokens or 0
            self.output_tokens += attempt.output_tokens or 0
            self.cached_tokens += attempt.cached_tokens or 0
            if attempt.first_token is not None:
                self.first_token.add(attempt.first_token - entry.arrived)

    def time(self, entry: Entry) -> None:
        """How long its tokens took."""
        for attempt in entry.attempts:
            tokens = (attempt.output_tokens or 0) - 1
            if attempt.outcome == "finished" and attempt.first_token is not None and tokens > 0:
                pace = self.paces.setdefault(attempt.replica, Paced())
                pace.calls += 1
                pace.tokens += tokens
                pace.seconds += attempt.ended - attempt.first_token

    def pace(self, replica: str) -> Paced:
        """As it stands now."""
        return replace(self.paces.get(replica, _NO_PACE))

    def reject(self, reason: str) -> None:
        """A request was turned away."""
        _add(self.rejected, reason)

    def merge(self, other: Tally) -> None:
        """Count another process's calls as well."""
        for mine, theirs in (
            (self.outcomes, other.outcomes),
            (self.attempts, other.attempts),
            (self.rejected, other.rejected),
        ):
            for key, number in theirs.items():
                _add(mine, key, number)
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.stored_answers += other.stored_answers
        self.stored_tokens += other.stored_tokens
        for replica, theirs_pace in other.paces.items():
            mine_pace = self.paces.setdefault(replica, Paced())
            mine_pace.calls += theirs_pace.calls
            mine_pace.tokens += theirs_pace.tokens
            mine_pace.seconds += theirs_pace.seconds
        self.first_token.merge(other.first_token)
        self.duration.merge(other.duration)


_NO_PACE = Paced()


class Report(Struct):
    """One process's state, for its operator."""

    flights: int = 0
    """Calls between their arrival and their end."""
    waiting: int = 0
    """Of these: in the line."""
    unrecorded: int = 0
    """Calls served that the journal could not take."""
    failing: str = ""
    """Empty, or why the journal cannot be written."""
    tally: Tally = msgspec.field(default_factory=Tally)
    prefix_blocks: int = 0
    """In the index of prompts' beginnings; one that several of its tables hold counts in each."""
    prefix_bytes: int = 0
    """What that index may take; 0 where nobody routes by it."""
    collisions: int = 0
    untold: int = 0
    """Calls that telemetry has dropped."""

    def merge(self, other: Report) -> None:
        self.flights += other.flights
        self.waiting += other.waiting
        self.unrecorded += other.unrecorded
        self.failing = self.failing or other.failing
        self.tally.merge(other.tally)
        self.prefix_blocks += other.prefix_blocks
        self.prefix_bytes += other.prefix_bytes
        self.collisions += other.collisions
        self.untold += other.untold


def exposition(report: Report, states: tuple[ReplicaState, ...]) -> str:
    """Prometheus text format, version 0.0.4."""
    tally = report.tally
    lines: list[str] = []
    _family(
        lines,
        "wastegate_calls_total",
        "counter",
        "Calls that have ended, by route and outcome.",
        _labelled(tally.outcomes, "outcome", "route"),
    )
    _family(
        lines,
        "wastegate_attempts_total",
        "counter",
        "Tries on replicas that have ended, by outcome.",
        _labelled(tally.attempts, "outcome", "replica"),
    )
    _family(
        lines,
        "wastegate_rejected_total",
        "counter",
        "Requests turned away before they became a call.",
        [(f'reason="{reason}"', n) for reason, n in sorted(tally.rejected.items())],
    )
    for name, value, text in (
        ("wastegate_prompt_tokens_total", tally.prompt_tokens, "Prompt tokens of all attempts."),
        ("wastegate_output_tokens_total", tally.output_tokens, "Output tokens of all attempts."),
        ("wastegate_cached_tokens_total", tally.cached_tokens, "Prompt tokens that engines report as cached."),
        ("wastegate_answer_cache_hits_total", tally.stored_answers, "Calls that were given a stored answer."),
        ("wastegate_answer_cache_tokens_total", tally.stored_tokens, "Tokens of stored answers, prompts included."),
        ("wastegate_simhash_collisions_total", report.collisions, "Prompts with the SimHash of another one."),
        ("wastegate_unrecorded_calls_total", report.unrecorded, "Calls served that the journal could not take."),
        ("wastegate_telemetry_dropped_calls_total", report.untold, "Ended calls that no collector could be told of."),
    ):
        _family(lines, name, "counter", text, [("", value)])
    if report.prefix_bytes:
        text = "Blocks in the index of prompts' beginnings, and the bytes that it may take."
        _family(lines, "wastegate_prefix_index_blocks", "gauge", text, [("", report.prefix_blocks)])
        _family(lines, "wastegate_prefix_index_bytes", "gauge", text, [("", report.prefix_bytes)])
    _family(lines, "wastegate_waiting_calls", "gauge", "Calls in the gateway's line.", [("", report.waiting)])
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
    _family(
        lines,
        "wastegate_replica_cap",
        "gauge",
        "Most calls in flight that the replica is given now.",
        [(f'replica="{_escape(s.replica.name)}"', s.replica.cap) for s in states if s.replica.cap is not None],
    )
    _family(
        lines,
        "wastegate_replica_price_dollars_per_hour",
        "gauge",
        "What an hour of the replica costs, busy or idle; what a call costs is the audit's.",
        [(f'replica="{_escape(s.replica.name)}"', s.replica.price / NANO) for s in states if s.replica.price],
    )
    lines += tally.first_token.lines("wastegate_time_to_first_token_seconds", "From arrival to the first token.")
    lines += tally.duration.lines("wastegate_call_duration_seconds", "From arrival to the end of the call.")
    return "\n".join(lines) + "\n"


def _add(counts: dict[str, int], key: str, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number


def _labelled(counts: dict[str, int], first: str, second: str) -> list[tuple[str, int]]:
    """Samples from keys of two words, of which the second may hold blanks."""
    samples = []
    for key, number in sorted(counts.items()):
        one, _, two = key.partition(" ")
        samples.append((f'{first}="{one}",{second}="{_escape(two)}"', number))
    return samples


def _family(lines: list[str], name: str, kind: str, text: str, samples: Sequence[tuple[str, float]]) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples]


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
