"""What must be true after a soak: the ledger against what clients saw, the money, the memory. Each check returns what
is wrong, in words; nothing is started or hurt here."""

from __future__ import annotations

import sqlite3
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.endurance.clients import Seen
from wastegate.core.attribution import attribute
from wastegate.core.ledger import Entry
from wastegate.store import rows
from wastegate.store.entries import Ledger

BLOCKS = 12
STUDENT = 2.228
"""The 97.5 % quantile of Student's t with BLOCKS - 2 degrees of freedom."""
AROUND_A_KILL = 1.0
"""Seconds before and after a worker's death in which a client's connection may end for it."""
MONEY_OFF = 1e-6
"""Part of the bill by which price × up time, added up in floating point, may differ from whole nano-dollars."""


# ---- calls


class Calls(Struct, frozen=True):
    """What came of all calls together."""

    sent: int
    entries: int
    outcomes: dict[str, int]
    whole: int
    """Answers that a client holds whole and without an error."""
    left: int
    continued: int
    """Finished by another replica than the one that began."""
    problems: list[str]


def check_calls(seen: Sequence[Seen], ledger: Path, kills: Sequence[float]) -> Calls:
    """Every call that a client sent has one entry, with an outcome that fits what that client saw."""
    entries = read_entries(ledger)
    by_client: dict[str, list[Entry]] = {}
    for entry in entries:
        by_client.setdefault(entry.client_id, []).append(entry)
    known = {call.id for call in seen}
    problems = [f"{name}: in the ledger, but no client sent it" for name in by_client.keys() - known]
    ids = Counter(entry.id for entry in entries)
    problems += [f"{name}: {count} entries have this id" for name, count in ids.items() if count > 1]
    for call in seen:
        near = any(call.began - AROUND_A_KILL <= kill <= call.ended + AROUND_A_KILL for kill in kills)
        problems += (f"{call.id}: {text}" for text in _check_call(call, by_client.get(call.id, []), near))
    finished = [entry for entry in entries if entry.outcome == "finished"]
    return Calls(
        sent=len(seen),
        entries=len(entries),
        outcomes=dict(Counter(entry.outcome for entry in entries)),
        whole=sum(call.whole and call.status == 200 and not call.error for call in seen),
        left=sum(call.left for call in seen),
        continued=sum(len(entry.attempts) > 1 and bool(entry.attempts[0].output_tokens) for entry in finished),
        problems=problems,
    )


def read_entries(ledger: Path) -> list[Entry]:
    db = sqlite3.connect(ledger)
    try:
        keys = [key for (key,) in db.execute("SELECT seq FROM entry ORDER BY seq")]
        return rows.read(db, keys)
    finally:
        db.close()


def _check_call(call: Seen, entries: list[Entry], near_a_kill: bool) -> Iterator[str]:
    """``near_a_kill``: a worker died meanwhile, and may have been this call's."""
    if len(entries) > 1:
        yield f"{len(entries)} entries"
    if not entries:
        if call.status:
            yield f"no entry, but it was answered with {call.status}"
        elif call.sent and not near_a_kill:
            yield "no entry, and no worker died"
        return
    entry = entries[0]
    outcome = entry.outcome
    if outcome not in _outcomes(call, near_a_kill):
        yield f"the ledger says {outcome} ({entry.reason}), the client saw {_what(call)}"
    if call.whole and call.status == 200 and not call.error:
        expected = "".join(f"t{number} " for number in range(call.tokens))
        if call.text != expected:
            yield f"its answer has {len(call.text.split())} tokens of {call.tokens}, or not in order"
        if len(entry.attempts) == 1 and entry.attempts[0].output_tokens != call.tokens:
            yield f"the ledger counts {entry.attempts[0].output_tokens} tokens of {call.tokens}"


def _outcomes(call: Seen, near_a_kill: bool) -> set[str]:
    """Those that fit what the client saw."""
    killed = {"lost"} if near_a_kill else set()
    if call.whole and call.status == 200:
        return {"failed"} if call.error else {"finished"}
    if call.whole:
        return {"refused", "failed"}
    if call.left:
        return {"hung_up", "finished", "failed", "refused"} | killed
    if call.status:  # cut: a killed worker may have written the end down, and not sent it
        return {"failed"} | killed | ({"finished"} if near_a_kill else set())
    return {"lost", "finished", "failed", "refused"} if near_a_kill else set()


def _what(call: Seen) -> str:
    if call.whole:
        return f"a whole answer with {call.status}" + (" and an error in it" if call.error else "")
    if call.left:
        return f"so much as it wanted (status {call.status or 'none yet'})"
    return f"a cut answer with {call.status}" if call.status else "no answer"


# ---- money


class Money(Struct, frozen=True):
    """US dollars."""

    bill: float
    requests: float
    idle: float
    overhead: float
    by_hand: float
    """Price × up time, added up from the spans alone."""
    problems: list[str]


def check_money(ledger: Path) -> Money:
    """Requests + idle + overhead are the bill to the nano-dollar, and the bill is price × up time."""
    with Ledger(ledger, create=False) as book:
        facts = book.facts(float("-inf"), float("inf"))
    charges = attribute(facts)
    idle = sum(replica.idle for replica in charges.replicas)
    overhead = sum(replica.overhead for replica in charges.replicas)
    ends = [(span, span.end if span.end is not None else span.seen) for span in facts.spans]
    by_hand = sum((end - span.start) * span.price / 3600 for span, end in ends)
    problems = []
    if charges.requests + idle + overhead != charges.bill:
        problems.append(f"{charges.requests} + {idle} + {overhead} nano-dollars are not {charges.bill}")
    if int(charges.amount.sum()) != charges.requests:
        problems.append("the charges of single attempts do not add up to those of all requests")
    if abs(by_hand - charges.bill) > max(1000.0, MONEY_OFF * by_hand):
        problems.append(f"the bill is {charges.bill} nano-dollars, price × up time {by_hand:.0f}")
    scale = 1e-9
    return Money(
        charges.bill * scale, charges.requests * scale, idle * scale, overhead * scale, by_hand * scale, problems
    )


# ---- memory


class Slope(Struct, frozen=True):
    """How a process's memory changed over the second half, in MB a minute, with its 95 % interval."""

    start: float
    """MB at the beginning of the second half, and ``end`` at its end."""
    end: float
    slope: float
    low: float
    high: float


def slope_of(samples: Sequence[tuple[float, float]]) -> Slope | None:
    """A line through the means of BLOCKS blocks: neighbouring samples are too alike to count each by itself.

    ``samples``: (seconds, MB), in order. None where there are too few.
    """
    if len(samples) < 2 * BLOCKS:
        return None
    size = len(samples) // BLOCKS
    rest = samples[len(samples) - BLOCKS * size :]
    blocks = [rest[at * size : (at + 1) * size] for at in range(BLOCKS)]
    times = [statistics.fmean(time for time, _ in block) / 60 for block in blocks]
    sizes = [statistics.fmean(megabytes for _, megabytes in block) for block in blocks]
    slope, level = statistics.linear_regression(times, sizes)
    middle = statistics.fmean(times)
    spread = sum((time - middle) ** 2 for time in times)
    errors = sum((size - level - slope * time) ** 2 for time, size in zip(times, sizes, strict=True))
    width = STUDENT * (errors / (BLOCKS - 2) / spread) ** 0.5
    return Slope(sizes[0], sizes[-1], slope, slope - width, slope + width)
