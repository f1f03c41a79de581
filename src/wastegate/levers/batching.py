"""The batching lever: who may run now, who waits for how long, who is turned away at once, and what a call gets less of
under pressure. Caps follow the load in ``core.admission``; nothing here counts or remembers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.admission import CapConfig
from wastegate.core.call import Call
from wastegate.core.effect import Effect
from wastegate.core.fleet import Rations, View
from wastegate.core.ledger import Entry
from wastegate.core.plan import Plan, Refusal, Wait

_DAY = 86_400.0
_REDUCED = "batching: reduced"
_SHED = "batching: sent away"
_HELD = "waits: batching:"


class Degrade(Struct, frozen=True, forbid_unknown_fields=True):
    """What calls get less of while many wait, or at night. Each is told so in a header, and none without a reason."""

    waiting: int = 0
    """Calls in the line of the model from which on it applies; 0: never for that reason."""
    night: str = ""
    """Hours of the day in which it applies, such as "22:00-06:00"; empty: never for that reason."""
    utc_offset: float = 0.0
    """Hours that the site's clock is ahead of UTC."""
    max_tokens: int = 0
    """No answer may be longer; 0 leaves them as they are."""
    features: bool = False
    """Tell the replica and the client, with ``x-wastegate-reduced: features``, to leave out what is optional."""

    def __post_init__(self) -> None:
        if self.waiting < 0 or self.max_tokens < 0:
            raise ValueError("waiting and max_tokens are counts: 0 for none")
        if self.night:
            hours(self.night)

    def reason(self, now: float, rations: Rations) -> str:
        """Why it applies now; empty where it does not."""
        if self.waiting and rations.waiting >= self.waiting:
            return f"{rations.waiting} wait"
        if self.night:
            begin, end = hours(self.night)
            at = (now + self.utc_offset * 3600) % _DAY
            if (begin <= at < end) if begin <= end else (at >= begin or at < end):
                return f"it is night ({self.night})"
        return ""


def hours(night: str) -> tuple[float, float]:
    """ "22:00-06:00" as seconds after midnight. Raises ValueError."""
    found = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)", night)
    if found is None:
        raise ValueError(f'night is {night!r}: write hours of the day, such as "22:00-06:00"')
    first, first_minutes, last, last_minutes = (int(part) for part in found.groups())
    return first * 3600.0 + first_minutes * 60, last * 3600.0 + last_minutes * 60


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """``[levers.batching]``. Off as it stands. ``caps`` and ``start`` are about replicas, so that only those of
    ``[levers.batching]`` itself count; the rest a route may have for itself."""

    on: bool = False
    start: int = 8
    """The cap that a replica begins with; its own ``cap``, where it has one, is the most that it ever gets."""
    caps: CapConfig = CapConfig()
    """How each replica's cap follows the load. ``policy = "fixed"`` leaves caps alone."""
    calls: int = 0
    """Calls of this route that may run at once, on all replicas together; 0: as many as there is room for."""
    priority: int = 0
    """Of this route's calls, whatever they ask for; lower goes first. 0: what they ask for."""
    max_wait: float = 0.0
    """Seconds in which a call must get its slot. One that cannot, by the pace of the line, is told so at once. 0: it
    waits as long as its timers allow."""
    degrade: Degrade = Degrade()

    def __post_init__(self) -> None:
        if self.start < 1 or self.calls < 0 or self.max_wait < 0:
            raise ValueError("start is at least 1; calls and max_wait are not below 0")


def decide(plan: Plan, view: View, config: Config) -> Plan:
    """Hold the route to its share, the line to its time, and the answer to what there is room for."""
    rations = view.rations
    if not config.on or plan.refusal is not None or plan.joins or rations is None:
        return plan
    if config.priority and plan.call.priority != config.priority:
        plan = replace(plan, call=replace(plan.call, priority=config.priority))
    if plan.replica is not None and config.calls and rations.running >= config.calls:
        why = f"batching: {rations.running} of the {config.calls} calls that the route may have run"
        plan = replace(plan, replica=None, wait=Wait(plan.call.arrived + plan.timers.total, why))
    if plan.wait is not None:
        return _bounded(plan, plan.wait, view.now, rations, config)
    return _reduced(plan, view.now, rations, config.degrade)


def _bounded(plan: Plan, wait: Wait, now: float, rations: Rations, config: Config) -> Plan:
    """The wait ends with the route's patience. Where that cannot be kept, the call need not wait at all."""
    if not config.max_wait:
        return plan
    until = min(wait.until, plan.call.arrived + config.max_wait)
    late = now + (rations.turn or 0.0) - until
    if late <= 0:
        return replace(plan, wait=replace(wait, until=until))
    turn = f"{rations.turn:.1f} s" if rations.turn is not None else "longer"
    message = f"a call has {config.max_wait:g} s to get its slot here, and its turn would come in {turn}; try again"
    refusal = Refusal(503, message, "no_time", max(1.0, late))
    return replace(plan, wait=None, refusal=refusal).because(f"{_SHED}, since {rations.waiting} wait: {message}")


def _reduced(plan: Plan, now: float, rations: Rations, degrade: Degrade) -> Plan:
    if plan.replica is not None and plan.replica.cap is not None:
        plan = plan.because(f"batching: {plan.replica.name} may run {plan.replica.cap} at once; {rations.waiting} wait")
    why = degrade.reason(now, rations)
    if not why:
        return plan
    most = _most_tokens(plan.call, plan.most_tokens, degrade.max_tokens)
    said = [f"max_tokens={most}"] if most is not None else []
    said += ["features"] if degrade.features else []
    if not said:
        return plan
    most = most if most is not None else plan.most_tokens
    reduced = ", ".join(said)
    return replace(plan, most_tokens=most, reduced=reduced).because(f"{_REDUCED} ({reduced}): {why}")


def _most_tokens(call: Call, bound: int | None, most: int) -> int | None:
    """``most``, where it is less than what the answer may have by now."""
    asked = bound if bound is not None else call.max_tokens
    if not most or not call.path.endswith("/completions") or (asked is not None and asked <= most):
        return None
    return most


def measure(entries: Sequence[Entry], config: Config) -> Effect:
    """Which share of the calls' time was spent in line, and which calls were sent away or got less. ``config`` has no
    say in what was.

    What other caps would have cost cannot be read from these calls: caps treat all calls at once, so that only turns
    of time, or replicas, with and without them tell. ``saved`` is therefore not known here.
    """
    shed = sum(_has(entry, _SHED) for entry in entries)
    less = sum(_has(entry, _REDUCED) for entry in entries)
    waits = sorted(entry.attempts[0].claimed - entry.arrived for entry in entries if entry.attempts)
    notes = [f"{sum(_has(entry, _HELD) for entry in entries)} calls waited for their route's share"]
    if waits:
        middle, late = waits[len(waits) // 2], waits[min(len(waits) - 1, len(waits) * 95 // 100)]
        notes.append(f"a slot came after {middle:.3f} s at the median and {late:.3f} s at P95")
    notes.append(f"{shed} calls were sent away at once, {less} got less than they asked for")
    harmed = (shed + less) / len(entries) if entries else None
    return Effect(lever="batching", unit="dollars", saved=None, harmed=harmed, n=len(entries), notes=tuple(notes))


def _has(entry: Entry, reason: str) -> bool:
    return any(line.startswith(reason) for line in entry.trail)
