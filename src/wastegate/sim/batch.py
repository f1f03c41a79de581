"""A replica that batches continuously, as vLLM, SGLang, llama.cpp and the local engine do. It skips ahead: while nobody
joins, ends or changes phase the batch is constant, and many steps are one sum. No event heap and no chance here.

Between two plans nothing changes but lengths, so a call costs as many plans as it has events, not as it has tokens.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Row

from wastegate.core.admission import Admission, Limits
from wastegate.sim.kv import Blocks
from wastegate.sim.phase import Phase, Sequence
from wastegate.sim.replica import UNBOUNDED, Milestone, Settings, Spent, Work
from wastegate.sim.timing import Load, Timing

_EPSILON = 1e-6
"""Of a token: what fractions of tokens, added up, may be off by."""


class BatchedReplica:
    """The calls of one replica. Times are in seconds and never go back; a driver asks when the next change is due,
    advances to it, and adds and drops calls in between."""

    def __init__(self, settings: Settings, timing: Timing) -> None:
        self.spent = Spent()
        self._settings = settings
        self._timing = timing
        self._places: Admission[int] = Admission(Limits(settings.running, settings.queue))
        self._blocks = Blocks(settings.hashed_tokens, settings.tier_tokens)
        self._calls: dict[str, Sequence] = {}
        self._waiting: dict[int, Sequence] = {}
        """Have no place yet. By order of arrival, here and below: a key may come back before it is quite gone."""
        self._queue: OrderedDict[int, Sequence] = OrderedDict()
        """Have a place, but no KV yet."""
        self._prefilling: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._ends: list[tuple[float, int, Sequence]] = []
        self._leaving: list[Sequence] = []
        self._clock = 0.0
        """Tokens that a sequence would have made that had run since the beginning."""
        self._live = 0.0
        """Tokens of KV of the running sequences."""
        self._shared = 0
        """Of those, in hashed blocks, which count once however many use them."""
        self._reserved = 0
        self._loading = 0.0
        """Seconds of the tier that the next step waits for."""
        self._phase: Phase | None = None
        self._now = 0.0
        self._order = self._pushed = 0

    def __len__(self) -> int:
        """Calls in flight, waiting ones too."""
        return len(self._calls)

    def __contains__(self, key: str) -> bool:
        return key in self._calls

    @property
    def held(self) -> float:
        """Tokens of KV that cannot be given up."""
        sequences = len(self._running) + len(self._prefilling)
        half_empty = sequences * (self._settings.block - 1) / 2
        return self._live - self._shared + self._reserved + self._blocks.pinned + half_empty

    # ---- what a driver calls

    def add(self, key: str, work: Work, now: float) -> str:
        """Begin a call: "run", "wait", or refused as "full" or "too long". The caller has taken all milestones up to
        ``now``. ValueError if the key is in flight."""
        if key in self._calls:
            raise ValueError(f"{key!r} is in flight already")
        self._pass(now)
        if work.prompt + work.output > self._settings.kv_tokens:
            return "too long"
        self._order += 1
        verdict = self._places.arrive(self._order, work.priority)
        if verdict == "full":
            return verdict
        sequence = self._calls[key] = Sequence(key, work, self._order, self._hashes(work))
        if verdict == "run":
            self._queue[sequence.order] = sequence
            self._interrupt(now)
        else:
            self._waiting[sequence.order] = sequence
        return verdict

    def _hashes(self, work: Work) -> Row[int]:
        if not self._settings.prefix_caching or not work.blocks:
            return ()
        hashes = array("Q", work.blocks)[: work.prompt // self._settings.hashed_tokens]
        return array("Q", [each ^ work.scope for each in hashes]) if work.scope else hashes

    def drop(self, key: str, now: float) -> int:
        """End a call before its time; the tokens that it had got. KeyError if it is not in flight."""
        self._pass(now)
        sequence = self._calls.pop(key)
        if self._places.leave(sequence.order):
            del self._waiting[sequence.order]
            return 0
        if self._queue.pop(sequence.order, None) is not None:
            self._free_place()
            self._interrupt(now)
            return sequence.made
        sequence.gone = True
        self._leaving.append(sequence)
        made = sequence.made
        if sequence.order in self._running:
            clock = self._clock + (self._phase.done(now) * self._phase.gain if self._phase is not None else 0.0)
            made = min(sequence.output, sequence.made + int(clock - sequence.since + _EPSILON))
        self._interrupt(now)
        return made

    def next_change(self) -> float | None:
        """When something may change if nothing is added or dropped before; None without calls."""
        return None if self._phase is None else self._phase.end

    def advance(self, now: float) -> list[Milestone]:
        """Work until ``now``: the milestones passed, in order. Finished calls are gone afterwards."""
        passed: list[Milestone] = []
        while self._phase is not None and (end := self._phase.end) <= now:
            self._complete(self._phase, end, passed)
            self._plan(end)
        self._pass(now)
        return passed

    # ---- phases

    def _pass(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time went back from {self._now} to {now}")
        self._now = now

    def _interrupt(self, now: float) -> None:
        """Let the step in progress be the last of its phase, so that who has come or left counts from the next on."""
        phase = self._phase
        if phase is None:
            self._plan(now)
            return
        done = phase.done(now)
        begun = phase.began + phase.seconds(done) < now
        phase.steps = min(phase.steps, done + begun)

    def _complete(self, phase: Phase, at: float, passed: list[Milestone]) -> None:
        steps = phase.steps
        self._loading = 0.0 if steps else phase.loading
        self._clock += steps * phase.gain
        self._live += steps * phase.gain * phase.running
        self._blocks.trim(self._settings.kv_tokens - self.held)
        self._account(phase, at)
        for part, tokens in phase.parts:
            part.done += steps * tokens
            if part.done >= part.prompt and not part.gone:
                self._prompt_done(part, at, passed)
        while (sequence := self._next_end()) is not None and sequence.end - self._clock < _EPSILON:
            heapq.heappop(self._ends)
            if not sequence.gone:
                self._finish(sequence, at, passed)
        for gone in self._leaving:
            self._release(gone)
            self._free_place()
        self._leaving.clear()

    def _account(self, phase: Phase, at: float) -> None:
        spent, seconds = self.spent, at - phase.began
        spent.busy += seconds
        spent.doubted += seconds * phase.doubt
        if not phase.inside:
            spent.outside += seconds
        spent.steps += phase.steps
        spent.prefill += phase.steps * sum(tokens for _, tokens in phase.parts)
        spent.decoded += phase.steps * phase.gain * phase.running
        spent.kv_peak = max(spent.kv_peak, self.held)

    def _prompt_done(self, sequence: Sequence, at: float, passed: list[Milestone]) -> None:
        """The prompt's last part also brings a token."""
        del self._prefilling[sequence.order]
        self._reserved -= sequence.own
        if sequence.hashes:
            known = sequence.cached // self._settings.hashed_tokens
            self._blocks.pin(sequence.hashes[known:])
            sequence.cached = len(sequence.hashes) * self._settings.hashed_tokens
        sequence.made = min(sequence.output, sequence.made + 1)
        sequence.base, sequence.since = float(sequence.prompt), self._clock
        sequence.end = self._clock + sequence.output - sequence.made
        self._running[sequence.order] = sequence
        self._live += sequence.base
        self._shared += sequence.cached
        if sequence.output and not sequence.started:
            sequence.started = True
            passed.append(Milestone(sequence.key, "first_token", at, sequence.hit))
        if sequence.made >= sequence.output:
            self._finish(sequence, at, passed)
        else:
            self._pushed += 1  # one that comes back after a preemption may have the same end again
            heapq.heappush(self._ends, (sequence.end, self._pushed, sequence))

    def _finish(self, sequence: Sequence, at: float, passed: list[Milestone]) -> None:
        self._release(sequence)
        del self._calls[sequence.key]
        passed.append(Milestone(sequence.key, "finished", at, sequence.hit))
        self._free_place()

    def _release(self, sequence: Sequence) -> None:
        """Give back its KV; what was computed whole stays in the cache."""
        if self._running.pop(sequence.order, None) is not None:
            self._live -= sequence.base + self._clock - sequence.since
            self._shared -= sequence.cached
        elif self._prefilling.pop(sequence.order, None) is not None:
            self._reserved -= sequence.own
        if sequence.hashes:
            self._blocks.unpin(sequence.hashes[: sequence.cached // self._settings.hashed_tokens])

    def _free_place(self) -> None:
        for order in self._places.finish():
            self._queue[order] = self._waiting.pop(order)

    def _next_end(self) -> Sequence | None:
        """Who ends first; ends of those who have left or were preempted are passed over."""
        ends = self._ends
        while ends:
            end, _, sequence = ends[0]
            if sequence.end == end and sequence.order in self._running:
                return sequence
            heapq.heappop(ends)
        return None

    # ---- plans

    def _plan(self, at: float) -> None:
        """The next phase, if there is anything to do."""
        self._phase = None
        settings, admits = self._settings, True
        while True:
            running = len(self._running)
            drafted = len(settings.accepted) if running < settings.speculate_below else 0
            parts, left = self._parts(running * (1 + drafted), admits)
            if parts and not settings.mixed:
                running = 0
            gain = 1 + sum(settings.accepted[:drafted]) if running else 0.0
            steps = self._steps(parts, left, running, gain)
            if steps:
                break
            self._preempt()
            admits = False  # in this step; from the next on there may be room for what is in the cache anyway
        if not running and not parts:
            return
        phase = Phase(at, steps if admits else 1, running, gain)
        phase.parts, phase.loading = parts, self._loading
        self._time(phase, running * (1 + drafted), settings.draft_seconds * drafted if running else 0.0)
        self._phase = phase
        self._blocks.trim(settings.kv_tokens - self.held)

    def _time(self, phase: Phase, decoding: int, drafting: float) -> None:
        live = self._live if phase.running else 0.0
        prefill = sum(tokens for _, tokens in phase.parts)
        pairs = sum(tokens * (one.done + tokens / 2) for one, tokens in phase.parts)
        load = Load(prefill, pairs, decoding, live)
        phase.first = self._timing.step(load) + drafting
        phase.doubt, phase.inside = self._timing.doubt(load), self._timing.inside(load)
        more = phase.steps - 1
        if more:
            longer = sum(tokens * tokens for _, tokens in phase.parts)
            load = Load(prefill, pairs + more * longer, decoding, live + more * phase.gain * phase.running)
            phase.slope = (self._timing.step(load) + drafting - phase.first) / more
            phase.inside = phase.inside and self._timing.inside(load)

    def _parts(self, decoding: int, admits: bool) -> tuple[list[tuple[Sequence, int]], int]:
        """Parts of prompts for the next step, and what is left of its tokens."""
        settings = self._settings
        left = max(settings.least_prefill, settings.step_tokens - decoding)
        parts: list[tuple[Sequence, int]] = []
        for sequence in self._prefilling.values():
            if not (tokens := self._part(sequence, left, bool(parts))):
                return parts, left
            parts.append((sequence, tokens))
            left -= tokens
        while admits and self._queue and left > 0:
            sequence = next(iter(self._queue.values()))
            if (parts and not settings.chunked and sequence.prompt > left) or not self._begin(sequence):
                break
            if not (tokens := self._part(sequence, left, bool(parts))):
                break
            parts.append((sequence, tokens))
            left -= tokens
        return parts, left

    def _part(self, sequence: Sequence, left: int, others: bool) -> int:
        rest = sequence.prompt - sequence.done
        if not self._settings.chunked:
            return rest if rest <= left or not others else 0
        return rest if rest <= left else left // self._settings.part_block * self._settings.part_block

    def _begin(self, sequence: Sequence) -> bool:
        """Find what is cached and reserve the rest of the prompt. False without room for it, and for a block more of
        each running sequence: who has just been preempted must not come straight back."""
        size, hashes = self._settings.hashed_tokens, sequence.hashes
        found = self._blocks.find(hashes)
        most = max(0, sequence.prompt - 1) // size  # its last token is always computed: it brings the first new one
        blocks = min(found.here + found.tier, most)
        hit, loaded = blocks * size, max(0, blocks - found.here) * size
        if self._running or self._prefilling:
            room = self._settings.kv_tokens - self.held - len(self._running) * self._settings.block
            if sequence.prompt - hit + self._blocks.unpinned(hashes[:blocks]) > room:
                return False
        self._blocks.pin(hashes[:blocks])
        sequence.cached = sequence.done = hit
        sequence.hit = sequence.hit if sequence.made else hit
        sequence.own = sequence.prompt - hit
        self._reserved += sequence.own
        self.spent.cached += hit
        if loaded:
            self.spent.loaded += loaded
            self._loading += loaded / self._settings.tier_rate
        del self._queue[sequence.order]
        self._prefilling[sequence.order] = sequence
        return True

    def _steps(self, parts: list[tuple[Sequence, int]], left: int, running: int, gain: float) -> int:
        """How many steps the batch stays as it is; 0 where the next one does not fit the KV."""
        steps = UNBOUNDED
        if parts:
            sequence, tokens = parts[-1]
            alone = len(parts) == 1 and left < self._settings.part_block  # it takes each step's room for prompts
            steps = max(1, math.ceil((sequence.prompt - sequence.done - left) / tokens) - 1) if alone else 1
        if not running:
            return max(1, steps)
        first = self._next_end()
        assert first is not None, "a running sequence has an end"
        steps = min(steps, math.ceil((first.end - self._clock) / gain - _EPSILON))
        if len(self._running) + len(self._prefilling) > 1:
            room = self._settings.kv_tokens - self.held
            steps = min(steps, int(room / (running * gain)))
        return max(0, steps)

    def _preempt(self) -> None:
        """The one that began last gives its KV up, and computes it anew when there is room."""
        newest = [next(reversed(group.values())) for group in (self._running, self._prefilling) if group]
        sequence = max(newest, key=lambda one: one.order)
        if sequence.order in self._running:
            sequence.made = min(sequence.output - 1, sequence.made + int(self._clock - sequence.since + _EPSILON))
        self._release(sequence)
        sequence.prompt = sequence.asked + sequence.made
        sequence.done = sequence.cached = 0
        self._queue[sequence.order] = sequence
        self._queue.move_to_end(sequence.order, last=False)
        self.spent.preempted += 1
