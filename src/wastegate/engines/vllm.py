"""vLLM: its metrics in our terms, how it is started, and what of that really runs. Read in and recorded from 0.32.0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from wastegate.engines.exposition import Sample
from wastegate.engines.launch import LOOPBACK, Command, Common, Count, Port, Share, flags
from wastegate.engines.outdated import VLLM
from wastegate.engines.readback import OFF, ON, Effective, Pages, flag, whole, word
from wastegate.engines.signals import Rules, rule

PREFIX = "vllm:"
PAGES = ("/version", "/v1/models", "/server_info?config_format=json")
"""The last only with VLLM_SERVER_DEV_MODE=1."""
LIVE = (
    ("sequences that run at once, tokens of a step", "PUT /wastegate/settings, with --plugin"),
    ("drafted tokens by batch width", "the same, where it was started with a --draft-table"),
    (
        "LoRA adapters",
        "POST /v1/load_lora_adapter, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; a new path for each version",
    ),
    ("anything else", "needs a restart"),
)
OUTDATED = VLLM
SCHEDULER = "wastegate.vllm_plugin.scheduler.Scheduler"
Method = Literal["off", "ngram", "draft", "eagle", "eagle3", "mtp", "suffix", "medusa"]
_METHODS = {"draft": "draft_model"}
_WITH_DRAFT = ("draft", "eagle", "eagle3", "medusa")
_INFO = "/server_info?config_format=json"
_CACHE = "vllm:cache_config_info"

RULES: Rules = (
    rule("running", "sum", "vllm:num_requests_running"),
    rule("waiting", "sum", "vllm:num_requests_waiting"),
    rule("kv_usage", "share", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    rule("kv_capacity", "sum", "vllm:cache_config_info[kv_cache_size_tokens]"),
    rule("prompt_tokens", "counter", "vllm:prompt_tokens_total"),
    rule(
        "cached_tokens", "counter",
        "vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
    ),
    rule("output_tokens", "counter", "vllm:generation_tokens_total"),
    rule(
        "finished", "counter",
        "vllm:request_success_total{finished_reason=stop} + vllm:request_success_total{finished_reason=length}",
    ),
    rule("rejected", "counter", "vllm:admission_rejections_total"),
    rule("preemptions", "counter", "vllm:num_preemptions_total"),
    rule("queue", "histogram", "vllm:request_queue_time_seconds"),
    rule("first_token", "histogram", "vllm:time_to_first_token_seconds"),
    rule("inter_token", "histogram", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    rule("whole", "histogram", "vllm:e2e_request_latency_seconds"),
    # Only where it was started with a draft.
    rule("drafts", "counter", "vllm:spec_decode_num_drafts_total", optional=True),
    rule("draft_tokens", "counter", "vllm:spec_decode_num_draft_tokens_total", optional=True),
    rule("accepted_tokens", "counter", "vllm:spec_decode_num_accepted_tokens_total", optional=True),
)  # fmt: skip
"""No ``aborted``: vLLM has a series for it, but an abort moves no per-request metric (seen on 0.32.0)."""


class Config(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start. None leaves a setting to vLLM."""

    port: Annotated[Port, Meta(description="port to listen on")] = 8000
    context: Annotated[Count, Meta(description="tokens of prompt and answer together")] | None = None
    sequences: Annotated[Count, Meta(description="sequences at once; sizes its buffers")] | None = None
    active: Annotated[Count, Meta(description="admit fewer than that; can change live")] | None = None
    queued: Annotated[Count, Meta(description="unfinished requests, running ones too; beyond it 503")] | None = None
    step_tokens: Annotated[Count, Meta(description="tokens of one step")] | None = None
    memory: Annotated[Share, Meta(description="share of the GPU's memory (on a CPU: of the RAM)")] | None = None
    kv_bytes: Annotated[Count, Meta(description="bytes of KV cache; goes before --memory")] | None = None
    kv_type: Annotated[str, Meta(description="what KV is kept in, such as fp8")] | None = None
    kv_offload_gb: Annotated[float, Meta(gt=0, description="GiB of host memory behind the KV cache")] | None = None
    block: Annotated[int, Meta(ge=1, description="tokens of a KV block")] | None = None
    prefix_caching: Annotated[bool, Meta(description="keep the KV of prompts' beginnings")] = True
    dtype: Annotated[str, Meta(description="number format of the weights")] | None = None
    quantization: Annotated[str, Meta(description="such as fp8, awq, gptq, compressed-tensors")] | None = None
    tensor_parallel: Annotated[Count, Meta(description="GPUs that share each layer")] | None = None
    speculation: Annotated[Method, Meta(description="who drafts tokens")] = "off"
    draft: Annotated[str, Meta(description="the draft's model, or head")] = ""
    draft_tokens: Annotated[Count, Meta(description="tokens that are drafted at a time")] = 3
    draft_table: Annotated[str, Meta(description="fewer in wide batches, as in 1-4:5,5-16:2,17-256:0")] = ""
    eager: Annotated[bool, Meta(description="no compilation: starts sooner, runs slower on a GPU")] = False
    priority: Annotated[bool, Meta(description="serve by the requests' priority, lower first")] = False
    plugin: Annotated[bool, Meta(description="load wastegate's plugin: exact records, a live cap")] = False
    dev_mode: Annotated[bool, Meta(description="show the effective configuration; on this machine only")] = False

    def __post_init__(self) -> None:
        if self.quantization in ("bitsandbytes", "gguf"):
            raise ValueError(f"quantization {self.quantization} is not in vLLM 0.32 any more; quantize ahead of time")
        if self.speculation in _WITH_DRAFT and not self.draft:
            raise ValueError(f"speculation {self.speculation} needs --draft")
        if self.draft and self.speculation not in _WITH_DRAFT:
            raise ValueError(f"a draft does nothing with speculation {self.speculation}: use --speculation draft")
        if self.draft_table and self.speculation in ("off", "suffix", "medusa"):
            raise ValueError(f"vLLM fails at a draft table with speculation {self.speculation}: use ngram or draft")
        table = parse_table(self.draft_table)
        if any(tokens > self.draft_tokens for _, _, tokens in table):
            raise ValueError(f"the draft table goes above draft_tokens, which is {self.draft_tokens}: raise that")
        if self.dev_mode and self.host not in LOOPBACK:
            raise ValueError(f"dev_mode lets anybody who reaches {self.host} change the engine: keep it on 127.0.0.1")


