"""The engine that comes with wastegate: its metrics in our terms, how it is started, and what of that really runs."""

from __future__ import annotations

from wastegate.engines.readback import OFF, Effective, Pages, whole
from wastegate.engines.signals import Rules, rule

PREFIX = "wastegate_engine_"
PAGES = ("/v1/models", "/admin/limits")
LIVE = (("sequences that run at once, and that may wait", "PUT /admin/limits"), ("anything else", "needs a restart"))

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


def effective(pages: Pages) -> Effective:
    capacity = pages.metrics.samples.get(f"{_E}kv_cache_capacity_tokens", ())
    return Effective(
        context=whole(pages.get("/v1/models", "data", 0, "max_model_len")),
        sequences=whole(pages.get("/admin/limits", "cap")),
        queued=whole(pages.get("/admin/limits", "queue")),
        kv_tokens=whole(capacity[0].value) if capacity else None,
        speculation=OFF,
    )
