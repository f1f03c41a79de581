"""Which levers are handed to a lifecycle, and in which order."""

from __future__ import annotations

from tests.test_shape import lever_names
from wastegate import levers
from wastegate.levers import batching, routing, streaming


def test_a_lever_that_is_off_is_not_called_at_all() -> None:
    assert levers.active(levers.Config()) == ()


def test_one_that_is_on_is() -> None:
    (lever,) = levers.active(levers.Config(streaming=streaming.Config(most_tokens=10)))
    assert lever.func is streaming.decide  # type: ignore[attr-defined]


def test_a_routing_policy_puts_it_before_streaming() -> None:
    first, second = levers.active(
        levers.Config(routing=routing.Config(policy="simhash"), streaming=streaming.Config(most_tokens=10))
    )
    assert first.func is routing.decide  # type: ignore[attr-defined]
    assert second.func is streaming.decide  # type: ignore[attr-defined]


def test_batching_stands_between_where_a_call_goes_and_how_it_is_talked_to() -> None:
    three = levers.active(
        levers.Config(
            routing=routing.Config(policy="simhash"),
            batching=batching.Config(on=True),
            streaming=streaming.Config(most_tokens=10),
        )
    )
    decided = [lever.func for lever in three]  # type: ignore[attr-defined]
    assert decided == [routing.decide, batching.decide, streaming.decide]


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted(levers.LEVERS) == sorted(lever_names()) == sorted(levers.Config.__struct_fields__)
