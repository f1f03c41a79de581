from __future__ import annotations

import pytest
from msgspec.structs import replace

from wastegate.core.call import Call, length_class


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        (0, 0, "short"),
        (255, 511, "short"),
        (256, 0, "medium"),
        (0, 512, "medium"),
        (2047, 1023, "medium"),
        (2048, 0, "long"),
        (0, 1024, "long"),
        (128_000, 4_000, "long"),
    ],
)
def test_length_class_changes_exactly_at_its_bounds(prompt: int, output: int, expected: str) -> None:
    assert length_class(prompt, output) == expected


def test_a_call_cannot_be_changed_in_place() -> None:
    call = Call("c-1", 1.0, "chat", "/v1/chat/completions", "small")
    with pytest.raises(AttributeError):
        call.model = "large"  # type: ignore[misc]
    assert replace(call, model="large").model == "large"
    assert call.model == "small"


def test_a_bare_call_asks_for_the_least() -> None:
    call = Call("c-1", 1.0, "chat", "/v1/chat/completions", "small")
    assert (call.tenant, call.stream, call.wants_usage, call.n, call.priority) == ("default", False, False, 1, 0)
    assert not call.deterministic, "only a call that says so may be answered by another replica halfway"
