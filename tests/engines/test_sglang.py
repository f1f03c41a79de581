"""SGLang 0.5.23: what its own collectors print, and its documented /server_info."""

from __future__ import annotations

from typing import Any

from tests.engines.pages import readings, shown, text
from wastegate.engines import sglang
from wastegate.engines.exposition import parse
from wastegate.engines.meter import Meter
from wastegate.engines.readback import OFF, Effective, Pages, compare

INFO: dict[str, Any] = {
    "version": "0.5.23",
    "context_length": 32768,
    "max_running_requests": 512,
    "max_queued_requests": None,
    "chunked_prefill_size": 8192,
    "max_total_num_tokens": 98304,
    "kv_cache_dtype": "auto",
    "page_size": 1,
    "disable_radix_cache": False,
    "quantization": None,
    "dtype": "bfloat16",
    "speculative_algorithm": None,
    "enable_metrics": True,
    "tp_size": 1,
    "internal_states": [{"effective_max_running_requests_per_dp": 64}],
}


def test_every_name_is_on_the_page() -> None:
    (reading,) = readings(sglang, "sglang-0.5.23.prom")
    assert (reading.absent, reading.renamed) == ((), ())
    s = reading.signals
    assert (s.running, s.waiting, s.kv_usage, s.kv_capacity, s.acceptance) == (7.0, 3.0, 0.42, 98304.0, 0.47)


def test_counters_of_all_series_add_up() -> None:
    meter = Meter(sglang.RULES)
    meter.read(parse("", meter.wanted), 0.0)
    s = meter.read(parse(text("sglang-0.5.23.prom"), meter.wanted), 5.0).signals
    assert (s.prompt_tokens, s.output_tokens, s.finished, s.aborted, s.preemptions) == (1500.0, 400.0, 5.0, 1.0, 2.0)
    assert s.cached_tokens == 5 * 128.0, "from the device and from the host"
    assert s.queue is not None
    assert s.queue.count == 3


def test_priorities_are_not_counted_beside_their_total() -> None:
    meter = Meter(sglang.RULES)
    page = 'sglang:num_running_reqs{priority=""} 5\nsglang:num_running_reqs{priority="1"} 3\n'
    assert meter.read(parse(page, meter.wanted), 0.0).signals.running == 5.0


def test_a_gauge_of_an_engine_without_speculation_is_no_acceptance() -> None:
    meter = Meter(sglang.RULES)
    assert meter.read(parse("sglang:spec_accept_rate 0.0\n", meter.wanted), 0.0).signals.acceptance is None


def test_what_it_shows() -> None:
    found = sglang.effective(shown(sglang, "sglang-0.5.23.prom", **{"/server_info": INFO}))
    assert found == Effective(
        version="0.5.23", context=32768, sequences=64, step_tokens=8192, kv_tokens=98304, kv_type="auto", block=1,
        prefix_caching=True, weights="bfloat16", speculation=OFF,
    )  # fmt: skip
    (warning,) = compare(Effective(sequences=512), found).warnings
    assert warning == "asked for 512 sequences at once, but it runs with 64 sequences at once"


def test_what_it_does_not_show_is_not_known() -> None:
    assert sglang.effective(Pages(parse("", ()), {})) == Effective()


def test_notes() -> None:
    bad = {**INFO, "enable_metrics_for_all_schedulers": True, "tp_size": 4, "enable_metrics": False}
    notes = sglang.effective(Pages(parse("", ()), {"/server_info": bad})).notes
    assert ["tp_size" in notes[0], "--enable-metrics" in notes[1]] == [True, True]
