"""SGLang: its metrics in our terms, how it is started, and what of that really runs. Read in 0.5.23, which
needs a GPU that was not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from wastegate.engines.launch import Command, Common, Count, Port, Share, flags
from wastegate.engines.outdated import SGLANG
from wastegate.engines.readback import OFF, Effective, Pages, flag, whole, word
from wastegate.engines.signals import Rules, rule

PREFIX = "sglang:"
PAGES = ("/server_info", "/v1/models")
LIVE = (
    ("acceptance thresholds of speculation", "POST /set_internal_state (below 1 they cost quality)"),
    ("micro-batch size of pipeline stages", "POST /set_internal_state"),
    ("n-gram corpora", "POST /add_external_corpus"),
    ("anything else", "needs a restart: sequences at once among it"),
)
OUTDATED = SGLANG
Method = Literal["off", "ngram", "standalone", "eagle", "eagle3", "nextn"]
_WITH_DRAFT = ("standalone", "eagle", "eagle3")
_INFO = "/server_info"

RULES: Rules = (
    # With priority scheduling the total stands under an empty priority, beside a series for each.
    rule("running", "sum", "sglang:num_running_reqs{priority=}"),
    rule("waiting", "sum", "sglang:num_queue_reqs{priority=}"),
    rule("kv_usage", "share", "sglang:token_usage"),
    rule("kv_capacity", "sum", "sglang:max_total_num_tokens"),
    rule("prompt_tokens", "counter", "sglang:prompt_tokens_total"),
    rule("cached_tokens", "counter", "sglang:cached_tokens_total"),
    rule("output_tokens", "counter", "sglang:generation_tokens_total"),
    rule("finished", "counter", "sglang:num_requests_total"),
    rule("aborted", "counter", "sglang:num_aborted_requests_total"),
    rule("preemptions", "counter", "sglang:num_retracted_requests_total"),
    rule("queue", "histogram", "sglang:queue_time_seconds"),
    rule("first_token", "histogram", "sglang:time_to_first_token_seconds"),
    rule("inter_token", "histogram", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    rule("whole", "histogram", "sglang:e2e_request_latency_seconds"),
    # The gauge is there without speculation too, at 0; the counter only once a draft was verified.
    rule("drafts", "counter", "sglang:spec_verify_calls_total", optional=True),
    rule("acceptance", "share", "sglang:spec_accept_rate", optional=True, beside="sglang:spec_verify_calls_total"),
)


class Config(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start. None leaves a setting to SGLang."""

    port: Annotated[Port, Meta(description="port to listen on")] = 30000
    context: Annotated[Count, Meta(description="tokens of prompt and answer together")] | None = None
    sequences: Annotated[Count, Meta(description="sequences at once; it may grant fewer")] | None = None
    queued: Annotated[Count, Meta(description="requests that may wait")] | None = None
    step_tokens: Annotated[int, Meta(ge=-1, description="prompt tokens of one step; -1: whole prompts")] | None = None
    memory: Annotated[Share, Meta(description="share of the GPU's memory for weights and KV cache")] | None = None
    kv_tokens: Annotated[Count, Meta(description="tokens of KV cache")] | None = None
    kv_type: Annotated[str, Meta(description="what KV is kept in, such as fp8_e5m2")] | None = None
    host_cache_gb: Annotated[Count, Meta(description="GB of host memory behind the KV cache")] | None = None
    block: Annotated[Count, Meta(description="tokens of a page of KV cache")] | None = None
    prefix_caching: Annotated[bool, Meta(description="keep the KV of prompts' beginnings")] = True
    dtype: Annotated[str, Meta(description="number format of the weights")] | None = None
    quantization: Annotated[str, Meta(description="such as fp8, awq, gptq, w8a8_int8")] | None = None
    tensor_parallel: Annotated[Count, Meta(description="GPUs that share each layer")] | None = None
    speculation: Annotated[Method, Meta(description="who drafts tokens")] = "off"
    draft: Annotated[str, Meta(description="the draft's model, or head")] = ""
    draft_tokens: Annotated[Count, Meta(description="tokens that are drafted at a time")] = 3
    priority: Annotated[bool, Meta(description="serve by the requests' priority, lower first")] = False

    def __post_init__(self) -> None:
        if self.speculation in _WITH_DRAFT and not self.draft:
            raise ValueError(f"speculation {self.speculation} needs --draft")
        if self.draft and self.speculation not in _WITH_DRAFT:
            raise ValueError(f"a draft does nothing with speculation {self.speculation}")


