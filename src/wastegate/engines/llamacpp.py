"""llama.cpp's server: its metrics in our terms, how it is started, and what of that really runs. Recorded from build
11549."""

from __future__ import annotations

from collections.abc import Iterator

from wastegate.engines.readback import OFF, Effective, Pages, whole, word
from wastegate.engines.signals import Rules, rule

PREFIX = "llamacpp:"
PAGES = ("/props", "/slots")
"""The second unless it was started with --no-slots."""
LIVE = (("LoRA scales", "POST /lora-adapters"), ("anything else", "needs a restart: slots and drafted tokens among it"))

RULES: Rules = (
    rule("running", "sum", "llamacpp:requests_processing"),
    rule("waiting", "sum", "llamacpp:requests_deferred"),
    # Without the tokens found in the cache; older builds did not count those.
    rule(
        "prompt_tokens", "counter",
        "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total",
    ),
    rule("cached_tokens", "counter", "llamacpp:prompt_tokens_cached_total"),
    rule("output_tokens", "counter", "llamacpp:tokens_predicted_total"),
    rule("drafts", "counter", "llamacpp:spec_decode_num_drafts_total", optional=True),
    rule("draft_tokens", "counter", "llamacpp:spec_decode_num_draft_tokens_total", optional=True),
    rule("accepted_tokens", "counter", "llamacpp:spec_decode_num_accepted_tokens_total", optional=True),
)  # fmt: skip
"""It exports no histogram, no count of requests, and no longer how full its KV cache is."""


def effective(pages: Pages) -> Effective:
    """``/slots`` tells whether speculation runs: with a draft that does not fit the server logs an error and goes on
    without. What ``/props`` says of it are a request's defaults, "none" in any case."""
    shown = pages.json.get("/slots")
    slots = [slot for slot in shown if isinstance(slot, dict)] if isinstance(shown, list) else []
    types = word(pages.get("/slots", 0, "params", "speculative.types"))
    drafting = any(slot.get("speculative") for slot in slots)
    context = whole(pages.get("/props", "default_generation_settings", "n_ctx"))
    return Effective(
        version=word(pages.get("/props", "build_info")),
        context=context,
        sequences=whole(pages.get("/props", "total_slots")),
        weights=word(pages.get("/props", "model_ftype")),
        speculation=None if not slots else (types or "on") if drafting else OFF,
        notes=tuple(_notes(pages)),
    )


def _notes(pages: Pages) -> Iterator[str]:
    if pages.get("/props", "is_sleeping"):
        yield "the model is unloaded while it sleeps: the next call waits for it"
    if pages.get("/props", "endpoint_metrics") is False:
        yield "it was started without --metrics: there are no signals"
