"""Many calls as columns: what attribution and the reports read. Only arrays of facts; no money, no file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from wastegate.core.ledger import Attempt, EngineRecord, Entry, Outcome, RecordGap, ReplicaSpan, Run, UsageSource
from wastegate.core.records import attempt_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

OUTCOMES: tuple[str, ...] = get_args(Outcome)
USAGES: tuple[str, ...] = get_args(UsageSource)
UNKNOWN = -1
"""A token count that nobody reported. Never 0: none and nothing are different facts."""


class Attempts(Struct, frozen=True, eq=False):
    """One row a try; every array has the same length. Times in epoch seconds, NaN where it did not happen."""

    call: Ints
    """Row in :class:`Calls`."""
    number: Codes
    replica: Codes
    """Position in ``Facts.replicas``."""
    claimed: Floats
    sent: Floats
    first_token: Floats
    ended: Floats
    prompt: Ints
    cached: Ints
    output: Ints
    outcome: Bytes
    """Position in :data:`OUTCOMES`."""
    usage: Bytes
    """Position in :data:`USAGES`."""


class Calls(Struct, frozen=True, eq=False):
    """One row a call; ``route``, ``model``, ``tenant`` and ``length_class`` are keys of ``Facts.names``."""

    key: Ints
    """The same call has the same key however the rows are ordered."""
    arrived: Floats
    ended: Floats
    route: Codes
    model: Codes
    tenant: Codes
    length_class: Codes
    outcome: Bytes
    stream: Flags


class Tags(Struct, frozen=True, eq=False):
    """One row a tag of a call: its row in :class:`Calls`, and two keys that the ledger can name."""

    call: Ints
    key: Codes
    value: Codes


class Records(Struct, frozen=True, eq=False):
    """What engines say of attempts: one row a record, those of no attempt here left out."""

    attempt: Ints
    """Row in :class:`Attempts`; several records may have the same (an answer with several choices)."""
    prompt: Ints
    cached: Ints
    output: Ints
    whole: Flags
    """Measured step by step, with the blocks held."""
    runs: Floats
    """Shape (runs, 7), the fields of ``ledger.Run`` in order, by record and by start."""
    record: Ints
    """Of each run its row here, ascending."""

    @classmethod
    def of(cls, records: Sequence[tuple[int, EngineRecord]]) -> Records:
        """From single records, each with its attempt's row."""
        runs = [(row, run) for row, (_, record) in enumerate(records) for run in record.runs]
        return cls(
            attempt=np.array([attempt for attempt, _ in records], np.int64),
            prompt=np.array([record.prompt for _, record in records], np.int64),
            cached=np.array([record.cached for _, record in records], np.int64),
            output=np.array([record.output for _, record in records], np.int64),
            whole=np.array([record.measured == "steps" for _, record in records], np.bool_),
            runs=np.array([_row(run) for _, run in runs], np.float64).reshape(-1, len(Run.__struct_fields__)),
            record=np.array([row for row, _ in runs], np.int64),
        )

    def among(self, rows: Flags) -> Records:
        """Those of the attempts that ``rows`` chooses, which are counted anew."""
        mine = rows[self.attempt]
        place, chosen = np.cumsum(rows) - 1, mine[self.record]
        return Records(
            attempt=place[self.attempt[mine]],
            prompt=self.prompt[mine],
            cached=self.cached[mine],
            output=self.output[mine],
            whole=self.whole[mine],
            runs=self.runs[chosen],
            record=(np.cumsum(mine) - 1)[self.record[chosen]],
        )


def _row(run: Run) -> tuple[float, ...]:
    return run.start, run.end, run.steps, run.prefill, run.decode, run.draft, run.kv


def no_records() -> Records:
    return Records.of(())


class Facts(Struct, frozen=True, eq=False):
    """Everything that touches the window [start, end), in epoch seconds (infinite: no bound).

    Calls that reach over an edge are here whole, and so are all spans: whoever charges clips them.
    """

    start: float
    end: float
    attempts: Attempts
    calls: Calls
    tags: Tags
    replicas: tuple[str, ...]
    spans: tuple[ReplicaSpan, ...]
    names: dict[int, str]
    records: Records = field(default_factory=no_records)
    gaps: tuple[RecordGap, ...] = ()
    """Times of which records are missing."""


