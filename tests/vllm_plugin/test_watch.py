"""A scheduler watched from within: its requests become records, settings reach it, and nothing of ours breaks it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.vllm_like import FakeScheduler, Reason, Request
from wastegate.core.admission import CapConfig
from wastegate.core.ledger import EngineRecord
from wastegate.core.records import Settings
from wastegate.core.stepcost import StepTimes
from wastegate.vllm_plugin.watch import Clock, Watch


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A scheduler, its watch, and what they did."""

    def __init__(self, **given: Any) -> None:
        self.scheduler = FakeScheduler(**given)
        self.time = Time()
        self.watch = Watch(self.scheduler, self.time)

    def step(self, seconds: float = 1.0) -> None:
        self.watch.scheduled(self.scheduler.schedule())
        self.time.now += seconds

    def end(self, request: Request, reason: Reason = Reason.LENGTH) -> EngineRecord:
        request.reason = reason
        self.watch.freed(request)
        self.scheduler.finish(request, reason)
        return self.watch.ring.page("", 0, 1000, 0.0).records[-1]


def test_a_request_is_told_from_its_prompt_to_its_last_token() -> None:
    rig = Rig()
    one = rig.scheduler.add(Request("chatcmpl-x.1-0a1b2c3d", 20, 4, arrival_time=99.0))
    for _ in range(5):
        rig.step()
    one.num_output_tokens = 3
    record = rig.end(one)
    assert (record.sequence, record.id, record.arrived, record.ended) == (1, "chatcmpl-x.1-0a1b2c3d", 99.0, 105.0)
    assert (record.finish, record.prompt, record.cached, record.output) == ("length", 20, 0, 3)
    assert [(run.start, run.end, run.steps, run.prefill, run.decode) for run in record.runs] == [
        (100.0, 102.0, 2, 16, 0), (102.0, 103.0, 1, 4, 0), (103.0, 105.0, 2, 0, 2),
    ]  # fmt: skip
    assert record.runs[0].kv == 8 + 16
    assert record.measured == "steps"


def test_cached_tokens_are_not_computed_and_their_blocks_are_paid_together() -> None:
    rig = Rig(chunk=100)
    first = rig.scheduler.add(Request("a.1", 8, 9))
    rig.step()
    second = rig.scheduler.add(Request("b.1", 8, 9), cached=4, shared_with=first)
    rig.step()
    rig.step()
    record = rig.end(second)
    assert (record.cached, sum(run.prefill for run in record.runs)) == (4, 4)
    assert record.runs[0].kv == 2 + 4, "half of the shared block, and its own"
    assert sum(run.prefill for run in rig.end(first).runs) == 8


def test_drafts_are_told_apart_from_what_they_come_with() -> None:
    rig = Rig(drafts=3)
    one = rig.scheduler.add(Request("a.1", 4, 9))
    for _ in range(3):
        rig.step()
    decoding = rig.end(one).runs[-1]
    assert (decoding.decode, decoding.draft, decoding.steps) == (2, 6, 2)


def test_who_is_aborted_in_line_has_a_record_too() -> None:
    rig = Rig()
    rig.scheduler.max_num_active_reqs = 0
    one = rig.scheduler.add(Request("a.1", 4, 9))
    rig.step()
    record = rig.end(one, Reason.ABORT)
    assert (record.finish, record.runs, record.output) == ("abort", (), 0)


def test_one_that_is_left_out_of_a_step_still_holds() -> None:
    rig = Rig()
    one = rig.scheduler.add(Request("a.1", 4, 9))
    rig.step()
    output = rig.scheduler.schedule()
    output.num_scheduled_tokens = {"b.1": 1}
    rig.watch.scheduled(output)
    rig.time.now += 2.0
    output.num_scheduled_tokens = {}
    rig.watch.scheduled(output)
    rig.time.now += 10.0
    first, second = rig.end(one).runs
    assert (second.prefill, second.decode, second.steps, second.end - second.start) == (0, 0, 1, 2.0)
    assert second.kv > first.kv


# ---- another vLLM


@pytest.mark.parametrize("name", ["running", "waiting", "requests", "kv_cache_manager", "block_size"])
def test_a_scheduler_that_lacks_a_name_is_left_alone_after_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = FakeScheduler()
    delattr(scheduler, name)
    watch = Watch(scheduler, Time())
    watch.scheduled(SimpleNamespace())
    watch.freed(SimpleNamespace())
    assert name in watch.lacks
    assert caplog.text.count("records nothing step by step") == 1
    assert not watch.ring.last


