"""llama.cpp's server: its metrics in our terms, how it is started, and what of that really runs. Recorded from build
11549."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from wastegate.engines.launch import Command, Common, Count, Port, Share, flags
from wastegate.engines.outdated import LLAMACPP
from wastegate.engines.readback import OFF, ON, Effective, Pages, whole, word
from wastegate.engines.signals import Rules, rule

PREFIX = "llamacpp:"
PAGES = ("/props", "/slots")
"""The second unless it was started with --no-slots."""
OUTDATED = LLAMACPP
Method = Literal[
    "off", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
    "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash",
]  # fmt: skip
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


class Config(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start. None leaves a setting to llama.cpp."""

    port: Annotated[Port, Meta(description="port to listen on; its own default is the gateway's")] = 8003
    context: Annotated[Count, Meta(description="tokens of prompt and answer together, of each sequence")] = 4096
    sequences: Annotated[Count, Meta(description="sequences at once (slots)")] = 4
    step_tokens: Annotated[Count, Meta(description="tokens of one step")] | None = None
    gpu_layers: Annotated[int, Meta(ge=0, description="layers on the GPU")] | None = None
    threads: Annotated[Count, Meta(description="CPU threads")] | None = None
    kv_type: Annotated[str, Meta(description="what KV is kept in, such as f16 or q8_0")] | None = None
    prompt_cache_mb: Annotated[int, Meta(ge=0, description="MiB of RAM for prompts that left their slot")] = 1024
    prefix_caching: Annotated[bool, Meta(description="keep the KV of prompts' beginnings")] = True
    speculation: Annotated[Method, Meta(description="who drafts tokens")] = "off"
    draft: Annotated[str, Meta(description="the draft's model file")] = ""
    draft_tokens: Annotated[Count, Meta(description="tokens that are drafted at a time")] | None = None
    draft_confidence: Annotated[Share, Meta(description="least probability of a drafted token")] | None = None
    sleep_seconds: Annotated[Count, Meta(description="unload the model when idle for so long")] | None = None

    def __post_init__(self) -> None:
        if self.speculation.startswith("draft") != bool(self.draft):
            raise ValueError("--draft and one of the draft-… speculations go together")
        if self.draft_tokens is not None and self.speculation.startswith("ngram") and self.speculation != "ngram-mod":
            raise ValueError(f"{self.speculation} has no --draft-tokens: it drafts as far as its pattern goes")


def command(config: Config, more: tuple[str, ...] = ()) -> Command:
    """``llama-server``, with metrics, and a bounded prompt cache: its own default takes 8 GiB of RAM. Raises ValueError
    for flags that end it together."""
    if config.speculation.startswith("ngram") and "--context-shift" in more:
        raise ValueError("--context-shift ends the server when n-grams are drafted: use one of them")
    limit = "--spec-ngram-mod-n-max" if config.speculation == "ngram-mod" else "--spec-draft-n-max"
    quantised = bool(config.kv_type) and str(config.kv_type).startswith(("q", "iq"))
    argv = ("llama-server", *flags(
        ("--model", config.model), ("--host", config.host), ("--port", config.port), ("--alias", config.name),
        # It divides its context among its slots.
        ("--ctx-size", config.context * config.sequences), ("--parallel", config.sequences),
        ("--batch-size", config.step_tokens), ("--n-gpu-layers", config.gpu_layers), ("--threads", config.threads),
        ("--cache-type-k", config.kv_type), ("--cache-type-v", config.kv_type),
        ("--flash-attn", "on" if quantised else None),  # without it quantised values are refused
        ("--cache-ram", config.prompt_cache_mb), ("--no-cache-prompt", not config.prefix_caching),
        ("--spec-type", config.speculation if config.speculation != OFF else None),
        ("--spec-draft-model", config.draft), (limit, config.draft_tokens),
        ("--spec-draft-p-min", config.draft_confidence), ("--sleep-idle-seconds", config.sleep_seconds),
        ("--metrics", True), ("--slots", True),
    ), *more)  # fmt: skip
    return Command(argv)


def asked(config: Config) -> Effective:
    """What read-back should find."""
    return Effective(context=config.context, sequences=config.sequences, speculation=config.speculation)


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
        speculation=None if not slots else (types or ON) if drafting else OFF,
        notes=tuple(_notes(pages)),
    )


def _notes(pages: Pages) -> Iterator[str]:
    if pages.get("/props", "is_sleeping"):
        yield "the model is unloaded while it sleeps: the next call waits for it"
    if pages.get("/props", "endpoint_metrics") is False:
        yield "it was started without --metrics: there are no signals"
