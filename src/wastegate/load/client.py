"""One request, sent once and read to its end: when the first token came, how many there were, how it ended. It decides
nothing about when to send, and never sends twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import aiohttp
import msgspec
from msgspec import Struct

from wastegate.load.rows import HangUp
from wastegate.openai.chat import read_answer
from wastegate.openai.sse import StreamReader, Usage

Clock = Callable[[], float]
Outcome = Literal["ok", "failed", "hung_up"]

_ERROR_BYTES = 65_536
_CLOSE_SECONDS = 1.0
"""How long the end of the body may trail [DONE] before the connection is given up instead of kept."""


class Shot(Struct, frozen=True):
    """One request, ready to send. ``timeout`` is seconds from sending to the last byte."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = 600.0
    hang_up: HangUp | None = None
    id: str = ""
    """Sent as x-request-id, so that a ledger can be joined to the run; empty to send none."""


class Answer(Struct):
    """What came of a shot, filled in as it happens, so that an aborted one tells how far it came.

    Times are the clock's; None where it did not happen.
    """

    sent: float | None = None
    first: float | None = None
    """The first delta that was not empty: text, reasoning or a tool call."""
    ended: float | None = None
    status: int | None = None
    outcome: Outcome = "failed"
    reason: str = "aborted"
    """Kind of failure, such as "status 503", "timeout: first byte", "connect", "cut"; empty if there is none."""
    detail: str = ""
    """The server's own words on a failure."""
    request_id: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    pieces: int = 0
    """Events with a delta that was not empty: a lower bound on tokens where usage is missing."""

    def fail(self, reason: str, detail: str = "") -> None:
        self.outcome, self.reason, self.detail = "failed", reason, detail[:300]

    def succeed(self) -> None:
        self.outcome, self.reason = "ok", ""


async def shoot(session: aiohttp.ClientSession, base: str, shot: Shot, answer: Answer, clock: Clock) -> None:
    """Send once and read to the end. Every failure is a value in ``answer``; only cancellation is raised."""
    patience = shot.hang_up.seconds if shot.hang_up else None
    leaves = patience is not None and patience < shot.timeout
    answer.sent = clock()
    try:
        async with asyncio.timeout(patience if leaves else shot.timeout):
            await _exchange(session, base, shot, answer, clock)
    except TimeoutError:
        if leaves:
            answer.outcome, answer.reason = "hung_up", ""
        else:
            answer.fail(_waited_for(answer), f"no end within {shot.timeout:g} s")
    except aiohttp.ClientConnectorError as error:
        answer.fail("connect", str(error))
    except (aiohttp.ClientError, ConnectionError) as error:
        answer.fail("cut" if answer.status else "connection closed", str(error) or type(error).__name__)
    finally:
        answer.ended = answer.ended or clock()


def _waited_for(answer: Answer) -> str:
    if answer.status is None:
        return "timeout: first byte"
    return "timeout: first token" if answer.first is None else "timeout: end of stream"


async def _exchange(session: aiohttp.ClientSession, base: str, shot: Shot, answer: Answer, clock: Clock) -> None:
    headers = {"content-type": "application/json", **dict(shot.headers)}
    if shot.id:
        headers["x-request-id"] = shot.id
    async with session.post(base + shot.path, data=shot.body, headers=headers) as response:
        answer.status = response.status
        answer.request_id = response.headers.get("x-request-id", "")
        if response.status != 200:
            answer.fail(f"status {response.status}", _message(await response.content.read(_ERROR_BYTES)))
        elif response.content_type == "text/event-stream":
            await _stream(response, shot, answer, clock)
        else:
            answer.usage, answer.finish_reason = read_answer(await response.read())
            if answer.usage is None and not answer.finish_reason:
                answer.fail("malformed", "a 200 that is neither a stream nor a completion")
            else:
                answer.succeed()


async def _stream(response: aiohttp.ClientResponse, shot: Shot, answer: Answer, clock: Clock) -> None:
    reader = StreamReader(hide_usage=False)
    enough = shot.hang_up.tokens if shot.hang_up else None
    async for piece in response.content.iter_any():
        reader.feed(piece)
        answer.pieces = reader.tokens
        if answer.first is None and reader.first_token:
            answer.first = clock()
        if reader.done:
            break
        if enough is not None and reader.tokens >= enough:
            answer.outcome, answer.reason = "hung_up", ""
            response.close()
            return
    answer.ended = clock()
    answer.usage, answer.finish_reason = reader.usage, reader.finish_reason
    if reader.error:
        answer.fail("error in the stream", reader.error)
    elif reader.done or reader.finish_reason:
        answer.succeed()
    else:
        answer.fail("cut", "the stream ended without a finish reason")
    if reader.done:
        await _close(response)


async def _close(response: aiohttp.ClientResponse) -> None:
    """Read what trails the end, so that the connection can serve again."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await response.content.read()
    except (TimeoutError, aiohttp.ClientError):
        response.close()


def _message(raw: bytes) -> str:
    """The sentence inside an error body, or the body itself."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw[:300].decode(errors="replace")
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
