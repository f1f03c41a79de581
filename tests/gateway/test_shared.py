"""Sharing is set up with values that can work, and told to operators without its password."""

from __future__ import annotations

import pytest

from wastegate.gateway.shared import Config, Status, exposition


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"redis": "http://secret@x"}, "redis must begin with"),
        ({"site": "a:b"}, "site is 'a:b'"),
        ({"site": ""}, "site is ''"),
        ({"wait_seconds": 0.0}, "must be above 0"),
        ({"lease_seconds": 1.0, "beat_seconds": 0.5}, "at least four times"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        Config(**wrong)  # type: ignore[arg-type]
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("state", "alone"), [("joined", 0), ("alone", 1)])
def test_metrics_say_whether_it_is_alone(state: str, alone: int) -> None:
    lines = exposition(Status(state, "redis.example:6379", 3, "", 7)).splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert samples == [
        f"wastegate_shared_alone {alone}",
        "wastegate_shared_gateways 3",
        "wastegate_shared_claims_alone_total 7",
    ]
    assert len(lines) == 3 * len(samples), "each with its help and its type"
