"""Step times that nobody has measured: from what the hardware can do at most, the model's shape, and how far an engine
gets towards it. No event and no replica enters here."""

from __future__ import annotations

from msgspec import Struct

from wastegate.sim.hardware import Device, HardwareError, Shape
from wastegate.sim.timing import Load

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53, "fp4": 0.56}
"""Of one number; four-bit formats keep scales beside the numbers."""


class Efficiency(Struct, frozen=True, forbid_unknown_fields=True):
    """How far an engine gets. The defaults are vLLM's on H100 and H200, fitted to measured runs of dense models
    (``benchmarks/simulator_silicon.py``, which scores them on models that they were not fitted to)."""

    compute: float = 0.54
    """Of peak operations, in large matrix products."""
    weights: float = 0.84
    """Of memory bandwidth, reading weights."""
    kv: float = 0.58
    """Of memory bandwidth, reading KV."""
    attention: float = 0.81
    """Of peak operations, in the attention of prompts."""
    link: float = 0.43
    """Of the link's rate, in sums over devices."""
    sum_seconds: float = 24e-6
    """Fixed cost of one sum over devices."""
    step_seconds: float = 1.0e-3
    """Fixed cost of a step: scheduling, launching, sampling."""
    sequence_seconds: float = 10e-6
    """Of a step, for each running sequence."""
    relative_doubt: float = 0.4

    def __post_init__(self) -> None:
        for name in ("compute", "weights", "kv", "attention", "link"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a share of what the hardware can do at most")


FRONT_SECONDS = 0.019
"""From a request's arrival until its engine knows of it: fitted with the efficiencies."""


class Roofline(Struct, frozen=True):
    """A model on ``devices`` of a kind, its tensors split over all of them."""

    device: Device
    shape: Shape
    devices: int = 1
    precision: str = "bf16"
    """Of the weights, and of the products where the device multiplies so narrowly."""
    kv_precision: str = "bf16"
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise HardwareError(f"{self.devices} devices cannot run a model")
        if self.kv_tokens(0.9) < 1:
            raise HardwareError(
                f"{self.shape.name} in {self.precision} takes {self.weight_bytes / 1e9:.0f} GB and does not fit "
                f"{self.devices} × {self.device.name} of {self.device.memory_gb:g} GB: take more, or fewer bits"
            )

    @property
    def weight_bytes(self) -> float:
        narrow = self.shape.layer_weights * BYTES[self.precision]
        wide = self.shape.head_weights * BYTES["bf16"]  # embedding and head are not quantised as a rule
        return narrow + wide * (1 if self.shape.tied else 2)

    @property
    def kv_bytes(self) -> float:
        """Of one token, over all devices; heads that are fewer than devices are kept more than once."""
        copies = max(1.0, self.devices / self.shape.kv_heads)
        return self.shape.kv_numbers * BYTES[self.kv_precision] * copies

    def kv_tokens(self, share: float = 0.9, other_gb: float = 4.0) -> int:
        """Tokens of KV that ``share`` of the memory holds beside the weights and ``other_gb`` of each device."""
        room = self.devices * (share * self.device.memory_gb - other_gb) * 1e9 - self.weight_bytes
        return max(0, int(room / self.kv_bytes))

    def step(self, load: Load) -> float:
        how, bandwidth = self.efficiency, self.device.bandwidth_gbs * 1e9 * self.devices
        peak = self.device.peak(self.precision) * self.devices
        tokens = load.prefill + load.decoding
        compute = 2 * self.shape.layer_weights * tokens / (peak * how.compute)
        read = self.shape.layer_weights * BYTES[self.precision] / (bandwidth * how.weights)
        head = self.shape.head_weights * BYTES["bf16"] / (bandwidth * how.weights)
        # Whatever is slower sets the pace, but near the corner neither hides the other quite.
        layers = float((compute**4 + read**4) ** 0.25)
        wide = self.device.peak("bf16") * self.devices
        prompts = 4 * self.shape.layers * self.shape.heads * self.shape.head * load.pairs / (wide * how.attention)
        kv = load.kv * self.kv_bytes / (bandwidth * how.kv)
        own = how.step_seconds + how.sequence_seconds * load.decoding
        return layers + head + prompts + kv + self._sums(tokens) + own

    def _sums(self, tokens: float) -> float:
        """Two sums over devices a layer."""
        if self.devices == 1:
            return 0.0
        link = (self.device.link_gbs or 25.0) * 1e9 * self.efficiency.link  # without one: a PCIe 4.0 bus
        data = 2 * (self.devices - 1) / self.devices * tokens * self.shape.hidden * 2.0
        return 2 * self.shape.layers * (self.efficiency.sum_seconds + data / link)

    def doubt(self, load: Load) -> float:
        return self.efficiency.relative_doubt

    def inside(self, load: Load) -> bool:
        """It was measured nowhere in particular: the doubt is the same everywhere."""
        return True
