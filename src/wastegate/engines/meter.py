"""One engine's page, read again and again: counters added up over restarts, histograms over the newest stretch of time.
It remembers numbers of one engine only; which names count, it is told."""

from __future__ import annotations

import difflib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from wastegate.engines.exposition import Page, Sample
from wastegate.engines.signals import Metric, Rule, Rules, Signals, Spread, Way

WINDOW = 30.0
"""Seconds that spreads and rates look back: long enough to hold some calls, short enough to follow a burst."""
_LOOKS = 64
"""Looks that are kept at most, however fast they come."""
_BORN = "process_start_time_seconds"
"""Where an engine's page has it (vLLM's has), a restart is certain even if the counters have overtaken themselves."""

SERIES = 20_000
"""Series of one engine that are followed at most; those that come later do not count."""

_Labels = tuple[tuple[str, str], ...]


class Reading(Struct, frozen=True):
    """What one look has given."""

    signals: Signals
    absent: tuple[str, ...] = ()
    """Signals that this engine should give and does not, each with what was looked for."""
    renamed: tuple[str, ...] = ()
    """Signals that come under another version's name."""
    restarts: int = 0
    """Times that counters were seen to begin anew."""


class _Totals(Struct, frozen=True):
    """What had been counted at one look, by signal."""

    at: float
    counters: dict[str, float]
    buckets: dict[str, dict[float, float]]
    sums: dict[str, float]


class Rising:
    """Counters that only rise, added up series by series: one that falls has begun anew from 0."""

    def __init__(self) -> None:
        self._last: dict[str, dict[_Labels, float]] = {}
        self._total: dict[str, dict[_Labels, float]] = {}
        """Kept for series that are gone from the page too: after a restart many come back late."""
        self._known = 0
        self._first = True
        self._born: float | None = None
        self.restarts = 0

    def look(self, samples: Iterable[Sample], born: float | None = None) -> None:
        """Take in all counters of one page. ``born``: when the engine's process began, where the page says so."""
        anew = born is not None and self._born is not None and born != self._born
        self._born = born if born is not None else self._born
        if anew:
            self._last.clear()
        fell = anew
        for sample in samples:
            if math.isnan(sample.value):
                continue
            last = self._last.setdefault(sample.name, {})
            if sample.labels not in last and not self._room(sample):
                continue
            # A series that the first look did not show has begun since; one that it did show counts from there.
            before = last.get(sample.labels, sample.value if self._first else 0.0)
            if sample.value < before:
                fell, before = True, 0.0
            totals = self._total.setdefault(sample.name, {})
            totals[sample.labels] = totals.get(sample.labels, 0.0) + sample.value - before
            last[sample.labels] = sample.value
        self.restarts += fell
        self._first = False

    def _room(self, sample: Sample) -> bool:
        """An engine whose labels never repeat must not fill our memory."""
        if sample.labels not in self._total.get(sample.name, {}):
            self._known += 1
        return self._known <= SERIES

    def series(self, metric: Metric, end: str = "") -> Iterator[tuple[_Labels, float]]:
        """All series of a metric that were ever seen, with what they have risen by since the first look."""
        for labels, total in self._total.get(metric.name + end, {}).items():
            if not metric.label or dict(labels).get(metric.label, "") == metric.value:
                yield labels, total


