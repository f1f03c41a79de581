"""DCGM's pages of two generations, and of a card in slices."""

from __future__ import annotations

import pytest

from tests.engines.pages import devices_text
from wastegate.engines.devices import NAMES, Device, Load, chosen, from_dcgm, together
from wastegate.engines.exposition import parse

GIB = float(1 << 30)
A, B = "GPU-11111111-aaaa", "GPU-22222222-bbbb"


def read(name: str) -> tuple[Device, ...]:
    return from_dcgm(parse(devices_text(name), NAMES))


def test_the_older_names_and_units() -> None:
    first, second = read("dcgm-4.8.prom")
    assert first == Device(
        id=A, index="0", model="NVIDIA A100-SXM4-80GB", busy=0.875, tensor=0.125, dram=0.75, memory_used=72 * GIB,
        memory_total=80 * GIB, power=312.5, joules=123456.789,
    )  # fmt: skip
    # Fields that this card does not have are not known; the driver's own utilisation stands in for the profiler's.
    assert second == Device(id=B, index="1", model=first.model, busy=0.0, power=61.25, joules=5.0)


def test_the_newer_names_and_units_give_the_same() -> None:
    (device,) = read("dcgm-4.9.prom")
    assert device == Device(
        id=A, index="0", model="NVIDIA H100", busy=0.98, tensor=0.125, dram=0.75, memory_used=72 * GIB,
        memory_total=80 * GIB, power=312.5, joules=123456.0,
    )  # fmt: skip


def test_slices_have_no_energy_of_their_own() -> None:
    large, small = read("dcgm-mig.prom")
    assert (large.id, large.index, large.profile, large.busy) == (f"{A}/1", "0/1", "2g.12gb", 0.75)
    assert (small.id, small.profile, small.power, small.joules) == (f"{A}/3", "1g.6gb", None, None)


@pytest.mark.parametrize("value", ["NaN", "140737488355328", "140737488355329", "9223372036854775792", "-1"])
def test_a_value_that_means_blank_is_not_known(value: str) -> None:
    text = f'DCGM_FI_DEV_POWER_USAGE{{UUID="{A}"}} {value}\nDCGM_FI_DEV_GPU_UTIL{{UUID="{A}"}} 50\n'
    assert from_dcgm(parse(text, NAMES)) == (Device(id=A, busy=0.5),)


def test_a_sample_of_no_device_is_nobodys() -> None:
    assert from_dcgm(parse("DCGM_FI_DEV_POWER_USAGE 5\n", NAMES)) == ()


def test_devices_are_chosen_by_uuid_or_number_and_a_card_stands_for_its_slices() -> None:
    devices = read("dcgm-4.8.prom")
    assert chosen(devices, ()) == devices
    assert chosen(devices, ("1",)) == chosen(devices, (B,)) == devices[1:]
    slices = read("dcgm-mig.prom")
    assert chosen(slices, ("0/3",)) == slices[1:]
    assert chosen(slices, ("0",)) == chosen(slices, (A,)) == slices
    assert chosen(devices, ("7",)) == ()


def test_together_sums_are_sums_and_shares_are_means() -> None:
    devices = read("dcgm-4.8.prom")
    load = together(devices, "dcgm", 7.0, 99.0)
    assert load == Load("dcgm", 7.0, 2, busy=0.4375, power=373.75, joules=99.0, models=("NVIDIA A100-SXM4-80GB",)), (
        "a sum of which a part is not known is not known"
    )
    assert together((), "dcgm", 7.0, None) == Load("dcgm", 7.0)
