"""The routing lever: which replica a call goes to. It weighs seconds of prefill that a cached prefix saves against
seconds that the call would wait for it. It decides on values: no index, no text and no clock enter here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from wastegate.core import prefixes
from wastegate.core.effect import Effect
from wastegate.core.fleet import Outlook, ReplicaState, View
from wastegate.core.ledger import Entry
from wastegate.core.plan import Plan
from wastegate.core.rendezvous import home

Policy = Literal[
    "off", "prefix_aware", "simhash", "round_robin", "least_inflight", "session_hash", "prefix_hash"
]  # fmt: skip
_FEW = 8
"""Replicas of which all are compared, whatever they hold."""
_SHOWN = 3
"""Candidates in the trail."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """``[levers.routing]``. Off as it stands."""

    policy: Policy = "off"
    """"off" is the less loaded of two random replicas. "prefix_aware" weighs a cached prefix against the wait for it.
    The others are there to compare with: "simhash" sends prompts much alike to the same replica for a while,
    "session_hash" calls with the same session tag, "prefix_hash" prompts with the same beginning."""
    max_load: float = 1.4
    """No call goes to a replica that would then have more than this many times its share of the calls in flight …"""
    free_load: int = 11
    """… and more than so many. Twice both for a call whose beginning is rare among those in flight, and cached: such
    calls do not pile up, and a copy of their prefix would serve nobody else."""
    fallback: Literal["random", "least_inflight"] = "random"
    """Where "simhash" sends a prompt that is like no other, or whose replica cannot take it."""
    sticky_seconds: float = 300.0
    """How long "simhash" remembers where a prompt went."""
    session_tag: str = "session"
    """The tag that names a call's session: the header x-wastegate-tag-session. Without one its tenant and client do."""
    index: prefixes.Config = prefixes.Config()
    """Counts in [levers.routing] only: there is one index for all routes."""

    def __post_init__(self) -> None:
        if self.max_load < 1.0:
            raise ValueError(f"max_load is {self.max_load}: below 1 not even an even load would do")
        if self.free_load < 1:
            raise ValueError(f"free_load is {self.free_load}: at least 1 call must be free to go anywhere")
        if self.sticky_seconds <= 0:
            raise ValueError(f"sticky_seconds is {self.sticky_seconds}: it must be above 0")


def decide(plan: Plan, view: View, config: Config) -> Plan:
    """Another replica, where the policy has reason to prefer it. A plan without a replica stays as it is."""
    if config.policy == "off" or plan.replica is None or view.outlook is None or not plan.open:
        return plan
    place, reason = _POLICIES[config.policy](plan, view, view.outlook, config)
    return replace(plan, replica=view.replicas[place].replica, trail=(*plan.trail[:-1], reason))


Choice = tuple[int, str]
"""(place in the view's replicas, reason)"""


