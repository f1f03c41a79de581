"""Two or more ways to run, interleaved: the same arrivals for each, turn about, so that the hour and the host fall on
all alike. How one turn is run, what the machine did and what the figures say are told by rooms of their own.

A *block* is one mirrored round of turns, A B B A, with the arm that begins drawn by chance (or, where a design asks
for it, one turn of each in an order that is drawn). A block in which the machine was disturbed is dropped whole, by a
rule fixed beforehand that does not see what was measured, and counted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from time import perf_counter

import numpy as np

from wastegate.load.blocks import Block, Design, Done, Report, Run, report
from wastegate.load.host import between, look
from wastegate.load.openloop import Stop
from wastegate.load.turns import Measure, Sample, Turn

_STEP = 1_000_003
"""Keeps the seeds of one run's turns apart from those of a run with the next seed."""


class PairedError(RuntimeError):
    """A turn could not be run. The text names the arm and the turn."""


class Progress:
    """What a run is at, for whoever shows it."""

    def __init__(self) -> None:
        self.total = 0
        """Turns, as far as is known: blocks that are dropped may add some."""
        self.turn: Turn | None = None
        self.done: list[Done] = []
        self.dropped = 0
        self.unit = "/s"
        """What stands behind a rung's number."""


async def run(
    arms: Mapping[str, Measure], design: Design, progress: Progress | None = None, stop: Stop | None = None
) -> Report:
    """Run every arm on every rung, in blocks; the first arm is the baseline.

    Passes go up the whole ladder, so that each rung sees the whole time. Each arm first has a turn that does not
    count. A stop ends the run after the turn that is under way; its block does not count. Raises PairedError if a turn
    cannot be run at all, ValueError for fewer than two arms.
    """
    if len(arms) < 2:
        raise ValueError("a paired run needs two arms or more, the baseline first")
    return report(await collect(arms, design, progress, stop))


async def collect(
    arms: Mapping[str, Measure], design: Design, progress: Progress | None = None, stop: Stop | None = None
) -> Run:
    """The turns of :func:`run`, without comparing anything: one arm will do. Raises PairedError."""
    going = _Going(arms, design, progress or Progress(), stop or Stop())
    blocks = await going.blocks()
    return Run(
        arms=tuple(arms),
        design=design,
        blocks=tuple(blocks),
        notes=tuple(going.notes),
        interrupted=going.stopped,
        seconds=perf_counter() - going.start,
    )


class _Going:
    """A run under way."""

    def __init__(self, arms: Mapping[str, Measure], design: Design, progress: Progress, stop: Stop) -> None:
        self.stopped = False
        self.notes: list[str] = []
        self.start = perf_counter()
        self._arms = arms
        self._design = design
        self._progress = progress
        self._stop = stop
        self._chance = np.random.default_rng(design.seed)
        self._turns = 0

    async def blocks(self) -> list[Block]:
        design = self._design
        self._progress.unit = design.unit
        self._progress.total = len(self._arms) * (1 + (1 + design.mirrored) * design.blocks * len(design.rungs))
        found: list[Block] = []
        for arm in self._arms:
            if await self._turn(self._plan(arm, design.rungs[0], -1, 0)) is None:
                return found
        for number in range(design.blocks + design.spares):
            for rate in design.rungs:
                here = [block for block in found if block.rate == rate]
                if sum(not block.dropped for block in here) < design.blocks:
                    block = await self._block(rate, number)
                    if block is None:
                        return found
                    found.append(block)
        return found

    async def _block(self, rate: float | None, number: int) -> Block | None:
        """None if the run was stopped in it."""
        names = list(self._arms)
        order = [names[place] for place in self._chance.permutation(len(names))]
        turns: list[Done] = []
        for place, arm in enumerate((*order, *reversed(order)) if self._design.mirrored else order):
            done = await self._turn(self._plan(arm, rate, number, place))
            if done is None:
                return None
            turns.append(done)
        faults = [turn.fault or self._design.rule.broken_by(turn.host) for turn in turns]
        dropped = next(filter(None, faults), "")
        if dropped:
            self._progress.dropped += 1
            self._progress.total += len(turns) * (number < self._design.blocks + self._design.spares - 1)
        return Block(rate=rate, number=number, turns=tuple(turns), dropped=dropped)

    def _plan(self, arm: str, rate: float | None, block: int, place: int) -> Turn:
        design = self._design
        self._turns += 1
        return Turn(
            arm=arm,
            rate=rate,
            block=block,
            place=place,
            seconds=design.seconds,
            warmup=design.warmup,
            seed=design.seed * _STEP + block + 1,
            fresh=design.seed * _STEP + self._turns,
        )

    async def _turn(self, turn: Turn) -> Done | None:
        """None if the run was stopped before it."""
        if self._stop.asked.is_set():
            self.stopped = True
            return None
        self._progress.turn = turn
        others = await self._others()
        before = look()
        try:
            async with asyncio.timeout(self._design.patience) as timer:
                sample = await _measured(self._arms[turn.arm], turn)
        except Exception as error:
            if timer.expired():
                raise PairedError(f"{self._name(turn)} did not end within {self._design.patience:g} s") from None
            raise PairedError(f"{self._name(turn)}: {type(error).__name__}: {error}") from error
        after = look()
        self.notes += [note for note in sample.notes if note not in self.notes]
        done = Done(
            arm=turn.arm,
            began=before.seconds - self.start,
            took=after.seconds - before.seconds,
            figures=dict(sample.figures),
            host=between(before, after, others),
            fault=sample.fault,
        )
        self._progress.done.append(done)
        return done

    def _name(self, turn: Turn) -> str:
        place = f"block {turn.block}, turn {turn.place}" if turn.block >= 0 else "warm-up turn"
        return f"{turn.arm}{self._design.at(turn.rate)}, {place}"

    async def _others(self) -> float | None:
        """What others here use, seen while nothing is in flight."""
        if not self._design.quiet:
            return None
        before = look()
        await asyncio.sleep(self._design.quiet)
        return between(before, look()).busy


async def _measured(measure: Measure, turn: Turn) -> Sample:
    """A plain function must not hold up whoever shows the progress, so it runs in a thread."""
    quick = inspect.iscoroutinefunction(measure) or inspect.iscoroutinefunction(type(measure).__call__)
    found = measure(turn) if quick else await asyncio.to_thread(measure, turn)
    if inspect.isawaitable(found):
        found = await found
    return found if isinstance(found, Sample) else Sample(figures=found)
