"""A lever's account of itself, as it is written to JSON."""

from __future__ import annotations

import msgspec

from wastegate.core.effect import Effect
from wastegate.core.intervals import Estimate


def test_it_reads_back_from_json() -> None:
    interval = Estimate(value=0.4, low=0.3, high=0.5, level=0.95, blocks=20, method="made up")
    effect = Effect(lever="one", unit="tokens", saved=0.4, harmed=0.0, n=10, interval=interval, parts={"cache": 0.4})
    assert msgspec.json.decode(msgspec.json.encode(effect), type=Effect) == effect