def _prefix_aware(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    """The replica where the call costs everybody the fewest seconds, among those whose load stays within the bound."""
    states, cached = view.replicas, outlook.cached
    loads, total = _loads(plan, states)
    rare = max(cached) > outlook.shared and outlook.alike * len(plan.open) < total
    bound = _bound(plan, config, loads, total, 2.0 if rare else 1.0)
    places = [at for at in _contenders(outlook, loads, view.draw) if loads[at] <= bound - 1]  # the lightest is
    costs = _costs(outlook, places)
    ranked = sorted(zip(costs, places, strict=True))
    cost, best = ranked.pop(int(view.draw * costs.count(ranked[0][0])))  # equals are chosen among at random
    if best == outlook.home:
        why = "is home to its beginning"
    elif cached[best] > outlook.shared:
        why = "is the best of its cache and its wait"
    else:
        why = "waits least"
    shown = [_candidate(states[at], outlook, at, cost) for cost, at in ((cost, best), *ranked[: _SHOWN - 1])]
    return best, (
        f"routing: {states[best].replica.name} {why}: {'; '.join(shown)}; {len(plan.open)} open, at most {bound:.3g}"
        " in flight each"
    )


def _contenders(outlook: Outlook, loads: Sequence[float], draw: float) -> Sequence[int]:
    """Whose costs are worth comparing. Of many replicas: those that hold more than most do; and of the others, which
    differ in little but their load, who waits least and who has the fewest calls."""
    count = len(loads)
    if count <= _FEW:
        return range(count)
    shared, waits, cached = outlook.shared, outlook.waits, outlook.cached
    places = dict.fromkeys([at for at, held in enumerate(cached) if held > shared])
    least = min(waits)
    idle = waits.index(least)
    if waits.count(least) > 1 or cached[idle] < shared:
        alike = [at for at, wait in enumerate(waits) if wait == least and cached[at] >= shared]
        if not alike:  # the idle ones lack what most hold: they are compared with those who do not
            places[idle] = None
            least = min([wait for wait, held in zip(waits, cached, strict=True) if held >= shared])
            alike = [waits.index(least)]
        idle = alike[int(draw * len(alike))]
    places[idle] = None
    places[loads.index(min(loads))] = None
    if outlook.home >= 0:
        places[outlook.home] = None
    return list(places)


def _costs(outlook: Outlook, places: Sequence[int]) -> list[float]:
    """Seconds that the call costs at each place: it waits, it computes what is not cached; and what it computes
    although another has it takes the place of something else in the cache, and holds up each call there. That cost of a
    copy is shared by all who begin alike now: they can use it as well.
    """
    cached, waits, paces, holdups = outlook.cached, outlook.waits, outlook.paces, outlook.holdups
    most, part, home_ = max(cached), 1 / (1 + outlook.alike), outlook.home
    new = outlook.tokens - most  # nobody has it
    costs = []
    for at in places:
        copied = most - cached[at]
        cost = waits[at] + paces[at] * (new + copied * (1 + part)) + holdups[at] * copied * part
        if at == home_:
            cost -= paces[at] * outlook.chance * (outlook.tokens - outlook.shared)
        costs.append(cost)
    return costs


def _candidate(state: ReplicaState, outlook: Outlook, at: int, cost: float) -> str:
    held = outlook.cached[at]
    return "%s %.3f s (waits %.3f s; has %d of %d tokens, %s: saves %.3f s)" % (  # noqa: UP031  # in half the time
        state.replica.name, cost, outlook.waits[at], held, outlook.tokens, outlook.confidence[at],
        held * outlook.paces[at],
    )  # fmt: skip


def _loads(plan: Plan, states: Sequence[ReplicaState]) -> tuple[list[float], int]:
    """The load of each replica, infinite where it cannot take the call; and all of it together."""
    loads: list[float] = [state.in_flight for state in states]
    if len(plan.open) == len(states):
        return loads, int(sum(loads))
    able = frozenset(plan.open)
    return [load if at in able else inf for at, load in enumerate(loads)], int(sum(loads[at] for at in plan.open))


def _bound(plan: Plan, config: Config, loads: Sequence[float], total: int, times: float = 1.0) -> float:
    """The most that a replica should have. Where none would stay within that, the lightest may go beyond it."""
    bound = times * max(float(config.free_load), config.max_load * (1 + total) / len(plan.open))
    return max(bound, min(loads) + 1)


def _simhash(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    for at in plan.open:
        if outlook.stuck == view.replicas[at].replica.name:
            return at, f"routing: simhash: a prompt much like it went to {outlook.stuck}"
    why = f"{outlook.stuck} cannot take it" if outlook.stuck else "no prompt like it in memory"
    if config.fallback == "least_inflight":
        at, reason = _least_inflight(plan, view, outlook, config)
        return at, f"routing: simhash: {why}; {reason.removeprefix('routing: ')}"
    at = plan.open[int(view.draw * len(plan.open))]
    return at, f"routing: simhash: {why}; {view.replicas[at].replica.name} at random"


def _round_robin(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    at = plan.open[outlook.sequence % len(plan.open)]
    return at, f"routing: round robin: the turn of {view.replicas[at].replica.name}"


def _least_inflight(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    start = int(view.draw * len(plan.open))
    at = min(plan.open[start:] + plan.open[:start], key=lambda place: view.replicas[place].in_flight)
    state = view.replicas[at]
    return at, f"routing: least in flight: {state.replica.name} ({state.in_flight})"


def _session_hash(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    call = plan.call
    session = next((value for name, value in call.tags if name == config.session_tag), "")
    key = xxh3_64_intdigest(f"{call.tenant}\n{session or call.client_id}".encode())
    return _hashed(plan, view, config, key, "session")


def _prefix_hash(plan: Plan, view: View, outlook: Outlook, config: Config) -> Choice:
    if not plan.call.blocks:
        return _least_inflight(plan, view, outlook, config)
    key = int.from_bytes(plan.call.blocks[:8], "little") ^ plan.call.scope
    return _hashed(plan, view, config, key, "beginning")


def _hashed(plan: Plan, view: View, config: Config, key: int, what: str) -> Choice:
    loads, total = _loads(plan, view.replicas)
    bound = _bound(plan, config, loads, total)
    places = [at for at, load in enumerate(loads) if load + 1 <= bound]
    at = places[home(key, [view.replicas[place].replica.name.encode() for place in places])]
    return at, f"routing: {view.replicas[at].replica.name} is home to its {what}; at most {bound:.3g} in flight each"


_POLICIES: dict[str, Callable[[Plan, View, Outlook, Config], Choice]] = {
    "prefix_aware": _prefix_aware,
    "simhash": _simhash,
    "round_robin": _round_robin,
    "least_inflight": _least_inflight,
    "session_hash": _session_hash,
    "prefix_hash": _prefix_hash,
}


def measure(entries: Sequence[Entry], config: Config) -> Effect:
    """Tokens that were not computed again: prompts' that replicas took from their prefix caches, and all those of
    stored answers. As a share of all tokens, of the calls of which this is known."""
    every = cached = stored = calls = silent = 0
    for entry in entries:
        if entry.was_stored and entry.flew is not None:
            calls += 1
            stored += (entry.flew.prompt_tokens or 0) + (entry.flew.output_tokens or 0)
        for attempt in entry.attempts:
            if attempt.prompt_tokens is None:
                continue
            if attempt.cached_tokens is None:
                silent += 1
                continue
            calls += 1
            every += attempt.prompt_tokens + (attempt.output_tokens or 0)
            cached += attempt.cached_tokens
    total = every + stored
    notes = [f"of {silent} answers the engine did not say what was cached: they are left out"] if silent else []
    return Effect(
        lever="routing",
        unit="tokens",
        saved=(cached + stored) / total if total else None,
        harmed=None,
        n=calls,
        parts={"prefix cache": cached / total, "answer cache": stored / total} if total else {},
        notes=(*notes, "caches hit without routing too: what it adds is the difference between slots of time"),
    )
