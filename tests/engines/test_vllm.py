"""vLLM 0.32.0, recorded while it served."""

from __future__ import annotations

from tests.engines.pages import json, readings, shown
from wastegate.engines import vllm
from wastegate.engines.exposition import parse
from wastegate.engines.meter import Meter
from wastegate.engines.readback import OFF, Effective, Pages, compare

SERVER_INFO = json("vllm-0.32.0-server_info.json")
MODELS = {"object": "list", "data": [{"id": "smollm2", "owned_by": "vllm", "max_model_len": 2048}]}


def test_every_name_is_on_the_page_before_the_first_request() -> None:
    (fresh,) = readings(vllm, "vllm-0.32.0-fresh.prom")
    assert (fresh.absent, fresh.renamed) == ((), ())


def test_a_run_adds_up() -> None:
    _, busy, after = readings(vllm, *(f"vllm-0.32.0-{when}.prom" for when in ("fresh", "busy", "after")))
    s = busy.signals
    assert (s.running, s.waiting, s.kv_capacity) == (4.0, 0.0, 11648.0)
    assert s.kv_usage is not None
    assert 0.05 < s.kv_usage < 0.06
    s = after.signals
    # Thirteen requests of 254 or 255 tokens; a whole block of 128 was found again for all but the first.
    assert (s.prompt_tokens, s.cached_tokens, s.output_tokens) == (3304.0, 1536.0, 510.0)
    assert (s.finished, s.aborted, s.preemptions, s.rejected) == (13.0, None, 0.0, 0.0)
    assert (s.drafts, s.draft_tokens, s.accepted_tokens) == (2.0, 6.0, 0.0)
    for spread, count in ((s.queue, 13), (s.first_token, 13), (s.inter_token, 497), (s.whole, 13)):
        assert spread is not None
        assert spread.count == count
        assert spread.mean is not None


def test_an_older_version_is_read_by_its_names() -> None:
    meter = Meter(vllm.RULES)
    reading = meter.read(
        parse('vllm:gpu_cache_usage_perc{m="a"} 0.5\nvllm:time_per_output_token_seconds_count 0\n', meter.wanted), 0.0
    )
    assert reading.signals.kv_usage == 0.5
    assert {sentence.split()[0] for sentence in reading.renamed} == {"kv_usage", "inter_token"}


def test_what_it_shows_in_developers_mode() -> None:
    pages = {"/version": {"version": "0.32.0"}, "/v1/models": MODELS, vllm.PAGES[2]: SERVER_INFO}
    found = vllm.effective(shown(vllm, "vllm-0.32.0-after.prom", **pages))
    assert found == Effective(
        version="0.32.0", context=2048, sequences=8, step_tokens=2048, kv_tokens=11648, kv_bytes=268435456,
        kv_type="auto", block=128, prefix_caching=True, weights="bfloat16", speculation="ngram", draft_tokens=3,
    )  # fmt: skip


def test_what_it_shows_without() -> None:
    found = vllm.effective(shown(vllm, "vllm-0.32.0-after.prom", **{"/version": {"version": "0.32.0"}}))
    assert (found.sequences, found.speculation, found.block) == (None, "on", 128)
    assert "VLLM_SERVER_DEV_MODE=1" in found.notes[0]


def test_a_page_without_drafts_is_an_engine_without_speculation() -> None:
    found = vllm.effective(Pages(parse('vllm:cache_config_info{block_size="16"} 1', {"vllm:cache_config_info"}), {}))
    assert (found.speculation, found.block, found.prefix_caching) == (OFF, 16, None)
    (warning,) = compare(Effective(speculation="ngram"), found).warnings
    assert warning == "asked for speculation ngram, but it runs with speculation off"


def test_without_metrics_nothing_is_known_of_drafts() -> None:
    assert vllm.effective(Pages(parse("", ()), {"/version": {"version": "0.32.0"}})) == Effective(version="0.32.0")


def test_known_silent_fallbacks_are_told() -> None:
    info = {
        "vllm_config": {
            "scheduler_config": {"async_scheduling": False},
            "device_config": {"device": "cuda"},
            "parallel_config": {"data_parallel_size": 2},
            "speculative_config": {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 5]]},
        }
    }
    notes = vllm.effective(Pages(parse("", ()), {vllm.PAGES[2]: info})).notes
    assert ["asynchronous scheduling" in notes[0], "draft table" in notes[1]] == [True, True]
    assert vllm.effective(Pages(parse("", ()), {vllm.PAGES[2]: SERVER_INFO})).notes == (), "a CPU never schedules so"
