"""A sweep on a Ray cluster of this machine gives what processes give."""

from __future__ import annotations

import tomllib

import pytest
from msgspec.structs import replace

from tests.steps.test_whatif import FLEET
from wastegate.steps.whatif import Where
from wastegate.steps.whatif_sweep import here, on_ray, points, sweep


@pytest.mark.live
@pytest.mark.timeout(180)
def test_a_sweep_on_ray_is_the_same_sweep() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'wastegate[ray]'")
    text = FLEET + "\n[traffic]\nrate = 5.0\noutput = 20.0\n"
    jobs = points(Where("what.toml", tomllib.loads(text), text, calls=60), ["machines.0.count=1,2", "seed=1,2"])
    told: list[int] = []
    reports = sweep(jobs, on_ray("local"), told.append)
    assert told == [1, 2, 3, 4]
    beside = sweep(jobs, here(2))
    assert [replace(one, took=0.0) for one in reports] == [replace(one, took=0.0) for one in beside]
    assert [one.label for one in reports] == [job.label for job in jobs]
