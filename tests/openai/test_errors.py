from __future__ import annotations

import msgspec
import pytest

from wastegate.openai.errors import error_body, error_event


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (499, "client_closed_request"),
        (500, "server_error"),
        (502, "upstream_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (599, "server_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, kind: str) -> None:
    assert msgspec.json.decode(error_body(status, "no"))["error"]["type"] == kind


def test_a_body_has_the_four_fields_that_clients_read() -> None:
    body = msgspec.json.decode(error_body(400, 'max_tokens is "x"', param="max_tokens", code="bad_value"))
    assert body == {
        "error": {
            "message": 'max_tokens is "x"',
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "bad_value",
        }
    }
    assert msgspec.json.decode(error_body(500, "oh"))["error"]["param"] is None


def test_an_event_is_one_sse_event_with_the_same_body() -> None:
    event = error_event(504, "the 'idle' timer fired\nat 60 s", code="timeout_idle")
    assert event == b"data: " + error_body(504, "the 'idle' timer fired\nat 60 s", code="timeout_idle") + b"\n\n"
    assert event.count(b"\n") == 2, "a line break in the message must not end the event early"
