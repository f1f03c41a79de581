"""Commands and events are values: equal by content, and not to be changed."""

from __future__ import annotations

import pytest

from tests.playbook import call, view
from wastegate.core.effects import Claimed, Look, Prepare, Woken


def test_equal_by_content() -> None:
    assert Prepare(call()) == Prepare(call())
    assert Look(call(), ()) != Look(call(id="other"), ())
    assert view() == view()


@pytest.mark.parametrize("value", [Prepare(call()), Claimed(True, 1.0), Woken("turn", 1.0)])
def test_frozen(value: object) -> None:
    with pytest.raises(AttributeError):
        value.call = None  # type: ignore[attr-defined]
