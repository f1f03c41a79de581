"""How words are counted, found out from a tokenizer in a handful of calls."""

from __future__ import annotations

import pytest

from tests.load.conftest import TEMPLATE, ToyTokenizer
from wastegate.load.calibrate import Tokenize, Tokens, by_tokenizer, by_usage
from wastegate.load.prompts import CHAT, PLAIN, Frame
from wastegate.load.words import WORDS

AROUND = len(TEMPLATE[0]), len(TEMPLATE[1])


class Asked:
    """A tokenizer behind the two routes, counting how often it is asked."""

    def __init__(self, toy: ToyTokenizer, *, ids: bool = True, chat: bool = True, stretch: float = 1.0) -> None:
        self.toy, self.ids, self.chat, self.stretch = toy, ids, chat, stretch
        self.calls = 0

    async def __call__(self, path: str, text: str) -> Tokens | None:
        self.calls += 1
        if path == CHAT and not self.chat:
            return None
        ids = self.toy.chat([{"content": text}]) if path == CHAT else self.toy.text(text)
        return Tokens(round(len(ids) * self.stretch), tuple(ids) if self.ids else ())


async def test_words_of_one_token_are_found_in_a_few_calls() -> None:
    asked = Asked(ToyTokenizer(longest=6))
    recipe = await by_tokenizer(asked)
    assert recipe is not None
    assert recipe.words == tuple(word for word in WORDS if len(word) <= 6)
    assert (recipe.per_word, recipe.exact, recipe.source) == (1.0, True, "tokenizer")
    assert (recipe.chat, recipe.plain) == (Frame(*AROUND), Frame())
    assert asked.calls < 12


async def test_a_sign_that_begins_every_text_is_part_of_the_frame() -> None:
    recipe = await by_tokenizer(Asked(ToyTokenizer(bos=True)))
    assert recipe is not None
    assert recipe.plain == Frame(before=1.0)


async def test_a_tokenizer_of_letters_gets_words_of_one_length() -> None:
    recipe = await by_tokenizer(Asked(ToyTokenizer(longest=1)))
    assert recipe is not None
    assert recipe.per_word == 4.0
    assert {len(word) for word in recipe.words} == {4}


async def test_a_model_without_a_template_has_no_chat() -> None:
    recipe = await by_tokenizer(Asked(ToyTokenizer(), chat=False))
    assert recipe is not None
    assert recipe.chat is None
    assert recipe.plain == Frame()


async def test_words_that_do_not_add_up_make_an_estimate() -> None:
    recipe = await by_tokenizer(Asked(ToyTokenizer(), stretch=1.25))
    assert recipe is not None
    assert not recipe.exact
    assert recipe.per_word == pytest.approx(1.25, rel=0.02)


async def test_a_server_that_only_counts_gives_no_recipe() -> None:
    assert await by_tokenizer(Asked(ToyTokenizer(), ids=False)) is None


async def test_no_tokenizer_no_recipe() -> None:
    async def nothing(path: str, text: str) -> Tokens | None:
        return None

    asked: Tokenize = nothing
    assert await by_tokenizer(asked) is None


async def test_usage_gives_the_slope_and_the_frame() -> None:
    toy = ToyTokenizer(longest=5)

    async def measure(path: str, text: str) -> int | None:
        return len(toy.chat([{"content": text}])) if path == CHAT else None

    recipe = await by_usage(measure)
    assert (recipe.source, recipe.exact, recipe.plain) == ("usage", False, None)
    assert recipe.per_word == pytest.approx(sum(-(-len(word) // 5) for word in WORDS) / len(WORDS), rel=0.1)
    assert recipe.chat is not None
    assert recipe.chat.tokens == pytest.approx(sum(AROUND), abs=8)


async def test_without_usage_bytes_are_the_guess() -> None:
    async def silent(path: str, text: str) -> int | None:
        return None

    recipe = await by_usage(silent, (PLAIN,))
    assert recipe.source == "guess"
    assert 1.0 < recipe.per_word < 2.0
