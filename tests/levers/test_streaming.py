"""The streaming lever: what it changes about a plan, and what calls tell of it."""

from __future__ import annotations

import pytest

from wastegate.levers.streaming import Config


@pytest.mark.parametrize("name", ["default_tokens", "most_tokens"])
def test_a_bound_below_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1: a bound in tokens, or 0 for none"):
        Config(**{name: -1})  # type: ignore[arg-type]
