from __future__ import annotations

from wastegate.core import rationing as core
from wastegate.gateway import rationing


def test_the_gateway_counts_as_the_simulator_does() -> None:
    assert rationing.Rationing is core.Rationing
