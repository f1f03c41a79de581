"""What an engine says of itself at one instant, in our own terms, and the rules by which its names become ours. No text
is parsed here and nothing is remembered."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import Struct

Kind = Literal["sum", "share", "limit", "counter", "histogram"]
"""How a metric's series become one value: gauges that add up over an engine's parts (``sum``), shares from 0 to 1 of
which the fullest part counts (``share``), gauges that all parts repeat (``limit``), counters, histograms in seconds."""


class Spread(Struct, frozen=True):
    """A distribution over the newest stretch of time, from a histogram's buckets. Seconds; None while it is empty."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None


class Signals(Struct, frozen=True):
    """None means "the engine does not say", never 0. Counters count from the first look, over the engine's restarts."""

    at: float
    """Epoch seconds."""
    running: float | None = None
    """Sequences in the batch."""
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of the KV cache that is held, 0 to 1."""
    kv_capacity: float | None = None
    """Tokens."""
    max_running: float | None = None
    """The cap that the engine runs under."""
    prompt_tokens: float | None = None
    """With those found in the prefix cache."""
    cached_tokens: float | None = None
    output_tokens: float | None = None
    finished: float | None = None
    """Requests that ended with an answer."""
    aborted: float | None = None
    rejected: float | None = None
    preemptions: float | None = None
    """Sequences thrown out of the batch for want of KV cache, to be computed again."""
    drafts: float | None = None
    """Times that tokens were drafted and verified."""
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    acceptance: float | None = None
    """Share of drafted tokens that were accepted, as the engine itself averages it."""
    queue: Spread | None = None
    first_token: Spread | None = None
    inter_token: Spread | None = None
    whole: Spread | None = None
    prompt_rate: float | None = None
    """Tokens a second over the newest stretch of time."""
    output_rate: float | None = None


class Metric(Struct, frozen=True):
    """A name on the engine's page, and the label that a series must have to count; one that it lacks is empty."""

    name: str
    label: str = ""
    value: str = ""
    read: str = ""
    """The label whose text is the figure, where the sample's own is always 1 (an "info" metric)."""

    def __str__(self) -> str:
        where = f'{{{self.label}="{self.value}"}}' if self.label else ""
        return self.name + where + (f"[{self.read}]" if self.read else "")


Way = tuple[Metric, ...]


class Rule(Struct, frozen=True):
    """Where one of our signals comes from. ``ways`` are tried in order; the first whose metrics are all on the page
    counts, and the metrics of one way are added up. All but the first are names of other versions."""

    signal: str
    kind: Kind
    ways: tuple[Way, ...]
    optional: bool = False
    """It is there only where the engine was started with it (speculation): missing is nothing to report."""
    beside: str = ""
    """It says something only where this metric is on the page, too."""

    @property
    def names(self) -> frozenset[str]:
        """The sample names that it looks for."""
        ends = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return frozenset(metric.name + end for way in self.ways for metric in way for end in ends)


Rules = tuple[Rule, ...]

_METRIC = re.compile(r"([\w:]+)(?:\{(\w+)=(\w*)\})?(?:\[(\w+)\])?")


def rule(signal: str, kind: Kind, *ways: str, optional: bool = False, beside: str = "") -> Rule:
    """A rule in short: ``rule("aborted", "counter", "a_total{reason=abort}")``; ``"a + b"`` adds two metrics up, and
    ``"a_info[size]"`` reads a label.

    Raises ValueError for a signal that we do not have, or a way that cannot be read.
    """
    if signal not in {field.name for field in msgspec.structs.fields(Signals)}:
        raise ValueError(f"there is no signal {signal!r}")
    return Rule(
        signal, kind, tuple(tuple(_metric(part) for part in way.split(" + ")) for way in ways), optional, beside
    )


def _metric(text: str) -> Metric:
    found = _METRIC.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a metric: write name, name{{label=value}} or name[label]")
    return Metric(found[1], *(part or "" for part in found.groups()[1:]))
