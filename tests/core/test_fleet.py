"""Whether a replica may take a call now."""

from __future__ import annotations

import pytest

from tests.playbook import state


def test_a_ready_replica_is_open() -> None:
    assert state("a").open_to_calls(0.0)
    assert state("a", breaker="half_open").open_to_calls(0.0)
    assert state("a", cap=2, in_flight=1).open_to_calls(0.0)


@pytest.mark.parametrize(
    "members", [{"state": "loading"}, {"breaker": "open"}, {"resting_until": 1.0}, {"cap": 1, "in_flight": 1}]
)
def test_each_reason_closes_it(members: dict[str, object]) -> None:
    assert not state("a", **members).open_to_calls(0.5)


def test_a_full_replica_is_fit_but_not_open() -> None:
    full = state("a", cap=1, in_flight=1)
    assert full.fit(0.0)
    assert not full.open_to_calls(0.0)
