from __future__ import annotations

import builtins
import sys
import tomllib
from typing import Any

import pytest

from tests.steps.test_whatif import FLEET
from wastegate.steps.whatif import Report, Where
from wastegate.steps.whatif_sweep import SweepError, here, on_ray, points, sweep

MADE = FLEET + "\n[traffic]\nrate = 5.0\noutput = 20.0\n"


def what() -> Where:
    return Where("what.toml", tomllib.loads(MADE), MADE, calls=60)


def test_every_combination_is_a_run() -> None:
    jobs = points(what(), ["machines.0.count=1,2", "limits.line=5,10,20"])
    assert [job.label for job in jobs][:2] == ["count=1, line=5", "count=1, line=10"]
    assert [(job.raw["machines"][0]["count"], job.raw["limits"]["line"]) for job in jobs] == [
        (count, line) for count in (1, 2) for line in (5, 10, 20)
    ]
    assert "limits" not in what().raw, "the file's own tables are left alone"


def test_values_are_tomls_and_words_need_no_quotes() -> None:
    (one, two) = points(what(), ["levers.routing.policy=off, prefix_aware"])
    assert [job.raw["levers"]["routing"]["policy"] for job in (one, two)] == ["off", "prefix_aware"]
    on, off = points(what(), ["levers.batching.on=true,false"])
    assert (on.label, off.raw["levers"]["batching"]["on"]) == ("on=true", False)


def test_the_same_name_twice_is_told_apart() -> None:
    (job,) = points(what(), ["machines.0.count=1", "traffic.count=1"])
    assert job.label == "machines.0.count=1, traffic.count=1"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("machines.0.count", "write a path and its values"),
        ("machines.7.count=1", "'7' is no place in a list of 1"),
        ("traffic.rate.x=1", "'rate' is a value, not a table"),
        ('a="1', "are no TOML values"),
        ("machines.0.count=" + ",".join(["1"] * 1001), "asks for 1001 combinations"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(change: str, problem: str) -> None:
    with pytest.raises(SweepError, match=problem):
        points(what(), [change])


def test_processes_give_what_one_after_another_would() -> None:
    from wastegate.steps.whatif import run

    jobs = points(what(), ["machines.0.count=1,2,3"])
    told: list[int] = []
    reports = sweep(jobs, here(2), told.append)
    assert told == [1, 2, 3]
    assert [plain(report) for report in reports] == [plain(run(job)) for job in jobs]


def plain(report: Report) -> Any:
    from msgspec.structs import replace

    return replace(report, took=0.0)


def test_without_its_client_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SweepError, match=r"pip install 'wastegate\[ray\]'"):
        on_ray("local")
