"""llama.cpp's server, build 11549, recorded while it served."""

from __future__ import annotations

from tests.engines.pages import json, readings, shown, text
from wastegate.engines import llamacpp
from wastegate.engines.exposition import parse
from wastegate.engines.meter import Meter
from wastegate.engines.readback import OFF, Effective, Pages, compare

PROPS = json("llamacpp-11549-props.json")


def test_a_run_adds_up() -> None:
    readings_ = readings(llamacpp, *(f"llamacpp-11549-{when}.prom" for when in ("fresh", "busy", "after")))
    assert {reading.absent + reading.renamed for reading in readings_} == {()}
    s = readings_[1].signals
    assert (s.running, s.waiting, s.kv_usage, s.queue) == (2.0, 3.0, None, None)
    s = readings_[2].signals
    # Six requests of 140 tokens; what the cache held is counted apart, and added.
    assert (s.prompt_tokens, s.cached_tokens, s.output_tokens) == (840.0, 508.0, 194.0)
    assert s.finished is None


def test_an_older_build_counts_its_prompts_otherwise() -> None:
    meter = Meter(llamacpp.RULES)
    reading = meter.read(parse("llamacpp:prompt_tokens_total 7\n", meter.wanted), 0.0)
    assert reading.signals.prompt_tokens == 0.0
    assert reading.renamed[0].startswith("prompt_tokens comes from llamacpp:prompt_tokens_total: ")


def test_drafts_are_counted_where_speculation_runs() -> None:
    meter = Meter(llamacpp.RULES)
    meter.read(parse("", meter.wanted), 0.0)
    s = meter.read(parse(text("llamacpp-11549-ngram.prom"), meter.wanted), 5.0).signals
    assert (s.drafts, s.draft_tokens, s.accepted_tokens) == (1.0, 18.0, 0.0)


def test_what_it_shows() -> None:
    slots = json("llamacpp-11549-slots.json")
    found = llamacpp.effective(shown(llamacpp, "llamacpp-11549-after.prom", **{"/props": PROPS, "/slots": slots}))
    assert found == Effective(version="b0-unknown", context=2048, sequences=2, weights="Q4_1", speculation=OFF)
    warnings = compare(Effective(context=4096, speculation="ngram-simple"), found).warnings
    assert warnings == (
        "asked for context of 4096 tokens, but it runs with context of 2048 tokens",
        "asked for speculation ngram-simple, but it runs with speculation off",
    )


def test_speculation_is_told_by_the_slots() -> None:
    slots = json("llamacpp-11549-slots-ngram.json")
    assert llamacpp.effective(Pages(parse("", ()), {"/slots": slots})).speculation == "ngram-simple"
    fresh = [{"id": 0, "speculative": True}]
    assert llamacpp.effective(Pages(parse("", ()), {"/slots": fresh})).speculation == "on"
    assert llamacpp.effective(Pages(parse("", ()), {"/slots": {"error": {}}})).speculation is None


def test_notes() -> None:
    notes = llamacpp.effective(Pages(parse("", ()), {"/props": {"is_sleeping": True, "endpoint_metrics": False}})).notes
    assert ["sleeps" in notes[0], "--metrics" in notes[1]] == [True, True]
