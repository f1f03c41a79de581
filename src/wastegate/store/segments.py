"""The journal's files: their names, their locks, who owns them. What stands in them is ``store.journal``'s.

A segment is owned by the process that holds its flock. The lock dies with the process, however it ends; a child
that inherits the descriptor would keep it, so it is closed on exec."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

WORKER = re.compile(r"[A-Za-z0-9_.]+")
_NAME = re.compile(r"(?P<worker>[A-Za-z0-9_.]+)-(?P<number>\d{9})\.jsonl")


def create(directory: Path, worker: str) -> tuple[Path, int]:
    """A new segment, locked, and its descriptor. Raises OSError."""
    number = max((n for w, n, _ in _listed(directory) if w == worker), default=0)
    while True:
        number += 1
        path = directory / f"{worker}-{number:09d}.jsonl"
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        # Between the two, another process may have locked the empty file, or have deleted it.
        if _lock(file) and _is_there(path, file):
            return path, file
        os.close(file)


def write_all(file: int, data: bytes, sync: bool) -> None:
    """Everything, or OSError with a part of it perhaps written."""
    written = os.write(file, data)
    while written < len(data):  # a nearly full disk takes a part, then refuses the rest
        written += os.write(file, data[written:])
    if sync:
        os.fdatasync(file)


class Dead:
    """A segment without an owner, locked by us until it is closed."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def lines(self) -> Iterator[bytes]:
        """All lines with their ends, but the empty ones."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            yield from (line for line in file if line != b"\n")

    def remove(self, *, keep: bool) -> None:
        """Delete it, or keep it under a name that is no segment's."""
        if keep:
            self.path.rename(self.path.with_suffix(".jsonl.damaged"))
        else:
            self.path.unlink()

    def close(self) -> None:
        os.close(self._file)


def dead(directory: Path) -> Iterator[list[Dead]]:
    """The segments without a living owner, in order, one list a worker. Each list stays locked until the next."""
    for _, listed in itertools.groupby(_listed(directory), key=lambda segment: segment[0]):
        with ExitStack() as held:
            segments = []
            for _, _, path in listed:
                if segment := _take(path):
                    held.callback(segment.close)
                    segments.append(segment)
            if segments:
                yield segments


def _take(path: Path) -> Dead | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # another process was quicker
        return None
    if _lock(file) and _is_there(path, file):
        return Dead(path, file)
    os.close(file)
    return None


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(path: Path, file: int) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(file))


def _listed(directory: Path) -> list[tuple[str, int, Path]]:
    """(worker, number, path), in that order; a directory that is not there holds none."""
    if not directory.exists():
        return []
    matches = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return sorted((match["worker"], int(match["number"]), path) for match, path in matches if match)