def command(config: Config, more: tuple[str, ...] = ()) -> Command:
    """``sglang.launch_server``, with metrics and cached tokens, which it does not show by itself."""
    speculates = config.speculation != OFF
    chain = speculates and config.speculation != "ngram"
    argv = ("python3", "-m", "sglang.launch_server", *flags(
        ("--model-path", config.model), ("--host", config.host), ("--port", config.port),
        ("--served-model-name", config.name), ("--context-length", config.context),
        ("--max-running-requests", config.sequences), ("--max-queued-requests", config.queued),
        ("--chunked-prefill-size", config.step_tokens), ("--mem-fraction-static", config.memory),
        ("--max-total-tokens", config.kv_tokens), ("--kv-cache-dtype", config.kv_type),
        ("--enable-hierarchical-cache", config.host_cache_gb is not None), ("--hicache-size", config.host_cache_gb),
        ("--page-size", config.block), ("--disable-radix-cache", not config.prefix_caching),
        ("--dtype", config.dtype), ("--quantization", config.quantization), ("--tp-size", config.tensor_parallel),
        ("--speculative-algorithm", config.speculation.upper() if speculates else None),
        ("--speculative-draft-model-path", config.draft),
        ("--speculative-num-steps", config.draft_tokens if chain else None),
        ("--speculative-eagle-topk", 1 if chain else None),
        ("--speculative-num-draft-tokens", _verified(config)),
        # Its own order is the other way round: higher first.
        ("--enable-priority-scheduling", config.priority), ("--schedule-low-priority-values-first", config.priority),
        ("--enable-metrics", True), ("--enable-cache-report", True),
    ), *more)  # fmt: skip
    return Command(argv)


def _verified(config: Config) -> int | None:
    """SGLang counts what a step verifies: with one chain of drafted tokens, those and the one that is certain."""
    if config.speculation == OFF:
        return None
    return config.draft_tokens if config.speculation == "ngram" else config.draft_tokens + 1


def asked(config: Config) -> Effective:
    """What read-back should find."""
    return Effective(
        context=config.context,
        sequences=config.sequences,
        queued=config.queued,
        step_tokens=config.step_tokens,
        kv_tokens=config.kv_tokens,
        kv_type=config.kv_type,
        block=config.block,
        prefix_caching=config.prefix_caching,
        weights=config.quantization or config.dtype,
        speculation=config.speculation,
        draft_tokens=_verified(config),
    )


def effective(pages: Pages) -> Effective:
    """``/server_info`` has the configuration as it was resolved, and how many sequences were really granted."""
    info = partial(pages.get, _INFO)
    disabled = flag(info("disable_radix_cache"))
    known = _INFO in pages.json
    return Effective(
        version=word(info("version")),
        context=whole(info("context_length")) or whole(pages.get("/v1/models", "data", 0, "max_model_len")),
        sequences=whole(info("internal_states", 0, "effective_max_running_requests_per_dp")),
        queued=whole(info("max_queued_requests")),
        step_tokens=whole(info("chunked_prefill_size")),
        kv_tokens=whole(info("max_total_num_tokens")),
        kv_type=word(info("kv_cache_dtype")),
        block=whole(info("page_size")),
        prefix_caching=None if disabled is None else not disabled,
        weights=word(info("quantization")) or word(info("dtype")),
        speculation=(word(info("speculative_algorithm")) or OFF).lower() if known else None,
        draft_tokens=whole(info("speculative_num_draft_tokens")),
        notes=tuple(_notes(pages)),
    )


def _notes(pages: Pages) -> Iterator[str]:
    if pages.get(_INFO, "enable_metrics_for_all_schedulers") and (whole(pages.get(_INFO, "tp_size")) or 1) > 1:
        yield "each tensor-parallel rank counts every call: its figures are too high by tp_size"
    if _INFO in pages.json and not pages.get(_INFO, "enable_metrics"):
        yield "it was started without --enable-metrics: there are no signals"
