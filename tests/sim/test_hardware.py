from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from wastegate.sim.hardware import Device, HardwareError, Shape, devices, find_device, find_shape, shapes


def test_every_row_loads_and_has_a_source_a_date_and_a_price_that_is_known() -> None:
    names = [device.name for device in devices()]
    assert len(set(names)) == len(names)
    assert {"t4", "l4", "a10g", "a100-40gb", "a100-80gb", "l40s", "h100", "h200", "b200", "mi300x"} <= set(names)
    assert sum(name.startswith(("xeon", "epyc")) for name in names) >= 2
    for device in devices():
        assert device.source
        dollars = device.dollars_per_hour()
        assert dollars is None or dollars > 0
    assert find_device("h100").dollars_per_hour(4) == pytest.approx(4 * (find_device("h100").dollars_per_hour() or 0))


def test_what_a_narrow_product_runs_at_where_there_is_no_unit_for_it() -> None:
    h100, a100 = find_device("h100"), find_device("a100-80gb")
    assert h100.peak("fp8") == pytest.approx(2 * h100.peak("bf16"), rel=0.01)
    assert a100.peak("fp8") == a100.peak("bf16"), "weights are widened before they are multiplied"
    assert h100.peak("int4") == h100.peak("bf16")
    with pytest.raises(HardwareError, match="precision 'fp7' is not known"):
        h100.peak("fp7")
    with pytest.raises(HardwareError, match="no rate for fp32"):
        replace(h100, tflops={"int8": 1.0}).peak("fp32")


@pytest.mark.parametrize(
    ("name", "weights", "kv_bytes"),
    [("llama-3.1-8b", 8.03e9, 131_072), ("llama-3.1-70b", 70.55e9, 327_680), ("qwen3-32b", 32.76e9, 262_144)],
)
def test_shapes_have_the_weights_that_are_published(name: str, weights: float, kv_bytes: int) -> None:
    shape = find_shape(name)
    assert shape.weights == pytest.approx(weights, rel=0.01)
    assert shape.kv_numbers * 2 == kv_bytes


def test_a_tied_head_is_counted_once() -> None:
    assert find_shape("smollm2-135m").weights == pytest.approx(134.5e6, rel=0.01)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("SmolLM2-135M-Instruct", "smollm2-135m"),
    ],
)
def test_models_are_found_as_hubs_write_them(written: str, name: str) -> None:
    assert find_shape(written).name == name


def test_devices_are_found_however_they_are_written() -> None:
    assert find_device("NVIDIA H100").name == find_device("h100_sxm").name == "h100"


def test_a_mixture_of_experts_is_refused_with_the_reason() -> None:
    for name in ("deepseek-ai/DeepSeek-R1", "openai/gpt-oss-120b", "Qwen/Qwen3-235B-A22B-FP8"):
        with pytest.raises(HardwareError, match=r"is a mixture of \d+ experts: step times of mixtures"):
            find_shape(name)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(HardwareError, match="did you mean 'h200'"):
        find_device("h20o")
    with pytest.raises(HardwareError, match=r"no model is called 'gpt-5'; known: llama-3\.1-8b"):
        find_shape("gpt-5")


@pytest.mark.parametrize(
    ("kind", "row", "changes", "problem"),
    [
        (Device, "h100", {"memory_gb": 0}, "are above 0"),
        (Device, "h100", {"tflops": {}}, "are above 0"),
        (Shape, "qwen3-8b", {"layers": 0}, "layers is 0"),
    ],
)
def test_rows_that_cannot_be_are_refused(kind: Any, row: str, changes: dict[str, Any], problem: str) -> None:
    found = find_device(row) if kind is Device else find_shape(row)
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({**msgspec.to_builtins(found), **changes}, kind)


def test_a_shape_may_be_brought() -> None:
    assert len({shape.name for shape in shapes()}) == len(shapes())
    own = Shape("mine", 24, 2048, 16, 8, 128, 8192, 50_000)
    assert own.weights > 1e9