def parse_table(text: str) -> tuple[tuple[int, int, int], ...]:
    """``1-4:5,5-16:2`` as (from, to, drafted tokens), by the number of sequences. Raises ValueError."""
    rows = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d+)-(\d+):(\d+)", part.strip())
        if found is None:
            raise ValueError(f"{part!r} in the draft table is not FROM-TO:TOKENS")
        rows.append((int(found[1]), int(found[2]), int(found[3])))
    if any(low > high for low, high, _ in rows) or any(b[0] != a[1] + 1 for a, b in pairwise(rows)):
        raise ValueError("the draft table's rows must follow one another, as in 1-4:5,5-16:2")
    return tuple(rows)


def command(config: Config, more: tuple[str, ...] = ()) -> Command:
    """``vllm serve``, with cached tokens in its answers and an address that only this machine reaches. The gateway asks
    for usage, call by call: forced on the server it would come to clients that never asked."""
    speculation = _speculation(config)
    argv = ("vllm", "serve", config.model, *flags(
        ("--host", config.host), ("--port", config.port), ("--served-model-name", config.name),
        ("--max-model-len", config.context), ("--max-num-seqs", config.sequences),
        ("--max-num-active-seqs", config.active), ("--max-num-queued-reqs", config.queued),
        ("--max-num-batched-tokens", config.step_tokens), ("--gpu-memory-utilization", config.memory),
        ("--kv-cache-memory-bytes", config.kv_bytes), ("--kv-cache-dtype", config.kv_type),
        ("--kv-offloading-size", config.kv_offload_gb), ("--block-size", config.block),
        ("--no-enable-prefix-caching", not config.prefix_caching), ("--dtype", config.dtype),
        ("--quantization", config.quantization), ("--tensor-parallel-size", config.tensor_parallel),
        ("--speculative-config", json.dumps(speculation) if speculation else None),
        ("--enforce-eager", config.eager), ("--scheduling-policy", "priority" if config.priority else None),
        ("--scheduler-cls", SCHEDULER if config.plugin else None), ("--enable-prompt-tokens-details", True),
    ), *more)  # fmt: skip
    notes = []
    if config.kv_bytes is None and config.memory is None:
        notes.append("it takes 92 % of the GPU's memory (on a CPU: of the RAM, or fails): set --kv-bytes or --memory")
    if config.kv_offload_gb:
        notes.append("KV offloading pays only where copying beats computing again; on a CPU it never does")
    if config.plugin:
        notes.append("set WASTEGATE_PLUGIN_TOKEN, and [records] token_env in wastegate.toml to the same secret")
    env = (("VLLM_SERVER_DEV_MODE", "1"),) if config.dev_mode else ()
    return Command(argv, env + ((("VLLM_PLUGINS", "wastegate"),) if config.plugin else ()), tuple(notes))


