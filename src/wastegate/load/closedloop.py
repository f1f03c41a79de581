"""The closed loop: so many callers, each of whom sends again as soon as its answer has ended, until what they see has
settled. Latency counts from sending. How a request is made or read, and what is made of it, never enter here."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from wastegate.core.steady import Rule, Window, cut_off, window
from wastegate.load.client import Answer, Clock
from wastegate.load.openloop import Loop, Make, Progress, Result, Send, Stop
from wastegate.load.schedule import Planned

BREATH = 0.05
"""Seconds that a caller waits after a failure, so that a server that refuses at once is not asked in a tight loop."""


class ClosedLoop:
    """``width`` callers at once. After :meth:`run`, ``window`` says which stretch counts. Calls that are still under
    way then are waited for ``drain`` seconds, and given up after that: they have no Result."""

    def __init__(self, width: int, rule: Rule, drain: float = 0.0) -> None:
        if width < 1:
            raise ValueError(f"{width} calls at once: at least 1 is needed")
        self.window: Window | None = None
        self._width = width
        self._rule = rule
        self._drain = drain
        self._ends: list[float] = []
        self._over = asyncio.Event()

    async def run(
        self, plan: Sequence[Planned], make: Make, send: Send, clock: Clock, loop: Loop, stop: Stop, progress: Progress
    ) -> list[Result]:
        """The shape of :func:`wastegate.load.openloop.run`: rows are taken in turn, over and over, as far as needed.
        One Result a call that ended, in the order of ending."""
        rows = [planned for planned in plan if not planned.skip]
        if not rows:
            return []
        numbers = count()
        start = clock()

        async def caller() -> None:
            while not self._over.is_set():
                number = next(numbers)
                row = rows[number % len(rows)]
                result = await _once(replace(row, number=number + 1, at=clock() - start), make, send, start)
                progress.results.append(result)
                self._ended(result)
                if result.fate != "ok":
                    await asyncio.sleep(BREATH)

        callers = [asyncio.create_task(caller()) for _ in range(self._width)]
        try:
            await self._settled(stop)
            if self.window is None:
                self.window = cut_off(self._ends, self._width, self._rule, clock() - start)
            self._over.set()
            await asyncio.wait(callers, timeout=self._drain)
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        return list(progress.results)

    def _ended(self, result: Result) -> None:
        insort(self._ends, (result.answer.ended or 0.0) - result.start)
        if self.window is None:
            self.window = window(self._ends, self._width, self._rule)
            if self.window is not None:
                self._over.set()

    async def _settled(self, stop: Stop) -> None:
        """Until what ended has settled, time is up, or a stop was asked for."""
        waits = [asyncio.create_task(self._over.wait()), asyncio.create_task(stop.asked.wait())]
        try:
            await asyncio.wait(waits, timeout=self._rule.most, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _once(planned: Planned, make: Make, send: Send, start: float) -> Result:
    """One call, to its end. Its ``at`` is when it is sent: there is no earlier intention."""
    answer = Answer()
    shot = make(planned)
    try:
        await send(shot, answer)
    except Exception as error:  # one request that cannot be sent must neither end the run nor go uncounted
        answer.fail(f"client: {type(error).__name__}", str(error))
    return Result(planned=planned, fate=answer.outcome, path=shot.path, client_id=shot.id, answer=answer, start=start)