class Meter:
    """Follows one engine."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.wanted = frozenset(name for rule in rules for name in rule.names) | {_BORN}
        """The names that a page must be parsed for."""
        self._counting = sorted(name for rule in rules if rule.kind in ("counter", "histogram") for name in rule.names)
        self._rising = Rising()
        self._looks: deque[_Totals] = deque(maxlen=_LOOKS)
        self._absent: tuple[frozenset[str], tuple[str, ...]] = (frozenset(), ())

    def read(self, page: Page, at: float) -> Reading:
        """One look. ``at`` in epoch seconds, rising from look to look."""
        born = page.samples.get(_BORN)
        self._rising.look((s for name in self._counting for s in page.samples.get(name, ())), _value(born))
        found = {rule.signal: way for rule in self._rules if (way := _way(rule, page)) is not None}
        while len(self._looks) > 1 and at - self._looks[1].at >= WINDOW:
            self._looks.popleft()
        now, before = self._totals(found, at), self._looks[0] if self._looks else None
        self._looks.append(now)
        return Reading(
            Signals(at=at, **self._values(page, found, now, before)),  # type: ignore[arg-type]
            self._missing(found, page),
            tuple(
                _renamed(rule, found[rule.signal])
                for rule in self._rules
                if found.get(rule.signal, rule.ways[0]) != rule.ways[0]
            ),
            self._rising.restarts,
        )

    def _totals(self, found: Mapping[str, Way], at: float) -> _Totals:
        totals = _Totals(at, {}, {}, {})
        for rule in self._rules:
            way = found.get(rule.signal, ())
            if way and rule.kind == "counter":
                totals.counters[rule.signal] = sum(total for metric in way for _, total in self._rising.series(metric))
            elif way and rule.kind == "histogram":
                bounds = totals.buckets.setdefault(rule.signal, {})
                for labels, total in self._rising.series(way[0], "_bucket"):
                    bound = _bound(labels)
                    bounds[bound] = bounds.get(bound, 0.0) + total
                totals.sums[rule.signal] = sum(total for _, total in self._rising.series(way[0], "_sum"))
        return totals

    def _values(
        self, page: Page, found: Mapping[str, Way], now: _Totals, before: _Totals | None
    ) -> dict[str, float | Spread | None]:
        values: dict[str, float | Spread | None] = dict(now.counters)
        for rule in self._rules:
            if rule.signal not in found or rule.kind == "counter":
                continue
            if rule.kind == "histogram":
                values[rule.signal] = _spread(now, before, rule.signal)
            else:
                read = [value for metric in found[rule.signal] for value in _figures(page, metric)]
                values[rule.signal] = sum(read) if rule.kind == "sum" else max(read)
        for signal, rate in (("prompt_tokens", "prompt_rate"), ("output_tokens", "output_rate")):
            values[rate] = _rate(now, before, signal)
        return values

    def _missing(self, found: Mapping[str, Way], page: Page) -> tuple[str, ...]:
        """Said anew only when something else is missing: the nearest name takes milliseconds to find."""
        missing = frozenset(rule.signal for rule in self._rules if rule.signal not in found and not rule.optional)
        if missing != self._absent[0]:
            self._absent = missing, tuple(_absent(rule, page) for rule in self._rules if rule.signal in missing)
        return self._absent[1]


def _value(samples: Sequence[Sample] | None) -> float | None:
    return samples[0].value if samples else None


def _bound(labels: _Labels) -> float:
    """A bucket's upper bound; one that cannot be read holds all that is above the others."""
    try:
        return float(dict(labels)["le"])
    except (KeyError, ValueError):
        return math.inf


def _way(rule: Rule, page: Page) -> Way | None:
    """The first way of which every metric is on the page with a figure."""
    if rule.beside and rule.beside not in page.names:
        return None
    end = "_count" if rule.kind == "histogram" else ""
    for way in rule.ways:
        if all(any(True for _ in _figures(page, metric, end)) for metric in way):
            return way
    return None


def _figures(page: Page, metric: Metric, end: str = "") -> Iterator[float]:
    for sample in page.samples.get(metric.name + end, ()):
        if metric.label and sample.label(metric.label) != metric.value:
            continue
        value = sample.value
        if metric.read:
            try:
                value = float(sample.label(metric.read))
            except ValueError:
                continue
        if not math.isnan(value):
            yield value


def _rate(now: _Totals, before: _Totals | None, signal: str) -> float | None:
    if before is None or now.at <= before.at or signal not in now.counters:
        return None
    return (now.counters[signal] - before.counters.get(signal, 0.0)) / (now.at - before.at)


def _spread(now: _Totals, before: _Totals | None, signal: str) -> Spread:
    """Of what was counted between two looks. What the first of them did not show had not begun then."""
    if before is None:
        return Spread(0)
    old = before.buckets.get(signal, {})
    bounds = sorted(now.buckets[signal])
    counts = [max(0.0, now.buckets[signal][b] - old.get(b, 0.0)) for b in bounds]
    count = round(counts[-1]) if counts else 0
    if not count:
        return Spread(0)
    mean = (now.sums[signal] - before.sums.get(signal, 0.0)) / count
    return Spread(count, mean, _quantile(bounds, counts, 0.5), _quantile(bounds, counts, 0.95))


def _quantile(bounds: list[float], counts: list[float], share: float) -> float:
    """As Prometheus reckons it: values lie evenly in their bucket, and what is beyond the last bound is at it."""
    rank = share * counts[-1]
    below, start = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if math.isinf(bound):
                return start
            return start + (bound - start) * (rank - below) / (count - below) if count > below else bound
        below, start = count, bound
    return start


def _renamed(rule: Rule, way: Way) -> str:
    return f"{rule.signal} comes from {_said(way)}: {_said(rule.ways[0])} is not there"


def _absent(rule: Rule, page: Page) -> str:
    """With the nearest name on the page: after a change of names it is most likely what has become of it."""
    first = rule.ways[0][0].name
    if any(metric.name in page.names for way in rule.ways for metric in way):
        return f"{rule.signal} is unknown: {_said(rule.ways[0])} has no value yet"
    near = difflib.get_close_matches(first, page.names, n=1, cutoff=0.8)
    hint = f"; the nearest name is {near[0]}, which is not trusted" if near else ""
    return f"{rule.signal} is unknown: {_said(rule.ways[0])} is not there{hint}"


def _said(way: Way) -> str:
    return " + ".join(map(str, way))
