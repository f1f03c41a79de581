"""The open loop: each row goes out at its own time, whatever became of the rows before it. Latency counts from the
intended time, so that a late send shows as latency. How a request is made or read never enters here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct, field

from wastegate.load.client import Answer, Clock, Shot
from wastegate.load.schedule import Planned

AHEAD = 64
"""Requests made before their time, so that making one does not delay another."""
CLOSE = 0.005
"""Seconds before a row is due in which nothing more is made."""
LEAD = 0.2
"""Seconds between the decision to start and the first row: the first requests are made meanwhile."""

Fate = Literal["ok", "failed", "hung_up", "skipped", "not_reached"]


class Result(Struct, frozen=True, kw_only=True):
    """What became of one row. Times are seconds after the run's start."""

    planned: Planned
    fate: Fate
    path: str = ""
    client_id: str = ""
    """The x-request-id that was sent; the server's own is in the answer."""
    answer: Answer = field(default_factory=Answer)
    start: float = 0.0
    """The run's start on the clock that the answer's times are read from."""

    @property
    def drift(self) -> float | None:
        """Seconds between the intended and the real time of sending."""
        return self._since(self.answer.sent)

    @property
    def ttft(self) -> float | None:
        """Seconds from the intended time of sending to the first token."""
        return self._since(self.answer.first) if self.fate == "ok" else None

    @property
    def e2e(self) -> float | None:
        """Seconds from the intended time of sending to the end of the answer."""
        return self._since(self.answer.ended) if self.fate == "ok" else None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first: (E2E − TTFT)/(n − 1); None below two tokens."""
        tokens = self.output_tokens
        if self.e2e is None or self.ttft is None or tokens is None or tokens < 2:
            return None
        return (self.e2e - self.ttft) / (tokens - 1)

    @property
    def output_tokens(self) -> int | None:
        """The server's usage first; else the pieces that were seen, which is a lower bound."""
        usage = self.answer.usage
        if usage is not None and usage.output_tokens is not None:
            return usage.output_tokens
        return self.answer.pieces or None

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.start - self.planned.at


class Stop:
    """How a run is ended early: ``asked`` stops sending, ``now`` also aborts what is in flight."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.now = asyncio.Event()

    def ask(self) -> None:
        """The first time: stop sending. The second time: stop waiting as well."""
        if self.asked.is_set():
            self.now.set()
        self.asked.set()


class Loop(Struct, frozen=True, kw_only=True):
    """How rows are sent: how many may be in flight, and how long those are waited for once sending stopped early."""

    max_inflight: int = 512
    drain: float = 10.0

    def __post_init__(self) -> None:
        if self.max_inflight < 1:
            raise ValueError(f"--max-inflight is {self.max_inflight}: at least 1 request must be able to run")


class Progress:
    """Counters of a run while it runs, for whoever shows them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.results: list[Result] = []
        self.sent = 0
        self.held = 0
        """Rows that had to wait for a place among ``max_inflight``."""
        self.sending_ended: float | None = None
        """Seconds after the start; None while rows are still being sent."""

    @property
    def inflight(self) -> int:
        return self.sent - len(self.results)


Make = Callable[[Planned], Shot]
Send = Callable[[Shot, Answer], Awaitable[None]]


async def run(
    plan: Sequence[Planned], make: Make, send: Send, clock: Clock, loop: Loop, stop: Stop, progress: Progress
) -> list[Result]:
    """Send every row that is not to be skipped; one Result a row, in the order of the plan.

    ``clock`` is steady and finer than a millisecond. ``send`` reports failures in the Answer and raises nothing.
    """
    start = clock() + LEAD
    places = asyncio.Semaphore(loop.max_inflight)
    flights: set[asyncio.Task[None]] = set()

    def landed(flight: asyncio.Task[None]) -> None:
        flights.discard(flight)
        places.release()

    try:
        async for planned, shot in _made_ahead(plan, make, start, clock):
            if await _stopped_before(start + planned.at, stop, clock) or not await _place(places, stop, progress):
                break
            flight = asyncio.create_task(_fly(planned, shot, send, start, progress))
            flights.add(flight)
            flight.add_done_callback(landed)
            progress.sent += 1
        progress.sending_ended = clock() - start
        await _land(flights, stop, loop.drain)
    finally:
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
    known = {result.planned.number: result for result in progress.results}
    return [known.get(planned.number) or _unsent(planned) for planned in plan]


def _unsent(planned: Planned) -> Result:
    return Result(planned=planned, fate="skipped" if planned.skip else "not_reached")


async def _made_ahead(
    plan: Sequence[Planned], make: Make, start: float, clock: Clock
) -> AsyncIterator[tuple[Planned, Shot]]:
    """Rows with their requests, made while there is time before the next one is due."""
    rows = (planned for planned in plan if not planned.skip)
    ahead: deque[tuple[Planned, Shot]] = deque()
    while True:
        while not ahead or (len(ahead) < AHEAD and clock() + CLOSE < start + ahead[0][0].at):
            planned = next(rows, None)
            if planned is None:
                break
            ahead.append((planned, make(planned)))
            await asyncio.sleep(0)
        if not ahead:
            return
        yield ahead.popleft()


async def _stopped_before(moment: float, stop: Stop, clock: Clock) -> bool:
    """Wait for the moment; True if the run was stopped first."""
    await asyncio.sleep(0)
    while not stop.asked.is_set() and (left := moment - clock()) > 0:
        try:
            async with asyncio.timeout(left):  # some loops round to the millisecond, hence the loop
                await stop.asked.wait()
        except TimeoutError:
            pass
    return stop.asked.is_set()


async def _place(places: asyncio.Semaphore, stop: Stop, progress: Progress) -> bool:
    """Take a place among those in flight; False if the run was stopped while waiting for one."""
    if not places.locked():
        return await places.acquire()
    progress.held += 1
    taking = asyncio.create_task(places.acquire())
    stopping = asyncio.create_task(stop.asked.wait())
    try:
        await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        return taking.done()
    finally:
        stopping.cancel()
        taking.cancel()


async def _fly(planned: Planned, shot: Shot, send: Send, start: float, progress: Progress) -> None:
    answer = Answer()
    try:
        await send(shot, answer)
    except Exception as error:  # one request that cannot be sent must neither end the run nor go uncounted
        answer.fail(f"client: {type(error).__name__}", str(error))
    finally:
        result = Result(
            planned=planned, fate=answer.outcome, path=shot.path, client_id=shot.id, answer=answer, start=start
        )
        progress.results.append(result)


async def _land(flights: set[asyncio.Task[None]], stop: Stop, drain: float) -> None:
    """Wait for what is in flight: to the end, or for ``drain`` seconds once a stop was asked for."""
    asked = asyncio.create_task(stop.asked.wait())
    now = asyncio.create_task(stop.now.wait())
    try:
        all_down = asyncio.gather(*flights, return_exceptions=True)
        await asyncio.wait((all_down, asked), return_when=asyncio.FIRST_COMPLETED)
        if not all_down.done():
            await asyncio.wait((all_down, now), timeout=drain, return_when=asyncio.FIRST_COMPLETED)
        all_down.cancel()
    finally:
        asked.cancel()
        now.cancel()
