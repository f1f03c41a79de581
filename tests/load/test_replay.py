"""From a file to a report, over real sockets."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from tests.load.conftest import TEMPLATE, ToyServer, ToyTokenizer
from wastegate.load.openloop import Loop
from wastegate.load.prompts import CHAT, PLAIN
from wastegate.load.replay import Config, Replay, Replayed
from wastegate.load.schedule import TOO_LONG, Pace
from wastegate.load.target import TargetError

AROUND = len(TEMPLATE[0]) + len(TEMPLATE[1])


def lines(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return path


def mooncake(folder: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return lines(folder, *(dict(zip(names, row, strict=True)) for row in rows))


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "timestamp": 0, **more}


async def replay(trace: Path, toy: ToyServer, **config: Any) -> Replayed:
    done = await Replay(Config(trace=trace, url=toy.url, **config)).go()
    report = done.report
    assert report.read == report.sent + sum(report.skipped.values()) + report.not_reached == len(done.results)
    assert report.sent == report.ok + sum(report.failed.values()) + report.hung_up
    return done


async def test_prompts_have_the_traces_lengths_and_shares(tmp_path: Path, toy: ToyServer) -> None:
    path = mooncake(tmp_path, (0, 1200, 3, [1, 2, 3]), (0, 1500, 4, [1, 2, 4]), (10, 700, 5, [9, 8]), (20, 3, 2, [7]))
    done = await replay(path, toy)
    report = done.report
    assert (report.ok, report.valid, report.model, report.format) == (4, True, "toy", "mooncake")
    assert report.lengths is not None
    assert (report.lengths.source, report.lengths.within, report.lengths.worst) == ("tokenizer", 4, 0)
    assert (report.lengths.outputs_compared, report.lengths.outputs_short) == (4, 0)
    assert (report.input_tokens, report.output_tokens, report.usage) == (3403, 14, "engine")
    by_length = {len(ids): ids for ids in toy.prompts}
    assert by_length[1200][:1024] == by_length[1500][:1024]
    assert by_length[1200][:1030] != by_length[1500][:1030]
    assert by_length[700][AROUND : AROUND + 4] != by_length[1200][AROUND : AROUND + 4]
    assert {call["max_tokens"]: call.get("ignore_eos") for call in toy.calls} == {3: True, 4: True, 5: True, 2: True}
    assert [result.path for result in done.results] == [CHAT, CHAT, CHAT, PLAIN]
    assert report.notes == ()
    assert 5 < report.calibration_calls < 15


async def test_scaled_rows_share_as_much_as_their_scale(tmp_path: Path, toy: ToyServer) -> None:
    path = mooncake(tmp_path, (0, 1200, 32, [1, 2, 3]), (0, 1500, 64, [1, 2, 4]))
    await replay(path, toy, pace=Pace(token_scale=Fraction(1, 16)))
    one, two = sorted(toy.prompts, key=len)
    assert (len(one), len(two)) == (75, 94)
    assert one[:64] == two[:64]
    assert one[:66] != two[:66]
    assert sorted(call["max_tokens"] for call in toy.calls) == [2, 4]


async def test_rows_bring_their_text_labels_and_parameters(tmp_path: Path, toy: ToyServer) -> None:
    path = lines(
        tmp_path,
        say("one", tenant="shop", route="help", tags={"feature": "faq"}, temperature=0),
        {"prompt": "two", "max_tokens": 2, "timestamp": 0.05, "stream": False, "model": "other"},
    )
    done = await replay(path, toy, headers=(("x-extra", "1"),), tenant="all", api_key="secret", temperature=0.5)
    chat, plain = toy.calls
    assert chat["messages"] == [{"role": "user", "content": "one"}]
    assert (chat["temperature"], chat["stream"], chat["model"]) == (0.5, True, "toy")
    assert "ignore_eos" not in chat
    assert (plain["prompt"], plain["model"], plain.get("stream")) == ("two", "other", None)
    first, second = toy.headers
    assert (first["x-wastegate-tenant"], second["x-wastegate-tenant"]) == ("shop", "all")
    assert (first["x-wastegate-tag-route"], first["x-wastegate-tag-feature"]) == ("help", "faq")
    assert (first["authorization"], first["x-extra"]) == ("Bearer secret", "1")
    assert first["x-request-id"] != second["x-request-id"]
    assert done.report.lengths is None
    assert done.results[1].answer.first is None
    assert done.report.ok == 2


async def test_whole_answers_and_no_labels_where_that_is_asked(tmp_path: Path, toy: ToyServer) -> None:
    path = lines(tmp_path, say("one", tenant="shop"))
    await replay(path, toy, stream=False, tenant_header="", ignore_eos="always")
    assert "stream" not in toy.calls[0]
    assert toy.calls[0]["ignore_eos"] is True
    assert "x-wastegate-tenant" not in toy.headers[0]


async def test_ignore_eos_may_be_left_out(tmp_path: Path, toy: ToyServer) -> None:
    await replay(lines(tmp_path, say("one", ignore_eos=True)), toy)
    await replay(lines(tmp_path, say("one", ignore_eos=True)), toy, ignore_eos="never")
    assert [call.get("ignore_eos") for call in toy.calls] == [True, None]


async def test_a_server_that_refuses_ignore_eos_gets_each_row_without(tmp_path: Path, toy: ToyServer) -> None:
    toy.refuses_eos = True
    done = await replay(mooncake(tmp_path, *((number * 50, 60, 3, [number]) for number in range(6))), toy)
    assert done.report.ok == 6
    assert len(toy.calls) == 6
    assert [note for note in done.report.notes if "refused ignore_eos" in note] == [
        "the server refused ignore_eos: sent without, so answers may end before their length"
    ]


async def test_hung_up_rows_are_counted_apart(tmp_path: Path, toy: ToyServer) -> None:
    toy.gap = 0.02
    path = lines(
        tmp_path,
        say("a", max_tokens=200, hang_up_after={"tokens": 3}),
        say("b", max_tokens=200, hang_up_after=0.1),
        say("c", max_tokens=2, hang_up_after=30),
    )
    report = (await replay(path, toy)).report
    assert (report.hung_up, report.ok, report.failed, report.usage) == (2, 1, {}, "mixed")
    assert report.output_tokens < 20


async def test_rows_beyond_the_context_are_clipped_or_skipped(tmp_path: Path, toy: ToyServer) -> None:
    toy.context = 100
    path = mooncake(tmp_path, (0, 300, 10, [1]), (0, 20, 300, [2]), (0, 30, 10, [3]))
    clipped = (await replay(path, toy)).report
    assert (clipped.ok, clipped.clipped, clipped.skipped) == (3, 2, {})
    assert sorted(map(len, toy.prompts)) == [20, 30, 90]
    skipped = (await replay(path, toy, on_misfit="skip")).report
    assert (skipped.ok, skipped.clipped, skipped.skipped) == (1, 0, {TOO_LONG: 2})


async def test_a_rows_own_text_is_never_cut(tmp_path: Path, toy: ToyServer) -> None:
    toy.context = 40
    path = lines(
        tmp_path,
        say("short"),
        say("word " * 20, max_tokens=30),
        say("word " * 50),
        {"prompt": "word " * 20, "timestamp": 0},
    )
    report = (await replay(path, toy)).report
    assert (report.ok, report.clipped, report.skipped) == (3, 1, {TOO_LONG: 1})
    assert {call["max_tokens"] for call in toy.calls if "messages" in call} == {3, 40 - len(toy.ids(say("word " * 20)))}
    skipped = (await replay(path, toy, on_misfit="skip")).report
    assert skipped.skipped == {TOO_LONG: 2}


async def test_a_context_that_nobody_tells_is_said(tmp_path: Path, toy: ToyServer) -> None:
    toy.context = None
    done = await replay(mooncake(tmp_path, (0, 50, 3, [1])), toy)
    assert any("does not say how long its context is" in note for note in done.report.notes)


async def test_without_a_tokenizer_lengths_are_estimates_by_usage(tmp_path: Path, toy: ToyServer) -> None:
    toy.tokenizes = False
    path = mooncake(tmp_path, *((0, length, 2, [length]) for length in (40, 300, 500)))
    done = await replay(path, toy)
    assert done.report.lengths is not None
    assert done.report.lengths.source == "usage"
    assert abs(done.report.lengths.mean_off) < 0.15
    assert any("has no /tokenize: prompt lengths are estimates from the usage" in note for note in done.report.notes)
    assert done.report.sent == 3


async def test_without_usage_either_bytes_are_the_guess(tmp_path: Path, toy: ToyServer) -> None:
    toy.tokenizes = toy.says_usage = False
    done = await replay(mooncake(tmp_path, (0, 100, 2, [1])), toy, endpoint="chat")
    assert any("bytes per token" in note for note in done.report.notes)
    assert (done.report.usage, done.report.output_tokens) == ("counted", 2)


async def test_words_that_do_not_add_up_are_said_to_be_estimates(tmp_path: Path, toy: ToyServer) -> None:
    class Merging(ToyTokenizer):
        """Every ninth word sticks to the one before it."""

        def chat(self, messages: list[dict[str, Any]]) -> list[int]:
            return [id for at, id in enumerate(super().chat(messages)) if at < 20 or at % 9]

    toy.tokenizer = Merging()
    done = await replay(mooncake(tmp_path, (0, 400, 2, [1])), toy)
    assert any("do not add up exactly" in note for note in done.report.notes)
    assert done.report.lengths is not None
    assert abs(done.report.lengths.worst) <= 20


async def test_a_stalled_server_shows_in_latency_and_not_in_fewer_calls(tmp_path: Path, toy: ToyServer) -> None:
    """From the tenth call on, the server is silent for what is left of 0.6 s: nine calls come meanwhile."""
    path = lines(tmp_path, *(say("x", timestamp=number / 15) for number in range(30)))
    stalled: list[float] = []

    def delay() -> float:
        if len(toy.calls) == 10:
            stalled.append(monotonic() + 0.6)
        return max(0.0, stalled[0] - monotonic()) if stalled else 0.0

    toy.delay = delay
    done = await replay(path, toy)
    waits = [result.ttft or 0.0 for result in done.results]
    assert done.report.ok == 30
    assert waits[9] >= 0.55
    assert all(waits[9 + later] == pytest.approx(0.6 - later / 15, abs=0.2) for later in range(1, 6))
    assert done.report.ttft is not None
    assert done.report.ttft.p95 > 0.3
    assert done.report.rates.share > 0.95


async def test_a_bound_that_holds_rows_back_makes_the_run_invalid(tmp_path: Path, toy: ToyServer) -> None:
    toy.delay = lambda: 0.1
    path = lines(tmp_path, *(say("x", timestamp=number / 50) for number in range(20)))
    report = (await replay(path, toy, loop=Loop(max_inflight=1))).report
    assert not report.valid
    assert "the bound of 1 in flight held rows back" in report.invalid[0]
    assert report.e2e is not None
    assert report.e2e.max > 1.0


async def test_failures_are_counted_and_none_is_sent_again(tmp_path: Path, toy: ToyServer) -> None:
    toy.context = None
    path = mooncake(tmp_path, (0, 50, 3, [1]), (0, 60, 3, [2]))
    run = Replay(Config(trace=path, url=toy.url, timeout=0.2))
    toy.delay = lambda: 5.0
    done = await run.go()
    assert done.report.failed == {"timeout: first byte": 2}
    assert not done.report.valid
    assert len(toy.calls) == 2


async def test_a_server_that_is_not_there_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (0, 50, 3, [1]))
    with pytest.raises(TargetError, match="cannot be reached"):
        await Replay(Config(trace=path, url="http://127.0.0.1:9")).go()


def test_a_timeout_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--timeout is 0"):
        Config(trace=tmp_path, url="", timeout=0)


async def test_connections_may_be_fresh(tmp_path: Path, toy: ToyServer) -> None:
    path = lines(tmp_path, say("a"), say("b", timestamp=0.1))
    done = await replay(path, toy, fresh_connections=True)
    assert done.report.ok == 2
    assert [headers.get("connection") for headers in toy.headers] == ["close", "close"]
