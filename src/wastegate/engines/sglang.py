"""SGLang: its metrics in our terms, how it is started, and what of that really runs. Read in 0.5.23, which
needs a GPU that was not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