def cached_tokens(facts: Facts) -> Ints:
    """Prompt tokens of each attempt that were found cached: by its engine's own record where there is one, since vLLM
    says it in no answer unless asked to; else as the answer said. UNKNOWN where neither does."""
    told = np.full(len(facts.attempts.call), UNKNOWN, np.int64)
    np.maximum.at(told, facts.records.attempt, facts.records.cached)
    return np.where(told == UNKNOWN, facts.attempts.cached, told)


def gather(
    entries: Iterable[Entry],
    spans: Iterable[ReplicaSpan] = (),
    start: float = -math.inf,
    end: float = math.inf,
    records: Iterable[EngineRecord] = (),
    gaps: Iterable[RecordGap] = (),
) -> Facts:
    """Columns from single entries: for few calls (a test, one call's surroundings, a simulation)."""
    calls = sorted(entries, key=lambda entry: entry.id)
    tries = [(row, attempt) for row, entry in enumerate(calls) for attempt in entry.attempts]
    codes: dict[str, int] = {}

    def code(text: str) -> int:
        return codes.setdefault(text, len(codes))

    tags = [(row, code(key), code(value)) for row, entry in enumerate(calls) for key, value in entry.tags]
    known = tuple(sorted({attempt.replica for _, attempt in tries}))
    position = {name: place for place, name in enumerate(known)}
    return Facts(
        start=start,
        end=end,
        attempts=_attempts(tries, position),
        calls=_calls(calls, code),
        tags=Tags(
            call=np.array([row for row, _, _ in tags], np.int64),
            key=np.array([key for _, key, _ in tags], np.int32),
            value=np.array([value for _, _, value in tags], np.int32),
        ),
        replicas=known,
        spans=tuple(spans),
        names={place: text for text, place in codes.items()},
        records=_records(calls, tries, records),
        gaps=tuple(gaps),
    )


def _records(calls: Sequence[Entry], tries: Sequence[tuple[int, Attempt]], records: Iterable[EngineRecord]) -> Records:
    places = {(calls[row].id, attempt.number): place for place, (row, attempt) in enumerate(tries)}
    joined = [(places.get(attempt_of(record.id) or ("", 0)), record) for record in records]
    found = [(place, record) for place, record in joined if place is not None]
    return Records.of(sorted(found, key=lambda pair: pair[0]))


def _attempts(tries: Sequence[tuple[int, Attempt]], position: dict[str, int]) -> Attempts:
    def times(read: Callable[[Attempt], float | None]) -> Floats:
        return np.array([math.nan if (t := read(attempt)) is None else t for _, attempt in tries], np.float64)

    def tokens(read: Callable[[Attempt], int | None]) -> Ints:
        return np.array([UNKNOWN if (n := read(attempt)) is None else n for _, attempt in tries], np.int64)

    return Attempts(
        call=np.array([row for row, _ in tries], np.int64),
        number=np.array([attempt.number for _, attempt in tries], np.int32),
        replica=np.array([position[attempt.replica] for _, attempt in tries], np.int32),
        claimed=times(lambda attempt: attempt.claimed),
        sent=times(lambda attempt: attempt.sent),
        first_token=times(lambda attempt: attempt.first_token),
        ended=times(lambda attempt: attempt.ended),
        prompt=tokens(lambda attempt: attempt.prompt_tokens),
        cached=tokens(lambda attempt: attempt.cached_tokens),
        output=tokens(lambda attempt: attempt.output_tokens),
        outcome=np.array([OUTCOMES.index(attempt.outcome) for _, attempt in tries], np.int8),
        usage=np.array([USAGES.index(attempt.usage) for _, attempt in tries], np.int8),
    )


def _calls(calls: Sequence[Entry], code: Callable[[str], int]) -> Calls:
    def labels(read: Callable[[Entry], str]) -> Codes:
        return np.array([code(read(entry)) for entry in calls], np.int32)

    return Calls(
        key=np.arange(len(calls), dtype=np.int64),
        arrived=np.array([entry.arrived for entry in calls], np.float64),
        ended=np.array([entry.ended for entry in calls], np.float64),
        route=labels(lambda entry: entry.route),
        model=labels(lambda entry: entry.model),
        tenant=labels(lambda entry: entry.tenant),
        length_class=labels(lambda entry: entry.length_class),
        outcome=np.array([OUTCOMES.index(entry.outcome) for entry in calls], np.int8),
        stream=np.array([entry.stream for entry in calls], np.bool_),
    )
