"""What accelerators can do at most, and how models are shaped: the rows of ``hardware.toml`` and ``shapes.toml``, by
name. Data only: how far an engine gets towards it is ``sim.roofline``'s."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import TypeVar

import msgspec
from msgspec import Struct

from wastegate.core.prices import find_price


class HardwareError(ValueError):
    """A name that no row has, or a row that cannot be; the message says what to do."""


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """One accelerator, or one CPU socket. Rates are peaks; 10¹² operations, 10⁹ bytes."""

    name: str
    tflops: dict[str, float]
    """By the precision of the multiplication, dense."""
    memory_gb: float
    bandwidth_gbs: float
    link_gbs: float
    """To its neighbours, one direction; 0 where there is only the host's bus."""
    watts: float
    price: str
    """Its name in the catalogue of prices; empty where that has none."""
    source: str
    date: datetime.date

    def __post_init__(self) -> None:
        if not self.tflops or min((*self.tflops.values(), self.memory_gb, self.bandwidth_gbs, self.watts)) <= 0:
            raise ValueError(f"{self.name}: rates, memory, bandwidth and watts are above 0")

    def dollars_per_hour(self, devices: int = 1) -> float | None:
        """From the catalogue; None where it has no price. Raises PriceError for a name that it does not know."""
        return devices * find_price(self.price) if self.price else None

    def peak(self, precision: str) -> float:
        """Operations a second; where the device has no such unit, those of the narrowest wider one."""
        wider = {
            "fp4": ("fp4", "fp8", "bf16", "fp16", "fp32"),
            "fp8": ("fp8", "bf16", "fp16", "fp32"),
            "int8": ("int8", "bf16", "fp16", "fp32"),
            "int4": ("bf16", "fp16", "fp32"),
            "bf16": ("bf16", "fp16", "fp32"),
            "fp16": ("fp16", "bf16", "fp32"),
            "fp32": ("fp32",),
        }
        if precision not in wider:
            raise HardwareError(f"precision {precision!r} is not known; known: {', '.join(wider)}")
        for name in wider[precision]:
            if name in self.tflops:
                return self.tflops[name] * 1e12
        raise HardwareError(f"{self.name} has no rate for {precision} or anything wider")


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """A dense decoder with grouped attention and a gated inner layer."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    tied: bool = False
    """The embedding is also the head: one matrix for both."""
    experts: int = 1

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head", "inner", "vocabulary", "experts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}: it must be at least 1")

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of all layers."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        return self.layer_weights + self.head_weights * (1 if self.tied else 2)

    @property
    def kv_numbers(self) -> int:
        """Numbers of KV for a token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head


Row = TypeVar("Row", Device, Shape)


class _Devices(Struct, frozen=True, forbid_unknown_fields=True):
    device: tuple[Device, ...]


class _Shapes(Struct, frozen=True, forbid_unknown_fields=True):
    shape: tuple[Shape, ...]


def devices() -> tuple[Device, ...]:
    """The rows that come with wastegate."""
    return msgspec.convert(_read("hardware.toml"), _Devices).device


def shapes() -> tuple[Shape, ...]:
    """The rows that come with wastegate."""
    return msgspec.convert(_read("shapes.toml"), _Shapes).shape


def find_device(name: str) -> Device:
    """By its name; case, blanks and a maker in front do not matter. Raises HardwareError."""
    return _find(name, devices(), "hardware")


def find_shape(name: str) -> Shape:
    """By a model's name as hubs write it: an owner in front, "Instruct" and a precision behind do not matter.

    Raises HardwareError for a model that is not listed, and for a mixture of experts: which of its experts a batch
    reads decides its step time, and that is not modelled.
    """
    shape = _find(name, shapes(), "model")
    if shape.experts > 1:
        raise HardwareError(
            f"{name} is a mixture of {shape.experts} experts: step times of mixtures are not modelled, since they hang "
            "on which experts a batch meets. Give a table of measured steps instead"
        )
    return shape


def _read(file: str) -> object:
    return tomllib.loads((resources.files("wastegate.sim") / file).read_text(encoding="utf-8"))


def _find(name: str, rows: Sequence[Row], kind: str) -> Row:
    wanted = _plain(name)
    for row in rows:
        if wanted == _plain(row.name):
            return row
    names = [row.name for row in rows]
    near = difflib.get_close_matches(wanted, names, 1, 0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
    raise HardwareError(f"no {kind} is called {name!r}; {hint} Or describe it in the file")


def _plain(name: str) -> str:
    short = re.sub(r"[\s_]+", "-", name.strip().lower().rpartition("/")[2])
    short = re.sub(r"-(sxm|gpu)$", "", short.removeprefix("nvidia-").removeprefix("meta-"))
    return re.sub(r"-(instruct|chat|base|it|fp8|fp4|nvfp4|bf16|awq|gptq|int4|int8|2507)(?=-|$)", "", short)
