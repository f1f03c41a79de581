"""Accelerators at one instant, and DCGM's names for what they say. Values only: nothing is fetched or remembered."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from wastegate.engines.exposition import Page, Sample

_MIB = float(1 << 20)
_BLANK = 140_737_488_355_328.0
"""DCGM's "no value" as a float, and the least of its marks for why; as an integer it is above 9.2e18."""


class Device(Struct, frozen=True):
    """One accelerator, or one slice (MIG instance) of it. None: not said."""

    id: str
    """Its UUID; of a slice the card's UUID, a slash and the slice's number."""
    index: str = ""
    """Its number on its machine; of a slice as in ``id``."""
    model: str = ""
    profile: str = ""
    """Of a slice, such as "1g.10gb"."""
    busy: float | None = None
    """Share of time in which any kernel ran. It saturates early: 1 is no sign of a full batch."""
    tensor: float | None = None
    """Share of cycles in which the tensor cores worked."""
    dram: float | None = None
    """Share of cycles in which the memory was read or written: near 1, decoding is as fast as it gets."""
    memory_used: float | None = None
    """Bytes."""
    memory_total: float | None = None
    power: float | None = None
    """Watts. None for a slice: what a meter says there is the whole card's."""
    joules: float | None = None
    """Since the driver was loaded; None for a slice, too."""


class Load(Struct, frozen=True):
    """What the devices of one replica do together. Shares are means, the others sums over all of them."""

    source: str
    """"dcgm", "prometheus", "nvml" or "pushed"."""
    at: float
    """Epoch seconds."""
    devices: int = 0
    busy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    power: float | None = None
    joules: float | None = None
    """Since the gateway began to look: from the counter where there is one, else from power."""
    models: tuple[str, ...] = ()


_RULES: tuple[tuple[str, float, str], ...] = (
    ("busy", 1.0, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"), ("busy", 1.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    ("busy", 1.0, "DCGM_FI_DEV_GPU_UTIL_RATIO"), ("busy", 0.01, "DCGM_FI_DEV_GPU_UTIL"),
    ("tensor", 1.0, "DCGM_FI_PROF_TENSOR_UTIL_RATIO"), ("tensor", 1.0, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    ("dram", 1.0, "DCGM_FI_PROF_DRAM_UTIL_RATIO"), ("dram", 1.0, "DCGM_FI_PROF_DRAM_ACTIVE"),
    ("memory_used", 1.0, "DCGM_FI_DEV_FB_USED_BYTES"), ("memory_used", _MIB, "DCGM_FI_DEV_FB_USED"),
    ("memory_free", 1.0, "DCGM_FI_DEV_FB_FREE_BYTES"), ("memory_free", _MIB, "DCGM_FI_DEV_FB_FREE"),
    ("memory_total", 1.0, "DCGM_FI_DEV_FB_CAPACITY_BYTES"), ("memory_total", _MIB, "DCGM_FI_DEV_FB_TOTAL"),
    ("power", 1.0, "DCGM_FI_DEV_BOARD_POWER_WATTS"), ("power", 1.0, "DCGM_FI_DEV_POWER_USAGE"),
    ("joules", 1.0, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"), ("joules", 0.001, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
)  # fmt: skip
"""What of us it is, what it is multiplied with, DCGM's name. Of two names for the same the first that is there counts:
those of DCGM 4.7 (exporter 4.9) say their unit, and stand before the older ones. Utilisation as the driver counts it
is not known for slices, the profiler's is."""

NAMES = frozenset(name for _, _, name in _RULES)


def from_dcgm(page: Page) -> tuple[Device, ...]:
    """The devices on a page of NVIDIA's DCGM exporter, or on one made of a Prometheus server's answer."""
    found: dict[str, dict[str, float]] = {}
    labels: dict[str, Sample] = {}
    for field, scale, name in _RULES:
        for sample in page.samples.get(name, ()):
            if not sample.label("UUID") or not _says(sample.value):
                continue
            key = _slice(sample, "UUID")
            labels.setdefault(key, sample)
            found.setdefault(key, {}).setdefault(field, sample.value * scale)
    return tuple(_device(key, labels[key], values) for key, values in sorted(found.items()))


def _device(key: str, sample: Sample, values: dict[str, float]) -> Device:
    used, free = values.get("memory_used"), values.pop("memory_free", None)
    if used is not None and free is not None:
        values.setdefault("memory_total", used + free)
    if sample.label("GPU_I_ID"):
        values.pop("power", None)
        values.pop("joules", None)
    return Device(key, _slice(sample, "gpu"), sample.label("modelName"), sample.label("GPU_I_PROFILE"), **values)


def _slice(sample: Sample, label: str) -> str:
    instance = sample.label("GPU_I_ID")
    return f"{sample.label(label)}/{instance}" if instance else sample.label(label)


def _says(value: float) -> bool:
    """Not NaN, and none of DCGM's marks for "blank"."""
    return 0 <= value < 9.2e18 and not _BLANK <= value < _BLANK + 8


def chosen(devices: Iterable[Device], wanted: tuple[str, ...]) -> tuple[Device, ...]:
    """Those that are ``wanted`` by UUID or number; all where none is named. A card stands for all its slices."""
    return tuple(
        device
        for device in devices
        if not wanted
        or {device.id, device.index, device.id.partition("/")[0], device.index.partition("/")[0]} & set(wanted)
    )


def together(devices: tuple[Device, ...], source: str, at: float, joules: float | None) -> Load:
    """One replica's devices as one. A sum of which a part is not known is not known."""
    return Load(
        source=source,
        at=at,
        devices=len(devices),
        busy=_mean([device.busy for device in devices]),
        tensor=_mean([device.tensor for device in devices]),
        dram=_mean([device.dram for device in devices]),
        memory_used=_sum([device.memory_used for device in devices]),
        memory_total=_sum([device.memory_total for device in devices]),
        power=_sum([device.power for device in devices]),
        joules=joules,
        models=tuple(dict.fromkeys(device.model for device in devices if device.model)),
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: list[float | None]) -> float | None:
    total = _sum(values)
    return total / len(values) if total is not None else None
