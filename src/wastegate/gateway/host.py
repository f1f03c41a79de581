"""What a process of ours, with all that it has started, takes of this machine: CPU time and memory. Linux only:
elsewhere nothing is known."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_MOST = 1000
"""Processes of one replica that are counted at most."""


class Host(Struct, frozen=True):
    """A replica's process and its descendants, now."""

    cpu_seconds: float
    """User and system time of those that live; it falls when one ends."""
    rss_bytes: int
    processes: int


def read(pid: int, proc: Path = Path("/proc")) -> Host | None:
    """None where there is no such process, or no /proc."""
    cpu, pages, count = 0, 0, 0
    for one in _tree(pid, proc):
        try:
            # The second field is the program's name in parentheses, which may hold blanks and more of them.
            fields = (proc / str(one) / "stat").read_text().rpartition(")")[2].split()
            cpu += int(fields[11]) + int(fields[12])
            pages += int(fields[21])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        count += 1
    if not count:
        return None
    return Host(cpu / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"), count)


def _tree(pid: int, proc: Path) -> list[int]:
    """A process and its descendants, parents first."""
    pids = [pid]
    for parent in pids:  # grows as it goes
        try:
            for task in (proc / str(parent) / "task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
        if len(pids) > _MOST:
            return pids[:_MOST]
    return pids
