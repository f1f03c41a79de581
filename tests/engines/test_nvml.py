"""NVIDIA's driver, as far as this machine has it; and cards that it might have, made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wastegate.engines.devices import Device
from wastegate.engines.nvml import NvmlError, read


def test_a_machine_without_a_driver_says_so() -> None:
    pynvml = pytest.importorskip("pynvml", reason="NVIDIA's binding is not installed: pip install 'wastegate[gpu]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(NvmlError, match="NVML cannot be started"):
            read(pynvml)
    else:
        assert all(device.id.startswith("GPU-") for device in read(pynvml))


class RefusedError(Exception):
    pass


class Driver:
    """pynvml's functions over made-up cards: a figure that a card lacks is refused, as the driver does."""

    NVMLError = RefusedError

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = cards
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: dict[str, Any], index: int) -> dict[str, Any]:  # noqa: N802
        slices: dict[int, dict[str, Any]] = card["slices"]
        if index not in slices:
            raise RefusedError("Not Found")
        return slices[index]

    def __getattr__(self, name: str) -> Callable[[dict[str, Any]], Any]:
        def ask(handle: dict[str, Any]) -> Any:
            if name not in handle:
                raise RefusedError("Not Supported")
            return handle[name]

        return ask


CARD = {
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetName": b"NVIDIA L4",
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40, memory=10),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1000, total=24000, free=23000),
    "nvmlDeviceGetPowerUsage": 71_500,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456,
    "nvmlDeviceGetMigMode": [0, 0],
}


def test_a_card_in_full() -> None:
    driver = Driver(CARD)
    assert read(driver) == (
        Device("GPU-1", "0", "NVIDIA L4", busy=0.4, memory_used=1e3, memory_total=24e3, power=71.5, joules=123.456),
    )
    assert driver.open == 0


def test_a_card_that_refuses_nearly_everything() -> None:
    assert read(Driver({"nvmlDeviceGetUUID": b"GPU-2"})) == (Device("GPU-2", "0"),)


def test_slices_of_a_card_one_by_one() -> None:
    memory = SimpleNamespace(used=5, total=9)
    slices = {
        0: {"nvmlDeviceGetGpuInstanceId": 7, "nvmlDeviceGetMemoryInfo": memory},
        2: {"nvmlDeviceGetMemoryInfo": memory},
    }
    card = {**CARD, "nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 7, "slices": slices}
    assert read(Driver(card)) == (
        Device("GPU-1/7", "0/7", "NVIDIA L4", memory_used=5.0, memory_total=9.0),
        Device("GPU-1/2", "0/2", "NVIDIA L4", memory_used=5.0, memory_total=9.0),
    )


def test_a_driver_that_fails_is_told_and_closed() -> None:
    driver = Driver({})
    with pytest.raises(NvmlError, match="gives no devices"):
        read(driver)
    assert driver.open == 0

    def refuse() -> None:
        raise RefusedError("Driver Not Loaded")

    driver.nvmlInit = refuse  # type: ignore[method-assign]
    with pytest.raises(NvmlError, match="cannot be started: Driver Not Loaded"):
        read(driver)
