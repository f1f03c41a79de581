"""What a step's judge says. Missing data holds; it never passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Ruling = Literal["pass", "hold", "fail"]


class Verdict(Struct, frozen=True):
    """``fail``: something is wrong. ``hold``: too little is known to say. ``pass``: neither."""

    ruling: Ruling
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, failures: Iterable[str], doubts: Iterable[str]) -> Verdict:
        """Failures outweigh doubts; the reasons of both are told."""
        failed, held = tuple(failures), tuple(doubts)
        ruling: Ruling = "fail" if failed else "hold" if held else "pass"
        return cls(ruling, failed + held)
