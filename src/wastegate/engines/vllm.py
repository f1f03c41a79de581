"""vLLM: its metrics in our terms, how it is started, and what of that really runs. Read in and recorded from 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from wastegate.engines.exposition import Sample
from wastegate.engines.readback import OFF, Effective, Pages, flag, whole, word
from wastegate.engines.signals import Rules, rule

PREFIX = "vllm:"
PAGES = ("/version", "/v1/models", "/server_info?config_format=json")
"""The last only with VLLM_SERVER_DEV_MODE=1."""
LIVE = (
    ("sequences that run at once", "through the plugin of wastegate in the engine"),
    ("drafted tokens by batch width", "through the plugin, where it was started with a draft table"),
    (
        "LoRA adapters",
        "POST /v1/load_lora_adapter, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; a new path for each version",
    ),
    ("anything else", "needs a restart"),
)
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


def effective(pages: Pages) -> Effective:
    """Without the developer's mode the page with the metrics still tells of the KV cache and of speculation."""
    config = partial(pages.get, _INFO, "vllm_config")
    cache = next(iter(pages.metrics.samples.get(_CACHE, ())), Sample(_CACHE, (), 1.0))
    speculation = word(config("speculative_config", "method"))
    if speculation is None:
        speculation = "on" if "vllm:spec_decode_num_drafts_total" in pages.metrics.names else OFF
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
        weights=word(config("model_config", "quantization")) or _plain(word(config("model_config", "dtype"))),
        speculation=speculation,
        draft_tokens=whole(config("speculative_config", "num_speculative_tokens")),
        notes=tuple(_notes(pages)),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


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
