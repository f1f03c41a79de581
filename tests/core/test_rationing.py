from __future__ import annotations

from wastegate.core.rationing import Rationing
from wastegate.core.shares import Share


def rationing_of(calls: dict[str, int], common: int = 0, share: Share | None = None) -> Rationing:
    rationing = Rationing(share if share is not None else Share())
    rationing.set(calls, common)
    return rationing


def test_a_route_closes_with_its_last_call_and_opens_with_the_first_that_ends() -> None:
    rationing = rationing_of({"behavior": 2})
    rationing.took("behavior")
    assert rationing.closed == set()
    rationing.took("behavior")
    assert rationing.closed == {"behavior"}
    assert rationing.running("behavior") == 2
    rationing.gave("behavior")
    assert rationing.closed == set()
    assert rationing.running("behavior") == 1


def test_a_route_without_a_bound_stays_open_and_is_no_group() -> None:
    rationing = rationing_of({"behavior": 2})
    for _ in range(50):
        rationing.took("chat")
    assert rationing.closed == set()
    assert (rationing.group("chat"), rationing.group("behavior")) == ("", "behavior")
    assert rationing.running("chat") == 50


def test_routes_that_are_not_named_have_the_common_bound_each_for_itself() -> None:
    rationing = rationing_of({"chat": 0}, 1)
    for route in ("a", "chat"):
        rationing.took(route)
    assert rationing.closed == {"a"}
    assert rationing.group("b") == "b"


def test_a_worker_closes_at_its_share_and_says_so_as_if_all_ran() -> None:
    rationing = rationing_of({"behavior": 5}, share=Share(1, 2))
    for _ in range(2):
        rationing.took("behavior")
    assert rationing.closed == {"behavior"}
    assert rationing.running("behavior") == 5


def test_other_bounds_hold_at_once_and_what_runs_still_counts() -> None:
    rationing = rationing_of({})
    for _ in range(3):
        rationing.took("behavior")
    rationing.set({"behavior": 3}, 0)
    assert rationing.closed == {"behavior"}
    rationing.set({"behavior": 4}, 0)
    assert rationing.closed == set()


def test_what_was_never_counted_is_given_back_without_harm() -> None:
    rationing = rationing_of({"behavior": 1})
    rationing.gave("behavior")
    rationing.took("behavior")
    assert rationing.closed == {"behavior"}
