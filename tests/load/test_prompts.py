"""Prompts have the length asked for, share what the trace shares, and nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.load.conftest import TEMPLATE, ToyTokenizer
from tests.load.test_calibrate import Asked
from wastegate.load.calibrate import by_tokenizer
from wastegate.load.prompts import CHAT, PLAIN, Endpoint, Frame, Made, Prompts, Recipe, tolerance
from wastegate.load.rows import BLOCK_TOKENS, Row, Trace
from wastegate.load.schedule import Pace, Planned, schedule
from wastegate.load.words import WORDS

TOY = ToyTokenizer(longest=8)
BEFORE, AFTER = len(TEMPLATE[0]), len(TEMPLATE[1])
RECIPE = Recipe(
    words=tuple(word for word in WORDS if len(word) <= 8),
    per_word=1.0,
    chat=Frame(BEFORE, AFTER),
    plain=Frame(),
    source="tokenizer",
    exact=True,
)


def planned(tokens: int | None, number: int = 1) -> Planned:
    return Planned(number=number, row=Row(line=1), at=0.0, input_tokens=tokens)


def ids(made: Made, toy: ToyTokenizer = TOY) -> list[int]:
    return toy.chat([{"content": made.text}]) if made.path == CHAT else toy.text(made.text)


def common(one: list[int], two: list[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
    )


@given(tokens=st.integers(1, 3000), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_a_prompt_has_its_length_to_the_token(tokens: int, seed: int) -> None:
    made = Prompts(RECIPE, seed=seed).make(planned(tokens))
    assert len(ids(made)) == tokens == made.tokens
    assert made.path == (CHAT if tokens > BEFORE + AFTER else PLAIN)


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
async def test_other_tokenizers_are_met_within_the_tolerance(longest: int) -> None:
    toy = ToyTokenizer(longest)
    recipe = await by_tokenizer(Asked(toy))
    assert recipe is not None
    prompts = Prompts(recipe, seed=3)
    for tokens in (*range(2, 60), 200, 1999):
        assert abs(len(ids(prompts.make(planned(tokens)), toy)) - tokens) <= tolerance(tokens)


def test_equal_seeds_make_equal_prompts_and_others_do_not() -> None:
    texts = [Prompts(RECIPE, seed=seed).make(planned(50)).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_rows_that_share_nothing_begin_differently() -> None:
    prompts = Prompts(RECIPE, seed=0)
    beginnings = {" ".join(prompts.make(planned(60, number)).text.split()[:4]) for number in range(1, 3001)}
    assert len(beginnings) == 3000


@pytest.mark.parametrize(("endpoint", "path"), [("chat", CHAT), ("completions", PLAIN)])
def test_the_route_may_be_forced(endpoint: Endpoint, path: str) -> None:
    assert Prompts(RECIPE, seed=0, endpoint=endpoint).make(planned(2)).path == path
    assert Prompts(RECIPE, seed=0, endpoint=endpoint).make(planned(200)).path == path


def test_a_server_with_one_route_gets_that_one() -> None:
    only_plain = Recipe(words=WORDS, per_word=1.5, chat=None, plain=Frame(), source="usage", exact=False)
    only_chat = Recipe(words=WORDS, per_word=1.5, chat=Frame(after=9), plain=None, source="usage", exact=False)
    assert Prompts(only_plain, seed=0).make(planned(300)).path == PLAIN
    assert Prompts(only_chat, seed=0).make(planned(3)).path == CHAT
    assert len(Prompts(only_plain, seed=0).make(planned(300)).text.split()) == 200


def test_a_row_with_text_of_its_own_has_no_made_prompt() -> None:
    with pytest.raises(ValueError, match="row 1 has no prompt length"):
        Prompts(RECIPE, seed=0).make(planned(None))


def made_pair(scale: Fraction, rows: tuple[Row, ...], endpoint: Endpoint) -> list[list[int]]:
    plan = schedule(Trace("t", "mooncake", rows), Pace(token_scale=scale))
    prompts = Prompts(RECIPE, seed=0, token_scale=float(scale), endpoint=endpoint)
    made = [prompts.make(row) for row in plan]
    assert [len(ids(one)) for one in made] == [row.input_tokens for row in plan]
    return [ids(one) for one in made]


@given(
    scale=st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 16), Fraction(3, 40), Fraction(1, 7)]),
    shared=st.integers(0, 6),
    own=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    last=st.tuples(st.integers(1, BLOCK_TOKENS), st.integers(1, BLOCK_TOKENS)),
)
@settings(max_examples=60, deadline=None)
def test_blocks_are_shared_token_for_token_at_every_scale(
    scale: Fraction, shared: int, own: tuple[int, int], last: tuple[int, int]
) -> None:
    rows = tuple(
        Row(
            line=1,
            at=0.0,
            input_tokens=(shared + own[which] - 1) * BLOCK_TOKENS + last[which],
            output_tokens=1,
            blocks=(*range(shared), *range(100 * (which + 1), 100 * (which + 1) + own[which])),
        )
        for which in (0, 1)
    )
    ends = round(shared * BLOCK_TOKENS * scale)
    plain = made_pair(scale, rows, "completions")
    assert ends <= common(*plain) <= ends + 2  # two words may be equal by chance
    chat = made_pair(scale, rows, "auto")
    if min(map(len, chat)) > BEFORE + AFTER + 1 and min(map(len, chat)) > ends + AFTER:
        assert max(ends, BEFORE) <= common(*chat) <= max(ends, BEFORE) + 2


def test_tokens_past_the_blocks_are_the_rows_own() -> None:
    rows = tuple(Row(line=1, at=0.0, input_tokens=2 * BLOCK_TOKENS, output_tokens=1, blocks=(5,)) for _ in range(2))
    assert BLOCK_TOKENS <= common(*made_pair(Fraction(1), rows, "completions")) <= BLOCK_TOKENS + 2


def test_ids_may_be_any_whole_numbers() -> None:
    rows = tuple(
        Row(line=1, at=0.0, input_tokens=BLOCK_TOKENS, output_tokens=1, blocks=(block,)) for block in (-7, 2**63)
    )
    assert common(*made_pair(Fraction(1), rows, "completions")) <= 2


def test_the_tolerance_is_two_percent_but_never_less_than_two() -> None:
    assert (tolerance(10), tolerance(1000)) == (2.0, 20.0)
