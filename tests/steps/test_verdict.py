"""A failure outweighs a doubt, and a doubt outweighs nothing."""

from __future__ import annotations

import pytest

from wastegate.steps.verdict import Verdict


@pytest.mark.parametrize(
    ("failures", "doubts", "ruling"),
    [((), (), "pass"), ((), ("thin",), "hold"), (("wrong",), (), "fail"), (("wrong",), ("thin",), "fail")],
)
def test_the_gravest_counts_and_all_is_told(failures: tuple[str, ...], doubts: tuple[str, ...], ruling: str) -> None:
    assert Verdict.of(iter(failures), iter(doubts)) == Verdict(ruling, failures + doubts)  # type: ignore[arg-type]
