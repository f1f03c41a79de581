from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.local.tiny_gguf import vocabulary, write_tiny_gguf
from wastegate.core.admission import Limits
from wastegate.local.messages import LoopConfig, Sampling
from wastegate.local.pipeline import LoadError, OutOfMemoryError, Pipeline

PROMPT = np.arange(20, 60, dtype=np.int64)


def load(tiny: Path, *, kv_blocks: int = 64, prefix_caching: bool = True) -> Pipeline:
    return Pipeline(LoopConfig(str(tiny), Limits(), 512, kv_blocks, prefix_caching=prefix_caching))


@pytest.fixture(scope="module")
def pipeline(tiny: Path) -> Pipeline:
    return load(tiny)


def run(pipeline: Pipeline, sampling: Sampling, seed: int = 0) -> tuple[list[int], str]:
    handle = pipeline.add(PROMPT, sampling, seed)
    tokens: list[int] = []
    while True:
        pipeline.step()
        some, finish = pipeline.read(handle)
        tokens += some
        if finish:
            return tokens, finish


def test_a_sequence_comes_token_by_token_up_to_its_length(pipeline: Pipeline) -> None:
    handle = pipeline.add(PROMPT, Sampling(3, temperature=0.0, ignore_eos=True))
    came = []
    while pipeline.busy:
        pipeline.step()
        came.append(pipeline.read(handle))
    assert [len(tokens) for tokens, _ in came] == [1, 1, 1]
    assert [finish for _, finish in came] == ["", "", "length"]
    assert pipeline.read(handle) == ([], "")


def test_it_stops_at_the_models_end_token_unless_told_not_to(pipeline: Pipeline) -> None:
    def hot(*, ignore_eos: bool, seed: int) -> tuple[list[int], str]:
        return run(pipeline, Sampling(300, temperature=2.0, ignore_eos=ignore_eos), seed)

    tokens, finish = next(found for seed in range(50) if (found := hot(ignore_eos=False, seed=seed))[1] == "stop")
    assert tokens[-1] == 2
    assert len(tokens) < 300
    assert len(hot(ignore_eos=True, seed=0)[0]) == 300
    assert finish == "stop"


def test_a_seed_decides_what_is_said(pipeline: Pipeline) -> None:
    hot = Sampling(20, temperature=1.5, ignore_eos=True)
    assert run(pipeline, hot, seed=7) == run(pipeline, hot, seed=7)
    assert run(pipeline, hot, seed=7) != run(pipeline, hot, seed=8)


def test_greedy_needs_no_seed(pipeline: Pipeline) -> None:
    cold = Sampling(20, temperature=0.0, ignore_eos=True)
    assert run(pipeline, cold, seed=7) == run(pipeline, cold, seed=8)


@pytest.mark.parametrize("narrow", [
    {"top_k": 1}, {"top_p": 0.0001}, {"top_p": 1e-300}, {"min_p": 0.999}, {"temperature": 1e-40},
], ids=str)  # fmt: skip
def test_what_narrows_the_choice_to_one_token_is_greedy(pipeline: Pipeline, narrow: dict[str, Any]) -> None:
    narrowed = Sampling(**{"max_tokens": 20, "temperature": 1.5, "ignore_eos": True, **narrow})
    assert run(pipeline, narrowed, seed=3) == run(pipeline, Sampling(20, temperature=0.0, ignore_eos=True))


@pytest.mark.parametrize("sampling", [
    Sampling(60, temperature=0.0, ignore_eos=True, presence_penalty=2.0),
    Sampling(60, temperature=0.0, ignore_eos=True, frequency_penalty=2.0),
    Sampling(60, temperature=0.0, ignore_eos=True, repetition_penalty=10.0),
], ids=["presence", "frequency", "repetition"])  # fmt: skip
def test_penalties_make_it_repeat_itself_less(pipeline: Pipeline, sampling: Sampling) -> None:
    plain, _ = run(pipeline, Sampling(60, temperature=0.0, ignore_eos=True))
    assert len(set(run(pipeline, sampling)[0])) > len(set(plain))


def test_the_table_turns_tokens_into_bytes_and_shows_no_control_token(pipeline: Pipeline) -> None:
    words = vocabulary()
    assert pipeline.table[:3] == [b"", b"", b""]
    assert pipeline.table[words.index("a")] == b"a"
    assert pipeline.table[words.index("Ġthe")] == b" the"
    assert sorted(pipeline.table[3 : 3 + 256]) == [bytes([value]) for value in range(256)]


def test_kv_is_counted_while_a_sequence_runs(pipeline: Pipeline) -> None:
    handle = pipeline.add(PROMPT, Sampling(4, ignore_eos=True))
    pipeline.step()
    use, size = pipeline.kv()
    assert use == pytest.approx(2 / 64, abs=1e-3)  # 40 tokens: two blocks
    assert size > 0
    handle.cancel()
    pipeline.step()
    assert not pipeline.busy


def test_a_sequence_that_the_cache_cannot_hold_is_given_up(tiny: Path) -> None:
    pipeline = load(tiny, kv_blocks=2)
    handle = pipeline.add(np.arange(3, 103, dtype=np.int64), Sampling(4, ignore_eos=True))
    while handle.get_status().name == "RUNNING":
        pipeline.step()
    with pytest.raises(OutOfMemoryError):
        pipeline.read(handle)


def test_warming_up_leaves_nothing_behind(tiny: Path) -> None:
    pipeline = load(tiny)
    pipeline.warm_up(5, 256)
    assert not pipeline.busy


def test_a_model_that_the_runtime_does_not_take_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"wide\.gguf: the runtime cannot load it: [^\n]+$"):
        load(write_tiny_gguf(tmp_path / "wide.gguf", wide=True))


def test_what_runs_can_be_read(pipeline: Pipeline) -> None:
    settings = pipeline.settings()
    assert settings["KV_CACHE_PRECISION"] == "u8"
    assert settings["PERFORMANCE_HINT"] == "LATENCY"
    assert settings["cores"].startswith("[")
