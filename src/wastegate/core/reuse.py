"""What routing knows beside the fleet itself: who holds which prefix, how fast each replica is, how much work lies
before it. Mutable, but no clock and no I/O: told what was sent, begun and ended, asked for an outlook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.fleet import Outlook, ReplicaState
from wastegate.core.ledger import Attempt
from wastegate.core.pace import Pace
from wastegate.core.prefixes import Config, Prefixes, Step
from wastegate.core.rendezvous import home
from wastegate.core.simhash import Sticky

_MOST_GROUPS = 256
_LUCK_MEMORY = 0.98
_MISSES = 3
"""Answers in a row without any of the prefix that was sent before: its cache is another one now."""


class _Group:
    """The replicas that serve one model, in the view's order. Their figures are kept as lists, so that an outlook is a
    few copies whatever their number."""

    __slots__ = ("confidence", "holdups", "mask", "names", "paces", "places", "rates", "waits")

    def __init__(self, names: list[str], paces: list[Pace]) -> None:
        self.names = [name.encode() for name in names]
        self.paces = paces
        self.places = {1 << pace.slot: place for place, pace in enumerate(paces) if pace.slot is not None}
        self.mask = sum(self.places)
        self.waits = [pace.wait for pace in paces]
        self.rates = [pace.rate for pace in paces]
        self.holdups = [pace.holdup for pace in paces]
        self.confidence = [pace.confidence for pace in paces]

    def note(self, pace: Pace) -> None:
        """A replica has changed; perhaps one of its own."""
        if pace not in self.paces:
            return
        place = self.paces.index(pace)
        self.waits[place] = pace.wait
        self.rates[place] = pace.rate
        self.holdups[place] = pace.holdup
        self.confidence[place] = pace.confidence


class _Sent(Struct, frozen=True, gc=False):
    """A call on its way."""

    call: Call
    replica: str
    pace: Pace
    at: float
    tokens: float
    """Prefill that is expected of it."""
    before: float
    running: int
    held: int
    """Blocks that the replica was thought to hold."""
    cold: bool
    """Nobody was thought to hold more than most do."""
    key: int
    """Of the block that sets it apart."""


class Reuse:
    """One for each process that decides. ``others``: further processes give the same replicas calls as well."""

    def __init__(self, config: Config, sticky_seconds: float, now: float, others: bool = False) -> None:
        self.config = config
        self.prefixes = Prefixes(config, now)
        self.sticky = Sticky(sticky_seconds)
        self._others = others
        self._paces: dict[str, Pace] = {}
        self._groups: dict[str, _Group] = {}
        self._flying: dict[str, _Sent] = {}
        self._began: set[str] = set()
        self._due: list[tuple[float, str]] = []
        """When calls that do not stream will have had their first token, which nobody sees: soonest first."""
        self._urls: dict[str, str] = {}
        """Of the replicas whose caches are alive."""
        self._sequence = 0
        self._luck = 0.5
        """Share of cold prompts that was found in a cache after all."""
        self._seen: tuple[str, list[Step]] = "", []
        """The call that was looked at last, and who holds its prompt."""
        self._alike: dict[int, int] = {}
        """Calls in flight by the first block that sets them apart."""

    # ---- the fleet

    def regroup(self) -> None:
        """Which replicas serve what has changed."""
        self._groups.clear()

    def fleet(self, states: Iterable[ReplicaState]) -> None:
        """The fleet as it is now. What loads or is down will come up with an empty cache, as will one that answers
        elsewhere than it did; what has left is forgotten."""
        known, self._urls = self._urls, {}
        for state in states:
            replica = state.replica
            if state.state not in ("loading", "down"):
                self._urls[replica.name] = replica.url
                if known.get(replica.name, replica.url) != replica.url:
                    self._forget(replica.name)
        for name in known.keys() - self._urls.keys():
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Its cache is empty, and its speed will be another one's."""
        self.prefixes.forget(name)
        self._paces.pop(name, None)
        self._groups.clear()

    def _emptied(self, name: str, pace: Pace) -> None:
        self.prefixes.forget(name)
        pace.slot = self.prefixes.slot(name)
        pace.missed = 0
        self._groups.clear()

    def _pace(self, name: str) -> Pace:
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = Pace(self.prefixes.slot(name))
        return pace

    def _group(self, model: str, replicas: Sequence[ReplicaState]) -> _Group:
        group = self._groups.get(model)
        if group is None or len(group.paces) != len(replicas):
            if len(self._groups) >= _MOST_GROUPS:  # names that clients make up, where replicas do not say theirs
                self._groups.clear()
            names = [state.replica.name for state in replicas]
            group = self._groups[model] = _Group(names, [self._pace(name) for name in names])
        return group

    # ---- asked before a call is sent

    def look(self, call: Call, replicas: Sequence[ReplicaState], now: float) -> Outlook:
        """What each of the replicas would make of the call."""
        self._sequence += 1
        while self._due and self._due[0][0] <= now:
            self.began(heappop(self._due)[1])
        group = self._group(call.model, replicas)
        tokens = float(call.prompt_tokens)
        cached: Sequence[float] = [0.0] * len(replicas)
        shared = chance = 0.0
        alike, cold_home = 0, -1
        if call.blocks:
            chain = memoryview(call.blocks).cast("Q")
            steps = self.prefixes.holders(chain, call.scope, now)
            self._seen = call.id, steps
            blocks, cold = _shared(steps, group.mask)
            a_block = tokens / len(chain)
            cached = _cached(steps, group, a_block) if steps else cached
            shared = blocks * a_block
            key = _key(chain, call.scope, blocks)
            alike = self._alike.get(key, 0)
            if cold:
                chance, cold_home = self._luck, home(key, group.names)
        return Outlook(
            tokens,
            tuple(cached),
            tuple(self._waits(group, replicas) if self._others else group.waits),
            tuple(group.rates),
            tuple(group.holdups),
            tuple(group.confidence),
            shared,
            chance,
            cold_home,
            alike,
            self._sequence,
            self.sticky.find(call.likeness, now) if call.likeness else "",
        )

    @staticmethod
    def _waits(group: _Group, replicas: Sequence[ReplicaState]) -> list[float]:
        """With the calls that other processes have given them: of those only the number is known."""
        return [
            pace.wait + pace.slowdown * max(0, state.in_flight - pace.waiting - pace.running)
            for pace, state in zip(group.paces, replicas, strict=True)
        ]

    def _changed(self, pace: Pace) -> None:
        for group in self._groups.values():
            group.note(pace)

    # ---- told

    def sent(self, call: Call, replica: str, now: float) -> bool:
        """The call has its slot on the replica. True: its SimHash is that of another prompt (which costs no more than a
        miss)."""
        pace = self._pace(replica)
        chain = memoryview(call.blocks).cast("Q")
        looked, steps = self._seen
        if looked != call.id:
            steps = self.prefixes.holders(chain, call.scope, now) if chain else []
        bit = 1 << pace.slot if pace.slot is not None else 0
        held = max((blocks for blocks, mask in steps if mask & bit), default=0)
        group = self._groups.get(call.model)
        shared, cold = _shared(steps, group.mask if group is not None else 0)
        key = _key(chain, call.scope, shared) if chain else 0
        share = held / len(chain) if chain else 0.0
        tokens = call.prompt_tokens * (1.0 - share)
        self._flying[call.id] = _Sent(call, replica, pace, now, tokens, pace.pending, pace.running, held, cold, key)
        self._alike[key] = self._alike.get(key, 0) + 1
        if not call.stream:
            heappush(self._due, (now + pace.wait + pace.rate * tokens, call.id))
        pace.sent(tokens)
        self._changed(pace)
        if chain:
            self.prefixes.add(replica, chain, call.scope, now)
        if not call.likeness:
            return False
        return self.sticky.put(call.likeness, replica, chain[-1] if chain else 0, now)

    def began(self, call: str) -> None:
        """Its first token is here."""
        sent = self._flying.get(call)
        if sent is not None and call not in self._began:
            self._began.add(call)
            sent.pace.began(sent.tokens)
            self._changed(sent.pace)

    def ended(self, call: str, attempt: Attempt, now: float) -> None:
        """The replica works on it no more."""
        sent = self._flying.pop(call, None)
        if sent is None:
            return
        self._alike[sent.key] -= 1
        if not self._alike[sent.key]:
            del self._alike[sent.key]
        began = call in self._began
        self._began.discard(call)
        sent.pace.ended(sent.tokens, began)
        if attempt.first_byte is None or (attempt.status is not None and attempt.status >= 400):
            blocks = memoryview(sent.call.blocks).cast("Q")
            self.prefixes.remove(sent.replica, blocks[sent.held :], sent.call.scope)
        else:
            self._learn(sent, attempt)
        self._changed(sent.pace)

    def _learn(self, sent: _Sent, attempt: Attempt) -> None:
        pace, call = sent.pace, sent.call
        tokens = sent.tokens
        if attempt.cached_tokens is not None and attempt.prompt_tokens:
            share = attempt.cached_tokens / attempt.prompt_tokens
            tokens = call.prompt_tokens * (1.0 - share)
            blocks = len(call.blocks) // 8
            pace.told(sent.held > 0, attempt.cached_tokens > 0)
            if blocks and sent.cold:
                self._luck = self._luck * _LUCK_MEMORY + (share > sent.held / blocks) * (1 - _LUCK_MEMORY)
            if pace.missed >= _MISSES and self._paces.get(sent.replica) is pace:
                self._emptied(sent.replica, pace)
        if attempt.first_token is not None and attempt.sent is not None:
            pace.measured(tokens + sent.before, sent.running, attempt.first_token - attempt.sent)


def _key(chain: Sequence[int], scope: int, shared: int) -> int:
    """The first block that most do not hold: what is placed by it comes to lie together."""
    return chain[min(shared, len(chain) - 1)] ^ scope


def _shared(steps: Sequence[Step], everyone: int) -> tuple[int, bool]:
    """Blocks at the front that more than half of the replicas hold; and that nobody holds more than those."""
    shared, deepest = 0, 0
    for blocks, mask in steps:
        holders = mask & everyone
        if holders:
            deepest = blocks
        if 2 * holders.bit_count() > everyone.bit_count():
            shared = blocks
    return shared, deepest == shared


def _cached(steps: Sequence[Step], group: _Group, a_block: float) -> list[float]:
    """Tokens that each replica of the group should have, in its order."""
    count = len(group.paces)
    cached = [0.0] * count
    for blocks, mask in steps:
        tokens = blocks * a_block
        left = mask & group.mask
        if left == group.mask:
            cached = [tokens] * count
            continue
        while left:
            bit = left & -left
            cached[group.places[bit]] = tokens
            left ^= bit
    return cached
