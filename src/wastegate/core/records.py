"""What an engine's plugin and a gateway say to each other: records by sequence number, and settings. Values and their
bounds only; no socket, and nothing of any one engine."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.admission import CapConfig
from wastegate.core.ledger import Count, EngineRecord, Measured, RecordGap, Work

# An engine wraps the x-request-id that it was given: "chatcmpl-<id>", "cmpl-<id>-<prompt>", and inside vLLM
# "<choice>_" before and "-<8 hex digits>" behind it.
_ID = re.compile(r"(?:\d+_)?(?:chatcmpl-|cmpl-|resp_|embd-|score-)?(?P<entry>[^.\s]+)\.(?P<number>\d{1,6})(?:-.*)?")


def attempt_of(id: str) -> tuple[str, int] | None:
    """(entry, attempt number) that an engine's request id carries; None for a request that no gateway sent."""
    match = _ID.fullmatch(id)
    return (match["entry"], int(match["number"])) if match else None


class Page(Struct, frozen=True):
    """One answer of the plugin: the records after a sequence number. Times are on the engine's clock."""

    boot: str
    """Another after each start of the engine: sequence numbers begin anew."""
    started: float
    now: float
    first: Count
    """The oldest record that is still kept; ``last + 1`` where none is."""
    last: Count
    """The newest; 0 before any."""
    records: tuple[EngineRecord, ...]
    measured: Measured = "steps"
    kv_capacity: Count | None = None
    """Tokens of KV cache."""
    lacks: str = ""
    """Empty, or what this version of the engine does not have, so that the records say less."""
    work: Work | None = None
    """What the engine's steps cost, measured; None until enough were seen."""


class Cursor(Struct, frozen=True):
    """How far an engine's records have been read."""

    boot: str
    sequence: int
    heard: float
    """When it last answered, by the reader's clock."""


class Heard(Struct, frozen=True, eq=False):
    """What a gateway has read from one engine at once. Times are on the gateway's clock."""

    replica: str
    cursor: Cursor
    """After these."""
    records: tuple[EngineRecord, ...]
    gap: RecordGap | None = None


DRIFT = 50e-6
"""Seconds in a second by which two clocks may part: quartz does not do worse."""


class Lead(Struct, frozen=True):
    """By how much an engine's clock is ahead of the gateway's. An answer takes time to arrive, which makes it look
    smaller than it is, so of all that was seen the largest is the nearest."""

    boot: str
    seconds: float
    seen: float
    """When, by the gateway's clock."""


def lead(page: Page, now: float, before: Lead | None) -> Lead:
    """After one more page, which arrived at ``now``."""
    here = Lead(page.boot, page.now - now, now)
    if before is None or before.boot != page.boot:
        return here
    held = before.seconds - DRIFT * (now - before.seen)
    return here if here.seconds >= held else Lead(page.boot, held, now)


def hear(replica: str, page: Page, before: Cursor | None, now: float, ahead: float) -> Heard:
    """A page that was asked for after ``before`` and arrived at ``now``; None: nothing was ever read from this engine,
    so what it forgot earlier is not missed. ``ahead``: the seconds of its clock's lead."""
    records = tuple(_moved(record, ahead) for record in page.records)
    last = page.records[-1].sequence if page.records else page.last
    known = before is not None and before.boot == page.boot
    after = before.sequence if before is not None and known else 0
    gap = None
    if before is not None and not known:
        gap = RecordGap(replica, before.heard, max(page.started - ahead, before.heard), None)
    elif before is not None and page.first > after + 1:
        until = records[0].ended if records else now
        gap = RecordGap(replica, before.heard, max(until, before.heard), page.first - after - 1)
    # A page that lags behind what was read already must not turn the cursor back.
    return Heard(replica, Cursor(page.boot, max(last, after), now), records, gap)


def _moved(record: EngineRecord, ahead: float) -> EngineRecord:
    """Its times by a clock that the engine's is ``ahead`` of."""
    return replace(
        record,
        arrived=record.arrived - ahead,
        ended=record.ended - ahead,
        runs=tuple(replace(run, start=run.start - ahead, end=run.end - ahead) for run in record.runs),
    )


class Ring:
    """The newest records, numbered from 1 without a gap; older ones give way."""

    def __init__(self, size: int, boot: str, started: float, measured: Measured = "steps") -> None:
        """``size`` bounds memory: a record takes about a kilobyte."""
        if size < 1:
            raise ValueError(f"a ring of {size} records could keep none")
        self._records: deque[EngineRecord] = deque(maxlen=size)
        self._boot, self._started, self._measured = boot, started, measured
        self.last = 0
        """The newest record's number."""

    def add(self, record: EngineRecord) -> None:
        """Keep a record; it is given the next number."""
        self.last += 1
        self._records.append(replace(record, sequence=self.last))

    def page(
        self, boot: str, after: int, limit: int, now: float, kv_capacity: int | None = None, lacks: str = ""
    ) -> Page:
        """At most ``limit`` records whose numbers are above ``after``, oldest first; all that are kept, where ``boot``
        is that of another life."""
        after = after if boot == self._boot else 0
        first = self.last - len(self._records) + 1
        skipped = max(after + 1 - first, 0)
        records = tuple(islice(self._records, skipped, skipped + max(limit, 0)))
        return Page(self._boot, self._started, now, first, self.last, records, self._measured, kv_capacity, lacks)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a running engine takes. None leaves a setting as it is."""

    cap: int | None = None
    """Requests that run at once, from now on. Those above a lowered cap run to their end."""
    policy: CapConfig | None = None
    """How the cap follows the load. "fixed" leaves it where it is."""
    batched_tokens: int | None = None
    """Tokens computed in one step, at most as many as the engine was started with."""
    drafts: tuple[int, ...] | None = None
    """Draft tokens for a batch of 1, 2, 3 … requests; the last figure holds for all larger batches."""

    def __post_init__(self) -> None:
        for name in ("cap", "batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1, or nothing would ever run")
        if self.drafts is not None and (not self.drafts or min(self.drafts) < 0):
            raise ValueError("drafts is a list of counts from 0, at least one: for a batch of 1, of 2, …")


def draft_table(drafts: tuple[int, ...], length: int, most: int) -> list[int]:
    """``length`` figures by batch size from 0, none above ``most``. A batch of none drafts as one of 1."""
    given = [drafts[min(max(size - 1, 0), len(drafts) - 1)] for size in range(length)]
    return [min(count, most) for count in given]
