"""The engine that comes with wastegate: its metrics in our terms, how it is started, and what of that really runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from wastegate.engines.launch import Command, Common, Count, Port, flags
from wastegate.engines.outdated import LOCAL
from wastegate.engines.readback import OFF, Effective, Pages, whole
from wastegate.engines.signals import Rules, rule

PREFIX = "wastegate_engine_"
PAGES = ("/v1/models", "/admin/limits")
OUTDATED = LOCAL
LIVE = (
    ("sequences that run at once, and that may wait", "PUT /admin/limits"),
    ("how the former follow the load", "PUT /admin/caps"),
    ("anything else", "needs a restart"),
)

_E = PREFIX

RULES: Rules = (
    rule("running", "sum", f"{_E}requests_running"),
    rule("waiting", "sum", f"{_E}requests_waiting"),
    rule("max_running", "sum", f"{_E}requests_running_max"),
    rule("kv_usage", "share", f"{_E}kv_cache_usage_ratio"),
    rule("kv_capacity", "sum", f"{_E}kv_cache_capacity_tokens"),
    rule("prompt_tokens", "counter", f"{_E}prompt_tokens_total"),
    rule("cached_tokens", "counter", f"{_E}prompt_tokens_cached_total"),
    rule("output_tokens", "counter", f"{_E}output_tokens_total"),
    rule("finished", "counter", f"{_E}requests_total{{outcome=stop}} + {_E}requests_total{{outcome=length}}"),
    rule("aborted", "counter", f"{_E}requests_total{{outcome=left}}"),
    rule("rejected", "counter", f"{_E}requests_total{{outcome=refused}}"),
    rule("queue", "histogram", f"{_E}queue_seconds"),
    rule("first_token", "histogram", f"{_E}time_to_first_token_seconds"),
    rule("inter_token", "histogram", f"{_E}inter_token_seconds"),
    rule("whole", "histogram", f"{_E}request_seconds"),
)


class Config(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start. None leaves a setting to the engine."""

    port: Annotated[Port, Meta(description="port to listen on")] = 8001
    context: Annotated[Count, Meta(description="tokens of prompt and answer together")] | None = None
    sequences: Annotated[Count, Meta(description="sequences at once; can change live")] = 32
    queued: Annotated[int, Meta(ge=0, description="sequences that may wait; can change live")] = 256
    step_tokens: Annotated[Count, Meta(description="prompt tokens of one step")] | None = None
    kv_gb: Annotated[float, Meta(gt=0, description="GiB of KV cache")] | None = None
    kv_type: Annotated[Literal["u8", "f16", "bf16", "f32"], Meta(description="what KV is kept in")] | None = None
    prefix_caching: Annotated[bool, Meta(description="keep the KV of prompts' beginnings")] = True
    cores: Annotated[str, Meta(description="cores to compute on, as in 0,2-3")] = ""


def command(config: Config, more: tuple[str, ...] = ()) -> Command:
    """``wastegate engine``."""
    return Command(("wastegate", "engine", *flags(
        ("--model", config.model), ("--host", config.host), ("--port", config.port), ("--name", config.name),
        ("--cap", config.sequences), ("--queue", config.queued), ("--context", config.context),
        ("--step-tokens", config.step_tokens), ("--kv-gb", config.kv_gb), ("--kv-precision", config.kv_type),
        ("--no-prefix-caching", not config.prefix_caching), ("--cores", config.cores),
    ), *more))  # fmt: skip


def asked(config: Config) -> Effective:
    """What read-back should find."""
    return Effective(context=config.context, sequences=config.sequences, queued=config.queued)


def effective(pages: Pages) -> Effective:
    capacity = pages.metrics.samples.get(f"{_E}kv_cache_capacity_tokens", ())
    return Effective(
        context=whole(pages.get("/v1/models", "data", 0, "max_model_len")),
        sequences=whole(pages.get("/admin/limits", "cap")),
        queued=whole(pages.get("/admin/limits", "queue")),
        kv_tokens=whole(capacity[0].value) if capacity else None,
        speculation=OFF,
    )
