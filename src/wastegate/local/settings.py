"""What the user asked of the engine, checked against the model file and made into the server's configuration. No
file is fetched and nothing is started here."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from msgspec import Struct

from wastegate.core.admission import CapConfig, Limits, Policy
from wastegate.local.gguf import read_gguf
from wastegate.local.messages import BLOCK, LoopConfig
from wastegate.local.models import called
from wastegate.local.server import ServerConfig

# Bytes that one number of KV takes. The 8-bit cache keeps a scale and a zero point for each group beside the
# numbers: 76 bytes for 64 numbers, seen on SmolLM2's cache (keys by channel, values by token).
KV_BYTES = {"u8": 76 / 64, "f16": 2.0, "bf16": 2.0, "f32": 4.0}
HINTS = ("latency", "throughput", "none")


class SettingError(ValueError):
    """An option that cannot be met; the sentence names it."""


class EngineOptions(Struct, frozen=True):
    """The options of ``wastegate engine``, as given."""

    name: str
    """What the model is called over HTTP."""
    host: str = "127.0.0.1"
    port: int = 8001
    cap: int = 32
    queue: int = 256
    cap_policy: Policy = "fixed"
    cap_min: int = 2
    cap_max: int = 64
    tpot_slo: float = 0.2
    """Seconds a token."""
    cores: tuple[int, ...] = ()
    threads: int = 0
    context: int = 0
    """0 takes the model's own."""
    kv_gb: float = 1.0
    kv_precision: str = "u8"
    hint: str = "latency"
    prefix_caching: bool = True
    batched_tokens: int = 256
    drain: float = 30.0
    admin_token: str = ""


def options_of(arguments: argparse.Namespace) -> EngineOptions:
    """The flags of ``wastegate engine`` as options. Raises :class:`SettingError`."""
    return EngineOptions(
        name=arguments.name or called(arguments.model), host=arguments.host, port=arguments.port, cap=arguments.cap,
        queue=arguments.queue, cap_policy=arguments.cap_policy, cap_min=arguments.cap_min, cap_max=arguments.cap_max,
        tpot_slo=arguments.tpot_slo, cores=parse_cores(arguments.cores), threads=arguments.threads,
        context=arguments.context, kv_gb=arguments.kv_gb, kv_precision=arguments.kv_precision, hint=arguments.hint,
        prefix_caching=not arguments.no_prefix_caching, batched_tokens=arguments.step_tokens, drain=arguments.drain,
        admin_token=arguments.admin_token,
    )  # fmt: skip


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers from a list such as ``0,2-3``; empty for all. Raises :class:`SettingError`."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SettingError(f"--cores {text}: write core numbers as in 0,2-3")
        span = range(int(first), int(last if dash else first) + 1)
        if not span:
            raise SettingError(f"--cores {text}: {part} ends before it begins")
        cores.update(span)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else cores
    if missing := sorted(cores - allowed):
        raise SettingError(f"--cores {text}: this process may not run on core {missing[0]}, only on {sorted(allowed)}")
    return tuple(sorted(cores))


def configure(options: EngineOptions, model: Path) -> ServerConfig:
    """Raises :class:`SettingError` or :class:`wastegate.local.gguf.GgufError`."""
    _check(options)
    info = read_gguf(model)
    blocks = int(options.kv_gb * (1 << 30) / (BLOCK * info.kv_elements * KV_BYTES[options.kv_precision]))
    if options.context > info.context:
        raise SettingError(f"--context {options.context}: {info.name} was trained for {info.context} tokens")
    context = options.context or info.context
    if blocks * BLOCK < context:
        if options.context:
            raise SettingError(
                f"--context {context} does not fit in --kv-gb {options.kv_gb:g}, which holds {blocks * BLOCK} tokens"
            )
        context = blocks * BLOCK
    if context < BLOCK:
        raise SettingError(f"--kv-gb {options.kv_gb:g} is too small: it holds {context} tokens of {info.name}")
    loop = LoopConfig(
        model=str(model), limits=Limits(options.cap, options.queue), context=context, kv_blocks=blocks,
        cores=options.cores, threads=options.threads,
        hint="" if options.hint == "none" else options.hint.upper(), kv_precision=options.kv_precision,
        batched_tokens=options.batched_tokens, max_sequences=max(256, options.cap, options.cap_max),
        prefix_caching=options.prefix_caching, caps=_caps(options),
    )  # fmt: skip
    return ServerConfig(
        loop=loop, model=options.name, host=options.host, port=options.port, drain=options.drain,
        admin_token=options.admin_token,
    )  # fmt: skip


def _caps(options: EngineOptions) -> CapConfig:
    try:
        return CapConfig(options.cap_policy, options.cap_min, options.cap_max, tpot_slo=options.tpot_slo)
    except ValueError as problem:
        raise SettingError(f"--cap-policy {options.cap_policy}: {problem}") from problem


def _check(options: EngineOptions) -> None:
    lowest = {
        "cap": 1,
        "queue": 0,
        "threads": 0,
        "context": 0,
        "batched_tokens": BLOCK,
        "port": 0,
        "drain": 0,
        "kv_gb": 0,
    }
    for name, low in lowest.items():
        value = getattr(options, name)
        if value < low:
            flag = "step-tokens" if name == "batched_tokens" else name.replace("_", "-")
            raise SettingError(f"--{flag} {value:g}: it must be at least {low}")
    if options.port > 65535:
        raise SettingError(f"--port {options.port}: ports end at 65535")
