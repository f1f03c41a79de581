from __future__ import annotations

from typing import Any

import pytest

from wastegate.sim.hardware import HardwareError, find_device, find_shape
from wastegate.sim.roofline import Efficiency, Roofline
from wastegate.sim.timing import Load


def roofline(device: str = "h100", model: str = "llama-3.1-8b", devices: int = 1, **members: Any) -> Roofline:
    return Roofline(find_device(device), find_shape(model), devices, **members)


def test_one_sequence_is_bound_by_reading_the_weights() -> None:
    step = roofline().step(Load(decoding=1, kv=1000))
    assert 16.06e9 / 3350e9 < step < 2 * 16.06e9 / 3350e9 + 2e-3


def test_more_sequences_cost_little_until_products_are_large() -> None:
    one, many, more = (roofline().step(Load(decoding=count)) for count in (1, 32, 1024))
    assert many < 1.2 * one
    assert more > 2 * one


def test_prompts_are_bound_by_computing() -> None:
    prompt = roofline().step(Load(prefill=8192, pairs=8192**2 / 2))
    least = 2 * 7e9 * 8192 / 989e12
    assert least < prompt < 3 * least


def test_fewer_bits_are_read_faster() -> None:
    assert roofline(precision="fp8").step(Load(decoding=1)) < 0.7 * roofline().step(Load(decoding=1))


def test_more_devices_share_the_work_but_must_talk() -> None:
    load = Load(decoding=8, kv=8000)
    steps = [roofline(model="llama-3.1-70b", devices=count, precision="fp8").step(load) for count in (2, 4, 8)]
    assert steps[0] > steps[1] > steps[2] > steps[0] / 4
    slow = Efficiency(sum_seconds=1e-3)
    assert roofline(devices=2, efficiency=slow).step(load) > roofline(devices=1, efficiency=slow).step(load)


def test_live_kv_is_read_in_each_step() -> None:
    near, far = (roofline().step(Load(decoding=8, kv=tokens)) for tokens in (1000, 101_000))
    assert far - near == pytest.approx(100_000 * 131_072 / (3350e9 * Efficiency().kv))


def test_what_fits_beside_the_weights_is_kv() -> None:
    room = 0.9 * 80e9 - 4e9 - 16.06e9
    assert roofline().kv_tokens() == pytest.approx(room / 131_072, rel=0.01)
    assert roofline(kv_precision="fp8").kv_tokens() == pytest.approx(2 * roofline().kv_tokens(), rel=0.001)
    # Eight heads on sixteen devices: each is kept twice.
    wide = Roofline(find_device("h100"), find_shape("llama-3.1-8b"), 16)
    assert wide.kv_bytes == 2 * roofline().kv_bytes


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"llama-3\.1-70b in bf16 takes 141 GB and does not fit 1 × h100"):
        roofline(model="llama-3.1-70b")
    with pytest.raises(HardwareError, match="0 devices"):
        roofline(devices=0)


def test_it_knows_no_load_better_than_another() -> None:
    assert roofline().inside(Load(decoding=5000))
    assert roofline().doubt(Load(decoding=5000)) == Efficiency().relative_doubt
    with pytest.raises(ValueError, match=r"compute is 1\.5"):
        Efficiency(compute=1.5)
