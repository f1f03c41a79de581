from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from wastegate.core.admission import Limits
from wastegate.local.batch import Batch, Outcome
from wastegate.local.messages import BLOCK, LoopConfig, Sampling
from wastegate.local.pipeline import Pipeline

GREEDY = Sampling(8, temperature=0.0, ignore_eos=True)
RANDOM = np.random.default_rng(3)


def prompt(length: int) -> NDArray[np.int64]:
    return RANDOM.integers(3, 259, length)


Make = Callable[..., Batch]


@pytest.fixture
def make(tiny: Path) -> Make:
    """A batch on a pipeline of its own, with 32-bit numbers: what it says does not hang on rounding."""

    def made(*, batched_tokens: int = 64, kv_blocks: int = 64, prefix_caching: bool = True) -> Batch:
        config = LoopConfig(
            str(tiny), Limits(), 512, kv_blocks, kv_precision="f32", inference_precision="f32",
            batched_tokens=batched_tokens, prefix_caching=prefix_caching,
        )  # fmt: skip
        return Batch(
            Pipeline(config), batched_tokens=batched_tokens, kv_blocks=kv_blocks, prefix_caching=prefix_caching
        )

    return made


class Said:
    """What a batch said, as it is driven."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.texts: dict[tuple[int, int], str] = {}
        self.finishes: dict[tuple[int, int], str] = {}
        self.tokens: dict[tuple[int, int], int] = {}
        self.cached: dict[tuple[int, int], int] = {}
        self.ended: list[tuple[int, int]] = []
        self.outcomes: list[Outcome] = []

    def step(self) -> Outcome:
        outcome = self.batch.step()
        self.outcomes.append(outcome)
        for piece in outcome.pieces:
            ticket = (piece.call, piece.index)
            self.texts[ticket] = self.texts.get(ticket, "") + piece.text
            self.tokens[ticket] = piece.tokens
            self.cached[ticket] = piece.cached
            if piece.finish:
                self.finishes[ticket] = piece.finish
        self.ended += outcome.ended
        return outcome

    def all(self) -> Said:
        while len(self.batch):
            self.step()
            assert len(self.outcomes) < 3000
        return self


def say(batch: Batch, tokens: NDArray[np.int64], sampling: Sampling = GREEDY) -> Said:
    """Run one sequence to its end."""
    batch.add((1, 0), tokens, sampling, 0)
    return Said(batch).all()


def test_a_sequence_runs_to_its_length_and_frees_its_place(make: Make) -> None:
    said = say(make(), prompt(20))
    assert said.finishes == {(1, 0): "length"}
    assert said.tokens == {(1, 0): 8}
    assert said.ended == [(1, 0)]
    assert [(outcome.prefill, outcome.decoding, outcome.generated) for outcome in said.outcomes] == [
        (20, 0, 1), *[(0, 1, 1)] * 7,
    ]  # fmt: skip
    assert [outcome.kv_tokens for outcome in said.outcomes] == [20, *range(21, 28)]
    assert all(outcome.clean and outcome.seconds > 0 for outcome in said.outcomes)


def test_a_long_prompt_is_computed_in_parts_and_says_the_same(make: Make) -> None:
    tokens = prompt(300)
    whole = say(make(batched_tokens=512), tokens)
    parts = say(make(batched_tokens=64), tokens)
    assert parts.texts == whole.texts
    assert [outcome.prefill for outcome in whole.outcomes][:2] == [300, 0]
    assert [outcome.prefill for outcome in parts.outcomes][:6] == [64, 64, 64, 64, 44, 0]
    assert all(outcome.clean for outcome in parts.outcomes)
    assert parts.cached == {(1, 0): 0}


def test_parts_end_on_a_blocks_edge_also_beside_sequences_that_run(make: Make) -> None:
    batch = make(batched_tokens=100)
    batch.add((1, 0), prompt(10), Sampling(50, temperature=0.0, ignore_eos=True), 0)
    said = Said(batch)
    said.step()
    batch.add((2, 0), prompt(200), GREEDY, 0)
    said.all()
    assert [outcome.prefill for outcome in said.outcomes][:4] == [10, 96, 96, 8]
    assert said.finishes == {(1, 0): "length", (2, 0): "length"}


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_who_leaves_in_the_middle_of_its_prompt_spoils_nothing_for_the_next(make: Make, steps: int) -> None:
    tokens = prompt(300)
    fresh = say(make(batched_tokens=512), tokens).texts
    batch = make(batched_tokens=72)  # not a multiple of a block: the pipeline's own cut would be within one
    batch.add((9, 0), tokens, GREEDY, 0)
    said = Said(batch)
    for _ in range(steps):
        said.step()
    assert batch.cancel(9) == [(9, 0)]
    assert len(batch) == 0
    again = say(batch, tokens)
    assert again.texts == fresh
    assert again.cached == {(1, 0): steps * 64}


def test_who_leaves_while_it_speaks_spoils_nothing_for_the_next(make: Make) -> None:
    tokens = prompt(50)
    long = Sampling(60, temperature=0.0, ignore_eos=True)
    fresh = say(make(), tokens, long).texts
    batch = make()
    batch.add((9, 0), tokens, long, 0)
    said = Said(batch)
    for _ in range(20):
        said.step()
    assert batch.cancel(9) == [(9, 0)]
    assert say(batch, tokens, long).texts == fresh


def test_the_reckoning_agrees_with_what_the_pipeline_finds(make: Make) -> None:
    tokens = prompt(7 * BLOCK)
    batch = make(batched_tokens=BLOCK)
    first = say(batch, tokens)
    assert sum(outcome.prefill for outcome in first.outcomes) == 7 * BLOCK
    other = np.concatenate([tokens[: 4 * BLOCK], prompt(2 * BLOCK + 5)])
    second = say(batch, other)
    assert second.cached == {(1, 0): 4 * BLOCK}
    # Were less found than was reckoned, a part would take more than its step.
    assert [outcome.prefill for outcome in second.outcomes][:3] == [BLOCK, BLOCK, 5]
    assert all(outcome.clean for outcome in second.outcomes)


def test_a_prompt_that_is_all_there_computes_its_last_token(make: Make) -> None:
    tokens = prompt(4 * BLOCK)
    batch = make(batched_tokens=512)
    first = say(batch, tokens)
    again = say(batch, tokens)
    assert again.texts == first.texts
    assert again.cached == {(1, 0): 4 * BLOCK - 1}
    assert again.outcomes[0].prefill == 1


def test_what_was_said_is_found_by_the_next_turn(make: Make) -> None:
    tokens = prompt(40)
    batch = make(batched_tokens=512)
    pieces: list[int] = []
    batch.add((1, 0), tokens, Sampling(60, temperature=0.0, ignore_eos=True), 0)
    sequence = next(iter(batch._sequences.values()))
    Said(batch).all()
    pieces = sequence.tokens
    turn = np.concatenate([tokens, np.array(pieces, dtype=np.int64), prompt(10)])
    assert say(batch, turn).cached == {(1, 0): 99 // BLOCK * BLOCK}


def test_answers_to_one_prompt_compute_it_once(make: Make) -> None:
    tokens = prompt(3 * BLOCK + 3)
    batch = make(batched_tokens=512)
    for index in range(3):
        batch.add((1, index), tokens, GREEDY, index)
    said = Said(batch).all()
    assert [outcome.prefill for outcome in said.outcomes][:2] == [3 * BLOCK + 3, 3 + 3]
    assert said.cached == {(1, 0): 0, (1, 1): 3 * BLOCK, (1, 2): 3 * BLOCK}
    assert said.texts[1, 1] == said.texts[1, 2]


def test_a_stop_string_ends_the_sequence_in_its_own_step(make: Make) -> None:
    batch = make()
    tokens = prompt(30)
    text = say(batch, tokens, Sampling(40, temperature=0.0, ignore_eos=True)).texts[1, 0]
    stop = text[5:8]
    said = say(batch, tokens, Sampling(40, temperature=0.0, ignore_eos=True, stop=(stop,)))
    assert said.texts == {(1, 0): text[: text.index(stop)]}
    assert said.finishes == {(1, 0): "stop"}
    assert said.tokens[1, 0] < 40
    assert len(said.outcomes) == said.tokens[1, 0]
    batch.step()
    assert not batch._pipeline.busy


def test_a_call_that_leaves_takes_all_its_answers(make: Make) -> None:
    batch = make()
    for ticket in ((1, 0), (1, 1), (2, 0)):
        batch.add(ticket, prompt(10), GREEDY, 0)
    said = Said(batch)
    said.step()
    assert sorted(batch.cancel(1)) == [(1, 0), (1, 1)]
    assert batch.cancel(1) == []
    said.all()
    assert said.finishes == {(2, 0): "length"}


def test_without_a_cache_the_pipeline_cuts_and_the_reckoning_follows(make: Make) -> None:
    tokens = prompt(200)
    fresh = say(make(batched_tokens=512), tokens).texts
    batch = make(batched_tokens=64, prefix_caching=False)
    said = say(batch, tokens)
    assert said.texts == fresh
    assert [outcome.prefill for outcome in said.outcomes][:5] == [64, 64, 64, 8, 0]
    assert [outcome.kv_tokens for outcome in said.outcomes][:5] == [64, 128, 192, 200, 201]
    assert all(outcome.clean for outcome in said.outcomes)
    assert say(batch, tokens).cached == {(1, 0): 0}


def test_without_a_cache_who_leaves_is_gone_at_once(make: Make) -> None:
    batch = make(batched_tokens=64, prefix_caching=False)
    batch.add((1, 0), prompt(200), GREEDY, 0)
    batch.step()
    assert batch.cancel(1) == [(1, 0)]
    batch.step()
    assert not batch._pipeline.busy


def test_a_crowded_cache_says_the_same_and_who_leaves_in_it_spoils_nothing(make: Make) -> None:
    prompts = [prompt(90 + 7 * number) for number in range(5)]
    long = Sampling(60, temperature=0.0, ignore_eos=True)
    fresh = [say(make(batched_tokens=512), tokens, long).texts[1, 0] for tokens in prompts]
    batch = make(batched_tokens=72, kv_blocks=14)  # 448 tokens of room for 820: some must be put off and recomputed
    for number, tokens in enumerate(prompts):
        batch.add((number, 0), tokens, long, 0)
    said = Said(batch)
    while said.tokens.get((1, 0), 0) < 30:
        said.step()
    gone = batch.cancel(4)
    assert gone or (4, 0) not in said.ended
    said.all()
    assert not all(outcome.clean for outcome in said.outcomes), "nothing was put off: the cache was not crowded"
    assert (4, 0) in [*gone, *said.ended]
    assert [say(batch, tokens, long).texts[1, 0] for tokens in prompts] == fresh


def test_a_sequence_beyond_all_kv_is_starved(make: Make) -> None:
    batch = make(batched_tokens=512, kv_blocks=3)
    batch.add((1, 0), prompt(200), GREEDY, 0)
    said = Said(batch).all()
    assert said.outcomes[-1].starved == ((1, 0),)
    assert said.ended == [(1, 0)]
    assert said.texts == {}


def test_sampling_that_the_runtime_will_not_take_ends_that_sequence_alone(make: Make) -> None:
    batch = make()
    batch.add((1, 0), prompt(10), Sampling(8, min_p=1.0), 0)
    batch.add((2, 0), prompt(10), GREEDY, 0)
    said = Said(batch)
    ((ticket, why),) = said.step().refused
    assert ticket == (1, 0)
    assert "min_p" in why
    assert said.all().finishes == {(2, 0): "length"}
    assert said.ended == [(1, 0), (2, 0)]