def asked(config: Config) -> Effective:
    """What read-back should find."""
    speculates = config.speculation != OFF
    return Effective(
        context=config.context,
        sequences=config.sequences,
        queued=config.queued,
        step_tokens=config.step_tokens,
        kv_bytes=config.kv_bytes,
        kv_type=config.kv_type,
        block=config.block,
        prefix_caching=config.prefix_caching,
        weights=config.quantization or config.dtype,
        speculation=_METHODS.get(config.speculation, config.speculation),
        draft_tokens=config.draft_tokens if speculates else None,
        scheduler=SCHEDULER if config.plugin else None,
    )


def _speculation(config: Config) -> dict[str, object]:
    if config.speculation == OFF:
        return {}
    method = _METHODS.get(config.speculation, config.speculation)
    settings: dict[str, object] = {"method": method, "num_speculative_tokens": config.draft_tokens}
    if config.draft:
        settings["model"] = config.draft
    if config.speculation == "ngram":
        settings["prompt_lookup_max"] = 4
    if config.draft_table:
        settings["num_speculative_tokens_per_batch_size"] = parse_table(config.draft_table)
    return settings


def effective(pages: Pages) -> Effective:
    """Without the developer's mode the page with the metrics still tells of the KV cache and of speculation."""
    config = partial(pages.get, _INFO, "vllm_config")
    cache = next(iter(pages.metrics.samples.get(_CACHE, ())), Sample(_CACHE, (), 1.0))
    speculation = word(config("speculative_config", "method"))
    if speculation is None and pages.metrics.names:
        speculation = ON if "vllm:spec_decode_num_drafts_total" in pages.metrics.names else OFF
    return Effective(
        version=word(pages.get("/version", "version")),
        context=whole(pages.get("/v1/models", "data", 0, "max_model_len")),
        sequences=whole(config("scheduler_config", "max_num_seqs")),
        queued=whole(config("scheduler_config", "max_num_queued_reqs")),
        step_tokens=whole(config("scheduler_config", "max_num_batched_tokens")),
        kv_tokens=_number(cache.label("kv_cache_size_tokens")),
        kv_bytes=_number(cache.label("kv_cache_memory_bytes")),
        kv_type=word(cache.label("cache_dtype")),
        block=_number(cache.label("block_size")),
        prefix_caching=flag(cache.label("enable_prefix_caching")),
        weights=_recipe(word(config("model_config", "quantization"))) or _plain(word(config("model_config", "dtype"))),
        speculation=speculation,
        draft_tokens=whole(config("speculative_config", "num_speculative_tokens")),
        scheduler=word(config("scheduler_config", "scheduler_cls")),
        notes=tuple(_notes(pages)),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _recipe(quantization: str | None) -> str | None:
    """Marlin is a kernel for the same weights, not another recipe."""
    return quantization.removesuffix("_marlin") if quantization else None


def _plain(dtype: str | None) -> str | None:
    return dtype.removeprefix("torch.") if dtype else None


def _notes(pages: Pages) -> Iterator[str]:
    if _CACHE in pages.metrics.names and _INFO not in pages.json:
        yield "it shows its scheduler's limits only with VLLM_SERVER_DEV_MODE=1 (never on a public port)"
    config = partial(pages.get, _INFO, "vllm_config")
    if config("scheduler_config", "async_scheduling") is False and config("device_config", "device") != "cpu":
        yield "asynchronous scheduling is off: each step waits for the one before on the host"
    parallel = whole(config("parallel_config", "data_parallel_size")) or 1
    if parallel > 1 and config("speculative_config", "num_speculative_tokens_per_batch_size"):
        yield "the draft table does not count under data parallelism: every batch drafts the same number of tokens"
