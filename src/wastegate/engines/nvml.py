"""This machine's NVIDIA GPUs, read through NVIDIA's own binding, which is handed in. Every figure may be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from wastegate.engines.devices import Device


class NvmlError(Exception):
    """NVML cannot be used here; the text says why."""


def read(nvml: Any) -> tuple[Device, ...]:
    """The devices, slices of a card one by one. ``nvml`` is the module pynvml. Blocks. Raises NvmlError where the
    driver is not there."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML cannot be started: {error}") from None
    try:
        return tuple(_all(nvml))
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML gives no devices: {error}") from None
    finally:
        nvml.nvmlShutdown()


def _all(nvml: Any) -> Iterator[Device]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        slices = list(_slices(nvml, handle, index))
        if slices:
            yield from slices
        else:
            yield _card(nvml, handle, index)


def _card(nvml: Any, handle: Any, index: int) -> Device:
    def ask(function: Callable[[Any], Any]) -> Any:
        return _ask(nvml, function, handle)

    use, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
    power, energy = ask(nvml.nvmlDeviceGetPowerUsage), ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
    return Device(
        id=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=str(index),
        model=_text(ask(nvml.nvmlDeviceGetName)),
        busy=None if use is None else use.gpu / 100,
        memory_used=None if memory is None else float(memory.used),
        memory_total=None if memory is None else float(memory.total),
        power=None if power is None else power / 1000,  # it says milliwatts, and millijoules
        joules=None if energy is None else energy / 1000,
    )


def _slices(nvml: Any, card: Any, index: int) -> Iterator[Device]:
    mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, card)
    if mode is None or not mode[0]:
        return
    uuid = _text(nvml.nvmlDeviceGetUUID(card))
    for number in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0):
        handle = _ask(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, index=number), card)
        if handle is None:
            continue  # places without a slice
        instance = _ask(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle)
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        place = instance if instance is not None else number
        yield Device(
            id=f"{uuid}/{place}",
            index=f"{index}/{place}",
            model=_text(_ask(nvml, nvml.nvmlDeviceGetName, card)),
            memory_used=None if memory is None else float(memory.used),
            memory_total=None if memory is None else float(memory.total),
        )


def _ask(nvml: Any, function: Callable[[Any], Any], handle: Any) -> Any:
    """The answer; None where this device does not give it."""
    try:
        return function(handle)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    """Older bindings answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
