"""What a process tree has used and what the host took away, read from /proc. Linux only; it judges nothing."""

from __future__ import annotations

import os
import time
from collections import defaultdict

TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process ids of ``root`` and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            children[int(stat.rpartition(")")[2].split()[1])].append(int(name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of every living thread of the tree, from the scheduler's nanosecond counts."""
    total = 0
    for pid in tree(root):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            if text := _read(f"/proc/{pid}/task/{thread}/schedstat"):
                total += int(text.split()[0])
    return total / 1e9


def memory_mib(root: int) -> float:
    """Memory of the tree in MiB, pages that several processes share counted once (PSS)."""
    total = 0
    for pid in tree(root):
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def stolen_seconds() -> float:
    """CPU seconds that the host has given to others since boot, all cores."""
    return int(_read("/proc/stat").split("\n", 1)[0].split()[8]) / TICK


def probe(core: int) -> float:
    """CPU seconds that a fixed piece of work takes on ``core`` now: a busy neighbour makes it dearer."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        start = time.thread_time()
        mixed = 0
        for number in range(300_000):
            mixed = (mixed * 31 + number) & 0xFFFFFFFF
        return time.thread_time() - start
    finally:
        os.sched_setaffinity(0, before)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # it has ended meanwhile
        return ""
