"""The example configuration loads, names every setting there is, and tells their defaults truly."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from wastegate import levers, site
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.gateway.tally import Report, exposition
from wastegate.places import struct_of

EXAMPLE = Path(__file__).parent.parent / "examples" / "wastegate.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
WRITTEN_OUT = re.sub(r"^#: ", "", TEXT, flags=re.M)
"""The example with every default written as a setting."""


def settings(kind: Any) -> dict[str, set[str]]:
    """Section → the names of its settings, as the reader knows them."""
    sections = {}
    for section in msgspec.structs.fields(kind):
        struct = struct_of(section.type)
        assert struct is not None, f"{section.name} is no section"
        sections[section.name] = {field.name for field in msgspec.structs.fields(struct)}
    return sections


def test_the_example_loads() -> None:
    config = site.parse(TEXT, str(EXAMPLE)).gateway
    assert [replica.name for replica in config.replicas] == ["gpu-a", "gpu-b"]
    assert config.replicas[0].price > config.replicas[1].price > 0, "one by the catalogue, one by the file"
    assert config.routes[0].timers.first_byte == 30.0


def test_the_defaults_that_it_shows_are_the_defaults() -> None:
    assert WRITTEN_OUT != TEXT
    assert site.parse(WRITTEN_OUT, str(EXAMPLE)).gateway == site.parse(TEXT, str(EXAMPLE)).gateway


def test_it_shows_every_setting() -> None:
    shown = tomllib.loads(WRITTEN_OUT)
    for section, names in settings(site._File).items():
        rows = shown[section] if isinstance(shown[section], list) else [shown[section]]
        assert {name for row in rows for name in row} == names, f"[{section}] of {EXAMPLE.name}"


def test_it_shows_every_setting_of_every_lever() -> None:
    shown = tomllib.loads(WRITTEN_OUT)["levers"]
    for lever, names in settings(levers.Config).items():
        assert set(shown[lever]) == names, f"[levers.{lever}] of {EXAMPLE.name}"


def test_the_rules_for_prometheus_ask_for_metrics_that_there_are() -> None:
    rules = (EXAMPLE.parent / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    states = (ReplicaState(Replica("a", "", price=1, cap=1)),)
    had = set(re.findall(r"^# TYPE (\w+)", exposition(Report(), states), flags=re.M))
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\bwastegate_\w+", rules)}
    assert len(asked) > 10
    assert asked - had == {"wastegate_config_reload_failures_total"}, "this one is the configuration's"


def test_it_names_no_path_or_key_of_anybody() -> None:
    assert not re.search(r"(?m)^(token|api_key)\s*=|/home/", TEXT)
