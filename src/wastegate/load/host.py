"""What the machine did while something ran: CPU time taken by its host, used by anybody, used by this process. It only
looks; what counts as a disturbance is said by a rule that was fixed beforehand."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct

STAT = Path("/proc/stat")
_STEAL = 7
"""Column of the line "cpu" that holds time given to other guests of the host (proc(5))."""
_IDLE = (3, 4)
"""Columns of that line in which nobody ran: idle, and waiting for a disk."""
_COUNTED = 8
"""Columns up to steal; the guest columns behind it are part of user and nice already."""


class Moment(Struct, frozen=True, kw_only=True):
    """Counters at one instant; ``ticks`` are None where the machine does not keep them (not Linux)."""

    seconds: float
    own: float
    """CPU seconds of this process."""
    ticks: tuple[int, ...] | None


class Host(Struct, frozen=True, kw_only=True):
    """What the machine did between two moments. None where it cannot be seen."""

    steal: float | None
    """Share of the machine's CPU time that its host gave to others."""
    busy: float | None
    """Share of the machine's CPU time that anybody here used."""
    own: float
    """What this process used, as a share of one core: near 1 it was the bottleneck itself."""
    others: float | None = None
    """Share of the machine's CPU time that anybody used in a quiet moment just before, when nothing of ours ran."""


class Rule(Struct, frozen=True, kw_only=True):
    """When a block counts as disturbed: fixed before a run, blind to what was measured.

    ``steal``: most of the machine's CPU time that may go to others of its host; ``others``: most that others on this
    machine may have used just before a turn; ``own``: most of one core that this process may use, None where it does
    the measured work itself.
    """

    steal: float = 0.03
    others: float = 0.15
    own: float | None = 0.85

    def broken_by(self, host: Host) -> str:
        """Why a turn with this much disturbance does not count; empty if it does."""
        if host.steal is not None and host.steal > self.steal:
            return "the machine's host gave CPU time to others"
        if host.others is not None and host.others > self.others:
            return "others on this machine were at work"
        if self.own is not None and host.own > self.own:
            return "the load generator had no CPU time to spare"
        return ""


def look(stat: Path = STAT) -> Moment:
    """The counters now."""
    return Moment(seconds=time.perf_counter(), own=time.process_time(), ticks=_ticks(stat))


def between(before: Moment, after: Moment, others: float | None = None) -> Host:
    """What happened from one moment to the other; ``others`` as seen just before."""
    seconds = max(after.seconds - before.seconds, 1e-9)
    own = (after.own - before.own) / seconds
    if before.ticks is None or after.ticks is None:
        return Host(steal=None, busy=None, own=own, others=others)
    spent = [late - early for early, late in zip(before.ticks, after.ticks, strict=True)]
    total = sum(spent)
    if total <= 0:  # shorter than a tick of the clock
        return Host(steal=None, busy=None, own=own, others=others)
    idle = sum(spent[column] for column in _IDLE)
    busy = (total - idle - spent[_STEAL]) / total
    return Host(steal=spent[_STEAL] / total, busy=busy, own=own, others=others)


def _ticks(stat: Path) -> tuple[int, ...] | None:
    try:
        with stat.open() as file:
            words = file.readline().split()
    except OSError:
        return None
    if len(words) <= _COUNTED or words[0] != "cpu":
        return None
    return tuple(int(word) for word in words[1 : _COUNTED + 1])
