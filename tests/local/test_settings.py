from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.local.tiny_gguf import CONTEXT
from wastegate.local.settings import EngineOptions, SettingError, configure, parse_cores

KV_TOKEN = 128 * 76 / 64
"""Bytes of 8-bit KV for a token of the tiny model."""


def options(**fields: Any) -> EngineOptions:
    return EngineOptions(**{"name": "tiny", **fields})


def test_the_defaults_serve_the_models_own_context(tiny: Path) -> None:
    config = configure(options(), tiny)
    assert (config.model, config.host, config.loop.context, config.loop.model) == (
        "tiny",
        "127.0.0.1",
        CONTEXT,
        str(tiny),
    )
    assert config.loop.kv_blocks == int((1 << 30) / (32 * KV_TOKEN))
    assert (config.loop.limits.cap, config.loop.limits.queue) == (32, 256)


def test_a_smaller_context_is_taken_and_a_larger_one_refused(tiny: Path) -> None:
    assert configure(options(context=100), tiny).loop.context == 100
    with pytest.raises(SettingError, match="--context 513"):
        configure(options(context=CONTEXT + 1), tiny)


def test_a_cache_that_is_smaller_than_the_context_bounds_it(tiny: Path) -> None:
    kv_gb = 300 * KV_TOKEN / (1 << 30)
    config = configure(options(kv_gb=kv_gb), tiny)
    assert config.loop.context == config.loop.kv_blocks * 32 == 288
    with pytest.raises(SettingError, match="--context 400 does not fit"):
        configure(options(kv_gb=kv_gb, context=400), tiny)


def test_a_cache_of_nothing_is_refused(tiny: Path) -> None:
    with pytest.raises(SettingError, match="--kv-gb"):
        configure(options(kv_gb=0.0), tiny)


def test_wider_kv_takes_more_room(tiny: Path) -> None:
    assert configure(options(kv_precision="f16"), tiny).loop.kv_blocks == (1 << 30) // (32 * 256)


@pytest.mark.parametrize("fields", [{"cap": 0}, {"queue": -1}, {"threads": -1}, {"batched_tokens": 16}, {"port": 70000},
    {"drain": -1.0}])  # fmt: skip
def test_what_cannot_be_is_refused(tiny: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        configure(options(**fields), tiny)


def test_the_hint_is_handed_on_as_the_runtime_writes_it(tiny: Path) -> None:
    assert configure(options(hint="throughput"), tiny).loop.hint == "THROUGHPUT"
    assert configure(options(hint="none"), tiny).loop.hint == ""


def test_the_pipelines_ceiling_is_above_the_cap(tiny: Path) -> None:
    assert configure(options(cap=1000), tiny).loop.max_sequences >= 1000


def test_cores_are_numbers_and_ranges() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    first = allowed[0]
    assert parse_cores("") == ()
    assert parse_cores(f"{first}") == (first,)
    assert parse_cores(f"{first},{first}-{first}") == (first,)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0;1", "4096", "3-1"])
def test_cores_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--cores"):
        parse_cores(text)


def test_the_cap_policy_is_handed_on_and_a_wrong_bound_refused(tiny: Path) -> None:
    loop = configure(options(cap_policy="gradient", cap_min=4, cap_max=300), tiny).loop
    assert (loop.caps.policy, loop.caps.min, loop.caps.max, loop.max_sequences) == ("gradient", 4, 300, 300)
    assert configure(options(), tiny).loop.caps.policy == "fixed"
    with pytest.raises(SettingError, match="--cap-policy cost_aware: min is 9 and max is 8"):
        configure(options(cap_policy="cost_aware", cap_min=9, cap_max=8), tiny)
