"""What all flights of one gateway process share: the fleet, the line, the connections, the journal, the clock."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.effects import Claimed, Reply
from wastegate.core.fleet import Rations, Replica, View
from wastegate.core.ledger import Admission, Entry
from wastegate.core.line import QUANTUM
from wastegate.core.lines import Lines
from wastegate.core.mirror import Mirror
from wastegate.core.plan import Plan, Rules
from wastegate.core.rationing import Rationing
from wastegate.core.simhash import simhash
from wastegate.core.world import Result, World
from wastegate.gateway.claims import Slots
from wastegate.gateway.prefix import BLOCK_BYTES, blocks_of
from wastegate.gateway.recorder import Recorder
from wastegate.gateway.tally import Report, Tally
from wastegate.gateway.twins import Leader, Twins
from wastegate.gateway.upstream import Origin, Pool, origin_of

if TYPE_CHECKING:
    from wastegate.gateway.relay import Flight

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.1


class Clock:
    """Seconds since the epoch that never go back: the wall is read once, then the monotonic clock counts on."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        monotonic = time.monotonic
        offset = time.time() - monotonic()
        self.now: Callable[[], float] = lambda: monotonic() + offset


class Hub:
    """Built once by ``app`` and handed to every connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        world: World | Mirror,
        recorder: Recorder,
        rules: Rules,
        line_bound: int,
        seed: int = 0,
    ) -> None:
        self.loop = loop
        self.now = now
        self.tick = now()
        """The time at the last sweep: good enough for waits of seconds, and free."""
        self.world = world
        self.recorder = recorder
        self.rules = rules
        self._seed = seed
        self.tally = Tally()
        self.likeness = False
        """Some route goes by how alike prompts are."""
        self.link: Slots | None = None
        """Where claims are asked for; without one this process alone keeps the world."""
        self.rationing: Rationing | None = None
        """None while no route is rationed."""
        self.flights: set[Flight] = set()
        self.origins: dict[str, Origin] = {}
        """How replicas are reached that take more than an address."""
        self.twins = Twins()
        """Calls in flight that others may go along with, where a route allows that."""
        self._lines: Lines[Flight] = Lines(line_bound)
        self._pools: dict[str, Pool] = {}
        self._wake_planned = False
        self._ended: list[Entry] = []
        self._then: list[Callable[[], None]] = []
        self._write_planned = False
        self._sweeper: asyncio.TimerHandle | None = None

    # ---- the fleet

    def connect(self, replicas: Iterable[Replica]) -> None:
        """The fleet has changed: connections to replicas that stay where they are are kept, others end."""
        pools: dict[str, Pool] = {}
        for replica in replicas:
            if not replica.url:
                continue  # a process of our own that has no address yet
            old = self._pools.get(replica.name)
            origin = origin_of(replica.url, self.origins.get(replica.name), old.origin if old is not None else None)
            if old is not None and old.origin.url == origin.url and old.origin.access == origin.access:
                pools[replica.name] = self._pools.pop(replica.name)
            else:
                pools[replica.name] = Pool(origin, self.loop)
        for gone in self._pools.values():
            gone.close()
        self._pools = pools
        self.changed()

    def pool(self, plan: Plan) -> Pool | None:
        """The connections to the plan's replica; None if it has left the fleet since the plan was made."""
        return self._pools.get(plan.replica.name) if plan.replica is not None else None

    def prepare(self, call: Call, prompt: bytes) -> Call:
        """The call with all that policy may want to know of its prompt."""
        if self.likeness:
            call = replace(call, likeness=simhash(prompt))
        return replace(call, blocks=blocks_of(prompt, self._seed)) if len(prompt) >= BLOCK_BYTES else call

    def look(self, flight: Flight, call: Call) -> View:
        """This instant, for this call. Whoever is not at the head of its line has others ahead."""
        rationing = self.rationing
        closed = rationing.closed if rationing is not None else ()
        ahead = self._lines.ahead(call.model, flight, closed) if self._lines else 0
        view = self.world.view(call, self.now(), random.random(), ahead)
        if rationing is not None:
            view = replace(view, rations=self._rations(flight, call, rationing))
        if call.twin:
            leader = self.twins.find(call.twin, cast(Leader, flight))
            view = replace(view, twin=leader.id if leader is not None else "")
        return view

    def _rations(self, flight: Flight, call: Call, rationing: Rationing) -> Rations:
        waiting, turn = self._lines.waiting(call.model)
        return Rations(waiting, None if self._lines.has(call.model, flight) else turn, rationing.running(call.route))

    def claim(self, flight: Flight, call: Call, plan: Plan) -> Claimed | None:
        """Take the slot. None: it is asked for elsewhere, and ``flight.claimed`` will be told."""
        if self.rationing is not None:
            self.rationing.took(call.route)
        if self.link is not None:
            assert plan.replica is not None
            self.link.claim(plan.replica.name, plan.number, flight)
            return None
        now = self.now()
        assert isinstance(self.world, World), "a mirror has no slots of its own: it needs a link"
        if not self.world.claim(plan, now):
            self.unclaimed(call)
            return Claimed(False, now)
        self.admit(flight, call, plan, now)
        return Claimed(True, now)

    def admit(self, flight: Flight, call: Call, plan: Plan, now: float) -> None:
        """The slot is taken: write down that the call is on its way."""
        self.leave(flight, call, served=True)
        if self.world.reuse is not None and plan.replica is not None:
            collides = self.world.reuse.sent(call, plan.replica.name, now)
            if collides:
                log.warning("simhash: call %s has all 64 bits of an earlier prompt, and is another", call.id)
        admission = Admission(
            call.id,
            call.arrived,
            call.route,
            call.path,
            call.model,
            call.tenant,
            call.stream,
            call.prompt_tokens,
            plan.number,
            plan.replica.name if plan.replica is not None else "",
            now,
            call.tags,
            call.client_id,
            call.traceparent,
        )
        # At once, before it is sent: a kill must leave a trace of every call that a replica works on.
        self.recorder.admit(admission)

    def unclaimed(self, call: Call) -> None:
        """It asked for a slot, and got or has none any more."""
        if self.rationing is not None:
            self.rationing.gave(call.route)

    def released(self, reply: Reply, lease: int, now: float, call: Call) -> None:
        """The slot is free again."""
        if self.rationing is not None:
            self.rationing.gave(call.route)
        if self.link is not None:
            self.link.back(lease, Result.of(reply))
        elif isinstance(self.world, World):
            self.world.released(reply, now)
        if self._lines:
            self.changed()

    def record(self, entry: Entry, then: Callable[[], None] | None) -> None:
        """Write the call's end down; ``then`` is called once that is done."""
        self.tally.count(entry)
        if self.rationing is not None:
            self.tally.time(entry)
        self._ended.append(entry)
        if then is not None:
            self._then.append(then)
        if not self._write_planned:
            self._write_planned = True
            self.loop.call_soon(self.write_down)

    def write_down(self) -> None:
        """All that has ended in this turn of the event loop goes to the journal in one write; then those who wait for
        it go on."""
        self._write_planned = False
        ended, self._ended = self._ended, []
        waiting, self._then = self._then, []
        if ended:
            self.recorder.end(ended)
        for then in waiting:
            try:
                then()
            except Exception:  # one client's trouble must not keep the others from their ends
                log.exception("the end of an answer could not be sent")

    # ---- the line

    def queue(self, flight: Flight, call: Call, until: float) -> bool:
        """A place in the line of the call's model, or the place that it has already. False if the line is full."""
        rationing = self.rationing
        if rationing is None:
            return self._lines.join(call.model, flight, call.priority)
        before = len(self._lines)
        joined = self._lines.join(
            call.model,
            flight,
            call.priority,
            tenant=call.tenant,
            group=rationing.group(call.route),
            deadline=until,
            cost=call.prompt_tokens + (call.max_tokens or QUANTUM) * call.n,
        )
        if rationing.closed and len(self._lines) > before:
            self.changed()  # whoever is before it may only be waiting for its route
        return joined

    def leave(self, flight: Flight, call: Call, served: bool = False) -> None:
        if self._lines and self._lines.leave(call.model, flight, served, self.now()):
            self.changed()

    def set_line(self, bound: int) -> None:
        """How many may wait for each model, from now on."""
        self._lines.resize(bound)

    @property
    def waiting(self) -> int:
        return len(self._lines)

    def changed(self) -> None:
        """A slot, a replica or the head of a line has changed: let the heads look again, once, soon."""
        if self._lines and not self._wake_planned:
            self._wake_planned = True
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_planned = False
        now = self.now()
        for head in self._lines.heads(self.rationing.closed if self.rationing is not None else ()):
            head.wake(now)  # if it gets its place it leaves the line, which wakes the next

    def report(self) -> Report:
        """This process, for its operator."""
        told = Report(len(self.flights), self.waiting, self.recorder.unrecorded, self.recorder.failing, self.tally)
        told.untold = self.recorder.untold
        if (reuse := self.world.reuse) is not None:
            told.prefix_blocks, told.prefix_bytes = reuse.prefixes.blocks, reuse.prefixes.bytes
            told.collisions = reuse.sticky.collisions
        return told

    # ---- time

    def start(self) -> None:
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """One coarse timer for all flights: cheaper than five timers for each call."""
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = self.tick = self.now()
        for flight in list(self.flights):
            flight.check(now)
        self.changed()  # a rest or a breaker may have run out

    def stop(self) -> None:
        self.write_down()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for pool in self._pools.values():
            pool.close()
