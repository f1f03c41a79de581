"""inference-perf's record of single requests (``per_request_lifecycle_metrics.json``). Reading only, without prompts
and answers; its reports of stages are audited, not imported: they hold no single call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wastegate.core.ledger import Entry
from wastegate.load.documents import Unread, Value, values
from wastegate.load.imports import Note, Options, Read
from wastegate.load.imports_rows import (
    RowError,
    call,
    checked,
    identity,
    members,
    number_of,
    objects,
    text_of,
    tokens_of,
)

RECORD = "per_request_lifecycle_metrics.json"
_EPOCH = 1e9
"""A clock that reads more counts from 1970; inference-perf's own counts from when its machine started."""


def records(path: Path) -> list[Path]:
    """The records in a folder, or the file itself. Raises ValueError with what to do where there is none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob(RECORD))
    if not found:
        raise ValueError(
            f"{path} holds no {RECORD}: set report.request_lifecycle.per_request in inference-perf's configuration; "
            "`wastegate audit --from inference-perf` reads the reports of its stages"
        )
    return found


def read(path: Path, options: Options) -> Read:
    """A request a row."""
    shift, note = _shift(path, options)
    if note:
        yield Note(note)
    for row in objects(values(path)):
        if isinstance(row, Unread):
            yield row
            continue
        where, value = row
        yield checked(where, lambda value=value: _call(value, shift, options))  # type: ignore[misc]


def _shift(path: Path, options: Options) -> tuple[float, str]:
    """Seconds to add to its clock, and what to say of it."""
    first = last = None
    for row in values(path):
        if isinstance(row, Value) and isinstance(row.value, Mapping):
            try:
                start, end = number_of(row.value, "start_time"), number_of(row.value, "end_time")
            except RowError:
                continue
            if start is not None and end is not None:
                first, last = min(start, start if first is None else first), max(end, end if last is None else last)
    if first is None or last is None or (first > _EPOCH and options.start is None):
        return 0.0, ""
    if options.start is not None:
        return options.start - first, ""
    return path.stat().st_mtime - last, (
        f"The clock of {path.name} has no date: its last call is taken to end when the file was written; "
        "--start says when its first one came."
    )


def _call(value: Mapping[str, Any], shift: float, options: Options) -> Entry:
    start, end = number_of(value, "start_time"), number_of(value, "end_time")
    if start is None or end is None:
        raise RowError("no time", "start_time or end_time is missing")
    info = members(value, "info")
    answer = members(info, "response_metrics") or info
    usage = members(answer, "server_usage")
    prompt, output = tokens_of(usage, "prompt_tokens"), tokens_of(usage, "completion_tokens")
    counted = prompt is not None or output is not None
    times = answer.get("output_token_times")
    first = times[0] if isinstance(times, list) and times and isinstance(times[0], int | float) else None
    error = members(value, "error")
    stage = value.get("stage_id")
    return call(
        id=identity("inference-perf", start, end, info.get("input_tokens"), stage),
        arrived=start + shift,
        ended=end + shift,
        replica=options.replica or "server",
        model=options.model,
        first_token=min(max(first, start), end) + shift if first is not None else None,
        stream=first is not None,
        outcome="failed" if error else "finished",
        reason=text_of(error, "error_type") or "error" if error else "",
        prompt=prompt if prompt is not None else tokens_of(info, "input_tokens"),
        cached=tokens_of(members(usage, "prompt_tokens_details"), "cached_tokens"),
        output=output if output is not None else tokens_of(answer, "output_tokens"),
        usage="engine" if counted else "counted",
        tags=(("stage", str(stage)),) if isinstance(stage, int) else (),
    )
