"""Finished requests as vLLM's statistics tell of them, and vLLM's statistics as another version may have them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.test_scheduler import module
from wastegate.vllm_plugin import stat_logger
from wastegate.vllm_plugin.stat_logger import Finished, find


def finished(**other: Any) -> Any:
    """vLLM 0.32's FinishedRequestStats."""
    given = {
        "finish_reason": "length",
        "request_id": "chatcmpl-x.1",
        "e2e_latency": 10.0,
        "num_prompt_tokens": 100,
        "num_preemptions": 1,
        "num_generation_tokens": 21,
        "queued_time": 1.0,
        "prefill_time": 2.0,
        "decode_time": 6.0,
        "num_cached_tokens": 32,
        **other,
    }
    return SimpleNamespace(finished_requests=[SimpleNamespace(**given)])


def test_times_and_counts_become_two_runs() -> None:
    taken = Finished(lambda: 50.0)
    taken.take(finished())
    taken.take(None)
    page = taken.ring.page("", 0, 9, 50.0)
    (record,) = page.records
    assert page.measured == record.measured == "times"
    assert (record.arrived, record.ended, record.finish, record.preemptions) == (40.0, 50.0, "length", 1)
    assert (record.prompt, record.cached, record.output) == (100, 32, 21)
    prefill, decode = record.runs
    assert (prefill.start, prefill.end, prefill.prefill, prefill.kv) == (41.0, 43.0, 68, 200.0)
    assert (decode.start, decode.end, decode.steps, decode.decode) == (43.0, 49.0, 20, 20)
    assert decode.kv == pytest.approx(6 * 110.5)


def test_statistics_that_have_changed_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    taken = Finished(lambda: 50.0)
    taken.take(SimpleNamespace(finished_requests=[SimpleNamespace(request_id="x")]))
    taken.take(finished())
    assert "e2e_latency" in taken.lacks
    assert caplog.text.count("records no requests from here on") == 1
    assert not taken.ring.last


def test_the_logger_is_one_of_vllms_own_and_is_found_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class StatLoggerBase:
        pass

    module(monkeypatch, "vllm.v1.metrics.loggers", StatLoggerBase=StatLoggerBase)
    made: Any = stat_logger.StatLogger
    assert issubclass(made, StatLoggerBase)
    logger = made(None, 0)
    logger.log_engine_initialized()
    logger.record(None, finished(), mm_cache_stats=None, engine_idx=0)
    adapter = SimpleNamespace(per_engine_stat_loggers={0: logger})
    client = SimpleNamespace(logger_manager=SimpleNamespace(stat_loggers=[SimpleNamespace(), adapter]))
    found = find(client)
    assert found is not None
    assert found.ring.last == 1
    assert find(SimpleNamespace(logger_manager=None)) is None
    assert find(SimpleNamespace()) is None


def test_without_its_base_class_there_is_no_logger_and_vllm_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "vllm.v1.metrics.loggers")
    monkeypatch.delattr(sys.modules["vllm.v1.metrics.loggers"], "StatLoggerBase", raising=False)
    with pytest.raises(AttributeError, match="no StatLoggerBase"):
        _ = stat_logger.StatLogger
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = stat_logger.Other
