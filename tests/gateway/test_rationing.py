from __future__ import annotations

from wastegate.core.shares import Share
from wastegate.gateway.rationing import Rationing


def test_a_route_closes_with_its_last_call_and_opens_with_the_first_that_ends() -> None:
    rationing = Rationing({"behavior": 2}, 0, Share())
    rationing.took("behavior")
    assert rationing.closed == set()
    rationing.took("behavior")
    assert rationing.closed == {"behavior"}
    assert rationing.running("behavior") == 2
    rationing.gave("behavior")
    assert rationing.closed == set()
    assert rationing.running("behavior") == 1


def test_a_route_without_a_bound_stays_open_and_is_no_group() -> None:
    rationing = Rationing({"behavior": 2}, 0, Share())
    for _ in range(50):
        rationing.took("chat")
    assert rationing.closed == set()
    assert (rationing.group("chat"), rationing.group("behavior")) == ("", "behavior")
    assert rationing.running("chat") == 50


def test_routes_that_are_not_named_have_the_common_bound_each_for_itself() -> None:
    rationing = Rationing({"chat": 0}, 1, Share())
    for route in ("a", "chat"):
        rationing.took(route)
    assert rationing.closed == {"a"}
    assert rationing.group("b") == "b"


def test_a_worker_closes_at_its_share_and_says_so_as_if_all_ran() -> None:
    rationing = Rationing({"behavior": 5}, 0, Share(1, 2))
    for _ in range(2):
        rationing.took("behavior")
    assert rationing.closed == {"behavior"}
    assert rationing.running("behavior") == 5


def test_other_bounds_hold_at_once_and_what_runs_still_counts() -> None:
    rationing = Rationing({}, 0, Share())
    for _ in range(3):
        rationing.took("behavior")
    rationing.set({"behavior": 3}, 0)
    assert rationing.closed == {"behavior"}
    rationing.set({"behavior": 4}, 0)
    assert rationing.closed == set()


def test_what_was_never_counted_is_given_back_without_harm() -> None:
    rationing = Rationing({"behavior": 1}, 0, Share())
    rationing.gave("behavior")
    rationing.took("behavior")
    assert rationing.closed == {"behavior"}
