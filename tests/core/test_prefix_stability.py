"""What prompts could have had from a cache, what they had, and where they part: against a plain count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.ledgers import attempt, entry
from wastegate.core.call import Divergence
from wastegate.core.ledger import NANO, Entry
from wastegate.core.prefix_stability import BLOCK_BYTES, PLACES, PrefixStability, Prompts, of_entries
from wastegate.gateway import prefix

A, B, C, D = (bytes([n]) * 8 for n in (1, 2, 3, 4))


def prompts(*blocks: bytes, tokens: int = 100, **members: Any) -> Prompts:
    """Calls of one route with these blocks; each has two blocks' worth of bytes for each of them it has."""
    n = len(blocks)
    full: dict[str, Any] = {
        "route": np.zeros(n, np.int32),
        "model": np.zeros(n, np.int32),
        "blocks": list(blocks),
        "size": np.array([max(len(one) // 8 * BLOCK_BYTES, 1) for one in blocks], np.int64),
        "tokens": np.full(n, tokens, np.int64),
        "cached": np.full(n, -1, np.int64),
        "prefill": np.zeros(n, np.int64),
        "at": np.full(n, -1, np.int64),
        "again": np.zeros(n, np.int64),
        "by": [""] * n,
    }
    return Prompts(**{**full, **{name: np.asarray(v) if name != "by" else v for name, v in members.items()}})


def could(*batches: Prompts, slots: int = 64) -> float:
    stability = PrefixStability(slots)
    for batch in batches:
        stability.add(batch)
    (row,) = stability.rows({0: "chat"})
    return row.could


def test_a_block_of_the_gateway_is_as_long_as_is_reckoned_with() -> None:
    assert prefix.BLOCK_BYTES == BLOCK_BYTES


def test_only_what_began_an_earlier_prompt_could_have_been_cached() -> None:
    assert could(prompts(A + B, A + C)) == pytest.approx(0.25), "one of two blocks of the second"
    assert could(prompts(A + B), prompts(A + C)) == pytest.approx(0.25), "in the next batch as well"
    assert could(prompts(A + B, A + B)) == pytest.approx(0.5)
    assert could(prompts(A + B, C + B)) == 0.0, "the same block behind another one has another hash; if not, it ends"
    assert could(prompts(A + A + A)) == 0.0, "a prompt shares nothing with itself"
    assert could(prompts(b"", b"")) == 0.0


def test_models_have_caches_of_their_own() -> None:
    assert could(prompts(A, A, model=np.array([0, 1], np.int32))) == 0.0


def test_where_the_size_is_not_known_half_a_block_more_is_taken() -> None:
    assert could(prompts(A, A, size=np.zeros(2, np.int64))) == pytest.approx(1 / 3)


def test_what_the_engine_found_could_have_been_found() -> None:
    stability = PrefixStability(64)
    stability.add(prompts(A, B, cached=np.array([40, -1])))
    (row,) = stability.rows({0: "chat"})
    assert row.could == pytest.approx(0.2)
    assert row.was == pytest.approx(0.4)


def test_calls_without_a_count_are_left_out() -> None:
    stability = PrefixStability(64)
    stability.add(prompts(A, A, tokens=-1))
    assert stability.rows({0: "chat"}) == ()
    stability.add(prompts())
    assert stability.rows({0: "chat"}) == ()


def test_what_was_lost_has_the_price_of_what_was_computed() -> None:
    stability = PrefixStability(64)
    # 200 tokens, of which the second call's 100 could have been cached, and 20 were: 180 computed for 18 dollars.
    stability.add(prompts(A, A, cached=np.array([0, 20]), prefill=np.array([10 * NANO, 8 * NANO])))
    (row,) = stability.rows({0: "chat"})
    assert (row.calls, row.prompt_tokens, row.could, row.was) == (2, 200, 0.5, 0.1)
    assert row.lost_dollars == pytest.approx(80 * 0.1)


def test_routes_are_told_apart_and_the_largest_is_first() -> None:
    stability = PrefixStability(64)
    stability.add(prompts(A, B, A, route=np.array([2, 0, 2], np.int32), tokens=10))
    rows = stability.rows({0: "zero", 2: "two"})
    assert [(row.route, row.calls, row.could) for row in rows] == [("two", 2, 0.5), ("zero", 1, 0.0)]


def test_places_are_summed_by_kind_and_nearness_the_dearest_first() -> None:
    stability = PrefixStability(64)
    stability.add(
        prompts(
            *(A,) * 4,
            size=np.full(4, 1000),
            at=np.array([-1, 70, 75, 500]),
            again=np.array([0, 500, 300, 0]),
            by=["", "time", "time", "text"],
            prefill=np.full(4, NANO),
        )
    )
    (row,) = stability.rows({0: "chat"})
    assert row.watched == 3
    time, text = row.places
    assert (time.by, time.at, time.calls) == ("time", 70, 2)
    assert time.lost_tokens == pytest.approx(80.0)
    assert time.lost_dollars == pytest.approx(80.0 * 4 / 400)
    assert (text.by, text.at, text.lost_tokens) == ("text", 500, 0.0)


def test_places_without_end_are_summed_up() -> None:
    n = PLACES + 50
    stability = PrefixStability(64)
    stability.add(prompts(*(A,) * n, at=np.arange(n) * 64, again=np.ones(n, np.int64), by=["id"] * n))
    (row,) = stability.rows({0: "chat"})
    assert row.watched == n
    assert (row.places[0].at, row.places[0].calls) == (None, 50)
    assert row.places[0].lost_dollars is None


def plainly(calls: Sequence[Sequence[int]]) -> list[int]:
    """The blocks at each prompt's start that an earlier prompt held at that place."""
    seen: set[int] = set()
    shared = []
    for blocks in calls:
        run = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        shared.append(run)
        seen.update(blocks)
    return shared


@given(st.lists(st.lists(st.integers(1, 6), max_size=5), min_size=1, max_size=30), st.integers(1, 30))
def test_it_counts_as_a_plain_count_does_however_the_calls_come(calls: list[list[int]], cut: int) -> None:
    stability = PrefixStability(1 << 10)
    each = [b"".join(block.to_bytes(8, "little") for block in blocks) for blocks in calls]
    found = [*stability._shared(prompts(*each[:cut])), *stability._shared(prompts(*each[cut:]))]
    assert found == plainly(calls)


@given(st.lists(st.lists(st.integers(1, 10**6), max_size=8), min_size=1, max_size=60))
def test_forgetting_never_finds_what_was_not_there(calls: list[list[int]]) -> None:
    stability = PrefixStability(8)
    each = [b"".join(block.to_bytes(8, "little") for block in blocks) for blocks in calls]
    found = [int(shared) for one in each for shared in stability._shared(prompts(one))]
    assert all(one <= most for one, most in zip(found, plainly(calls), strict=True))


def test_single_entries_in_order_of_arrival() -> None:
    def call(number: int, blocks: bytes, **members: Any) -> Entry:
        one = entry(str(number), attempt("a", float(number), number + 0.5, prompt_tokens=100, cached_tokens=50))
        return replace(one, blocks=blocks, prompt_bytes=BLOCK_BYTES, **members)

    later = call(2, A, divergence=Divergence(10, "time", 256))
    (row,) = of_entries([later, call(1, A)])
    assert (row.calls, row.could, row.was, row.lost_dollars) == (2, 0.75, 0.5, None)
    assert [(place.by, place.at, place.lost_tokens) for place in row.places] == [("time", 10, 50.0)]
    assert of_entries([replace(later, attempts=())]) == ()
