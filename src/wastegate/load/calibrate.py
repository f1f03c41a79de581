"""Finds how a server's tokenizer counts our words, in a handful of calls: which words are whole tokens, and what the
chat template adds. It asks through functions that it is handed; no HTTP enters here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec import Struct

from wastegate.core.call import BYTES_PER_TOKEN
from wastegate.load.prompts import CHAT, PLAIN, Frame, Recipe, tolerance
from wastegate.load.words import WORDS

ENOUGH = 64
"""Words of one length that suffice: 64 different ones make a shared first block by chance impossible."""
MOST_TOKENS = 4
"""A word of more tokens could not hit a length within the tolerance of 2 tokens."""


class Tokens(Struct, frozen=True):
    """A text as a tokenizer sees it. ``ids`` may be empty where a server only counts."""

    count: int
    ids: tuple[int, ...] = ()
    context: int | None = None
    """Longest prompt and output together, where the server says it."""


Tokenize = Callable[[str, str], Awaitable[Tokens | None]]
"""(path, text) → its tokens as that route counts them, or None where the server cannot say."""
Measure = Callable[[str, str], Awaitable[int | None]]
"""(path, text) → the prompt tokens that a real, very short call to that route reports."""


async def by_tokenizer(tokenize: Tokenize) -> Recipe | None:
    """The recipe by the server's own tokenizer; None where it cannot give one."""
    words, per_word = await _whole_words(tokenize)
    if not words:
        return None
    frames: dict[str, Frame | None] = {}
    for path in (CHAT, PLAIN):
        frames[path] = await _frame(tokenize, path, words, per_word)
    if frames[CHAT] is None and frames[PLAIN] is None:
        return None
    recipe = Recipe(
        words=words, per_word=per_word, chat=frames[CHAT], plain=frames[PLAIN], source="tokenizer", exact=True
    )
    return await _verified(tokenize, recipe)


async def by_usage(measure: Measure, paths: tuple[str, ...] = (CHAT, PLAIN)) -> Recipe:
    """The recipe from the usage of two real calls a route; without any usage, a guess from bytes."""
    frames: dict[str, Frame | None] = {}
    slopes: list[float] = []
    for path in paths:
        line = await _line(measure, path)
        frames[path] = Frame(after=line[0]) if line else None
        slopes += [line[1]] if line else []
    if slopes:
        per_word = sum(slopes) / len(slopes)
        chat, plain = frames.get(CHAT), frames.get(PLAIN)
        return Recipe(words=WORDS, per_word=per_word, chat=chat, plain=plain, source="usage", exact=False)
    per_word = sum(len(word) + 1 for word in WORDS) / len(WORDS) / BYTES_PER_TOKEN
    return Recipe(words=WORDS, per_word=per_word, chat=Frame(), plain=None, source="guess", exact=False)


async def _whole_words(tokenize: Tokenize) -> tuple[tuple[str, ...], float]:
    """The words of one and the same count, both after a space and at the beginning of a text."""
    spaced = _counts(await tokenize(PLAIN, " | ".join(("x", *WORDS, "x"))))
    opening = _counts(await tokenize(PLAIN, "\n".join(("x", *WORDS, "x")))) or spaced
    if spaced is None or opening is None:
        return (), 1.0
    for tokens in range(1, MOST_TOKENS + 1):
        alike = tuple(word for word, *counts in zip(WORDS, spaced, opening, strict=True) if counts == [tokens, tokens])
        if len(alike) >= ENOUGH:
            return alike, float(tokens)
    return (), 1.0


def _counts(sample: Tokens | None) -> list[int] | None:
    """Tokens of each word in a text where every two words have the same one token between them."""
    if sample is None or not sample.ids:
        return None
    separator = Counter(sample.ids).most_common(1)[0][0]
    counts = [0]
    for token in sample.ids:
        if token == separator:
            counts.append(0)
        else:
            counts[-1] += 1
    inner = counts[1:-1]  # the ends hold the x and whatever the tokenizer puts around a text
    return inner if len(inner) == len(WORDS) and all(inner) else None


async def _frame(tokenize: Tokenize, path: str, words: tuple[str, ...], per_word: float) -> Frame | None:
    """What two texts that differ from their first to their last word have in common is the frame."""
    one = await tokenize(path, " ".join(words[:16]))
    two = await tokenize(path, " ".join(words[-16:]))
    if one is None or two is None:
        return None
    before = _common(one.ids, two.ids)
    after = one.count - before - 16 * per_word
    if after < 0:
        return Frame(after=max(0.0, one.count - 16 * per_word))
    return Frame(float(before), after)


def _common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    count = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        count += 1
    return count


async def _verified(tokenize: Tokenize, recipe: Recipe) -> Recipe:
    """The recipe, tried on texts of several lengths; straightened where words do not add up as expected."""
    path, frame = (CHAT, recipe.chat) if recipe.chat is not None else (PLAIN, recipe.plain or Frame())
    seen: list[tuple[int, int]] = []
    for count in (8, 60, 500):
        picked = [recipe.words[(7 * index + count) % len(recipe.words)] for index in range(count)]
        tokens = await tokenize(path, " ".join(picked))
        if tokens is not None:
            seen.append((count, tokens.count))
    off = [actual - frame.tokens - count * recipe.per_word for count, actual in seen]
    if not any(off):
        return recipe
    if all(abs(gap) <= tolerance(actual) for gap, (_, actual) in zip(off, seen, strict=True)):
        return _with(recipe, recipe.per_word, exact=False)
    (few, low), (many, high) = seen[0], seen[-1]
    return _with(recipe, max(0.1, (high - low) / max(1, many - few)), exact=False)


def _with(recipe: Recipe, per_word: float, exact: bool) -> Recipe:
    return Recipe(
        words=recipe.words,
        per_word=per_word,
        chat=recipe.chat,
        plain=recipe.plain,
        source=recipe.source,
        exact=exact,
    )


async def _line(measure: Measure, path: str) -> tuple[float, float] | None:
    """(tokens of the frame, tokens a word) of a route, from a short and a longer call."""
    few, many = 16, 256
    low = await measure(path, " ".join(WORDS[:few]))
    high = await measure(path, " ".join(WORDS[len(WORDS) - many :]))
    if low is None or high is None or high <= low:
        return None
    per_word = (high - low) / (many - few)
    return max(0.0, low - few * per_word), per_word
