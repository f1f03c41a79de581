"""A support chat: one long system prompt for all, a question of one's own or one that many ask, and users some of whom
do not wait. Values only; the same for every arm, but for words that are new in every turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from wastegate.load.client import Shot
from wastegate.load.rows import HangUp

SHARED = 0.83
"""Part of the prompt tokens that all prompts begin with: the source article's figure."""
SYSTEM_WORDS = 620
OUTPUT = 48
LEAVE = 0.2
"""Part of the users who leave before the end of their answer, ``LEAVE_AFTER`` seconds after they asked."""
LEAVE_AFTER = (0.3, 2.0)
COMMON = 0.15
"""Part of the calls that ask one of ``COMMON_QUESTIONS``."""
COMMON_QUESTIONS = 2
PATH = "/v1/chat/completions"
VOCABULARY = (
    "order parcel refund invoice account address delivery return shipping customer price payment card email phone "
    "please answer never always before after within business days week month policy warranty repair exchange store "
    "product size colour number open closed check confirm polite short clear helpful team agent question reply issue "
    "ticket status late lost broken wrong missing change cancel update password login website mobile app region tax"
)


class Load(Struct, frozen=True):
    """How long the two parts of a prompt are, in words, and how long that is in tokens."""

    system_words: int
    own_words: int
    system_tokens: int
    prompt_tokens: int

    @property
    def shared(self) -> float:
        return self.system_tokens / self.prompt_tokens


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(VOCABULARY.split(), k=count))


def body(system_words: int, question: str, output: int = OUTPUT) -> bytes:
    """A greedy streamed chat call of exactly ``output`` tokens."""
    system = words(random.Random(1), system_words)
    return msgspec.json.encode(
        {
            "model": "m",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def calls(load: Load, count: int, seed: int, fresh: int) -> Sequence[Shot]:
    """``seed`` decides who asks what and who leaves, ``fresh`` the words of the questions."""
    fate, chance = random.Random(seed), random.Random(fresh)
    common = [words(chance, load.own_words) for _ in range(COMMON_QUESTIONS)]
    shots = []
    for _ in range(count):
        question = fate.choice(common) if fate.random() < COMMON else words(chance, load.own_words)
        leaves = HangUp(seconds=fate.uniform(*LEAVE_AFTER)) if fate.random() < LEAVE else None
        shots.append(Shot(PATH, body(load.system_words, question), timeout=300.0, hang_up=leaves))
    return shots
