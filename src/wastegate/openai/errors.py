"""Error bodies in OpenAI's shape. The sentence is for the reader: what was wrong, where, what to do."""

from __future__ import annotations

import msgspec

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    499: "client_closed_request",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON body of an error answer; ``type`` follows from the HTTP status."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(status: int, message: str, *, code: str | None = None) -> bytes:
    """The same error as the terminal event of a stream that has begun."""
    return b"data: " + error_body(status, message, code=code) + b"\n\n"