def test_a_manager_that_cannot_tell_of_blocks(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = FakeScheduler()
    scheduler.kv_cache_manager = SimpleNamespace()  # type: ignore[assignment]
    scheduler.cache_config = SimpleNamespace()
    assert "get_blocks" in Watch(scheduler, Time()).lacks


@pytest.mark.parametrize("broken", ["num_scheduled_tokens", "scheduled_spec_decode_tokens"])
def test_an_output_that_has_changed_ends_the_records_not_the_engine(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    one = rig.scheduler.add(Request("a.1", 4, 9))
    output = rig.scheduler.schedule()
    delattr(output, broken)
    rig.watch.scheduled(output)
    rig.watch.scheduled(output)
    rig.watch.freed(one)
    assert broken in rig.watch.lacks
    assert caplog.text.count("records nothing step by step") == 1


def test_a_cap_that_follows_nothing_any_more_is_lifted() -> None:
    rig = Rig()
    rig.watch.set(Settings(cap=2, policy=CapConfig()))
    rig.watch.freed(SimpleNamespace(request_id="x"))
    assert rig.watch.lacks
    assert rig.scheduler.max_num_active_reqs == rig.scheduler.max_num_running_reqs
    assert rig.watch.status()["policy"]["policy"] == "fixed"
    fixed = Rig()
    fixed.watch.set(Settings(cap=2))
    fixed.watch.freed(SimpleNamespace(request_id="x"))
    assert fixed.scheduler.max_num_active_reqs == 2, "set by hand"


def test_a_request_that_has_changed_ends_the_records_not_the_engine() -> None:
    rig = Rig()
    rig.watch.freed(SimpleNamespace(request_id="x"))
    assert "arrival_time" in rig.watch.lacks


# ---- settings


def test_the_cap_changes_while_it_runs_and_never_beyond_the_engines_own() -> None:
    rig = Rig()
    for number in range(6):
        rig.scheduler.add(Request(f"{number}.1", 4, 9))
    assert rig.watch.set(Settings(cap=2))["cap"] == 2
    rig.step()
    assert len(rig.scheduler.running) == 2
    assert rig.watch.set(Settings(cap=100))["cap"] == rig.scheduler.max_num_running_reqs
    rig.step()
    status = rig.watch.status()
    assert (status["running"], status["waiting"], status["steps"], status["kv_use"]) == (6, 0, 2, 0.25)


def test_tokens_and_drafts_change_within_what_it_was_started_with() -> None:
    rig = Rig()
    assert rig.watch.set(Settings(batched_tokens=16))["batched_tokens"] == 16
    with pytest.raises(ValueError, match="at most 64"):
        rig.watch.set(Settings(batched_tokens=65))
    with pytest.raises(ValueError, match="num_speculative_tokens_per_batch_size"):
        rig.watch.set(Settings(drafts=(1,)))
    rig.scheduler.dynamic_sd_lookup = [4] * 9
    assert rig.watch.set(Settings(drafts=(9, 2, 0)))["drafts"] == [4, 2, 0, 0, 0, 0, 0, 0]
    assert len(rig.scheduler.dynamic_sd_lookup) == 9


def test_a_vllm_without_a_cap_says_so() -> None:
    rig = Rig()
    del rig.scheduler.max_num_active_reqs
    for settings in (Settings(cap=3), Settings(policy=CapConfig())):
        with pytest.raises(ValueError, match="no max_num_active_reqs"):
            rig.watch.set(settings)
    assert rig.watch.status()["cap"] is None


def test_the_cap_follows_the_load_by_the_policy_of_the_gateway() -> None:
    rig = Rig()
    for number in range(8):
        rig.scheduler.add(Request(f"{number}.1", 4, 9))
    rig.watch.set(Settings(cap=2, policy=CapConfig(min=1, max=50, dwell=0.5)))
    assert rig.watch.status()["policy"]["max"] == 8, "no more than the engine can"
    caps = []
    for _ in range(8):
        rig.step(0.6)
        caps.append(rig.scheduler.max_num_active_reqs)
    assert caps == sorted(caps)
    assert caps[-1] > 2, "six waited, and nobody was hurt"
    assert "wait" in rig.watch.status()["why"]
    rig.watch.set(Settings(cap=3))
    assert rig.scheduler.max_num_active_reqs == 3
    rig.watch.set(Settings(policy=CapConfig(policy="fixed")))
    rig.step(0.6)
    assert rig.scheduler.max_num_active_reqs == 3


def test_steps_with_prompts_and_gaps_say_nothing_of_what_a_token_takes() -> None:
    rig = Rig(chunk=4)
    rig.watch.set(Settings(policy=CapConfig(dwell=1e6)))
    one = rig.scheduler.add(Request("a.1", 8, 9))
    rig.step(5.0)
    rig.step(5.0)
    rig.step(0.1)
    rig.step(0.2)
    idle = SimpleNamespace(num_scheduled_tokens={}, scheduled_spec_decode_tokens={})
    rig.watch.scheduled(idle)
    rig.time.now += 50.0
    rig.step(0.3)
    rig.end(one)
    assert rig.watch._state is not None
    seen = [*rig.watch._state.recent, *rig.watch._samples]
    assert [batch for batch, _ in seen] == [1]
    assert seen[0][1] == pytest.approx(0.1)


def test_what_steps_cost_is_fitted_to_them_and_not_to_the_time_between() -> None:
    rig = Rig(chunk=16)
    assert rig.watch.work() is None
    for number in range(60):
        some = [
            rig.scheduler.add(Request(f"{number}-{n}.1", 8 + 5 * (number % 7) + n, 9)) for n in range(number % 4 + 1)
        ]
        for _ in range(6):
            parts = [min(one.num_prompt_tokens - one.num_computed_tokens, 16) for one in some]
            prompts, decoding = sum(part for part in parts if part > 0), sum(part <= 0 for part in parts)
            rig.step(0.010 + 0.001 * prompts + 0.002 * decoding)
        for one in some:
            rig.end(one)
        rig.time.now += 50.0
    work = rig.watch.work()
    assert work is not None
    assert (work.prefill, work.decode) == pytest.approx((0.001, 0.002), rel=0.05)
    assert work.fixed == pytest.approx(0.010, rel=0.1)
    rig.watch._times = StepTimes()
    assert rig.watch.work() is work, "fitted anew only now and then"


def test_the_clock_is_the_epochs_and_moves_on() -> None:
    clock = Clock()
    assert 1.7e9 < clock.now() <= clock.now()


def test_warnings_come_out_where_vllms_do() -> None:
    assert logging.getLogger("vllm.wastegate").parent is not None
