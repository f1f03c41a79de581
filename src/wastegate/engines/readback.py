"""What an engine was asked for against what it runs with: engines fall back silently, so only what is read back counts.
Values and their comparison; where an engine shows its own is in its room."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from wastegate.engines.exposition import Page
from wastegate.engines.signals import Signals

OFF, ON = "off", "on"
"""Speculation that is known not to run, and one that is known to run by a method that is not shown."""

_FEW = 20
"""Answers after which a draft that was never tried is no accident."""


class Pages(Struct, frozen=True):
    """What a running engine shows of itself."""

    metrics: Page
    json: Mapping[str, Any]
    """By path; a page that was refused or is no JSON is not there."""

    def get(self, path: str, *keys: str | int) -> Any:
        """A value deep in a page; None where anything on the way is missing."""
        found: Any = self.json.get(path)
        for key in keys:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                return None
        return found


class Effective(Struct, frozen=True):
    """How an engine runs. None: not known; in a wish: left to the engine."""

    version: str | None = None
    context: int | None = None
    """Tokens of prompt and answer together that one sequence may have."""
    sequences: int | None = None
    """That run at once."""
    queued: int | None = None
    """That may wait."""
    step_tokens: int | None = None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    kv_type: str | None = None
    block: int | None = None
    """Tokens of a block of KV cache: the grain of prefix reuse."""
    prefix_caching: bool | None = None
    weights: str | None = None
    """Number format or quantization."""
    speculation: str | None = None
    draft_tokens: int | None = None
    scheduler: str | None = None
    """The class that schedules, where it is not the engine's own."""
    notes: tuple[str, ...] = ()
    """What is worth knowing whatever was asked for."""


class Seen(Struct, frozen=True):
    """What is known of one replica's engine."""

    engine: str = ""
    """"vllm", "sglang", "llamacpp", "wastegate"; empty: not recognised."""
    signals: Signals | None = None
    """The newest; None before the first look, and while its page cannot be had."""
    effective: Effective | None = None
    restarts: int = 0
    """Times that its counters began anew."""
    absent: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""
    """Why there are no signals now."""


class Comparison(Struct, frozen=True):
    """Sentences for people."""

    warnings: tuple[str, ...] = ()
    """Asked for, and not so."""
    unverified: tuple[str, ...] = ()
    """Asked for, and not shown by the engine."""


_SAYING = {
    "context": "context of {} tokens", "sequences": "{} sequences at once",
    "queued": "a line of {}", "step_tokens": "{} tokens a step", "kv_tokens": "KV cache of {} tokens",
    "kv_bytes": "KV cache of {} bytes", "kv_type": "KV cache kept as {}", "block": "KV blocks of {} tokens",
    "prefix_caching": "prefix caching {}", "weights": "weights as {}", "speculation": "speculation {}",
    "draft_tokens": "{} drafted tokens", "scheduler": "the scheduler {}",
}  # fmt: skip


def compare(asked: Effective, found: Effective) -> Comparison:
    """A warning for each wish that did not come true."""
    warnings, unverified = [], []
    for name, wish in _wishes(asked):
        fact = getattr(found, name)
        if fact is None or (name == "speculation" and fact == ON and wish != OFF):
            unverified.append(f"asked for {_say(name, wish)}; the engine does not show whether it is so")
        elif fact != wish:
            warnings.append(f"asked for {_say(name, wish)}, but it runs with {_say(name, fact)}")
    return Comparison(tuple(warnings), tuple(unverified))


def idle_draft(signals: Signals) -> str:
    """A warning where a draft is configured and never tried; empty otherwise."""
    if signals.drafts == 0 and (signals.finished or 0) >= _FEW:
        return f"speculation is on, but {signals.finished:.0f} answers were finished without a single draft"
    return ""


def whole(value: Any) -> int | None:
    """A page's value as a count; None where it is none."""
    return (
        int(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
    )


def word(value: Any) -> str | None:
    """A page's value as text; None where there is none."""
    return value if isinstance(value, str) and value else None


def flag(value: Any) -> bool | None:
    """A page's value as a truth: JSON's own, or Python's word for it in a label."""
    if isinstance(value, bool):
        return value
    return {"True": True, "False": False}.get(value) if isinstance(value, str) else None


def _wishes(asked: Effective) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(asked):
        value = getattr(asked, field.name)
        if field.name in _SAYING and value is not None:
            yield field.name, value


def _say(name: str, value: Any) -> str:
    return _SAYING[name].format(("off", "on")[value] if isinstance(value, bool) else value)
